"""Models of an outcome curve, behind one interface: fit on observations, predict a curve with a band anywhere.

``raw``, ``kernel``, ``segment`` and ``full`` are those of "Forking Fast"; the last is its Full Model: change points by
penalised likelihood, Gaussian kernel pooling inside the segments, hyper-parameters by cross-validation over the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from smoothing.auto import fit_auto
from smoothing.bayes import fit_bayes
from smoothing.costs import FloatArray, IntArray, make_cost
from smoothing.martingale import fit_martingale
from smoothing.observations import Observations
from smoothing.pelt import check_penalty, check_search, search_many
from smoothing.pooling import beta_band, count_band, normalised, pool, query_positions
from smoothing.tuning import Folds, Segmentations, choose, held_out_score, segmentations

Hyperparameters = Mapping[str, Any]

COST_GRID = ("multinomial", "logit_linear")
PENALTY_GRID = tuple(2.0**i for i in range(12))
BANDWIDTH_GRID = tuple(2.0**i for i in range(1, 8))
SEGMENT_PENALTY_GRID = PENALTY_GRID[:10]
INTERPOLATIONS = ("linear", "nearest")

FULL_DEFAULTS: Hyperparameters = {"cost": "multinomial", "penalty": 64.0, "bandwidth": 32.0}
"""Fixed hyper-parameters of the published Full Model, for where nothing can be cross-validated."""


class Fit(Protocol):
    """A fitted outcome curve."""

    @property
    def method(self) -> str:
        """Name of the model."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Those given or chosen."""

    @property
    def breakpoints(self) -> list[int]:
        """End indices of the segments into the observed positions; the last is their number."""

    def predict(self, positions: ArrayLike) -> FloatArray:
        """(T, K) curve at any token positions; rows sum to 1."""

    def band(self, positions: ArrayLike, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """(T, K) lower and upper ends of the central interval of each category's probability."""


@dataclass(frozen=True, eq=False)
class PooledFit:
    """Counts pooled inside segments, by a kernel or flat."""

    method: str
    hyperparameters: dict[str, Any]
    breakpoints: list[int]
    positions: FloatArray
    counts: IntArray
    bandwidth: float | None

    def weights(self, positions: ArrayLike) -> FloatArray:
        """(T, K) parameters of the Dirichlet distribution of the curve at each position."""
        return pool(query_positions(positions), self.positions, self.counts, self.breakpoints, self.bandwidth)

    def predict(self, positions: ArrayLike) -> FloatArray:
        """(T, K) curve at any token positions; rows sum to 1."""
        return normalised(self.weights(positions))

    def band(self, positions: ArrayLike, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """(T, K) ends of the central Beta interval of each category's probability."""
        return beta_band(self.weights(positions), level)


@dataclass(frozen=True, eq=False)
class RawFit:
    """Observed frequencies, interpolated; constant beyond the first and last observed position.

    Positions without a draw count as not observed; where no position has one, the curve is uniform.
    """

    method: str
    hyperparameters: dict[str, Any]
    breakpoints: list[int]
    positions: FloatArray
    counts: IntArray

    def predict(self, positions: ArrayLike) -> FloatArray:
        """(T, K) curve at any token positions; rows sum to 1."""
        totals = self.counts.sum(axis=1, keepdims=True)
        if not totals.any():
            return np.full((len(query_positions(positions)), self.counts.shape[1]), 1 / self.counts.shape[1])
        return self._interpolated(self.counts / np.maximum(totals, 1), positions)

    def band(self, positions: ArrayLike, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """(T, K) ends of the Beta intervals of 1/K + counts at the observed positions, interpolated like the curve."""
        lower, upper = count_band(self.counts, level)
        return self._interpolated(lower, positions), self._interpolated(upper, positions)

    def _interpolated(self, values: FloatArray, positions: ArrayLike) -> FloatArray:
        query = query_positions(positions)
        drawn = self.counts.any(axis=1)
        if drawn.any():
            known, values = self.positions[drawn], values[drawn]
        else:
            known = self.positions
        if self.hyperparameters["interpolation"] == "nearest":
            return values[np.searchsorted((known[:-1] + known[1:]) / 2, query)]
        return np.stack([np.interp(query, known, column) for column in values.T], axis=1)


def fit_raw(observations: Observations, hyperparameters: Hyperparameters | None = None) -> RawFit:
    """Frequencies c/S at the observed positions; ``interpolation`` (linear, nearest) by cross-validation.

    The two differ only at positions where a fold leaves no draw to train on; without such, or where only counts are
    known, linear is chosen.
    """
    given = _given("raw", hyperparameters, ("interpolation",))
    positions, counts = _observed(observations)
    kind = INTERPOLATIONS[0]
    if "interpolation" in given:
        kind = given["interpolation"]
        if kind not in INTERPOLATIONS:
            raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}; got {kind!r}")
    elif observations.draws is not None:
        folds = Folds.of(observations)
        if np.any(folds.held.any(axis=2) & ~folds.train.any(axis=2)):
            scores = [
                sum(
                    held_out_score(_raw(name, positions, train).predict(positions), held)
                    for train, held in zip(folds.train, folds.held, strict=True)
                )
                for name in INTERPOLATIONS
            ]
            kind = INTERPOLATIONS[int(np.argmax(scores))]
    return _raw(kind, positions, counts)


def fit_kernel(observations: Observations, hyperparameters: Hyperparameters | None = None) -> PooledFit:
    """Kernel pooling over all positions; ``bandwidth`` by cross-validation over 2, 4, ..., 128."""
    given = _given("kernel", hyperparameters, ("bandwidth",))
    positions, counts = _observed(observations)
    if "bandwidth" in given:
        bandwidth = _bandwidth(given["bandwidth"])
    else:
        folds = Folds.of(observations)
        whole = Segmentations.gather([[np.array([len(positions)])]] * len(folds.held))
        bandwidth = BANDWIDTH_GRID[choose(folds, whole, BANDWIDTH_GRID)[1]]
    return PooledFit("kernel", {"bandwidth": bandwidth}, [len(positions)], positions, counts, bandwidth)


def fit_segment(observations: Observations, hyperparameters: Hyperparameters | None = None) -> PooledFit:
    """Flat pools between change points; ``penalty`` by cross-validation over 1, 2, ..., 512."""
    given = _given("segment", hyperparameters, ("penalty",))
    positions, counts = _observed(observations)
    if "penalty" in given:
        penalty = check_penalty(given["penalty"])
    else:
        folds = Folds.of(observations)
        # Searched over the Full Model's longer grid, whose search this is too.
        split = segmentations(folds, ("multinomial",), PENALTY_GRID)
        split = replace(split, index=split.index[:, : len(SEGMENT_PENALTY_GRID)])
        penalty = SEGMENT_PENALTY_GRID[choose(folds, split, (None,))[0]]
    ends = search_many(make_cost("multinomial").fit(counts), len(positions), [penalty])[0]
    return PooledFit("segment", {"penalty": penalty}, ends.tolist(), positions, counts, None)


def fit_full(observations: Observations, hyperparameters: Hyperparameters | None = None) -> PooledFit:
    """The published Full Model: change points, then kernel pooling inside the segments.

    Args:
        observations: with draws, unless every hyper-parameter is given.
        hyperparameters: any of ``cost`` (a name or a ``ruptures.base.BaseCost``), ``penalty``, ``bandwidth``, and
            ``search`` (``pelt``, the default, or ``optimal``). The first three are cross-validated where left out, over
            two costs, penalties 1, 2, ..., 2048 and bandwidths 2, 4, ..., 128: 168 candidates, the first best wins.
    """
    given = _given("full", hyperparameters, ("cost", "penalty", "bandwidth", "search"))
    positions, counts = _observed(observations)
    search = check_search(given.get("search", "pelt"))
    costs = (given["cost"],) if "cost" in given else COST_GRID
    penalties = (check_penalty(given["penalty"]),) if "penalty" in given else PENALTY_GRID
    bandwidths = (_bandwidth(given["bandwidth"]),) if "bandwidth" in given else BANDWIDTH_GRID
    candidate, width = 0, 0
    if len(costs) * len(penalties) * len(bandwidths) > 1:
        folds = Folds.of(observations)
        candidate, width = choose(folds, segmentations(folds, costs, penalties, search), bandwidths)
    cost = costs[candidate // len(penalties)]
    penalty = penalties[candidate % len(penalties)]
    bandwidth = bandwidths[width]
    ends = search_many(make_cost(cost, positions).fit(counts), len(positions), [penalty], search)[0]
    chosen = {"cost": cost, "penalty": penalty, "bandwidth": bandwidth}
    if "search" in given:
        chosen["search"] = search
    return PooledFit("full", chosen, ends.tolist(), positions, counts, bandwidth)


Model = Callable[[Observations, Hyperparameters | None], Fit]

MODELS: dict[str, Model] = {
    "raw": fit_raw,
    "kernel": fit_kernel,
    "segment": fit_segment,
    "full": fit_full,
    "martingale": fit_martingale,
    "bayes": fit_bayes,
    "auto": fit_auto,
}


def fit(
    observations: Observations, method: str = "full", hyperparameters: Hyperparameters | None = None
) -> Fit:
    """Fit a model to one question's observations.

    Args:
        observations: at least one sampled position.
        method: name of a model in ``MODELS``.
        hyperparameters: fixed values; those left out are cross-validated, which needs single draws.

    Raises:
        ValueError: unknown method or hyper-parameter, a value out of range, nothing observed, or nothing to
            cross-validate with.
    """
    if method not in MODELS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(MODELS)}")
    return MODELS[method](observations, hyperparameters)


def _given(method: str, hyperparameters: Hyperparameters | None, known: Sequence[str]) -> Hyperparameters:
    given = dict(hyperparameters or {})
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{method} has no hyper-parameter {unknown[0]!r}; known: {', '.join(known)}")
    return given


def _observed(observations: Observations) -> tuple[FloatArray, IntArray]:
    if len(observations.positions) == 0:
        raise ValueError("no position was sampled: give at least one position with its draws")
    return observations.positions.astype(np.float64), observations.counts


def _raw(interpolation: str, positions: FloatArray, counts: IntArray) -> RawFit:
    return RawFit("raw", {"interpolation": interpolation}, [len(positions)], positions, counts)


def _bandwidth(value: float) -> float:
    width = float(value)
    if not 0.0 < width < np.inf:
        raise ValueError(f"bandwidth must be a finite number above 0; got {value}")
    return width
