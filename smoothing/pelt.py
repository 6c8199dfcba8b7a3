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


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "ninf", "nsz"})
def search_kernel(tables: Tables, n: int, min_size: int, penalties: FloatArray, prune: bool) -> IntArray:
    """Start of the last segment of the best segmentation of the first ``end`` rows, per penalty and ``end``.

    The costs of all segments that end at ``end`` are computed once for all penalties, from tables. Wherever their
    rounding could matter (for the best start, starts that tie with it, and those at the edge of being pruned), the
    cost is settled by ``segment_cost``: decisions and sums are those of ruptures with ``error``, which associates
    F(t) + (C(t, end) + penalty). The earliest of equal starts wins; a pruned start is marked by ``_NEVER``.

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
    costs = np.empty(n + 1)
    totals = np.empty(n + 1)
    scratch = np.empty(n + 1)
    settled = np.zeros(n + 1, dtype=np.int64)
    for end in range(min_size, n + 1):
        newest = end - min_size
        cost_row(tables, end, first.min(), newest + 1, costs)
        for b in range(runs):
            penalty = penalties[b]
            row = admissible[b]
            row[newest] = best[b, newest]
            begin = first[b]
            low = _NEVER
            for t in range(begin, newest + 1):
                total = row[t] + (costs[t] + penalty)
                totals[t] = total
                low = min(low, total)
            start = begin
            if slack == 0.0:
                while totals[start] != low:
                    start += 1
            else:
                near = low + slack
                low = _NEVER
                for t in range(begin, newest + 1):
                    if totals[t] <= near:
                        if settled[t] != end:
                            settled[t] = end
                            costs[t] = segment_cost(tables, t, end, scratch)
                        totals[t] = row[t] + (costs[t] + penalty)
                        if totals[t] < low:
                            low = totals[t]
                            start = t
            starts[b, end] = start
            best[b, end] = low
            if prune:
                limit = low + penalty
                edge = 0
                if slack > 0.0:
                    for t in range(begin, newest + 1):
                        # A segment of one category costs exactly 0 either way.
                        doubtful = (abs(totals[t] - limit) <= slack) & (costs[t] != 0.0)
                        edge += doubtful
                if edge:
                    for t in range(begin, newest + 1):
                        if abs(totals[t] - limit) <= slack and settled[t] != end:
                            settled[t] = end
                            costs[t] = segment_cost(tables, t, end, scratch)
                            totals[t] = row[t] + (costs[t] + penalty)
                for t in range(begin, newest + 1):
                    row[t] = row[t] if totals[t] <= limit else _NEVER
                while first[b] < newest and row[first[b]] >= _NEVER:
                    first[b] += 1
    return starts


def breakpoints_of(starts: IntArray) -> list[int]:
    """End indices of the segments, read back from one row of ``search_kernel``'s result."""
    end = len(starts) - 1
    ends = [end]
    while starts[end] > 0:
        end = int(starts[end])
        ends.append(end)
    return ends[::-1]


def search_many(cost: BaseCost, n: int, penalties: Sequence[float], search: str = "pelt") -> list[list[int]]:
    """Best segmentations of a fitted cost's ``n`` rows, one per penalty, as lists of end indices."""
    if n < shortest_split(cost):
        return [[n] for _ in penalties]
    if not isinstance(cost, CompiledCost):
        return [_search_in_python(cost, n, penalty, search) for penalty in penalties]
    assert cost.tables is not None
    # A penalty of at least the cost of one segment cannot be earned back by any split; the margin is for rounding.
    whole = float(cost.error(0, n))
    open_ones = [i for i, penalty in enumerate(penalties) if penalty * (1 - 1e-9) < whole]
    found = [[n] for _ in penalties]
    if open_ones:
        wanted = np.array([penalties[i] for i in open_ones], dtype=np.float64)
        starts = search_kernel(cost.tables, n, cost.min_size, wanted, search == "pelt")
        for i, row in zip(open_ones, starts, strict=True):
            found[i] = breakpoints_of(row)
    return found


def shortest_split(cost: BaseCost) -> int:
    """Fewest rows that are searched for a change at all: 4 for the multinomial cost, 6 or more for any other."""
    return 4 if isinstance(cost, MultinomialCost) else max(6, 2 * int(cost.min_size))


def _search_in_python(cost: BaseCost, n: int, penalty: float, search: str) -> list[int]:
    if search == "pelt":
        detector = ruptures.Pelt(custom_cost=cost, min_size=cost.min_size, jump=1)
        detector.n_samples = n
        return sorted(end for _, end in detector._seg(penalty))
    best: dict[int, Any] = {0: 0.0}
    starts = np.full(n + 1, -1, dtype=np.int64)
    for end in range(cost.min_size, n + 1):
        totals = {
            t: best[t] + (cost.error(t, end) + penalty) for t in range(end - cost.min_size + 1) if t in best
        }
        starts[end] = min(totals, key=totals.__getitem__)
        best[end] = totals[int(starts[end])]
    return breakpoints_of(starts)


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
    return search_many(detector, len(table), [check_penalty(penalty)], check_search(search))[0]
