"""Near forks and away from them: where smoothing helps, and where it hurts.

Regions as published: within ten tokens of a jump of the reference curve by more than θ, and the rest.
"""

from __future__ import annotations

import pandas as pd

from experiments import figures
from experiments.cells import METHODS, by_question
from experiments.datasets import Dataset
from experiments.multiplier import headline_stride
from experiments.resampling import FEW, ratio_limits
from experiments.result import Context, Result, number, with_limits
from experiments.scored import HOW, scored
from smoothing.forks import THRESHOLDS

SHOWN = (5, 30, 100)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """TV of every model over that of raw in the same region, over the questions that have it.

    Returns:
        Columns ``region`` (``jump`` or ``flat``), ``threshold``, ``method``, ``samples``, ``every``, ``value``,
        ``low``, ``high``, ``raw`` (raw's TV), ``questions``.
    """
    rows = []
    for region in ("jump", "flat"):
        for threshold in THRESHOLDS:
            wide = by_question(table, f"tv_{region}@{threshold:.2f}")
            for key in wide.index:
                method, size, every = key
                if method == "raw":
                    continue
                own, raw = wide.loc[key], wide.loc[("raw", size, every)]
                both = int((own.notna() & raw.notna()).sum())
                if both:
                    rows.append(
                        (region, threshold, method, size, every, *ratio_limits(own, raw), raw.mean(), both)
                    )
    columns = [
        "region",
        "threshold",
        "method",
        "samples",
        "every",
        "value",
        "low",
        "high",
        "raw",
        "questions",
    ]
    return pd.DataFrame(rows, columns=columns)


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = scored(context)
    tables, shown, verdicts = [], [], []
    methods = [m for m in METHODS if m != "raw"]
    figure, axes = figures.panels(len(data), 2)
    for column, (dataset, table) in enumerate(data):
        found = ratios(table)
        tables.append(found.assign(data=dataset.name))
        verdicts.append(verdict(dataset, found))
        stride = headline_stride(dataset)
        for threshold in THRESHOLDS:
            for size in SHOWN:
                shown += _row(dataset, found, threshold, size, stride, methods)
        for ax, region in ((axes[0][column], "jump"), (axes[1][column], "flat")):
            part = found[
                (found["region"] == region) & (found["threshold"] == 0.15) & (found["every"] == stride)
            ]
            ax.axhline(1, color="0.4", lw=0.8, ls=":", label="as raw (above: smoothing hurts)")
            figures.methods(ax, part, "samples", methods)
            figures.log_ticks(ax, "x", (5, 10, 20, 40, 100))
            ax.set_ylim(0, max(1.2, 1.05 * float(part["value"].max())) if len(part) else 1.2)
            ax.set_xlabel("draws per position S")
            where = "jumps over 0.15" if region == "jump" else "elsewhere"
            count = int(part["questions"].max()) if len(part) else 0
            ax.set_title(
                f"{dataset.name}, N={dataset.stride_text(stride)}\n{where} ({count} question{'s' * (count != 1)})",
                fontsize=8,
                loc="left",
            )
    for row_axes in axes:
        row_axes[0].set_ylabel("error over raw's (TV ratio)")
    figures.legend(figure, 4)
    return Result(
        "near forks and elsewhere",
        f"{HOW} Regions: within 10 tokens of a jump of the run's own full curve by more than θ, and the "
        "rest. The table is at "
        "the stride of the published figures; all strides are in the CSV. Values are TV over that of raw in "
        "the same region; "
        "above 1, smoothing hurts.",
        verdicts,
        pd.DataFrame(shown),
        {"forks": pd.concat(tables)},
        figure,
        "TV over raw's near jumps of more than 0.15 (above) and elsewhere (below), against S; bands, 95 % "
        "over questions, of "
        "`full` and `auto`.",
        ("The run's own full curve says where its jumps are: with few draws some of them are noise.",),
    )


def _row(
    dataset: Dataset, found: pd.DataFrame, threshold: float, size: int, stride: int, methods: list[str]
) -> list[dict[str, str]]:
    part = found[(found["threshold"] == threshold) & (found["samples"] == size) & (found["every"] == stride)]
    near, flat = (part[part["region"] == r].set_index("method") for r in ("jump", "flat"))
    if near.empty:
        return []
    row = {
        "data": dataset.name, "θ": f"{threshold:.2f}", "questions with jumps": str(int(near["questions"].max())),
        "S": str(size), "N": str(stride), "raw near jumps": number(float(near["raw"].iloc[0])),
    }  # fmt: skip
    for name in methods:
        value = with_limits(*(float(near.loc[name, c]) for c in ("value", "low", "high")), 2)
        row[f"{name} near (elsewhere)"] = f"{value} ({number(float(flat.loc[name, 'value']), 2)})"
    return [row]


def verdict(dataset: Dataset, found: pd.DataFrame) -> str:
    """Whether smoothing helps everywhere, and where it does not."""
    says = []
    for name in ("full", "auto"):
        for region, where in (("jump", "near jumps"), ("flat", "elsewhere")):
            part = found[(found["method"] == name) & (found["region"] == region)]
            worse, better = int((part["low"] > 1).sum()), int((part["high"] < 1).sum())
            hurt = part[part["low"] > 1]
            at = (
                f" (S from {int(hurt['samples'].min())}, N from {int(hurt['every'].min())})"
                if len(hurt)
                else ""
            )
            says.append(
                f"`{name}` {where} is better than raw in {better} and worse in {worse} of {len(part)} cells{at}"
            )
    n = int(found[found["region"] == "jump"]["questions"].max()) if (found["region"] == "jump").any() else 0
    if n < FEW:
        head = (
            f"{n} questions with jumps cannot decide whether smoothing hurts at forks; for what it is worth, "
        )
    else:
        full = found[(found["method"] == "full") & (found["region"] == "jump")]
        hurts = bool((full["low"] > 1).any())
        head = "smoothing by the published model does hurt at forks in some cells: " if hurts else (
            "smoothing by the published model is nowhere clearly worse than raw at forks: "
        )  # fmt: skip
    return f"**{dataset.title}**: {head}{'; '.join(says)} (θ 0.10 to 0.20, all S and N; by 95 % intervals)."
