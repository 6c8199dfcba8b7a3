"""Pooling counts inside segments, by a Gaussian kernel or flat, and the curve and bands that follow.

The pooled weights are alpha_k(t) = 1/K + sum over the observations i of t's segment of
exp(-((t - t_i) / h)^2 / 2) c_ik; the curve is alpha / sum(alpha), and the bands are the marginals of Dirichlet(alpha)
("Forking Fast"). A segment ends midway between its last observation and the next one's first; a position exactly
there belongs to the earlier segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from smoothing.costs import FloatArray, IntArray

REACH = 9.5
"""Bandwidths beyond which a kernel weight (2.5e-20) is left out: far below rounding beside the prior's 1/K."""


@njit(cache=True, nogil=True, error_model="numpy")
def _kernel_sums(
    query: FloatArray, positions: FloatArray, counts: FloatArray, ends: IntArray, bandwidth: float
) -> FloatArray:
    """(Q, K) kernel-weighted counts of each query position's segment; see ``pool``."""
    sums = np.zeros((query.size, counts.shape[1]))
    middles = np.empty(ends.size - 1)
    for i in range(middles.size):
        middles[i] = (positions[ends[i] - 1] + positions[ends[i]]) / 2
    for q in range(query.size):
        t = query[q]
        segment = np.searchsorted(middles, t)
        start = ends[segment - 1] if segment else 0
        stop = ends[segment]
        start += np.searchsorted(positions[start:stop], t - REACH * bandwidth)
        for i in range(start, stop):
            z = (t - positions[i]) / bandwidth
            if z < -REACH:
                break
            weight = np.exp(-0.5 * (z * z))
            for k in range(counts.shape[1]):
                sums[q, k] += weight * counts[i, k]
    return sums


def pool(
    query: ArrayLike, positions: FloatArray, counts: IntArray, ends: Sequence[int], bandwidth: float | None
) -> FloatArray:
    """Pooled weights at given positions.

    Args:
        query: (Q,) positions; those outside the observed range belong to the first or last segment.
        positions: (n,) observed positions.
        counts: (n, K) outcome counts.
        ends: end indices of the segments, the last is n.
        bandwidth: standard deviation of the kernel in positions; None pools each segment flat.

    Returns:
        (Q, K) weights, each at least 1/K.
    """
    places = np.ascontiguousarray(query, dtype=np.float64)
    limits = np.asarray(ends, dtype=np.int64)
    prior = 1.0 / counts.shape[1]
    if bandwidth is not None:
        return prior + _kernel_sums(places, positions, counts.astype(np.float64), limits, bandwidth)
    middles = (positions[limits[:-1] - 1] + positions[limits[:-1]]) / 2
    sums = np.add.reduceat(counts, np.r_[0, limits[:-1]], axis=0)
    return (prior + sums)[np.searchsorted(middles, places)]


def normalised(alpha: FloatArray) -> FloatArray:
    """Rows divided by their sums."""
    return np.asarray(alpha / alpha.sum(axis=-1, keepdims=True))


def beta_band(alpha: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Central intervals of the marginals of Dirichlet(alpha), for (T, K) weights; 1 and 1 for a single category.

    Runs of equal rows, as flat pools have them, are computed once.
    """
    tail = (1.0 - check_level(level)) / 2.0
    if alpha.shape[1] == 1:
        return np.ones_like(alpha), np.ones_like(alpha)
    changed = np.ones(len(alpha), dtype=bool)
    changed[1:] = np.any(alpha[1:] != alpha[:-1], axis=1)
    run = np.cumsum(changed) - 1
    own = alpha[changed]
    rest = own.sum(axis=1, keepdims=True) - own
    return betaincinv(own, rest, tail)[run], betaincinv(own, rest, 1.0 - tail)[run]


def count_band(counts: IntArray, level: float) -> tuple[FloatArray, FloatArray]:
    """``beta_band`` of 1/K + counts: (n, K) counts take few different values, and each is computed once."""
    categories = counts.shape[1]
    totals = counts.sum(axis=1, keepdims=True)
    key = totals * (counts.max(initial=0) + 1) + counts
    _, where, inverse = np.unique(key, return_index=True, return_inverse=True)
    count = counts.ravel()[where]
    alpha = np.stack([count, np.repeat(totals, categories)[where] - count], axis=1).astype(np.float64)
    alpha += np.array([1.0, categories - 1.0]) / categories
    if categories == 1:
        return np.ones(counts.shape), np.ones(counts.shape)
    lower, upper = beta_band(alpha, level)
    return lower[inverse, 0].reshape(counts.shape), upper[inverse, 0].reshape(counts.shape)


def check_level(level: float) -> float:
    """The level as a float; ValueError unless strictly between 0 and 1."""
    value = float(level)
    if not 0.0 < value < 1.0:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    return value


def query_positions(positions: ArrayLike) -> FloatArray:
    """(Q,) positions asked for; ValueError unless finite numbers in one dimension."""
    places = np.atleast_1d(np.asarray(positions, dtype=np.float64))
    if places.ndim != 1 or not np.all(np.isfinite(places)):
        raise ValueError("positions must be finite numbers in one dimension")
    return places
