"""How the error of an outcome curve falls with the number of draws: as 1/√S, as a multinomial's must.

Counts at a position are multinomial, so the raw curve's total variation from the truth falls with slope −1/2 on
logarithmic scales. Two measures: against a half of the draws that the fit did not see, whose own noise is in it; and by
halves, free of that: two disjoint sets of S/2 draws have half their distance in place of the error of their mean.
The root of the mean squared error falls with −1/2 exactly. Total variation does so only where every outcome is seen
often; where one is rare (p·S below 1) its mean absolute error hardly depends on S, so that over whole curves its
slope is that of simulated multinomial draws, somewhat shallower.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from experiments import figures
from experiments.cells import FITTERS, METHODS, prepared
from experiments.datasets import Dataset
from experiments.pieces import compute
from experiments.resampling import FEW, limits, mean_limits, multiplicities
from experiments.result import Context, Result, number, with_limits
from smoothing.metrics import total_variation

FloatArray = NDArray[np.float64]
SIZES = (4, 10, 20, 50, 100, 200, 500, 1000)
FITTED = (5, 10, 20, 50, 100, 200, 500)
SIMULATIONS = 20
SEED = 5
EXPECTED_SLOPE = -0.5
FEW_WITHIN = 0.05
"""With too few questions for an interval, the slope must be as near as this."""


def noise_sizes(path: Path, question_id: str, sizes: Sequence[int], fitted: Sequence[int]) -> pd.DataFrame:
    """Errors of one question's curves at every sampled position, by number of draws.

    Returns:
        Columns ``samples``, ``measure``, ``value``, ``expected``: mean total variation over positions, and what draws
        from multinomials at the overall frequencies give (mean of ``SIMULATIONS``). Measures: ``halves`` for the
        raw curve, ``squared`` the mean of its squared error (summed over categories) by halves, and each model's
        name, against the last half of the draws.
    """
    draws, positions, _ = prepared(path, question_id)
    whole = draws.counts().astype(float)
    truth = whole / whole.sum(axis=1, keepdims=True)
    truth /= truth.sum(axis=1, keepdims=True)
    rng = np.random.default_rng([SEED, len(positions), draws.available])
    rows: list[tuple[int, str, float, float]] = []
    for size in sizes:
        pairs = draws.available // size
        half = size // 2
        if not pairs:
            continue
        found = [
            by_halves(*(draws.select(half, 1, 2 * pair + i).counts() / half for i in (0, 1)))
            for pair in range(pairs)
        ]
        expected = [
            by_halves(rng.multinomial(half, truth) / half, rng.multinomial(half, truth) / half)
            for _ in range(SIMULATIONS)
        ]
        for measure, value, simple in zip(
            ("halves", "squared"), np.mean(found, axis=0), np.mean(expected, axis=0), strict=True
        ):
            rows.append((size, measure, float(value), float(simple)))
    rest = draws.available // 2
    reference = _frequency(draws.select(rest, 1, 1).counts())
    grid = np.union1d(draws.default_grid(), positions)
    for size in (s for s in fitted if s <= rest):
        observed = draws.select(size, 1, 0).observations(grid)
        simulated = [
            total_variation(rng.multinomial(size, truth) / size, rng.multinomial(rest, truth) / rest).mean()
            for _ in range(SIMULATIONS)
        ]
        for name in METHODS:
            tv = total_variation(FITTERS[name](observed)(positions), reference).mean()
            rows.append((size, name, float(tv), float(np.mean(simulated)) if name == "raw" else np.nan))
    return pd.DataFrame(rows, columns=["samples", "measure", "value", "expected"])


def by_halves(a: FloatArray, b: FloatArray) -> tuple[float, float]:
    """Error of the mean of two independent curves of equal size: total variation, and squared (over categories).

    ``(a − b)/2`` has the same spread as ``(a + b)/2 − o``, and is known without ``o``.
    """
    return float(total_variation(a, b).mean() / 2), float(np.square(a - b).sum(axis=1).mean() / 4)


def _frequency(counts: ArrayLike) -> FloatArray:
    c = np.asarray(counts, float)
    return c / c.sum(axis=1, keepdims=True)


def slope(samples: ArrayLike, errors: ArrayLike) -> float:
    """Least-squares slope of log error against log S."""
    return float(np.polyfit(np.log(np.asarray(samples, float)), np.log(np.asarray(errors, float)), 1)[0])


def run(context: Context) -> Result:
    """The experiment on every run."""
    tables, verdicts, shown = [], [], []
    figure, axes = figures.panels(len(context.datasets))
    for ax, dataset in zip(axes[0], context.datasets, strict=True):
        found = compute(dataset, noise_sizes, context.cache, context.workers, sizes=SIZES, fitted=FITTED)
        summary = summarise(found).assign(data=dataset.name)
        tables.append(summary)
        verdicts.append(verdict(dataset, found, summary))
        _draw(ax, summary)
        ax.set_title(panel_title(dataset, found, summary), fontsize=8, loc="left")
        shown += [_row(dataset, summary, size) for size in (10, 50, 100, 200, 1000)]
    axes[0][0].set_ylabel("error (total variation)")
    figures.legend(figure, 6)
    return Result(
        "noise falls as 1/√S",
        "Every sampled position. *Halves*: the raw curve's error from half the distance between two disjoint "
        "sets of S/2 "
        "draws, which up to the whole store needs no reference. *Expected*: the same with draws simulated from "
        "multinomials at the overall frequencies. The other columns are the distance of each model, fitted "
        "to S draws at "
        "every position, to the half of the draws that it did not see: the noise of that half is in it.",
        verdicts,
        pd.DataFrame([row for row in shown if row is not None]),
        {"noise": pd.concat(tables)},
        figure,
        "Error against draws per position S, every position sampled (N=1). In the titles, log-log slopes of the raw "
        "curve's error by halves: of total variation, which is drawn, beside simulated multinomial draws', and of "
        "the root mean square error, which is −0.5 for independent draws. Black: raw by halves with its 95 % band; "
        "dotted: multinomial expectation. Coloured: each model against the unseen half, whose noise (dashed: "
        "that of raw "
        "expected from a multinomial) keeps the lines from falling further.",
        ("One question with 1,000 draws per branch is the only data beyond S=200.",)
        if any(d.run.config.get("samples", 0) >= 1000 for d in context.datasets)
        else (),
    )


def summarise(found: pd.DataFrame) -> pd.DataFrame:
    """Means over questions with their intervals, by measure and number of draws."""
    rows = []
    for (measure, size), group in found.groupby(["measure", "samples"], sort=False):
        value, low, high = mean_limits(group["value"])
        rows.append(
            {
                "measure": measure, "samples": int(size), "value": value, "low": low, "high": high,
                "expected": group["expected"].mean(), "questions": len(group),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def slope_limits(found: pd.DataFrame, measure: str) -> tuple[float, float, float]:
    """Slope of the raw error by halves (that of ``squared`` halved: of the root), and its interval over questions."""
    by = found[found["measure"] == measure].pivot(index="samples", columns="question_id", values="value")
    sizes, values = by.index.to_numpy(), by.to_numpy()
    part = 0.5 if measure == "squared" else 1.0
    value = part * slope(sizes, values.mean(axis=1))
    if values.shape[1] < 2:
        return value, float("nan"), float("nan")
    drawn = multiplicities(values.shape[1]) @ values.T
    return value, *limits([part * slope(sizes, row) for row in drawn])


def verdict(dataset: Dataset, found: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Whether the error falls as 1/√S: by the root mean square, whose slope of −1/2 is exact for independent draws."""
    root, low, high = slope_limits(found, "squared")
    halves = summary[summary["measure"] == "halves"]
    ideal = slope(*_columns(summary, "halves", "expected"))
    off = float((halves["value"] / halves["expected"] - 1).abs().max())
    n = len(dataset.questions)
    holds = low <= EXPECTED_SLOPE <= high if n >= FEW else abs(root - EXPECTED_SLOPE) < FEW_WITHIN
    says = "holds" if holds else "does not hold exactly"
    few = (
        f" ({n} question{'s' if n > 1 else ''}: judged by whether the slope is within {FEW_WITHIN})"
        if n < FEW
        else ""
    )
    return (
        f"**{dataset.title}**: that the raw curve's error falls as 1/√S {says}{few}: the root mean square error has "
        f"log-log slope {with_limits(root, low, high)} from S={halves['samples'].min()} to "
        f"{halves['samples'].max()}; total "
        f"variation {with_limits(*slope_limits(found, 'halves'))}, where simulated multinomial draws give "
        f"{number(ideal)}, and it "
        f"is at most {100 * off:.0f} % from theirs at any S."
    )


def _columns(summary: pd.DataFrame, measure: str, column: str) -> tuple[FloatArray, FloatArray]:
    part = summary[summary["measure"] == measure]
    return part["samples"].to_numpy(float), part[column].to_numpy(float)


def _row(dataset: Dataset, summary: pd.DataFrame, size: int) -> dict[str, str] | None:
    part = summary[summary["samples"] == size].set_index("measure")
    if part.empty:
        return None
    row = {"data": dataset.name, "S": str(size)}
    if "halves" in part.index:
        cell = part.loc["halves"]
        row |= {
            "raw by halves [95 %]": with_limits(*(float(cell[c]) for c in ("value", "low", "high"))),
            "expected": number(float(cell["expected"])),
        }
    for name in METHODS:
        row[name] = number(float(part.loc[name, "value"])) if name in part.index else "–"
    return row


def panel_title(dataset: Dataset, found: pd.DataFrame, summary: pd.DataFrame) -> str:
    """What a panel shows: the slope of what it plots beside the multinomial's, and that of the root mean square."""
    shown, root = slope_limits(found, "halves")[0], slope_limits(found, "squared")[0]
    ideal = slope(*_columns(summary, "halves", "expected"))
    return (
        f"{dataset.title}, N={dataset.stride_text(1)}\n"
        f"slope: TV {shown:.2f} (multinomial {ideal:.2f}), RMSE {root:.2f}"
    )


def _draw(ax: Axes, summary: pd.DataFrame) -> None:
    part = partial(_columns, summary)
    sizes, halves = part("halves", "value")
    _, low = part("halves", "low")
    _, high = part("halves", "high")
    for name in METHODS:
        x, y = part(name, "value")
        figures.line(ax, name, x, y, label=f"{name}, against the other half")
    x, y = part("raw", "expected")
    ax.plot(x, y, "--", color="#6b6b6b", lw=0.9, label="raw against the other half, multinomial")
    figures.line(ax, "raw", sizes, halves, low, high, "raw by halves", ("#000000", "o"))
    _, y = part("halves", "expected")
    ax.plot(sizes, y, ":", color="#000000", lw=1.2, label="by halves, multinomial")
    figures.log_ticks(ax, "x", [s for s in (5, 10, 20, 50, 100, 200, 500, 1000) if s <= sizes.max()])
    # All that is drawn is to be seen, the band too; one question has none (NaN).
    shown = np.concatenate([summary[summary["measure"] != "squared"]["value"], low, high])
    bottom, top = np.nanmin(shown) * 0.9, np.nanmax(shown) * 1.1
    figures.log_ticks(ax, "y", figures.nice_ticks(bottom, top))
    ax.set_ylim(bottom, top)
    ax.set_xlabel("draws per position S")
