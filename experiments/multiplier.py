"""The effective sample size multiplier: how many raw draws a smoothed one is worth (published: 5 at S=5, 3.3 at
S=30)."""

from __future__ import annotations

import pandas as pd

from experiments import figures
from experiments.cells import METHODS
from experiments.datasets import Dataset
from experiments.resampling import FEW
from experiments.result import Context, Result, number, with_limits
from experiments.scored import HOW, effective, multipliers, scored

CLAIMS = {5: 5.0, 30: 3.3}
"""Published multipliers of the Full Model, by draws per position."""


def headline_stride(dataset: Dataset) -> int:
    """The stride at which the published multipliers were reached: 4 tokens, or every sentence."""
    return 1 if dataset.by_sentence else 4


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = scored(context)
    methods = [m for m in METHODS if m != "raw"]
    tables, shown, verdicts = [], [], []
    figure, axes = figures.panels(len(data), 2)
    for column, (dataset, table) in enumerate(data):
        found, worth = multipliers(table, methods), effective(table)
        tables.append(found.assign(data=dataset.name, measure="multiplier"))
        tables.append(worth.assign(data=dataset.name, measure="S_eff"))
        verdicts.append(verdict(dataset, found))
        shown += rows(dataset, found, methods)
        stride = headline_stride(dataset)
        for ax, frame, names in ((axes[0][column], found, methods), (axes[1][column], worth, METHODS)):
            part = frame[frame["every"] == stride]
            figures.methods(ax, part, "samples", names)
            figures.log_ticks(ax, "x", (5, 10, 20, 40, 100))
            ax.set_xlabel("draws per position S")
        top, bottom = axes[0][column], axes[1][column]
        top.axhline(1, color="0.5", lw=0.7, ls=":")
        top.plot(
            list(CLAIMS), list(CLAIMS.values()), "*", color="#000000", ms=8, label="published, Full Model"
        )
        bottom.plot([5, 100], [5, 100], ":", color="0.5", lw=0.9, label="S_eff = S")
        top.set_title(f"{dataset.title}, N={dataset.stride_text(stride)}", fontsize=8, loc="left")
        low, high = 0.3, 20.0
        seen = found[found["every"] == stride]["value"]
        figures.log_ticks(top, "y", figures.nice_ticks(min(low, seen.min()), max(high, seen.max())))
        least, most = seen_limits(worth[worth["every"] == stride])
        figures.log_ticks(bottom, "y", figures.nice_ticks(least, most))
        bottom.set_ylim(least, most)
    axes[0][0].set_ylabel("multiplier")
    axes[1][0].set_ylabel("S_eff (draws per position)")
    figures.legend(figure, 5)
    return Result(
        "what a smoothed draw is worth",
        f"{HOW} Multiplier: the raw curve's S at which its pooled TV is the same, over S (log-log interpolation; "
        "the fitted line outside). A TV to a finite reference holds that reference's noise, so multipliers are "
        "compressed at large S; S_eff (lower panels) is free of it.",
        verdicts,
        pd.DataFrame(shown),
        {"multiplier": pd.concat(tables)},
        figure,
        "Multiplier (above) and S_eff (below) against S at the stride of the published figures; bands, 95 % over "
        "questions, of `full` and `auto`; stars: published.",
    )


def seen_limits(drawn: pd.DataFrame) -> tuple[float, float]:
    """Ends of a logarithmic axis that holds every value, and the bands of the methods that are drawn with one."""
    banded = drawn[drawn["method"].isin(figures.BANDED)]
    ends = pd.concat([drawn["value"], banded["low"], banded["high"]])
    ends = ends[ends > 0]  # NaN where there is no interval
    return 0.7 * float(ends.min()), 1.5 * float(ends.max())


def rows(dataset: Dataset, found: pd.DataFrame, methods: list[str]) -> list[dict[str, str]]:
    """Rows of the shown table: the published numbers of draws, every stride."""
    out = []
    for size in CLAIMS:
        for every in sorted(found["every"].unique()):
            cell = found[(found["samples"] == size) & (found["every"] == every)].set_index("method")
            if len(cell):
                row = {"data": dataset.name, "S": str(size), "N": str(every)}
                for name in methods:
                    value, low, high = (float(cell.loc[name, c]) for c in ("value", "low", "high"))
                    row[name] = (
                        with_limits(value, low, high, 2) if name in ("full", "auto") else number(value, 2)
                    )
                out.append(row)
    return out


def verdict(dataset: Dataset, found: pd.DataFrame) -> str:
    """Whether the published multipliers are reached."""
    stride = headline_stride(dataset)
    n = len(dataset.questions)
    says, held = [], []
    for size, claim in CLAIMS.items():
        cell = found[(found["samples"] == size) & (found["every"] == stride)].set_index("method")
        value, low, high = (float(cell.loc["full", c]) for c in ("value", "low", "high"))
        held.append(high >= claim)
        says.append(
            f"{with_limits(value, low, high, 2)} at S={size} (published {claim:g}; `auto` "
            f"{number(float(cell.loc['auto', 'value']), 2)})"
        )
    full = found[(found["method"] == "full")]
    worse = full[full["high"] < 1] if n >= FEW else full[full["value"] < 1]
    lost = f"; it is below 1 in {len(worse)} of {len(full)} cells of S and N" if len(worse) else ""
    if n < FEW:
        head = f"{n} questions cannot decide; the Full Model's multiplier"
    elif all(held):
        head = "the claim holds at the published stride: the Full Model's multiplier"
    else:
        head = "the claim does not hold in full: the Full Model's multiplier"
    return f"**{dataset.title}**: {head} at N={stride} is {' and '.join(says)}{lost}."
