"""Cells of all runs, and what the experiments on them share: means, intervals, multipliers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.cells import REPLICATES, SAMPLES, by_question, cells
from experiments.datasets import Dataset, distinct
from experiments.pieces import compute
from experiments.resampling import limits, mean_limits, multiplicities
from experiments.result import Context
from smoothing.metrics import multiplier

FloatArray = NDArray[np.float64]
RESAMPLES_OF_MULTIPLIERS = 300

HOW = (
    "The published protocol: S draws at every N-th position are fitted, and the distance (TV, averaged over "
    "all positions, "
    f"replicates and questions) is to the run's other draws; up to {REPLICATES} disjoint replicates."
)


def scored(context: Context) -> list[tuple[Dataset, pd.DataFrame]]:
    """Every run with its cells; runs whose draws are part of a larger run are left out."""
    return [
        (
            dataset,
            compute(
                dataset, cells, context.cache, context.workers,
                samples=SAMPLES, every=dataset.strides, replicates=REPLICATES,
            ),
        )
        for dataset in distinct(context.datasets)
    ]  # fmt: skip


def means(table: pd.DataFrame, value: str = "tv") -> pd.DataFrame:
    """Mean over questions with its interval: columns ``method, samples, every, value, low, high, questions``."""
    wide = by_question(table, value)
    rows = [(*key, *mean_limits(row.to_numpy()), int(row.notna().sum())) for key, row in wide.iterrows()]
    return pd.DataFrame(rows, columns=["method", "samples", "every", "value", "low", "high", "questions"])


def multipliers(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """How many times as many raw draws would be as accurate ("Forking Fast"), with intervals over questions.

    The raw curve of the same stride is resampled along with the model's, so that both vary together.
    """
    wide = by_question(table, "tv")
    drawn = multiplicities(wide.shape[1], RESAMPLES_OF_MULTIPLIERS).astype(float) / wide.shape[1]
    rows = []
    for every in sorted(table["every"].unique()):
        raw = wide.loc["raw"].xs(every, level="every").dropna()
        sizes, values = raw.index.to_numpy(float), raw.to_numpy()
        for method in methods:
            part = wide.loc[method].xs(every, level="every").dropna()
            for size, own in zip(part.index, part.to_numpy(), strict=True):
                value = multiplier(own.mean(), int(size), sizes, values.mean(axis=1))
                again = [
                    multiplier(tv, int(size), sizes, level)
                    for tv, level in zip(drawn @ own, drawn @ values.T, strict=True)
                ]
                rows.append((method, int(size), int(every), value, *limits(again)))
    return pd.DataFrame(rows, columns=["method", "samples", "every", "value", "low", "high"])


def effective(table: pd.DataFrame) -> pd.DataFrame:
    """S_eff of every cell over questions, with its interval; columns as in ``multipliers``."""
    spread, error = by_question(table, "spread"), by_question(table, "error")
    drawn = multiplicities(spread.shape[1]).astype(float)
    rows = []
    for key in spread.index:
        a, b = spread.loc[key].to_numpy(), error.loc[key].to_numpy()
        if np.isnan(b).any():
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            again = np.where(drawn @ b > 0, (drawn @ a) / (drawn @ b), np.nan)
        rows.append((*key, a.sum() / b.sum() if b.sum() > 0 else np.nan, *limits(again)))
    return pd.DataFrame(rows, columns=["method", "samples", "every", "value", "low", "high"])
