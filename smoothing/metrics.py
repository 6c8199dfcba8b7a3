"""How good a curve is: distances, likelihoods, coverage, and what it is worth in raw samples.

Curves are (T, K) arrays whose rows sum to 1, ``counts`` (T, K) outcome counts of the reference's draws at the
same positions. The protocol (TV, regions, held-out likelihood, coverage, multiplier) is that of "Forking
Fast"; effective sample size and predictive coverage are this project's own, free of the reference's noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

FLOOR = 1e-9
"""Least probability that a prediction gives to anything, in likelihoods."""
RARE = 0.01
"""Categories whose reference curve stays below this everywhere are merged into the last one."""
REACH = 10
"""Tokens on either side of a reference jump that make up its region."""


def total_variation(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Total variation ``½ Σ_k |p_k − q_k|`` of two curves at each position, (T,)."""
    return np.abs(np.asarray(p, float) - np.asarray(q, float)).sum(axis=-1) / 2


def merge_rare(curve: ArrayLike, level: float = RARE) -> tuple[IntArray, IntArray]:
    """Which categories are worth keeping apart.

    Returns:
        kept: indices of the categories kept, the last category (``Other``) always among them.
        column: (K,) for each category its place among those kept; that of ``Other`` where it is merged.
    """
    reached = np.asarray(curve, float).max(axis=0) >= level
    reached[-1] = True
    kept = np.flatnonzero(reached)
    column = np.full(len(reached), len(kept) - 1, np.int64)
    column[kept] = np.arange(len(kept))
    return kept, column


def merged(curve: ArrayLike, column: IntArray) -> FloatArray:
    """Probabilities or counts with the categories merged as ``merge_rare`` says."""
    values = np.asarray(curve, float)
    out = np.zeros((*values.shape[:-1], int(column.max()) + 1))
    for k, place in enumerate(column):
        out[..., place] += values[..., k]
    return out


def jumps(curve: ArrayLike, threshold: float) -> IntArray:
    """Indices ``i`` with ``TV(o_{i−1}, o_i) > threshold``: a jump is located at the later position."""
    values = np.asarray(curve, float)
    return np.flatnonzero(total_variation(values[1:], values[:-1]) > threshold) + 1


def jump_region(grid: ArrayLike, at: ArrayLike, reach: int = REACH, neighbours: int = 0) -> BoolArray:
    """(T,) whether a position is near a jump.

    Args:
        grid: (T,) token positions.
        at: indices into the grid at which the reference jumps.
        reach: near is within this many tokens,
        neighbours: or within this many places of the grid (for grids of sentences).
    """
    places, index = np.asarray(grid), np.arange(len(np.asarray(grid)))
    near = np.zeros(len(places), bool)
    for i in np.asarray(at, int):
        near |= (np.abs(places - places[i]) <= reach) | (np.abs(index - i) <= neighbours)
    return near


def heldout_loglik(prediction: ArrayLike, counts: ArrayLike) -> float:
    """Mean log-likelihood per held-out draw; predictions are floored at 1e-9 and renormalised."""
    p = np.maximum(np.asarray(prediction, float), FLOOR)
    c = np.asarray(counts, float)
    return float((c * np.log(p / p.sum(axis=1, keepdims=True))).sum() / c.sum())


def coverage(lower: ArrayLike, upper: ArrayLike, reference: ArrayLike) -> float:
    """Share of categories and positions whose reference frequency lies in the band, ends included."""
    r = np.asarray(reference, float)
    return float(((r >= np.asarray(lower)) & (r <= np.asarray(upper))).mean())


def predictive_coverage(
    prediction: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    reference: ArrayLike,
    draws: int | ArrayLike,
    level: float = 0.9,
    between: tuple[float, float] = (0.02, 0.98),
) -> tuple[int, int]:
    """Coverage with the band widened by the reference's own noise: that of a calibrated band is its level.

    Each side of the band is widened to ``√(side² + z²·p(1−p)/n)``, where p is the prediction, n the draws
    behind the reference and z the normal quantile of the level.

    Returns:
        how many of the category-positions with a reference within ``between`` are covered, and how many
        there are.
    """
    p, r = np.asarray(prediction, float), np.asarray(reference, float)
    n = np.broadcast_to(np.asarray(draws, float).reshape(-1, 1), p.shape)
    noise = ndtri((1 + level) / 2) ** 2 * p * (1 - p) / n
    below = np.sqrt(np.square(p - np.asarray(lower)) + noise)
    above = np.sqrt(np.square(np.asarray(upper) - p) + noise)
    judged = (r >= between[0]) & (r <= between[1])
    inside = (r >= p - below) & (r <= p + above)
    return int((inside & judged).sum()), int(judged.sum())


@dataclass(frozen=True)
class ErrorShare:
    """One question's part in ``S_eff``: ``mean_t Σ_k o(1−o)``, and squared error without reference noise."""

    spread: float
    error: float


def error_share(prediction: ArrayLike, counts: ArrayLike) -> ErrorShare:
    """Spread and debiased squared error of one curve against the counts of independent draws.

    With n draws at a position and frequencies r, ``Σ_k r(1−r)·n/(n−1)`` estimates ``Σ_k o(1−o)`` without
    bias, and that over n is the expected squared error of r itself, which is taken off ``‖ô − r‖²``.

    Raises:
        ValueError: a position has fewer than 2 draws.
    """
    c = np.asarray(counts, float)
    n = c.sum(axis=1)
    if (n < 2).any():
        raise ValueError("a reference needs at least 2 draws at every position, to know its own noise")
    r = c / n[:, None]
    spread = (r * (1 - r)).sum(axis=1) * n / (n - 1)
    error = np.square(np.asarray(prediction, float) - r).sum(axis=1) - spread / n
    return ErrorShare(float(spread.mean()), float(error.mean()))


def effective_samples(shares: list[ErrorShare]) -> tuple[float, float]:
    """``S_eff`` over questions, and its standard error.

    The number of independent raw samples per position that would be as accurate: ratio of the summed spread
    to the summed error, standard error by the jackknife over questions. NaN where the error is not told from
    0 (its sum is not positive), and the standard error also with a single question.
    """
    spread = np.array([s.spread for s in shares])
    error = np.array([s.error for s in shares])
    if not len(shares) or error.sum() <= 0:
        return float("nan"), float("nan")
    estimate = float(spread.sum() / error.sum())
    m, rest = len(shares), error.sum() - error
    if m < 2 or (rest <= 0).any():
        return estimate, float("nan")
    without = (spread.sum() - spread) / rest
    return estimate, float(np.sqrt((m - 1) / m * np.square(without - without.mean()).sum()))


def multiplier(tv: float, samples: int, raw_samples: ArrayLike, raw_tv: ArrayLike) -> float:
    """How many times as many draws the raw curve needs for the same pooled TV.

    The raw curve's TV is interpolated over its numbers of draws on logarithmic scales; beyond them, the line
    fitted to all of them is used. NaN with fewer than two numbers of draws, or where that line does not fall.
    """
    s, d = np.log(np.asarray(raw_samples, float)), np.log(np.asarray(raw_tv, float))
    if len(s) < 2 or not np.isfinite(d).all() or not tv > 0:
        return float("nan")
    order, target = np.argsort(d), float(np.log(tv))
    if d.min() <= target <= d.max():
        equal = float(np.interp(target, d[order], s[order]))
    else:
        slope, level = np.polyfit(s, d, 1)
        if slope >= 0:
            return float("nan")
        equal = (target - level) / slope
    return float(np.exp(equal) / samples)


def average_precision(score: ArrayLike, truth: ArrayLike) -> float:
    """Area under precision against recall, ranks of equal score taken together; NaN where nothing is true."""
    s, y = np.asarray(score, float), np.asarray(truth, bool)
    if not y.any():
        return float("nan")
    order = np.argsort(-s, kind="stable")
    hits, last = np.cumsum(y[order]), np.append(np.flatnonzero(np.diff(s[order])), len(s) - 1)
    precision, recall = hits[last] / (last + 1), hits[last] / y.sum()
    return float((np.diff(recall, prepend=0.0) * precision).sum())
