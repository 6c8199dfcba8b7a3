"""Segment costs for outcome counts, as ruptures costs and as compiled row kernels.

Each cost is a proper ``ruptures.base.BaseCost``: hand it to ``ruptures.Pelt(custom_cost=..., jump=1)``, or name
it in ``smoothing.segment``, which runs compiled and finds the same breakpoints. A cost of your own needs only
``fit`` and ``error``, and is searched in Python.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from ruptures.base import BaseCost
from ruptures.costs import NotEnoughPoints

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MULTINOMIAL, _LOGIT_LINEAR, _L2 = 0, 1, 2
_LARGEST_TABLE = 1 << 22
"""Totals above this take logarithms one by one: a longer table of n ln n would fall out of the caches."""


class Tables(NamedTuple):
    """What the compiled searches know of a fitted cost: sums over prefixes, from which any segment's follow.

    Attributes:
        kind: which row kernel to use.
        counts: (K + 1, n + 1) cumulative counts, the last row their totals (multinomial).
        moments: (K, M, n + 1) cumulative moments (logit_linear, l2).
        xlogx: n ln n for n = 0, 1, ...; empty where totals are too large for a table.
    """

    kind: int
    counts: IntArray
    moments: FloatArray
    xlogx: FloatArray


@njit(cache=True, nogil=True, error_model="numpy")
def xlogx_table(size: int) -> FloatArray:
    """(size,) values of n ln n, with 0 ln 0 = 0."""
    table = np.zeros(size)
    for n in range(1, size):
        table[n] = n * np.log(n)
    return table


@njit(cache=True, nogil=True, error_model="numpy")
def _xlogx(n: int) -> float:
    return n * np.log(n) if n > 0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _multinomial_row(
    counts: IntArray, xlogx: FloatArray, end: int, first: int, stop: int, out: FloatArray
) -> None:
    """out[t - first] = n ln n - sum_k n_k ln n_k of segment [t, end) for first <= t < stop, from tables."""
    categories = counts.shape[0] - 1
    for row in range(categories, -1, -1):
        sign = 1.0 if row == categories else -1.0
        if row == categories:
            out[:] = 0.0
        total = counts[row, end]
        before = counts[row, first:stop]
        if xlogx.size:
            for i in range(before.size):
                out[i] += sign * xlogx[np.uint64(total - before[i])]
        else:
            for i in range(before.size):
                out[i] += sign * _xlogx(total - before[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _multinomial(counts: IntArray, start: int, end: int) -> float:
    """-sum_k n_k ln(n_k / n) of segment [start, end), term by term."""
    categories = counts.shape[0] - 1
    total = counts[categories, end] - counts[categories, start]
    value = 0.0
    for k in range(categories):
        n = counts[k, end] - counts[k, start]
        if n > 0:
            value -= n * np.log(n / total)
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def _logit_linear_row(moments: FloatArray, end: int, first: int, stop: int, out: FloatArray) -> None:
    """out[t - first] = weighted residual sum of squares of a line per category in segment [t, end)."""
    out[:] = 0.0
    for k in range(moments.shape[0]):
        w_end, x_end, xx_end = moments[k, 0, end], moments[k, 1, end], moments[k, 2, end]
        y_end, xy_end, yy_end = moments[k, 3, end], moments[k, 4, end], moments[k, 5, end]
        w_before, x_before, xx_before = (
            moments[k, 0, first:stop],
            moments[k, 1, first:stop],
            moments[k, 2, first:stop],
        )
        y_before, xy_before, yy_before = (
            moments[k, 3, first:stop],
            moments[k, 4, first:stop],
            moments[k, 5, first:stop],
        )
        for i in range(out.size):
            w = w_end - w_before[i]
            x = x_end - x_before[i]
            xx = xx_end - xx_before[i]
            y = y_end - y_before[i]
            xy = xy_end - xy_before[i]
            yy = yy_end - yy_before[i]
            determinant = w * xx - x * x
            slope = (w * xy - x * y) / determinant if determinant > 1e-12 else 0.0
            level = (y - slope * x) / w
            out[i] += max(yy - level * y - slope * xy, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _l2_row(moments: FloatArray, end: int, first: int, stop: int, out: FloatArray) -> None:
    """out[t - first] = sum of squared deviations from the mean in segment [t, end).

    One division of whole numbers: exact ties stay ties. The last row of ``moments`` holds the squares.
    """
    categories = moments.shape[0] - 1
    out[:] = 0.0
    for k in range(categories):
        total = moments[k, 0, end]
        before = moments[k, 0, first:stop]
        for i in range(before.size):
            difference = total - before[i]
            out[i] += difference * difference
    total = moments[categories, 0, end]
    before = moments[categories, 0, first:stop]
    for i in range(before.size):
        length = float(end - first - i)
        out[i] = max((length * (total - before[i]) - out[i]) / length, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def cost_row(tables: Tables, end: int, first: int, stop: int, out: FloatArray) -> None:
    """out[t] = cost of segment [t, end) for first <= t < stop (stop <= end)."""
    part = out[first:stop]
    if tables.kind == _MULTINOMIAL:
        _multinomial_row(tables.counts, tables.xlogx, end, first, stop, part)
    elif tables.kind == _LOGIT_LINEAR:
        _logit_linear_row(tables.moments, end, first, stop, part)
    else:
        _l2_row(tables.moments, end, first, stop, part)


@njit(cache=True, nogil=True, error_model="numpy")
def segment_cost(tables: Tables, start: int, end: int, scratch: FloatArray) -> float:
    """Cost of one segment [start, end): what ``error`` returns; ``scratch`` is written at ``start``."""
    if tables.kind == _MULTINOMIAL:
        return _multinomial(tables.counts, start, end)
    cost_row(tables, end, start, start + 1, scratch)
    return scratch[start]


@njit(cache=True, nogil=True, error_model="numpy")
def row_error(tables: Tables) -> float:
    """Bound on the difference by rounding between ``cost_row`` and ``segment_cost``; 0 where they are the same."""
    if tables.kind != _MULTINOMIAL:
        return 0.0
    categories = tables.counts.shape[0] - 1
    return 1e-15 * (categories + 4) * _xlogx(tables.counts[categories, -1])


class CompiledCost(BaseCost):
    """A cost with compiled tables; ``signal`` is an (n, K) array of outcome counts."""

    min_size = 2

    def __init__(self) -> None:
        self.signal: IntArray | None = None
        self.tables: Tables | None = None
        self._scratch = np.empty(0)

    @abstractmethod
    def _tables(self, counts: IntArray) -> Tables:
        """The sums that the row kernels need."""

    def fit(self, signal: ArrayLike) -> CompiledCost:
        """Take (n, K) counts in.

        Raises:
            ValueError: the counts are not whole non-negative numbers in two dimensions.
        """
        return self.fit_checked(count_table(signal))

    def fit_checked(self, counts: IntArray) -> CompiledCost:
        """Take (n, K) counts in that are known to be whole and non-negative."""
        self.signal = counts
        self.tables = self._tables(counts)
        self._scratch = np.empty(len(counts))
        return self

    def error(self, start: int, end: int) -> Any:
        """Cost of the segment [start, end), as np.float64 (Python's own ``sum`` then adds plainly, in order).

        Raises:
            NotEnoughPoints: the segment is shorter than ``min_size``.
        """
        if self.tables is None:
            raise ValueError("fit the cost to counts before asking for a segment's cost")
        if end - start < self.min_size:
            raise NotEnoughPoints
        return np.float64(segment_cost(self.tables, start, end, self._scratch))


class MultinomialCost(CompiledCost):
    """Negative log-likelihood of a segment's draws under its own frequencies, -sum_k n_k ln(n_k / n)."""

    model = "multinomial"
    min_size = 2

    def _tables(self, counts: IntArray) -> Tables:
        table = np.vstack([counts.T, counts.sum(axis=1)])
        total = int(table[-1].sum())
        xlogx = _xlogx_up_to(total.bit_length()) if total < _LARGEST_TABLE else np.zeros(0)
        return Tables(_MULTINOMIAL, _cumulative(table), np.zeros((0, 0, 0)), xlogx)


class LogitLinearCost(CompiledCost):
    """Weighted residual sum of squares of a line in token position through the empirical logits.

    With p = (c + 1/2) / (n + 1): logits ln(p / (1 - p)), weights n p (1 - p), at least 1e-9; summed over
    categories. Where the normal equations are singular (determinant at most 1e-12) the slope is 0.

    Args:
        positions: (n,) token positions; 0, 1, 2, ... when left out.
    """

    model = "logit_linear"
    min_size = 3

    def __init__(self, positions: ArrayLike | None = None) -> None:
        super().__init__()
        self.positions = None if positions is None else np.asarray(positions, dtype=np.float64)

    def _tables(self, counts: IntArray) -> Tables:
        n = len(counts)
        x = np.arange(n, dtype=np.float64) if self.positions is None else self.positions
        if x.shape != (n,) or not np.all(np.isfinite(x)):
            raise ValueError(
                f"positions must be {n} finite numbers, one per row of counts; got shape {x.shape}"
            )
        totals = counts.sum(axis=1)
        p = (counts.T + 0.5) / (totals + 1.0)
        y = np.log(p / (1.0 - p))
        w = np.maximum(totals * p * (1.0 - p), 1e-9)
        # The order of multiplication decides ties: this is the order of the formula as one writes it down.
        moments = np.stack([w, w * x, w * x**2, w * y, w * x * y, w * y**2], axis=1)
        return Tables(_LOGIT_LINEAR, np.zeros((0, 0), dtype=np.int64), _cumulative(moments), np.zeros(0))


class L2Cost(CompiledCost):
    """Sum of squared deviations of the counts from the segment's mean."""

    model = "l2"
    min_size = 2

    def _tables(self, counts: IntArray) -> Tables:
        signal = counts.T.astype(np.float64)
        moments = np.vstack([signal, np.square(signal).sum(axis=0)])[:, None, :]
        return Tables(_L2, np.zeros((0, 0), dtype=np.int64), _cumulative(moments), np.zeros(0))


COSTS: dict[str, type[BaseCost]] = {
    "multinomial": MultinomialCost,
    "logit_linear": LogitLinearCost,
    "l2": L2Cost,
}


def make_cost(cost: str | BaseCost, positions: ArrayLike | None = None) -> BaseCost:
    """The cost of that name, or the ruptures cost itself.

    Raises:
        ValueError: an unknown name, or an object that is no ``ruptures.base.BaseCost`` (ruptures itself would
            silently replace it by squared deviations).
    """
    if isinstance(cost, BaseCost):
        return cost
    if isinstance(cost, str):
        if cost not in COSTS:
            raise ValueError(f"unknown cost {cost!r}; known: {', '.join(COSTS)}")
        kind = COSTS[cost]
        return kind(positions) if kind is LogitLinearCost else kind()
    raise ValueError(
        f"a cost must be one of {', '.join(COSTS)} or a ruptures.base.BaseCost; got {type(cost).__name__}"
    )


def count_table(counts: ArrayLike) -> IntArray:
    """(n, K) counts as a fresh integer array.

    Raises:
        ValueError: not two-dimensional, empty, negative, fractional, NaN or infinite.
    """
    array = np.asarray(counts)
    if array.ndim == 1 and array.size:
        array = array.reshape(-1, 1)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"counts must be a table of (positions, categories); got shape {array.shape}")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"counts must be whole numbers; got {array.dtype}")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ValueError("counts must be finite; found NaN or infinity")
    if array.dtype.kind == "f" and np.any(array != np.floor(array)):
        raise ValueError("counts must be whole numbers; found fractions")
    if array.min() < 0:
        raise ValueError(f"counts must not be negative; found {array.min()}")
    if array.sum(dtype=np.float64) > 2.0**53:
        raise ValueError("counts must add up to less than 2**53")
    return np.array(array, dtype=np.int64, order="C")


@lru_cache(maxsize=2)
def _xlogx_up_to(bits: int) -> FloatArray:
    """n ln n for all n of at most that many bits; the fits of one cross-validation share it."""
    return np.asarray(xlogx_table(1 << bits))


def _cumulative(values: NDArray[Any]) -> NDArray[Any]:
    """Sums over prefixes along the last axis, a leading 0 included."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums
