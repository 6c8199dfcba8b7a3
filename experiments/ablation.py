"""The Full Model with one part removed at a time: what each part does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import figures
from experiments.cells import FITTERS, OURS, Fitter, IntArray, by_name, by_question, measured
from experiments.datasets import Dataset, distinct
from experiments.pieces import compute
from experiments.resampling import FEW, ratio_limits
from experiments.result import Context, Result, number, with_limits
from smoothing import FULL_DEFAULTS, Observations
from smoothing.models import fit_full

SAMPLES = (5, 30)
STRIDES = (1, 4)
REPLICATES = 2


def _without_prior(observations: Observations) -> Any:
    """The Full Model's curve without the 1/K that is added to the pooled counts; raw where nothing is in reach."""
    fitted = fit_full(observations)
    share = 1 / len(observations.categories)

    def predict(positions: IntArray) -> np.ndarray:
        pooled = np.maximum(fitted.weights(positions) - share, 0)
        total = pooled.sum(axis=1, keepdims=True)
        whole = fitted.predict(positions)
        return np.where(total > 1e-12, pooled / np.maximum(total, 1e-12), whole)

    return predict


REMOVED: Mapping[str, Fitter] = {
    "no change points (kernel only)": by_name("kernel"),
    "no kernel (flat segments)": by_name("segment"),
    "multinomial cost only": by_name("full", {"cost": "multinomial"}),
    "linear cost only": by_name("full", {"cost": "logit_linear"}),
    "squared cost (l2) only": by_name("full", {"cost": "l2"}),
    "no cross-validation (defaults)": by_name("full", FULL_DEFAULTS),
    "exact search for PELT": by_name("full", {"search": "optimal"}),
    "no prior (1/K)": _without_prior,
    "no smoothing (raw)": by_name("raw"),
}
"""What is removed or replaced -> the model that is left."""
PARTS = (
    "no change points (kernel only)",
    "no kernel (flat segments)",
    "multinomial cost only",
    "no cross-validation (defaults)",
    "no prior (1/K)",
)
"""Of those, the removals of one part each; the others replace one, or all."""


def ablated_cells(
    path: Path, question_id: str, samples: Sequence[int], every: Sequence[int], replicates: int
) -> pd.DataFrame:
    """Cells of one question for the Full Model, every reduction of it, and this project's own."""
    fitters = {"full": FITTERS["full"], **REMOVED, **{name: FITTERS[name] for name in OURS}}
    return measured(path, question_id, every, replicates, dict.fromkeys(samples, fitters))


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = [
        (
            dataset,
            compute(
                dataset, ablated_cells, context.cache, context.workers,
                samples=SAMPLES, every=STRIDES, replicates=REPLICATES,
            ),
        )
        for dataset in distinct(context.datasets)
    ]  # fmt: skip
    names = [*REMOVED, *OURS]
    tables, shown, verdicts = [], [], []
    figure, axes = figures.panels(len(data), len(SAMPLES), height=3.0)
    for column, (dataset, table) in enumerate(data):
        found = ratios(table, names)
        tables.append(found.assign(data=dataset.name))
        verdicts.append(verdict(dataset, found))
        for name in names:
            row = {"data": dataset.name, "instead of the Full Model": name}
            for cell in found[found["variant"] == name].itertuples(index=False):
                row[f"S={cell.samples}, N={cell.every}"] = with_limits(cell.value, cell.low, cell.high)
            shown.append(row)
        for row_of_axes, size in enumerate(SAMPLES):
            ax = axes[row_of_axes][column]
            ax.axvline(1, color="0.4", lw=0.8, ls=":")
            for every, shift, colour in zip(STRIDES, (0.16, -0.16), ("#0072B2", "#D55E00"), strict=True):
                part = (
                    found[(found["samples"] == size) & (found["every"] == every)]
                    .set_index("variant")
                    .loc[names]
                )
                y = np.arange(len(names))[::-1] + shift
                for i in range(len(names)):
                    ax.plot(part[["low", "high"]].iloc[i], [y[i], y[i]], color=colour, lw=1.6, alpha=0.5)
                ax.plot(
                    part["value"],
                    y,
                    "o" if every == 1 else "s",
                    color=colour,
                    ms=3.2,
                    label=f"N={dataset.stride_text(every)}",
                )
            ax.set_yticks(
                np.arange(len(names))[::-1], names if column == 0 else [""] * len(names), fontsize=7
            )
            ax.set_title(f"{dataset.title}\nS={size}", fontsize=8, loc="left")
            seen = found[["low", "high", "value"]].to_numpy()
            low, high = min(0.45, float(np.nanmin(seen)) * 0.95), max(2.5, float(np.nanmax(seen)) * 1.05)
            figures.log_ticks(ax, "x", [v for v in (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10) if low <= v <= high])
            ax.set_xlim(low, high)
            ax.set_xlabel("TV over the Full Model's")
    figures.legend(figure)
    return Result(
        "the Full Model, one part removed at a time",
        f"The published protocol at S={SAMPLES[0]} and {SAMPLES[1]}, N={STRIDES[0]} and {STRIDES[1]}, "
        f"{REPLICATES} replicates. "
        "Values are TV over the Full Model's on the same draws: above 1, the part helps.",
        verdicts,
        pd.DataFrame(shown),
        {"ablation": pd.concat(tables)},
        figure,
        "TV over the Full Model's with 95 % intervals over questions. Right of the dotted line the part "
        "removed was of use.",
    )


def ratios(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """TV over the Full Model's, paired over questions: columns ``variant, samples, every, value, low, high``."""
    wide = by_question(table, "tv")
    rows = [
        (name, size, every, *ratio_limits(wide.loc[(name, size, every)], wide.loc[("full", size, every)]))
        for name in names
        for size in SAMPLES
        for every in STRIDES
        if (name, size, every) in wide.index
    ]
    return pd.DataFrame(rows, columns=["variant", "samples", "every", "value", "low", "high"])


def verdict(dataset: Dataset, found: pd.DataFrame) -> str:
    """Which parts help: those without which the error is clearly larger in some cell and in none clearly smaller."""
    n = len(dataset.questions)
    kinds: dict[str, list[str]] = {"help": [], "hurt": [], "differ": [], "mixed": []}
    groups: dict[str, list[str]] = {"help": [], "hurt": [], "differ": [], "mixed": []}
    for name in REMOVED:
        part = found[found["variant"] == name]
        more, less = int((part["low"] > 1).sum()), int((part["high"] < 1).sum())
        kind = "mixed" if more and less else "help" if more else "hurt" if less else "differ"
        extent = f"{number(float(part['value'].min()), 3)}–{number(float(part['value'].max()), 3)}"
        kinds[kind].append(name)
        groups[kind].append(f"{name} {extent}")
    auto = found[found["variant"] == "auto"]["value"]
    parts = {name: kind for kind, names in kinds.items() for name in names if name in PARTS}
    useful = [name for name, kind in parts.items() if kind == "help"]
    if n < FEW:
        head = f"{n} questions cannot decide whether every part of the Full Model helps; "
    elif len(useful) == len(PARTS):
        head = "every part of the Full Model helps; "
    else:
        listed = ", ".join(useful) or "none"
        head = f"{len(useful)} of {len(PARTS)} parts of the Full Model clearly help (worse: {listed}); "
    labels = {
        "help": "clearly worse without, or with instead",
        "hurt": "clearly better",
        "mixed": "better in some cells and worse in others",
        "differ": "not told apart",
    }
    says = "; ".join(f"{labels[k]}: {', '.join(v)}" for k, v in groups.items() if v)
    own = f"{number(float(auto.min()))}–{number(float(auto.max()))}"
    return f"**{dataset.title}**: {head}TV ratios by cell: {says}; `auto` in its place {own}."
