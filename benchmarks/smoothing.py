"""Speed of the smoothers, as ratios and growth measured in one run.

    python -m benchmarks.smoothing ratio      # one cross-validated fit against the same selection with ruptures
    python -m benchmarks.smoothing protocol   # the published protocol: fits, curves, bands, figures
    python -m benchmarks.smoothing growth     # positions, draws, categories

``ratio`` and ``protocol`` read the released rollouts named by FPA_SHARED (default ``../shared``). The other side of
``ratio`` is ``ruptures.Pelt(custom_cost=..., jump=1)`` with the cost in Python over prefix sums, and numpy pooling: the
same selection, from the same definitions. Seconds are of CPU time in this process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ruptures
from numpy.typing import NDArray
from ruptures.base import BaseCost

from experiments.datasets import shared_folder
from fpa.published import import_published
from fpa.run import open_run
from smoothing import Observations, fit
from smoothing.metrics import coverage, heldout_loglik, merge_rare, total_variation
from smoothing.models import BANDWIDTH_GRID, COST_GRID, PENALTY_GRID

Counts = NDArray[np.int64]
SIZES = (5, 10, 15, 20, 30, 50, 75, 100)
STRIDES = {"llama": (1, 4, 8, 16), "deepseek": (1, 2, 4, 8)}


class PythonCost(BaseCost):  # type: ignore[misc]
    """The two published costs in plain numpy over prefix sums, as one writes them for ruptures."""

    model = "python"

    def __init__(self, name: str, positions: NDArray[np.float64]) -> None:
        self.name, self.positions = name, positions
        self.min_size = 2 if name == "multinomial" else 3

    def fit(self, signal: Counts) -> PythonCost:
        self.signal = signal
        if self.name == "multinomial":
            sums = signal
        else:
            n, x = signal.sum(axis=1, keepdims=True), self.positions[:, None]
            p = (signal + 0.5) / (n + 1)
            w, y = np.maximum(n * p * (1 - p), 1e-9), np.log(p / (1 - p))
            sums = np.stack([w, w * x, w * x**2, w * y, w * x * y, w * y**2], axis=1)
        self.sums = np.concatenate([np.zeros_like(sums[:1]), sums.cumsum(axis=0)])
        return self

    def error(self, start: int, end: int) -> float:
        part = self.sums[end] - self.sums[start]
        if self.name == "multinomial":
            part = part[part > 0]
            return float(-(part * np.log(part / part.sum())).sum())
        w, x, xx, y, xy, yy = part
        determinant = w * xx - x * x
        singular = determinant <= 1e-12
        slope = np.where(singular, 0.0, (w * xy - x * y) / np.where(singular, 1.0, determinant))
        return float(np.maximum(yy - (y - slope * x) / w * y - slope * xy, 0.0).sum())


def with_ruptures(
    positions: NDArray[np.float64], draws: Counts, categories: int, penalties: Sequence[float]
) -> tuple[str, float, float]:
    """The Full Model's selection over both costs, some penalties and all bandwidths."""
    size, prior = draws.shape[1], 1.0 / categories
    edges = np.linspace(0, size, min(5, size) + 1).astype(int)
    one_hot = draws[:, :, None] == np.arange(categories)
    kernels = [np.exp(-0.5 * ((positions[:, None] - positions[None, :]) / h) ** 2) for h in BANDWIDTH_GRID]
    candidates = [(c, b, h) for c in COST_GRID for b in penalties for h in range(len(kernels))]
    scores = np.zeros(len(candidates))
    for low, high in pairwise(edges):
        held = one_hot[:, low:high].sum(axis=1)
        train = one_hot.sum(axis=1) - held
        ends = {
            (c, b): ruptures.Pelt(custom_cost=PythonCost(c, positions), jump=1).fit(train).predict(pen=b)
            for c in COST_GRID
            for b in penalties
        }
        for i, (c, b, h) in enumerate(candidates):
            label = np.searchsorted(ends[c, b], np.arange(len(train)), side="right")
            alpha = prior + (kernels[h] * (label[:, None] == label[None, :])) @ train
            p = np.maximum(alpha / alpha.sum(axis=1, keepdims=True), 1e-9)
            scores[i] += (held * np.log(p / p.sum(axis=1, keepdims=True))).sum()
    cost, penalty, width = candidates[int(np.argmax(scores))]
    return cost, penalty, BANDWIDTH_GRID[width]


def _seconds(action: Callable[[], Any]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


Question = tuple[NDArray[np.int64], Counts, int]


def released(track: str, folder: Path) -> Iterator[Question]:
    """Positions, (n, 200) mixture draws and the number of categories of every question of rows 0-49."""
    run = open_run(folder / f"s200-{track}")
    for question in run.collected_ids:
        if int(question.removeprefix("row")) >= 50:
            continue
        _, curve, names = run.curve(question)
        kept, column = merge_rare(np.round(curve, 6))
        draws = run.draws(question).merged(column, tuple(names[k] for k in kept))
        yield draws.positions, draws.outcomes, len(kept)


def _observations(positions: Counts, draws: Counts, categories: int, grid: Counts) -> Observations:
    return Observations.from_draws(positions, draws, [str(k) for k in range(categories)], grid)


def ratio(folder: Path, repeats: int) -> None:
    """One fit at T = 86, 172 and 344, S = 30, on the longest question."""
    positions, draws, categories = max(released("llama", folder), key=lambda question: len(question[0]))
    print("| T | candidates, ruptures | ruptures, s for 168 | ours, ms | ratio | same choice |")
    print("|---|---|---|---|---|---|")
    for length in (86, 172, 344):
        places, sample = positions[:length], draws[:length, :30]
        # Past 100 positions a quarter of the penalties, spread over the grid, stand for all: every one costs its own
        # searches and its own pools, on both costs.
        penalties = PENALTY_GRID if length < 100 else PENALTY_GRID[1::4]
        other: list[Any] = []
        slow = _seconds(
            lambda s=sample, x=places, b=penalties, out=other: out.append(
                with_ruptures(x.astype(float), s, categories, b)
            )
        ) * (len(PENALTY_GRID) / len(penalties))
        chosen = fit(_observations(places, sample, categories, places), "full").hyperparameters
        # A fresh object every time: folds and searches are kept with the observations.
        fresh = [_observations(places, sample, categories, places) for _ in range(repeats)]
        fast = statistics.median(_seconds(lambda o=observed: fit(o, "full")) for observed in fresh)
        same = "–"
        if len(penalties) == len(PENALTY_GRID):
            same = "yes" if tuple(chosen.values()) == other[0] else "no"
        tried = len(penalties) * len(COST_GRID) * len(BANDWIDTH_GRID)
        print(f"| {length} | {tried} | {slow:.2f} | {fast * 1e3:.1f} | {slow / fast:.0f} | {same} |")


def protocol(folder: Path) -> None:
    """Rows 0-49, both tracks, 8 numbers of draws, 4 strides, up to 4 replicates: raw, segment and full."""
    spent = dict.fromkeys(("observations", "fit", "curve", "band", "figures"), 0.0)
    fits = 0
    for track, strides in STRIDES.items():
        for positions, draws, categories in released(track, folder):
            total = np.stack([(draws == k).sum(axis=1) for k in range(categories)], axis=1)
            for size in SIZES:
                for replicate in range(min(4, 200 // size)):
                    own = draws[:, replicate * size : (replicate + 1) * size]
                    rest = total - np.stack([(own == k).sum(axis=1) for k in range(categories)], axis=1)
                    reference = rest / rest.sum(axis=1, keepdims=True)
                    for every in strides:
                        marks = [time.process_time()]
                        observed = _observations(positions[::every], own[::every], categories, positions)
                        marks.append(time.process_time())
                        spent["observations"] += marks[1] - marks[0]
                        for method in ("raw", "segment", "full"):
                            marks = [time.process_time()]
                            fitted = fit(observed, method)
                            marks.append(time.process_time())
                            curve = fitted.predict(positions)
                            marks.append(time.process_time())
                            lower, upper = fitted.band(positions, 0.9)
                            marks.append(time.process_time())
                            total_variation(curve, reference).mean()
                            heldout_loglik(curve, rest)
                            coverage(lower, upper, reference)
                            marks.append(time.process_time())
                            for name, i in (("fit", 0), ("curve", 1), ("band", 2), ("figures", 3)):
                                spent[name] += marks[i + 1] - marks[i]
                            fits += 1
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())
    print(f"{fits} fits: {sum(spent.values()):.1f} s of CPU time ({parts})")


def growth() -> None:
    """One cross-validated fit of made-up questions, each in the same process, smaller ones first."""
    print("| T | S | K | changes every | CPU s | peak memory, MB |")
    print("|---|---|---|---|---|---|")
    cases = [(length, 30, 5, 100) for length in (100, 1000, 5000, 20000)]
    cases += [(20000, 30, 5, 2000), (5000, 30, 5, 5000)]
    cases += [(500, size, 5, 50) for size in (5, 100, 1000)] + [(500, 30, k, 50) for k in (2, 20, 50)]
    for length, size, categories, every in cases:
        rng = np.random.default_rng(length + size + categories)
        levels = rng.dirichlet(np.full(categories, 0.5), size=-(-length // every))
        draws = np.stack([rng.choice(categories, size, p=levels[t // every]) for t in range(length)])
        observed = _observations(np.arange(length), draws, categories, np.arange(length))
        if (length, size) == (100, 30):
            fit(_observations(np.arange(9), draws[:9], categories, np.arange(9)), "full")
        taken = _seconds(lambda o=observed: fit(o, "full"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {length} | {size} | {categories} | {every} | {taken:.2f} | {peak:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("ratio", "protocol", "growth"))
    parser.add_argument("--repeats", type=int, default=7, help="fits to take the median of (ratio)")
    chosen = parser.parse_args()
    if chosen.part == "growth":
        growth()
        return
    with tempfile.TemporaryDirectory() as folder:
        import_published(shared_folder() / "data" / "forking-fast" / "s200", folder)
        if chosen.part == "ratio":
            ratio(Path(folder), chosen.repeats)
        else:
            protocol(Path(folder))


if __name__ == "__main__":
    main()
