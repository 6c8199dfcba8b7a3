"""Searches for the best segmentation under a penalty per segment: PELT as in ruptures, and exact.

PELT: Killick, Fearnhead and Eckley 2012, "Optimal detection of changepoints with a linear computational cost".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import ruptures
from numba import njit
from numpy.typing import ArrayLike
from ruptures.base import BaseCost

from smoothing.costs import (
    CompiledCost,
    FloatArray,
    IntArray,
    MultinomialCost,
    Tables,
    cost_row,
    count_table,
    make_cost,
    row_error,
    segment_cost,
)

SEARCHES = ("pelt", "optimal")

_NEVER = 1e300
"""Stands for "no segmentation ends here" and for pruned starts: finite, so that kernels stay free of infinities."""


_FAST = {"nnan", "ninf", "nsz"}
"""No reordering of sums: only what lets a compiler use the vector units for comparisons."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _least(values: FloatArray) -> float:
    """Minimum, in eight chains so that comparisons do not wait for each other."""
    a = b = c = d = e = f = g = h = _NEVER
    whole = values.size // 8
    for j in range(whole):
        i = 8 * j
        a = values[i] if values[i] < a else a
        b = values[i + 1] if values[i + 1] < b else b
        c = values[i + 2] if values[i + 2] < c else c
        d = values[i + 3] if values[i + 3] < d else d
        e = values[i + 4] if values[i + 4] < e else e
        f = values[i + 5] if values[i + 5] < f else f
        g = values[i + 6] if values[i + 6] < g else g
        h = values[i + 7] if values[i + 7] < h else h
    for i in range(8 * whole, values.size):
        a = values[i] if values[i] < a else a
    return min(min(min(a, b), min(c, d)), min(min(e, f), min(g, h)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _at_most(values: FloatArray, limit: float) -> tuple[int, int]:
    """How many values are at most ``limit``, and the sum of their indices: the index itself where it is one."""
    number = 0
    place = 0
    for i in range(values.size):
        hit = values[i] <= limit
        number += hit
        place += i * hit
    return number, place


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _doubtful(totals: FloatArray, costs: FloatArray, limit: float, slack: float) -> int:
    """How many totals lie within ``slack`` of ``limit``; segments of one category cost exactly 0 and are certain."""
    number = 0
    for i in range(totals.size):
        number += (abs(totals[i] - limit) <= slack) & (costs[i] != 0.0)
    return number


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def search_kernel(tables: Tables, n: int, min_size: int, penalties: FloatArray, prune: bool) -> IntArray:
    """Start of the last segment of the best segmentation of the first ``end`` rows, per penalty and ``end``.

    The costs of all segments that end at ``end`` are computed once for all penalties, from tables. Wherever
    their rounding could matter (for the best start, starts that tie with it, and those at the edge of being
    pruned) a cost is settled by ``segment_cost``: decisions and sums are those of ruptures with ``error``,
    which associates F(t) + (C(t, end) + penalty). The earliest of equal starts wins; a pruned start is marked
    by ``_NEVER``.

    Returns:
        (B, n + 1) starts; -1 where no segmentation ends.
    """
    runs = penalties.size
    slack = 2.0 * row_error(tables)
    best = np.full((runs, n + 1), _NEVER)
    best[:, 0] = 0.0
    admissible = np.full((runs, n + 1), _NEVER)
    starts = np.full((runs, n + 1), -1, dtype=np.int64)
    first = np.zeros(runs, dtype=np.int64)
    all_costs = np.empty(n + 1)
    all_totals = np.empty(n + 1)
    scratch = np.empty(n + 1)
    settled = np.zeros(n + 1, dtype=np.int64)
    for end in range(min_size, n + 1):
        newest = end - min_size
        cost_row(tables, end, first.min(), newest + 1, all_costs)
        for b in range(runs):
            penalty = penalties[b]
            begin = first[b]
            admissible[b, newest] = best[b, newest]
            row = admissible[b, begin : newest + 1]
            costs = all_costs[begin : newest + 1]
            totals = all_totals[begin : newest + 1]
            for i in range(row.size):
                totals[i] = row[i] + (costs[i] + penalty)
            near = _least(totals) + slack
            left, start = _at_most(totals, near)
            low = _NEVER
            i = start if left == 1 else 0
            while left > 0:
                if totals[i] <= near:
                    left -= 1
                    if slack > 0.0 and settled[begin + i] != end:
                        settled[begin + i] = end
                        costs[i] = segment_cost(tables, begin + i, end, scratch)
                        totals[i] = row[i] + (costs[i] + penalty)
                    if totals[i] < low:
                        low = totals[i]
                        start = i
                i += 1
            starts[b, end] = begin + start
            best[b, end] = low
            if prune:
                limit = low + penalty
                if slack > 0.0 and _doubtful(totals, costs, limit, slack):
                    for i in range(row.size):
                        if abs(totals[i] - limit) <= slack and settled[begin + i] != end:
                            settled[begin + i] = end
                            costs[i] = segment_cost(tables, begin + i, end, scratch)
                            totals[i] = row[i] + (costs[i] + penalty)
                for i in range(row.size):
                    row[i] = row[i] if totals[i] <= limit else _NEVER
                while first[b] < newest and admissible[b, first[b]] >= _NEVER:
                    first[b] += 1
    return starts


@njit(cache=True, nogil=True, error_model="numpy")
def _read_back(starts: IntArray) -> tuple[IntArray, IntArray]:
    """End indices of the segments of every row of ``starts``, one row after the other, and where each row begins."""
    runs, n = starts.shape[0], starts.shape[1] - 1
    begin = np.zeros(runs + 1, dtype=np.int64)
    for b in range(runs):
        end = n
        while end > 0:
            begin[b + 1] += 1
            end = starts[b, end]
        begin[b + 1] += begin[b]
    ends = np.empty(begin[runs], dtype=np.int64)
    for b in range(runs):
        end = n
        for place in range(begin[b + 1] - 1, begin[b] - 1, -1):
            ends[place] = end
            end = starts[b, end]
    return ends, begin


def search_many(cost: BaseCost, n: int, penalties: Sequence[float], search: str = "pelt") -> list[IntArray]:
    """Best segmentations of a fitted cost's ``n`` rows, one per penalty, as end indices."""
    whole = np.array([n], dtype=np.int64)
    if n < shortest_split(cost):
        return [whole for _ in penalties]
    if not isinstance(cost, CompiledCost):
        return [_search_in_python(cost, n, penalty, search) for penalty in penalties]
    # A penalty of at least the cost of one segment cannot be earned back by any split; the margin is for rounding.
    one = float(cost.error(0, n))
    open_ones = [i for i, penalty in enumerate(penalties) if penalty * (1 - 1e-6) <= one]
    found = [whole for _ in penalties]
    if open_ones:
        wanted = np.array([penalties[i] for i in open_ones], dtype=np.float64)
        assert cost.tables is not None  # the cost has been fitted
        starts = search_kernel(cost.tables, n, cost.min_size, wanted, search == "pelt")
        ends, begin = _read_back(starts)
        for row, i in enumerate(open_ones):
            found[i] = ends[begin[row] : begin[row + 1]]
    return found


def shortest_split(cost: BaseCost) -> int:
    """Fewest rows that are searched for a change at all: 4 for the multinomial cost, 6 or more for any other."""
    return 4 if isinstance(cost, MultinomialCost) else max(6, 2 * int(cost.min_size))


def _search_in_python(cost: BaseCost, n: int, penalty: float, search: str) -> IntArray:
    if search == "pelt":
        detector = ruptures.Pelt(custom_cost=cost, min_size=cost.min_size, jump=1)
        detector.n_samples = n
        return np.array(sorted(end for _, end in detector._seg(penalty)), dtype=np.int64)
    best: dict[int, Any] = {0: 0.0}
    starts = np.full(n + 1, -1, dtype=np.int64)
    for end in range(cost.min_size, n + 1):
        totals = {
            t: best[t] + (cost.error(t, end) + penalty) for t in range(end - cost.min_size + 1) if t in best
        }
        starts[end] = min(totals, key=totals.__getitem__)
        best[end] = totals[int(starts[end])]
    return np.asarray(_read_back(starts[None, :])[0])


def check_search(search: str) -> str:
    """The search's name; ValueError where there is none of that name."""
    if search not in SEARCHES:
        raise ValueError(f"unknown search {search!r}; known: {', '.join(SEARCHES)}")
    return search


def check_penalty(penalty: float) -> float:
    """The penalty as a float; ValueError unless it is a number of at least 0."""
    value = float(penalty)
    if not 0 <= value < np.inf:
        raise ValueError(f"penalty must be a finite number of at least 0; got {penalty}")
    return value


def segment(
    counts: ArrayLike,
    positions: ArrayLike | None = None,
    cost: str | BaseCost = "multinomial",
    penalty: float = 64.0,
    search: str = "pelt",
) -> list[int]:
    """Split a table of outcome counts into segments of one distribution each.

    Args:
        counts: (n, K) outcome counts, one row per observed position.
        positions: (n,) increasing token positions (for ``logit_linear``); 0, 1, 2, ... when left out.
        cost: ``multinomial``, ``logit_linear``, ``l2``, or a ``ruptures.base.BaseCost``.
        penalty: added per segment, at least 0. At 0 a split is free: ties go to the earliest start.
        search: ``pelt`` gives what ``ruptures.Pelt`` gives with ``jump=1``; ``optimal`` is never dearer (pruning
            with a minimum segment length is not always exact).

    Returns:
        End indices of the segments, the last is n. Fewer than 4 rows (``multinomial``) or 6 (other costs) are one
        segment, as in the published method.

    Raises:
        ValueError: counts, positions, cost, penalty or search are not as described.
    """
    table = count_table(counts)
    places = (
        np.arange(len(table), dtype=np.float64) if positions is None else np.asarray(positions, np.float64)
    )
    if places.shape != (len(table),) or not np.all(np.isfinite(places)):
        raise ValueError(f"positions must be {len(table)} finite numbers, one per row of counts")
    if np.any(np.diff(places) <= 0):
        raise ValueError(
            "positions must increase strictly: sort them, and add up the counts of repeated ones"
        )
    detector = make_cost(cost, places)
    detector.fit(table)
    found = search_many(detector, len(table), [check_penalty(penalty)], check_search(search))[0]
    return [int(end) for end in found]
