"""How far the estimators beyond the published model reach, on the released rollouts.

    python -m experiments.reach grid --out results      # accuracy, coverage and forks on grid data
    python -m experiments.reach budget --out results    # stratified and adaptive at equal budgets
    python -m experiments.reach report --out results    # tables, with standard errors over questions

One random half of each branch's draws is sampled from, the other half is the reference; rows 0-49, four
splits. Results are kept per question, so that a run can be interrupted and resumed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from experiments.figures import STYLES, legend, line, log_ticks, panels, save
from experiments.replay import FloatArray, IntArray, Replay, Stored, released, remaining_cost
from smoothing import Observations
from smoothing.allocation import Design, next_draws, stratified_shares, whole_numbers
from smoothing.auto import fit_auto
from smoothing.bayes import fit_bayes
from smoothing.martingale import fit_martingale
from smoothing.metrics import ErrorShare, average_precision, effective_samples, jump_region, jumps
from smoothing.models import fit

SAMPLES = (5, 10, 30, 50, 100)
STRIDES = {"llama": (1, 4, 8, 16), "deepseek": (1, 2, 4, 8)}
LEVELS = (0.5, 0.9, 0.95)
JUMPS = (0.10, 0.15, 0.20)
COMPARED = ("raw", "full", "auto")
"""Models fitted on every split; the others, and all bands, on the first."""
BAND_EVERY = 4
"""Bands are judged at every fourth token."""
BUDGETS = ((0.33, 5, 16), (0.65, 10, 16), (1.3, 5, 4), (2.0, 30, 16), (2.5, 10, 4), (7.5, 30, 4))
"""Draws per position, and the grid (S, N) of the same budget that the Full Model gets."""
PILOT = 0.3
ROUNDS = 4
FORK = 0.15

Fitter = Callable[[Observations], Any]
MODELS: dict[str, Fitter] = {
    "raw": lambda o: fit(o, "raw"),
    "full": lambda o: fit(o, "full"),
    "auto": fit_auto,
    "auto, end unknown": lambda o: fit_auto(_without(o, base_outcome=None)),
    "auto, p unknown": lambda o: fit_auto(_without(o, step_p=None)),
    "martingale": fit_martingale,
    "bayes": fit_bayes,
}


def _without(o: Observations, **changed: Any) -> Observations:
    fields = {"step_p": o.step_p, "base_outcome": o.base_outcome} | changed
    return Observations(
        o.positions, o.counts, o.categories, o.grid, o.draws, fields["step_p"], None, fields["base_outcome"]
    )


def grid_question(stored: Stored, track: str, splits: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every cell of one question: a row per cell, split and model; and fork scores at N = 1."""
    rows, forks = [], []
    regions = {
        theta: jump_region(
            stored.positions, jumps(stored.curve, theta), neighbours=0 if stored.every_token else 1
        )
        for theta in JUMPS
    }
    models = dict(MODELS)
    if not stored.every_token:
        del models["auto, p unknown"]
    if stored.base_outcome is None:
        del models["auto, end unknown"]
    for split in range(splits):
        replay = Replay(stored, split)
        for samples in SAMPLES:
            for every in STRIDES[track]:
                observations, tokens = replay.grid(samples, every)
                fits = {
                    name: fitter(observations)
                    for name, fitter in models.items()
                    if split == 0 or name in COMPARED
                }
                if split == 0:
                    fits.setdefault("auto, end unknown", fits["auto"])
                for name, fitted in fits.items():
                    curve = fitted.predict(stored.positions)
                    share = replay.error(curve)
                    tv = np.abs(curve - replay.reference).sum(axis=1) / 2
                    row: dict[str, Any] = {
                        "track": track, "row": stored.row, "split": split, "samples": samples, "every": every,
                        "model": name, "spread": share.spread, "error": share.error, "tv": tv.mean(),
                        "tokens": tokens,
                    }  # fmt: skip
                    for theta, near in regions.items():
                        row[f"tv_jump_{theta:.2f}"] = tv[near].mean() if near.any() else np.nan
                    if split == 0 and name in ("auto", "full", "martingale", "bayes"):
                        some = np.arange(
                            samples % BAND_EVERY, len(curve), BAND_EVERY if stored.every_token else 1
                        )
                        for level in LEVELS:
                            low, high = fitted.band(stored.positions[some], level)
                            row[f"in_{level}"], row["judged"] = _covered(
                                replay, curve, low, high, level, some
                            )
                    rows.append(row)
                if every == 1:
                    forks.append(_fork_scores(replay, observations, fits, samples))
    return pd.DataFrame(rows), pd.concat(forks)


def _covered(
    replay: Replay, curve: FloatArray, low: FloatArray, high: FloatArray, level: float, some: IntArray
) -> tuple[int, int]:
    """Category-positions with the reference in the band widened by its own noise; and all judged."""
    r, curve, variance = replay.reference[some], curve[some], replay.reference_variance[some]
    # The branch-weighted reference's variance, shared out over the categories like the prediction's own.
    spread = curve * (1 - curve)
    noise = variance[:, None] * spread / np.maximum(spread.sum(axis=1, keepdims=True), 1e-9)
    wide = ndtri((1 + level) / 2) ** 2 * noise
    inside = (r >= curve - np.sqrt((curve - low) ** 2 + wide)) & (
        r <= curve + np.sqrt((high - curve) ** 2 + wide)
    )
    judged = (r >= 0.02) & (r <= 0.98)
    return int((inside & judged).sum()), int(judged.sum())


def _fork_scores(
    replay: Replay, observations: Observations, fits: dict[str, Any], samples: int
) -> pd.DataFrame:
    """Scores for a change into each position, and whether the reference half changes by over ``FORK``."""
    full, raw = fits["full"].predict(observations.grid), fits["raw"].predict(observations.grid)
    moved = np.abs(np.diff(full, axis=0)).sum(axis=1) / 2
    cuts = np.zeros(len(full))
    ends = [e for e in fits["full"].breakpoints if e < len(full)]
    cuts[ends] = 1 + moved[np.array(ends, dtype=int) - 1]
    truth = np.zeros(len(full), dtype=bool)
    truth[jumps(replay.reference, FORK)] = True
    table = {
        "row": replay.stored.row,
        "split": replay.split,
        "samples": samples,
        "truth": truth,
        "truth by branch": np.append(False, replay.reference_change[:-1] > FORK),
        "auto": fits["auto"].change_probability(FORK),
        "full cuts": cuts,
        "full |change|": np.append(0.0, moved),
        "raw |change|": np.append(0.0, np.abs(np.diff(raw, axis=0)).sum(axis=1) / 2),
        "entropy": np.append(0.0, replay.stored.entropy[:-1]),
    }
    return pd.DataFrame(table).iloc[1:]


def stratify(replays: list[Replay], budget: float) -> None:
    """Take ``budget`` divergence draws per position, by the formula at equal cost per draw."""
    for replay in replays:
        shares = stratified_shares(replay.stored.step_p)
        offset = float(np.random.default_rng([replay.split, replay.stored.row, 1]).random())
        for at, count in enumerate(whole_numbers(budget * len(shares) * shares, offset)):
            replay.diverge(at, int(count))


def adapt(replays: list[Replay], tokens: float) -> None:
    """Spend ``tokens`` over all questions: a pilot by the formula, then rounds where the posterior says."""
    lengths = np.array([len(replay.stored.positions) for replay in replays])
    costs = [remaining_cost(length) for length in lengths]
    prices = [float(stratified_shares(r.stored.step_p, c) @ c) for r, c in zip(replays, costs, strict=True)]
    per_position = PILOT * tokens / float(lengths @ prices)
    for replay, cost, length in zip(replays, costs, lengths, strict=True):
        offset = float(np.random.default_rng([replay.split, replay.stored.row, 2]).random())
        expected = per_position * length * stratified_shares(replay.stored.step_p, cost)
        for at, count in enumerate(whole_numbers(expected, offset)):
            replay.diverge(at, int(count))
    for left in range(ROUNDS, 0, -1):
        # Continuations may be longer than what is left of the base path: prices follow what was seen so far.
        dearer = sum(r.spent for r in replays) / sum(r.taken @ c for r, c in zip(replays, costs, strict=True))
        goal = (tokens - sum(replay.spent for replay in replays)) / left / dearer
        designs = [
            Design.of(
                fit_auto(r.stratified(), {"multiplier": 1.0}), r.stored.step_p, r.taken, c,
                r.stored.base_outcome is not None, r.can_leave,
            )
            for r, c in zip(replays, costs, strict=True)
        ]  # fmt: skip
        room = [r.room()[d.positions] for r, d in zip(replays, designs, strict=True)]
        for replay, design, counts in zip(replays, designs, next_draws(designs, goal, room), strict=True):
            for at, count in zip(design.positions, counts, strict=True):
                replay.diverge(int(at), int(count))


def budget_split(stored: list[Stored], split: int, budget: tuple[float, int, int]) -> pd.DataFrame:
    """One budget and split, all questions: grid with raw, Full Model and auto; stratified; adaptive."""
    share, samples, every = budget
    rows: list[dict[str, Any]] = []

    def note(
        replay: Replay, method: str, curve: FloatArray, tokens: int, draws: int, by_identity: bool = False
    ) -> None:
        error = replay.error(curve, by_identity)
        rows.append(
            {
                "budget": share, "row": replay.stored.row, "split": split, "method": method,
                "spread": error.spread, "error": error.error, "tokens": tokens, "draws": draws,
                "positions": len(replay.stored.positions),
            }
        )  # fmt: skip

    replays = [Replay(s, split) for s in stored]
    total = draws = 0
    for replay in replays:
        observations, tokens = replay.grid(samples, every)
        total += tokens
        draws += int(observations.counts.sum())
        for name in ("raw", "full", "auto"):
            curve = MODELS[name](observations).predict(replay.stored.positions)
            note(replay, f"grid, {name}", curve, tokens, int(observations.counts.sum()))
    exact = draws / sum(len(s.positions) for s in stored)
    stratify(replays, exact)
    for replay in replays:
        o = replay.stratified()
        curve = fit_auto(o).mean
        note(replay, "stratified, auto", curve, replay.spent, int(replay.taken.sum()))
        note(replay, "stratified, auto*", curve, replay.spent, int(replay.taken.sum()), by_identity=True)
        note(replay, "stratified, martingale", fit_martingale(o).mean, replay.spent, int(replay.taken.sum()))
    replays = [Replay(s, split) for s in stored]
    adapt(replays, total)
    for replay in replays:
        curve = fit_auto(replay.stratified()).mean
        note(replay, "adaptive, auto", curve, replay.spent, int(replay.taken.sum()))
        note(replay, "adaptive, auto*", curve, replay.spent, int(replay.taken.sum()), by_identity=True)
    return pd.DataFrame(rows)


def run_grid(out: Path, tracks: list[str], rows: range, splits: int) -> None:
    """Compute what is missing of the grid experiment, a file per question."""
    for track in tracks:
        for stored in released(track, rows):
            target = out / f"grid-{track}-{stored.row:03d}.parquet"
            if not target.exists():
                table, forks = grid_question(stored, track, splits)
                forks.to_parquet(out / f"forks-{track}-{stored.row:03d}.parquet")
                table.to_parquet(target)
                print(f"{track} row {stored.row}: done", flush=True)


def run_budget(out: Path, rows: range, splits: int) -> None:
    """Compute what is missing of the budget experiment, a file per split and budget."""
    stored = list(released("llama", rows))
    for split in range(splits):
        for budget in BUDGETS:
            target = out / f"budget-{budget[0]:.2f}-{split}.parquet"
            if not target.exists():
                budget_split(stored, split, budget).to_parquet(target)
                print(f"budget {budget[0]}, split {split}: done", flush=True)


def s_eff(table: pd.DataFrame) -> tuple[float, float]:
    """S_eff and its standard error over questions, splits averaged within each."""
    mean = table.groupby("row")[["spread", "error"]].mean()
    return effective_samples([ErrorShare(a, b) for a, b in zip(mean["spread"], mean["error"], strict=True)])


def log_ratio(tables: list[tuple[pd.DataFrame, pd.DataFrame]]) -> tuple[float, float]:
    """Geometric mean over cells of the ratio of S_eff; standard error by jackknife over questions."""
    sums = []
    for above, below in tables:
        a, b = (t.groupby("row")[["spread", "error"]].mean() for t in (above, below))
        sums.append(np.stack([a["error"].to_numpy(), b["error"].to_numpy()]))
    errors = np.stack(sums)  # (cells, 2, questions); the spread is the same for both and cancels
    n = errors.shape[2]

    def value(keep: np.ndarray) -> float:
        total = errors[:, :, keep].sum(axis=2)
        if (total <= 0).any():  # too few questions to tell an error from the reference's noise
            return float("nan")
        return float(np.exp(np.mean(np.log(total[:, 1] / total[:, 0]))))

    everything = np.arange(n)
    without = np.array([value(everything != i) for i in range(n)])
    return value(everything >= 0), float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))


def report(out: Path) -> str:
    """All tables as Markdown."""
    lines: list[str] = []
    for track in ("llama", "deepseek"):
        files = sorted(out.glob(f"grid-{track}-*.parquet"))
        if files:
            lines += _grid_report(pd.concat([pd.read_parquet(f) for f in files]), track)
    for track in ("llama", "deepseek"):
        files = sorted(out.glob(f"forks-{track}-*.parquet"))
        if files:
            forks = pd.concat([pd.read_parquet(f) for f in files])
            for truth in ("truth", "truth by branch") if track == "llama" else ("truth",):
                lines += _fork_report(forks, track, truth)
    files = sorted(out.glob("budget-*.parquet"))
    if files:
        lines += _budget_report(pd.concat([pd.read_parquet(f) for f in files]))
    return "\n".join(lines)


def _grid_report(table: pd.DataFrame, track: str) -> list[str]:
    names = [m for m in MODELS if m in set(table["model"])]
    n, splits = table["row"].nunique(), table["split"].nunique()
    lines = [f"### Grid data, {track} ({n} questions, {splits} splits)", ""]
    lines += [
        f"| S | N | {' | '.join(names)} | auto / full | TV auto / raw | near jumps (0.10, 0.15, 0.20) "
        "| 50 % | 90 % | 95 % |"
    ]
    lines += ["|" + "---|" * (len(names) + 8)]
    pairs = []
    for (samples, every), cell in table.groupby(["samples", "every"]):
        by = dict(iter(cell.groupby("model")))
        values = " | ".join("{:.1f} ± {:.1f}".format(*s_eff(by[name])) for name in names)
        pairs.append((by["auto"], by["full"]))
        ratio = "{:.2f} ± {:.2f}".format(*log_ratio(pairs[-1:]))
        auto, raw = (by[name].groupby("row").mean(numeric_only=True) for name in ("auto", "raw"))
        tv = auto["tv"].mean() / raw["tv"].mean()
        near = ", ".join(f"{auto[c].mean() / raw[c].mean():.2f}" for c in (f"tv_jump_{t:.2f}" for t in JUMPS))
        covered = " | ".join(
            f"{by['auto'][f'in_{level}'].sum() / by['auto']['judged'].sum():.3f}" for level in LEVELS
        )
        lines.append(f"| {samples} | {every} | {values} | {ratio} | {tv:.3f} | {near} | {covered} |")
    for other in names:
        if other != "auto":
            part = table if other in COMPARED else table[table["split"] == 0]
            groups = [cell for _, cell in part.groupby(["samples", "every"])]
            cells = [(c[c["model"] == "auto"], c[c["model"] == other]) for c in groups]
            lines += ["", "Geometric mean, auto over {}: {:.2f} ± {:.2f}".format(other, *log_ratio(cells))]
    lines.append("")
    for model, part in table[table["judged"].notna()].groupby("model"):
        shares = ", ".join(f"{part[f'in_{level}'].sum() / part['judged'].sum():.3f}" for level in LEVELS)
        lines += [f"Predictive coverage of the 50, 90 and 95 % bands, all cells, {model}: {shares}"]
    return [*lines, ""]


def _fork_report(table: pd.DataFrame, track: str, truth: str) -> list[str]:
    names = [c for c in table.columns if c not in ("row", "split", "samples", "truth", "truth by branch")]
    how = "between neighbouring positions" if truth == "truth" else "between a position and its base branch"
    lines = [f"### Forks, {track}: average precision at {FORK} {how}, every position sampled", ""]
    lines += [f"| S | forks | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    for samples, cell in table.groupby("samples"):
        values = []
        questions = [part for _, part in cell.groupby("row")]
        for name in names:
            whole = average_precision(cell[name], cell[truth])
            keep = [pd.concat([q for j, q in enumerate(questions) if j != i]) for i in range(len(questions))]
            without = np.array([average_precision(k[name], k[truth]) for k in keep])
            m = len(without)
            values.append(
                f"{whole:.3f} ± {np.sqrt((m - 1) / m * ((without - without.mean()) ** 2).sum()):.3f}"
            )
        lines.append(
            f"| {samples} | {int(cell[truth].sum() / cell['split'].nunique())} | {' | '.join(values)} |"
        )
    return [*lines, ""]


def _budget_report(table: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(table["method"]))
    lines = [
        f"### Equal budgets, llama ({table['row'].nunique()} questions, {table['split'].nunique()} splits)",
        "",
    ]
    lines += [f"| draws per position | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    ratios: dict[str, list[tuple[pd.DataFrame, pd.DataFrame]]] = {name: [] for name in names}
    for budget, cell in table.groupby("budget"):
        by = dict(iter(cell.groupby("method")))
        values = []
        for name in names:
            tokens = by[name].groupby("split")["tokens"].sum().mean() / 1000
            values.append("{:.1f} ± {:.1f} ({:.0f}k)".format(*s_eff(by[name]), tokens))
            ratios[name].append((by[name], by["grid, full"]))
        lines.append(f"| {budget} | {' | '.join(values)} |")
    lines.append("")
    for name in names:
        lines.append(
            "Geometric mean over grid, full: {}: {:.2f} ± {:.2f}".format(name, *log_ratio(ratios[name]))
        )
    return [*lines, ""]


def budget_figure(table: pd.DataFrame, stem: Path) -> None:
    """Accuracy against tokens: S_eff of the methods at equal budgets, with standard errors over questions."""
    shown = {
        "grid, raw": ("raw frequencies, published grid", STYLES["raw"]),
        "grid, full": ("published Full Model, same draws", STYLES["full"]),
        "grid, auto": ("auto, same draws", STYLES["bayes"]),
        "stratified, auto": ("auto, stratified draws", STYLES["kernel"]),
        "adaptive, auto": ("auto, adaptive draws", STYLES["auto"]),
    }
    figure, axes = panels(1, height=3.6)
    figure.set_size_inches(6.4, 4.2)
    ax = axes.flat[0]
    for method, (label, style) in shown.items():
        rows = []
        for _, cell in table[table["method"] == method].groupby("budget"):
            tokens = cell.groupby("split")["tokens"].sum().mean() / cell["row"].nunique() / 1000
            rows.append((tokens, *s_eff(cell)))
        tokens, value, error = np.array(sorted(rows)).T
        line(
            ax, method, tokens, value, value - error, value + error, label, style,
            dashes=" " if method == "grid, raw" else "-", band=method != "grid, raw",
        )  # fmt: skip
    log_ticks(ax, "x", (10, 20, 50, 100, 200))
    log_ticks(ax, "y", (5, 10, 20, 50, 100, 200, 300))
    ax.set_xlabel("generated tokens per question (thousands)")
    ax.set_ylabel("accuracy: $S_{eff}$, independent draws per position")
    legend(figure, columns=3)
    save(figure, stem)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("grid", "budget", "report"))
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for results, one file per piece of work"
    )
    parser.add_argument("--tracks", nargs="+", default=["llama", "deepseek"], choices=("llama", "deepseek"))
    parser.add_argument("--rows", type=int, default=50, help="use rows 0 to this, exclusive")
    parser.add_argument("--splits", type=int, default=4)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part == "grid":
        run_grid(given.out, given.tracks, range(given.rows), given.splits)
    elif given.part == "budget":
        run_budget(given.out, range(given.rows), given.splits)
    else:
        print(report(given.out))
        budgets = sorted(given.out.glob("budget-*.parquet"))
        if budgets:
            budget_figure(
                pd.concat([pd.read_parquet(f) for f in budgets]), given.out / "accuracy-against-tokens"
            )


if __name__ == "__main__":
    main()
