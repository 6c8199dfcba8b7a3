"""The published protocol's cells, measured per question: models fitted to S draws at every N-th position.

A cell is a number of draws S, a stride N and a replicate; the reference is the run's other draws ("Forking Fast"). The
same measures as in ``fpa.score``, without bands, so that many cells take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.datasets import opened
from fpa.draws import Draws
from smoothing import Observations, fit
from smoothing.forks import THRESHOLDS
from smoothing.metrics import error_share, jump_region, jumps, merge_rare, merged, total_variation

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Curve = Callable[[IntArray], FloatArray]
Fitter = Callable[[Observations], Curve]

PUBLISHED = ("raw", "kernel", "segment", "full")
OURS = ("martingale", "bayes", "auto")
METHODS = (*PUBLISHED, *OURS)
SAMPLES = (5, 10, 20, 30, 40, 80, 100)
"""Draws per position at which every model is fitted."""
RAW_SAMPLES = (5, 10, 15, 20, 30, 40, 50, 75, 80, 100)
"""Draws per position at which the raw curve is measured too, for multipliers."""
REPLICATES = 4
DECIMALS = 6  # ties at a threshold must not hang on the last bit


def by_name(method: str, hyperparameters: Mapping[str, Any] | None = None) -> Fitter:
    """A model of the registry as a fitter."""
    return lambda observations: fit(observations, method, hyperparameters).predict


FITTERS: dict[str, Fitter] = {method: by_name(method) for method in METHODS}


def prepared(path: Path, question_id: str) -> tuple[Draws, IntArray, FloatArray]:
    """A question's draws, sampled positions (T,) and full weighted curve (T, K), rare categories merged."""
    run = opened(path)
    positions, curve, names = run.curve(question_id)
    curve = np.round(curve, DECIMALS)
    kept, column = merge_rare(curve)
    draws = run.draws(question_id).merged(column, tuple(names[k] for k in kept))
    return draws, positions, merged(curve, column)


def cells(
    path: Path, question_id: str, samples: Sequence[int], every: Sequence[int], replicates: int
) -> pd.DataFrame:
    """Every cell of one question for all ``METHODS``, and the raw curve at all of ``RAW_SAMPLES``."""
    sizes = tuple(sorted({*samples, *RAW_SAMPLES}))
    return measured(
        path,
        question_id,
        every,
        replicates,
        {size: FITTERS if size in samples else {"raw": FITTERS["raw"]} for size in sizes},
    )


def measured(
    path: Path,
    question_id: str,
    every: Sequence[int],
    replicates: int,
    fitters: Mapping[int, Mapping[str, Fitter]],
) -> pd.DataFrame:
    """The models given for each number of draws, in every stride and replicate that the draws allow.

    Returns:
        Columns ``samples``, ``every``, ``replicate``, ``method``; ``tv``, ``tv_jump@θ`` and ``tv_flat@θ`` (NaN where a
        question has no such region), ``spread`` and ``error`` (``smoothing.metrics.ErrorShare``), ``tokens``
        generated and ``continuations``.
    """
    draws, positions, curve = prepared(path, question_id)
    regions = {}
    for threshold in THRESHOLDS:
        at = jumps(curve, threshold)
        regions[threshold] = jump_region(positions, at) if len(at) else np.zeros(len(positions), bool)
    everything = draws.counts()
    grid = np.union1d(draws.default_grid(), positions)
    rows = []
    for size, chosen in fitters.items():
        for replicate in range(replicates):
            if (replicate + 1) * size > draws.available or draws.available - size < 2:
                break
            counts = everything - draws.select(size, 1, replicate).counts()
            reference = counts / counts.sum(axis=1, keepdims=True)
            for stride in every:
                used = draws.select(size, stride, replicate)
                observed = used.observations(grid)
                for name, fitter in chosen.items():
                    predicted = fitter(observed)(positions)
                    distance = total_variation(predicted, reference)
                    share = error_share(predicted, counts)
                    row: dict[str, Any] = {
                        "samples": size, "every": stride, "replicate": replicate, "method": name,
                        "tv": distance.mean(), "spread": share.spread, "error": share.error,
                        "tokens": used.generated_tokens, "continuations": used.continuations,
                    }  # fmt: skip
                    for threshold, near in regions.items():
                        row[f"tv_jump@{threshold:.2f}"] = distance[near].mean() if near.any() else np.nan
                        row[f"tv_flat@{threshold:.2f}"] = distance[~near].mean() if not near.all() else np.nan
                    rows.append(row)
    return pd.DataFrame(rows)


def by_question(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Means over replicates: a row per (method, samples, every), a column per question in a fixed order."""
    return table.pivot_table(
        index=["method", "samples", "every"],
        columns="question_id",
        values=value,
        aggfunc="mean",
        dropna=False,
    )
