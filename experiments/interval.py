"""Many draws at few positions, or few at many: the stride N at equal budget S/N, raw and smoothed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments import figures
from experiments.cells import METHODS, by_question
from experiments.datasets import Dataset
from experiments.resampling import FEW, ratio_limits
from experiments.result import Context, Result, with_limits
from experiments.scored import HOW, means, scored

LEAST = 3
"""Cells that a budget must have to be looked at."""


def budgets(table: pd.DataFrame) -> dict[float, list[tuple[int, int]]]:
    """Draws per position S/N -> the cells (S, N) that have it, those of at least ``LEAST`` strides."""
    fitted = table[table["method"] == "full"][["samples", "every"]].drop_duplicates()
    found: dict[float, list[tuple[int, int]]] = {}
    for size, every in fitted.sort_values("every").itertuples(index=False):
        found.setdefault(size / every, []).append((int(size), int(every)))
    return {budget: cells for budget, cells in sorted(found.items()) if len(cells) >= LEAST}


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = scored(context)
    tables, shown, verdicts = [], [], []
    most = max(len(_pictured(budgets(table))) for _, table in data)
    figure, axes = figures.panels(len(data), most)
    for column, (dataset, table) in enumerate(data):
        found, equal = means(table), budgets(table)
        per_budget = pd.concat(
            [
                found[(found["samples"] == size) & (found["every"] == every)].assign(
                    budget=budget, data=dataset.name
                )
                for budget, cells in equal.items()
                for size, every in cells
            ]
        )
        tables.append(per_budget)
        verdicts.append(verdict(dataset, table, equal))
        for budget, cells in equal.items():
            for size, every in cells:
                part = found[(found["samples"] == size) & (found["every"] == every)].set_index("method")
                row = {"data": dataset.name, "S/N": f"{budget:g}", "S": str(size), "N": str(every)}
                for name in METHODS:
                    value, low, high = (float(part.loc[name, c]) for c in ("value", "low", "high"))
                    row[name] = (
                        with_limits(value, low, high)
                        if name == "full"
                        else with_limits(value, np.nan, np.nan)
                    )
                shown.append(row)
        pictured = _pictured(equal)
        for row_of_axes, budget in enumerate(pictured):
            ax = axes[row_of_axes][column]
            part = per_budget[per_budget["budget"] == budget]
            figures.methods(ax, part, "every", METHODS, banded=("raw", "full", "auto"))
            cells = equal[budget]
            figures.log_ticks(ax, "x", [every for _, every in cells])
            ax.set_xticks([e for _, e in cells], [f"N={e}\nS={s}" for s, e in cells])
            ax.set_title(f"{dataset.title}, S/N={budget:g}", fontsize=8, loc="left")
            ax.set_ylim(0, None)
        for row_of_axes in range(len(pictured), most):
            axes[row_of_axes][column].set_visible(False)
        axes[len(pictured) - 1][column].set_xlabel(
            f"stride N ({'sentences' if dataset.by_sentence else 'tokens'})"
        )
    for row_axes in axes:
        row_axes[0].set_ylabel("error (total variation)")
    figures.legend(figure)
    return Result(
        "the stride at equal budget",
        f"{HOW} Cells with the same S/N cost about the same; each row of panels is one such budget.",
        verdicts,
        pd.DataFrame(shown),
        {"interval": pd.concat(tables)},
        figure,
        "Error against the stride N with S in proportion, so that the draws spent are the same; bands, 95 % "
        "over questions, of "
        "`raw`, `full` and `auto`.",
    )


def _pictured(equal: dict[float, list[tuple[int, int]]]) -> list[float]:
    """The two budgets with most strides, the smaller first."""
    return sorted(sorted(equal, key=lambda b: (-len(equal[b]), b))[:2])


def verdict(dataset: Dataset, table: pd.DataFrame, equal: dict[float, list[tuple[int, int]]]) -> str:
    """Whether many positions with few draws each are better than the reverse, for raw and smoothed curves."""
    wide = by_question(table, "tv")
    says: list[str] = []
    won: dict[str, list[int]] = {}
    for name in ("raw", "full", "auto"):
        ratios = [_dense_over_sparse(wide, name, cells) for cells in equal.values()]
        won[name] = [sum(high < 1 for _, _, high in ratios), sum(low > 1 for _, low, _ in ratios)]
        parts = ", ".join(
            f"{with_limits(*ratio, 2)} at S/N={budget:g}" for budget, ratio in zip(equal, ratios, strict=True)
        )
        says.append(f"`{name}` {parts}")
    count = len(equal)
    n = len(dataset.questions)
    if n < FEW:
        head = f"{n} questions cannot decide whether few draws at many positions beat many at few"
    elif won["full"][0] == count:
        head = "smoothed, few draws at many positions beat many at few, at every budget"
    elif won["full"][1] == count:
        head = "smoothed, many draws at few positions beat few at many, at every budget"
    else:
        head = (
            "smoothed, few draws at many positions are better than many at few in "
            f"{won['full'][0]} of {count} budgets, worse in {won['full'][1]}, and not told apart in the others"
        )
    raw = (
        "" if n < FEW
        else f"; raw, better in {won['raw'][0]} and worse in {won['raw'][1]} of {count}"
    )  # fmt: skip
    return f"**{dataset.title}**: {head}{raw}. TV at the densest stride over that at the sparsest: {'; '.join(says)}."


def _dense_over_sparse(
    wide: pd.DataFrame, name: str, cells: Sequence[tuple[int, int]]
) -> tuple[float, float, float]:
    """TV at the smallest stride over that at the largest, paired over questions."""
    dense, sparse = min(cells, key=lambda c: c[1]), max(cells, key=lambda c: c[1])
    return ratio_limits(wide.loc[(name, *dense)], wide.loc[(name, *sparse)])
