"""Error against tokens: the frontier over S and N, and the cheapest cell as accurate as the dense raw curve.

The published claim is that a smoothed sparse run does with 1/8 of the tokens. It is judged against the collection
of Bigelow et al. 2024 (arXiv 2412.07961): S=30 at every position, unsmoothed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments import figures
from experiments.cells import METHODS, by_question
from experiments.datasets import Dataset
from experiments.resampling import FEW, limits, multiplicities
from experiments.result import Context, Result, number, with_limits
from experiments.scored import HOW, scored

CLAIM = 1 / 8
TOLERANCE = 0.05
"""A cell is as accurate as the target if its TV is at most this much higher."""
TARGETS = (10, 30, 100)
HEADLINE = 30

FloatArray = NDArray[np.float64]


def cheapest(tv: FloatArray, tokens: FloatArray, target: float) -> int | None:
    """Index of the cheapest cell with a TV within the tolerance of the target's; None where there is none."""
    good = np.flatnonzero(tv <= target * (1 + TOLERANCE))
    return int(good[np.argmin(tokens[good])]) if len(good) else None


def frontier(tv: FloatArray, tokens: FloatArray) -> NDArray[np.int64]:
    """Indices of the cells that no other undercuts in both error and tokens, by tokens."""
    order = np.lexsort((tv, tokens))
    best, kept = np.inf, []
    for i in order:
        if tv[i] < best:
            best = tv[i]
            kept.append(int(i))
    return np.array(kept, np.int64)


def frontier_limits(
    error: FloatArray, price: FloatArray, at: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Intervals over questions of the least error for no more tokens than each cell of the frontier costs.

    As in ``savings``, the best cell is chosen anew in every resample of questions.

    Args:
        error, price: (cells, questions) TV and tokens.
        at: (F,) cells of the frontier.

    Returns:
        (F,) lower and (F,) upper ends; NaN with one question.
    """
    questions = error.shape[1]
    if questions < 2:
        return np.full(len(at), np.nan), np.full(len(at), np.nan)
    drawn = multiplicities(questions).astype(float) / questions
    e, p = drawn @ error.T, drawn @ price.T
    ends = [limits(np.where(p <= p[:, [cell]], e, np.inf).min(axis=1)) for cell in at]
    return np.array([low for low, _ in ends]), np.array([high for _, high in ends])


def savings(table: pd.DataFrame) -> pd.DataFrame:
    """For each target and method: the cheapest cell, and its tokens over the target's, with intervals.

    The cell is chosen anew in every resample of questions, so that the interval holds the choice's luck too; resamples
    without a cell good enough count as 1.
    """
    tv, tokens = by_question(table, "tv"), by_question(table, "tokens")
    complete = tv.notna().all(axis=1)
    tv, tokens = tv[complete], tokens[complete]
    drawn = multiplicities(tv.shape[1]).astype(float) / tv.shape[1]
    rows = []
    for size in TARGETS:
        key = ("raw", size, 1)
        if key not in tv.index:
            continue
        for method in METHODS:
            error, price = tv.loc[method], tokens.loc[method]
            goal, cost = tv.loc[key].to_numpy(), tokens.loc[key].to_numpy()
            chosen = cheapest(
                error.mean(axis=1).to_numpy(), price.mean(axis=1).to_numpy(), float(goal.mean())
            )
            again = []
            for e, p, g, c in zip(
                drawn @ error.to_numpy().T,
                drawn @ price.to_numpy().T,
                drawn @ goal,
                drawn @ cost,
                strict=True,
            ):
                at = cheapest(e, p, float(g))
                again.append(1.0 if at is None else float(p[at] / c))
            s, n = error.index[chosen] if chosen is not None else (0, 0)
            share = np.nan if chosen is None else float(price.iloc[chosen].mean() / cost.mean())
            rows.append(
                (
                    size,
                    method,
                    int(s),
                    int(n),
                    share,
                    *(limits(again) if tv.shape[1] > 1 else (np.nan, np.nan)),
                )
            )
    return pd.DataFrame(rows, columns=["target", "method", "samples", "every", "share", "low", "high"])


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = scored(context)
    tables, shown, verdicts, cells = [], [], [], []
    figure, axes = figures.panels(len(data))
    for ax, (dataset, table) in zip(axes[0], data, strict=True):
        found = savings(table)
        tables.append(found.assign(data=dataset.name))
        verdicts.append(verdict(dataset, found))
        for target, group in found.groupby("target"):
            row = {"data": dataset.name, "as good as raw, N=1, S": str(target)}
            for cell in group.itertuples(index=False):
                row[str(cell.method)] = (
                    f"{with_limits(cell.share, cell.low, cell.high, 2)} (S={cell.samples}, N={cell.every})"
                    if np.isfinite(cell.share) else "–"
                )  # fmt: skip
            shown.append(row)
        tv, tokens = by_question(table, "tv").mean(axis=1), by_question(table, "tokens").mean(axis=1)
        cells.append(
            pd.DataFrame({"tv": tv, "tokens": tokens}).dropna().reset_index().assign(data=dataset.name)
        )
        _draw(ax, dataset, table, found)
    axes[0][0].set_ylabel("error (total variation)")
    figures.legend(figure, 5)
    return Result(
        "error against tokens",
        f"{HOW} The table gives, for the raw curve at every position with S draws, the share of its tokens "
        "that the cheapest "
        f"cell (any S, any N) of each method needs for a TV at most {100 * TOLERANCE:.0f} % higher, and that "
        "cell; the choice "
        "is made anew in every resample. Tokens are those generated for the continuations.",
        verdicts,
        pd.DataFrame(shown),
        {"budget": pd.concat(tables), "budget-cells": pd.concat(cells)},
        figure,
        "Every cell (dots; S from 5 to 100, four strides) and each method's frontier; bands of `raw`, `full` and "
        "`auto`: 95 % "
        "over questions, the best cell for the tokens chosen anew in every resample. Star: raw with S=30 at "
        "every position; "
        "the dashed line is 1/8 of its tokens. Rings: the cheapest cell as accurate, with its S and N.",
    )


def _draw(ax: Axes, dataset: Dataset, table: pd.DataFrame, found: pd.DataFrame) -> None:
    tv, tokens = by_question(table, "tv"), by_question(table, "tokens")
    complete = tv.notna().all(axis=1)
    tv, tokens = tv[complete], tokens[complete]
    mean, cost = tv.mean(axis=1), tokens.mean(axis=1)
    for name in METHODS:
        error, price = mean[name].to_numpy(), cost[name].to_numpy()
        ax.plot(price, error, ".", color=figures.STYLES[name][0], ms=2, alpha=0.35)
        at = frontier(error, price)
        ends = frontier_limits(tv.loc[name].to_numpy(), tokens.loc[name].to_numpy(), at)
        banded = name in ("raw", *figures.BANDED)
        figures.line(ax, name, price[at], error[at], *ends, label=f"{name}, frontier", band=banded)
    goal = ("raw", HEADLINE, 1)
    if goal in mean.index:
        ax.axhline(mean[goal], color="0.5", lw=0.7, ls=":", label="its error")
        ax.plot(cost[goal], mean[goal], "*", color="#000000", ms=9, label=f"raw, S={HEADLINE}, N=1", zorder=5)
        ax.axvline(cost[goal] * CLAIM, color="0.5", lw=0.7, ls="--", label="1/8 of its tokens")
    chosen = found[(found["target"] == HEADLINE) & (found["samples"] > 0)].set_index("method")
    said = []
    if len(chosen):
        said.append((f"raw, S={HEADLINE}, N={dataset.stride_text(1)}; as accurate:", "#000000"))
    for name in (m for m in ("raw", *figures.BANDED) if m in chosen.index):
        size, every = (int(chosen.loc[name, c]) for c in ("samples", "every"))
        colour, key = figures.STYLES[name][0], (name, size, every)
        ax.plot(
            cost[key], mean[key], "o", mfc="none", mec=colour, mew=1.2, ms=9, zorder=6,
            label="_cell as accurate",
        )  # fmt: skip
        said.append((f"{name}: S={size}, N={dataset.stride_text(every)}", colour))
    # Frontiers fall to the right, which leaves the upper right for words.
    for row, (text, colour) in enumerate(said):
        ax.text(
            0.99, 0.98 - 0.055 * row, text, transform=ax.transAxes, fontsize=6, color=colour, ha="right",
            va="top", bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5},
        )  # fmt: skip
    figures.log_ticks(ax, "x", figures.nice_ticks(cost.min() * 0.8, cost.max() * 1.2))
    figures.log_ticks(ax, "y", figures.nice_ticks(mean.min() * 0.9, mean.max() * 1.1))
    ax.set_title(dataset.title, fontsize=8, loc="left")
    ax.set_xlabel("tokens generated per question")


def verdict(dataset: Dataset, found: pd.DataFrame) -> str:
    """Whether the Full Model does with 1/8 of the tokens."""
    part = found[found["target"] == HEADLINE].set_index("method")
    n = len(dataset.questions)
    if part.empty or "full" not in part.index:
        return f"**{dataset.title}**: no cell with S={HEADLINE} at every position to compare with."
    full, auto = part.loc["full"], part.loc["auto"]

    def cell(row: pd.Series) -> str:
        share = with_limits(row["share"], row["low"], row["high"], 2)
        return f"{share} of the tokens (S={int(row['samples'])}, N={int(row['every'])})"

    claimed = f"the claim of 1/8 ({number(CLAIM, 3)}) of the tokens"
    if not np.isfinite(full["share"]):
        head = "the claim of 1/8 of the tokens does not hold: no smoothed cell is as accurate"
    elif n < FEW:
        head = f"{n} questions cannot decide on 1/8 of the tokens; the Full Model needs {cell(full)}"
    elif full["high"] <= CLAIM:
        head = f"{claimed} holds: the Full Model needs {cell(full)}"
    elif full["low"] > CLAIM:
        head = f"{claimed} does not hold: the Full Model needs {cell(full)}"
    else:
        head = f"{claimed} lies within the error: the Full Model needs {cell(full)}"
    return (
        f"**{dataset.title}**: {head} for the accuracy of raw at S={HEADLINE}, N=1; `auto` {cell(auto)}, and "
        f"raw itself, at a stride, {cell(part.loc['raw'])}."
    )
