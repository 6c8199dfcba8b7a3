"""Confidence intervals over questions: questions are drawn anew with replacement, everything else is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RESAMPLES = 1000
LEVEL = 0.95
SEED = 20241207
FEW = 10
"""With fewer questions than this an interval says little, and no claim is judged by it."""


def multiplicities(questions: int, resamples: int = RESAMPLES, seed: int = SEED) -> IntArray:
    """(resamples, questions) how often each question is drawn, rows summing to ``questions`` (Efron 1979)."""
    return np.random.default_rng(seed).multinomial(
        questions, np.full(questions, 1 / questions), size=resamples
    )


def limits(values: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """Ends of the percentile interval of resampled values; NaN where fewer than nine in ten are finite."""
    v = np.asarray(values, float)
    finite = v[np.isfinite(v)]
    if len(finite) < 0.9 * len(v) or not len(v):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_limits(values: ArrayLike, level: float = LEVEL) -> tuple[float, float, float]:
    """Mean over questions, and its interval; questions without a value (NaN) are left out.

    A single question has no interval.
    """
    v = np.asarray(values, float)
    v = v[np.isfinite(v)]
    if not len(v):
        return float("nan"), float("nan"), float("nan")
    if len(v) < 2:
        return float(v.mean()), float("nan"), float("nan")
    return float(v.mean()), *limits(multiplicities(len(v)) @ v / len(v), level)


def ratio_limits(above: ArrayLike, below: ArrayLike, level: float = LEVEL) -> tuple[float, float, float]:
    """Ratio of sums over the same questions, and its interval; NaN where the denominator is not positive."""
    a, b = np.asarray(above, float), np.asarray(below, float)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if not len(a) or b.sum() <= 0:
        return float("nan"), float("nan"), float("nan")
    drawn = multiplicities(len(a))
    under = drawn @ b
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(under > 0, (drawn @ a) / under, np.nan)
    return float(a.sum() / b.sum()), *limits(ratios, level)
