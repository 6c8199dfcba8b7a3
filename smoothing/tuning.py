"""Cross-validation over draws: which hyper-parameters best predict draws that were held out.

Folds are contiguous in draw order, edges ``linspace(0, S, F + 1)`` cut to whole numbers, F = min(5, S). A candidate's
score is the sum over folds of the held-out draws' log-likelihood, predictions floored at 1e-9 and renormalised; the
first best candidate wins ("Forking Fast").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from numba import njit
from ruptures.base import BaseCost

from smoothing.costs import CompiledCost, FloatArray, IntArray, make_cost
from smoothing.observations import Observations, count_draws
from smoothing.pelt import search_many
from smoothing.pooling import REACH, normalised, pool

FLOOR = 1e-9
NEAR = 1e-10
"""Relative difference of scores below which candidates are scored again directly."""
_FOLDS = 5
_FEW = 32
_LARGEST_TABLE = 1 << 20


@njit(cache=True, nogil=True, error_model="numpy")
def _log_likelihood(alpha: FloatArray, held: FloatArray) -> float:
    """Log-likelihood of held-out counts under alpha / sum(alpha), floored and renormalised."""
    total = 0.0
    for k in range(alpha.size):
        total += alpha[k]
    norm = 0.0
    for k in range(alpha.size):
        norm += max(alpha[k] / total, FLOOR)
    value = 0.0
    for k in range(alpha.size):
        if held[k] > 0.0:
            value += held[k] * np.log(max(alpha[k] / total, FLOOR) / norm)
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def _kernel_scores(
    positions: IntArray,
    train: FloatArray,
    held: FloatArray,
    draws: IntArray,
    edges: IntArray,
    ends: IntArray,
    first: IntArray,
    bandwidths: FloatArray,
    weights: FloatArray,
) -> FloatArray:
    """(H, F, D) held-out log-likelihoods of kernel-pooled curves.

    One pass over the pairs of positions within reach of each other serves every segmentation of every fold: sums over
    prefixes of the weighted counts, of which a segment's share is a difference. Segmentation d of fold f has the end
    indices ``ends[first[f, d]:first[f, d + 1]]``; ``weights[h, gap]`` is the kernel where the table reaches.
    """
    folds, n, categories = held.shape
    width = first.shape[1] - 1
    columns = folds * categories
    scores = np.zeros((bandwidths.size, folds, width))
    prefix = np.zeros((n + 1, columns))
    alpha = np.empty(categories)
    prior = 1.0 / categories
    place = np.empty((folds, width), dtype=np.int64)
    for h in range(bandwidths.size):
        place[:] = first[:, :width]
        reach = REACH * bandwidths[h]
        low = 0
        high = 0
        for i in range(n):
            while positions[i] - positions[low] > reach:
                low += 1
            while high < n and positions[high] - positions[i] <= reach:
                high += 1
            prefix[low] = 0.0
            for j in range(low, high):
                gap = abs(positions[i] - positions[j])
                listed = gap < weights.shape[1]
                weight = weights[h, gap] if listed else np.exp(-0.5 * (gap / bandwidths[h]) ** 2)
                before = prefix[j]
                after = prefix[j + 1]
                data = train[j]
                for c in range(columns):
                    after[c] = before[c] + weight * data[c]
            for f in range(folds):
                last_start = -1
                last_stop = -1
                value = 0.0
                for d in range(width):
                    if first[f, d] == first[f, d + 1]:
                        break
                    while ends[place[f, d]] <= i:
                        place[f, d] += 1
                    start = ends[place[f, d] - 1] if place[f, d] > first[f, d] else 0
                    start = max(start, low)
                    stop = min(ends[place[f, d]], high)
                    if start != last_start or stop != last_stop:
                        total = 0.0
                        for k in range(categories):
                            c = f * categories + k
                            alpha[k] = prior + max(prefix[stop, c] - prefix[start, c], 0.0)
                            total += alpha[k]
                        if prior >= FLOOR * total and edges[f + 1] - edges[f] <= _FEW:
                            # So few factors of at least 1e-9 cannot underflow: one logarithm for all.
                            product = 1.0
                            scale = 1.0 / total
                            for s in range(edges[f], edges[f + 1]):
                                if draws[i, s] >= 0:
                                    product *= alpha[draws[i, s]] * scale
                            value = np.log(product)
                        else:
                            value = _log_likelihood(alpha, held[f, i])
                        last_start = start
                        last_stop = stop
                    scores[h, f, d] += value
    return scores


@njit(cache=True, nogil=True, error_model="numpy")
def _flat_scores(train: FloatArray, held: FloatArray, ends: IntArray, first: IntArray) -> FloatArray:
    """(F, D) held-out log-likelihoods of curves that pool each segment flat; arguments as in ``_kernel_scores``."""
    folds, _, categories = held.shape
    width = first.shape[1] - 1
    scores = np.zeros((folds, width))
    alpha = np.empty(categories)
    target = np.empty(categories)
    for f in range(folds):
        for d in range(width):
            start = 0
            for place in range(first[f, d], first[f, d + 1]):
                alpha[:] = 1.0 / categories
                target[:] = 0.0
                for i in range(start, ends[place]):
                    for k in range(categories):
                        alpha[k] += train[i, f * categories + k]
                        target[k] += held[f, i, k]
                scores[f, d] += _log_likelihood(alpha, target)
                start = ends[place]
    return scores


@dataclass(frozen=True, eq=False)
class Folds:
    """Draws split for cross-validation.

    Attributes:
        positions: (n,) observed positions.
        draws: (n, S) category indices, -1 where missing.
        edges: (F + 1,) where each fold's draws begin and end.
        held, train: (F, n, K) counts of each fold's own draws, and of all others.
        found: searches already done on the training counts, which the models of one question share.
    """

    positions: IntArray
    draws: IntArray
    edges: IntArray
    held: IntArray
    train: IntArray
    found: dict[tuple[object, ...], list[list[IntArray]]] = field(default_factory=dict)

    @classmethod
    def of(cls, observations: Observations) -> Folds:
        """The folds of some observations, computed once.

        Raises:
            ValueError: only counts are known, so that there is no draw order to fold by.
        """
        known = _FOLDS_OF.get(observations)
        if known is not None:
            return known
        draws = observations.draws
        if draws is None:
            raise ValueError(
                "cannot cross-validate: only counts are known, not the order of the draws. "
                "Give every hyper-parameter, or build the observations with from_draws"
            )
        size = draws.shape[1]
        edges = np.linspace(0, size, min(_FOLDS, size) + 1).astype(np.int64)
        held = count_draws(draws, edges, len(observations.categories))
        folds = cls(observations.positions, draws, edges, held, observations.counts - held)
        _FOLDS_OF[observations] = folds
        return folds


_FOLDS_OF: WeakKeyDictionary[Observations, Folds] = WeakKeyDictionary()


@dataclass(frozen=True)
class Segmentations:
    """The different segmentations that candidates lead to, per fold.

    ``ends`` holds all their end indices one after the other, ``first`` (F, D + 1) where each begins (repeating the
    last one in folds that have fewer than D), ``index`` (F, C) which of them candidate c leads to.
    """

    ends: IntArray
    first: IntArray
    index: IntArray

    @classmethod
    def gather(cls, found: Sequence[Sequence[IntArray]]) -> Segmentations:
        """From ``found[f][c]``, the end indices of candidate c in fold f."""
        ends: list[IntArray] = []
        length = 0
        starts: list[list[int]] = []
        index = np.empty((len(found), len(found[0])), dtype=np.int64)
        for f, candidates in enumerate(found):
            known: dict[bytes, int] = {}
            starts.append([length])
            for c, candidate in enumerate(candidates):
                key = candidate.tobytes()
                if key not in known:
                    known[key] = len(known)
                    ends.append(candidate)
                    length += len(candidate)
                    starts[-1].append(length)
                index[f, c] = known[key]
        width = max(len(row) for row in starts)
        first = np.array([row + [row[-1]] * (width - len(row)) for row in starts], dtype=np.int64)
        return cls(np.concatenate(ends), first, index)


def segmentations(
    folds: Folds, costs: Sequence[str | BaseCost], penalties: Sequence[float], search: str = "pelt"
) -> Segmentations:
    """The training counts of every fold, segmented with every cost and penalty (costs the slower index)."""
    by_cost = [_searches(folds, cost, penalties, search) for cost in costs]
    return Segmentations.gather(
        [[ends for cost in by_cost for ends in cost[f]] for f in range(len(folds.train))]
    )


def _searches(
    folds: Folds, cost: str | BaseCost, penalties: Sequence[float], search: str
) -> list[list[IntArray]]:
    key = (cost, tuple(penalties), search)
    if key in folds.found:
        return folds.found[key]
    detector = make_cost(cost, folds.positions)
    found = []
    for train in folds.train:
        if isinstance(detector, CompiledCost):
            detector.fit_checked(train)
        else:
            detector.fit(train)
        found.append(search_many(detector, len(train), penalties, search))
    if isinstance(cost, str):
        folds.found[key] = found
    return found


def choose(folds: Folds, split: Segmentations, bandwidths: Sequence[float | None]) -> tuple[int, int]:
    """The first best candidate: index of its segmentation candidate and of its bandwidth (slower and faster index).

    ``bandwidths`` are kernel widths, or (None,) for flat pools. Candidates whose scores agree to within rounding of
    the fast sums are scored again one by one, and then compared as they are.
    """
    if bandwidths[0] is None:
        scores = _flat_table(folds, split)
    else:
        scores = _kernel_table(folds, split, [float(h) for h in bandwidths if h is not None])
    totals = np.zeros((split.index.shape[1], len(bandwidths)))
    for fold, index in zip(scores, split.index, strict=True):
        totals += fold[index]
    best = totals.max()
    candidates, widths = np.nonzero(totals >= best - NEAR * max(1.0, abs(best)))
    paths = split.index[:, candidates]
    winner = 0
    if np.any(widths != widths[0]) or np.any(paths != paths[:, :1]):
        known: dict[tuple[int, int, int], float] = {}
        exact = np.zeros(len(candidates))
        for c, h in enumerate(widths.tolist()):
            for f, d in enumerate(paths[:, c].tolist()):
                if (f, d, h) not in known:
                    known[f, d, h] = _direct_score(folds, split, f, d, bandwidths[h])
                exact[c] += known[f, d, h]
        winner = int(np.argmax(exact))
    return int(candidates[winner]), int(widths[winner])


def held_out_score(predictions: FloatArray, held: IntArray) -> float:
    """Log-likelihood of (n, K) held-out counts under (n, K) predicted rows, floored at 1e-9 and renormalised."""
    floored = np.maximum(predictions, FLOOR)
    return float((held * np.log(floored / floored.sum(axis=-1, keepdims=True))).sum())


def _kernel_table(folds: Folds, split: Segmentations, bandwidths: Sequence[float]) -> FloatArray:
    """(F, D, H) held-out log-likelihood of every segmentation with every kernel bandwidth."""
    widths = np.array(bandwidths, dtype=np.float64)
    span = int(folds.positions[-1] - folds.positions[0])
    gaps = np.arange(min(span, int(min(REACH * widths.max(), _LARGEST_TABLE))) + 1)
    weights = np.exp(-0.5 * (gaps / widths[:, None]) ** 2)
    train, held = _tables(folds)
    scores = _kernel_scores(
        folds.positions, train, held, folds.draws, folds.edges, split.ends, split.first, widths, weights
    )
    return np.moveaxis(scores, 0, -1)


def _flat_table(folds: Folds, split: Segmentations) -> FloatArray:
    """(F, D, 1) held-out log-likelihood of every segmentation, pooled flat."""
    train, held = _tables(folds)
    return np.asarray(_flat_scores(train, held, split.ends, split.first)[..., None])


def _direct_score(folds: Folds, split: Segmentations, fold: int, d: int, bandwidth: float | None) -> float:
    """Held-out log-likelihood of one segmentation of one fold, by direct sums."""
    ends = split.ends[split.first[fold, d] : split.first[fold, d + 1]]
    places = folds.positions.astype(np.float64)
    alpha = pool(places, places, folds.train[fold], ends.tolist(), bandwidth)
    return held_out_score(normalised(alpha), folds.held[fold])


def _tables(folds: Folds) -> tuple[FloatArray, FloatArray]:
    """Training counts as (n, F K), so that one weight serves all folds, and held-out counts as (F, n, K)."""
    n = len(folds.positions)
    return np.moveaxis(folds.train, 0, 1).reshape(n, -1).astype(np.float64), folds.held.astype(np.float64)
