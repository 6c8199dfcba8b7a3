"""``bayes``: exact Bayesian change points (Barry & Hartigan 1992; Fearnhead 2006, for multinomial draws).

The curve is constant between changes. A segment's draws have the Dirichlet-multinomial probability

    B(a + n) / B(a),    n the segment's counts, a the prior pseudo-counts,

and between two neighbouring observed positions there is a change with probability ``1 - exp(-rate * w)``,
where ``w`` adds up ``1 - p`` over the steps between them (or is 1 for each, where certainty is unknown or
set aside). Sums over all segmentations, forward and backward, are exact and take O(n²) time and O(n)
memory. Rate and prior concentration are averaged over a grid, weighed by their marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from smoothing.observations import FloatArray, IntArray, Observations
from smoothing.walk import given_floats
from smoothing.walk_kernels import log_rise

CHANGES = (1.0, 3.0, 9.0, 27.0)
"""Expected number of changes over the whole base path: the grid for the rate."""
CONCENTRATIONS = (0.5, 2.0)
FLAT = 0.1


@njit(cache=True)
def _rises(base: float, most: int) -> np.ndarray:
    """Table of log Gamma(base + n) / Gamma(base) for n = 0 … most."""
    table = np.zeros(most + 1)
    for n in range(most):
        table[n + 1] = table[n] + math.log(base + n)
    return table


@njit(cache=True)
def _recursions(
    cumulative: np.ndarray,
    tables: np.ndarray,
    offsets: np.ndarray,
    total_table: np.ndarray,
    hazard: np.ndarray,
    forward: np.ndarray,
    backward: np.ndarray,
) -> float:
    """Log evidence; ``forward[e]`` of positions before e given a change at e, ``backward[s]`` of those from
    s.
    """
    n = cumulative.shape[0] - 1
    categories = cumulative.shape[1]
    stay = np.zeros(n + 1)
    for i in range(1, n):
        stay[i + 1] = stay[i] + math.log1p(-hazard[i])
    terms = np.empty(n + 1)
    for direction in range(2):
        for i in range(1, n + 1):
            top = -np.inf
            for j in range(i):
                s, e = (j, i) if direction == 0 else (n - i, n - j)
                value = stay[e] - stay[s + 1]
                total = 0
                for k in range(categories):
                    c = cumulative[e, k] - cumulative[s, k]
                    total += c
                    value += tables[offsets[k] + c]
                value -= total_table[total]
                if direction == 0:
                    value += forward[s] + (math.log(hazard[s]) if s > 0 else 0.0)
                else:
                    value += backward[e] + (math.log(hazard[e]) if e < n else 0.0)
                terms[j] = value
                top = max(top, value)
            mass = 0.0
            for j in range(i):
                d = terms[j] - top
                if d > -40.0:
                    mass += math.exp(d)
            if direction == 0:
                forward[i] = top + math.log(mass)
            else:
                backward[n - i] = top + math.log(mass)
    return forward[n]


@njit(cache=True)
def _posterior(
    cumulative: np.ndarray,
    tables: np.ndarray,
    offsets: np.ndarray,
    total_table: np.ndarray,
    hazard: np.ndarray,
    base: np.ndarray,
    forward: np.ndarray,
    backward: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    change: np.ndarray,
) -> None:
    """Posterior mean and mean square (n, K), and probability of a change before each observed position
    (n,).
    """
    n = cumulative.shape[0] - 1
    categories = cumulative.shape[1]
    stay = np.zeros(n + 1)
    for i in range(1, n):
        stay[i + 1] = stay[i] + math.log1p(-hazard[i])
    base_total = base.sum()
    d_mean = np.zeros((n + 1, categories))
    d_square = np.zeros((n + 1, categories))
    for s in range(n):
        for e in range(s + 1, n + 1):
            value = stay[e] - stay[s + 1] + forward[s] + backward[e] - forward[n]
            if s > 0:
                value += math.log(hazard[s])
            if e < n:
                value += math.log(hazard[e])
            total = 0
            for k in range(categories):
                c = cumulative[e, k] - cumulative[s, k]
                total += c
                value += tables[offsets[k] + c]
            value -= total_table[total]
            if value < -30.0:
                continue
            weight = math.exp(value)
            change[s] += weight
            size = base_total + total
            for k in range(categories):
                x = base[k] + cumulative[e, k] - cumulative[s, k]
                d_mean[s, k] += weight * x / size
                d_mean[e, k] -= weight * x / size
                d_square[s, k] += weight * x * (x + 1.0) / (size * (size + 1.0))
                d_square[e, k] -= weight * x * (x + 1.0) / (size * (size + 1.0))
    for k in range(categories):
        m = 0.0
        q = 0.0
        for t in range(n):
            m += d_mean[t, k]
            q += d_square[t, k]
            mean[t, k] = m
            square[t, k] = q
    change[0] = 0.0


@njit(cache=True)
def _sample(
    cumulative: np.ndarray,
    hazard: np.ndarray,
    base: np.ndarray,
    backward: np.ndarray,
    rng: np.random.Generator,
    out: np.ndarray,
) -> None:
    """Joint draws of the curve at the observed positions, into (size, n, K): segment ends, then their
    levels.
    """
    size, n, categories = out.shape
    level = np.empty(categories)
    base_total = base.sum()
    for draw in range(size):
        s = 0
        while s < n:
            u = rng.random()
            e = n
            log_stay = 0.0
            for end in range(s + 1, n + 1):
                value = log_stay - backward[s] + (backward[end] + math.log(hazard[end]) if end < n else 0.0)
                total = 0.0
                for k in range(categories):
                    c = cumulative[end, k] - cumulative[s, k]
                    total += c
                    value += log_rise(base[k], c)
                value -= log_rise(base_total, total)
                u -= math.exp(value)
                if u <= 0.0:
                    e = end
                    break
                if end < n:
                    log_stay += math.log1p(-hazard[end])
            mass = 0.0
            for k in range(categories):
                x = base[k] + cumulative[e, k] - cumulative[s, k]
                # Gamma(x) = Gamma(x + 1) U^(1/x) does not underflow for all categories at once.
                level[k] = rng.gamma(x + 1.0) * math.exp(math.log(1.0 - rng.random()) / x)
                mass += level[k]
            for t in range(s, e):
                for k in range(categories):
                    out[draw, t, k] = level[k] / mass
            s = e


@dataclass(frozen=True, eq=False)
class _Model:
    """One point of the hyper-parameter grid, with its recursions done."""

    changes: float
    concentration: float
    hazard: FloatArray
    base: FloatArray
    tables: tuple[FloatArray, IntArray, FloatArray]
    forward: FloatArray
    backward: FloatArray
    log_evidence: float


def _model(
    cumulative: IntArray, width: FloatArray, centre: FloatArray, changes: float, concentration: float
) -> _Model:
    n = len(cumulative) - 1
    base = concentration * centre
    pieces = [_rises(float(b), int(most)) for b, most in zip(base, cumulative[-1], strict=True)]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])[:-1]]).astype(np.int64)
    tables = (np.concatenate(pieces), offsets, _rises(concentration, int(cumulative[-1].sum())))
    # A hazard of exactly 0 or 1 would make a logarithm infinite; neither is ever certain.
    hazard = np.ones(n + 1)
    hazard[1:n] = np.clip(-np.expm1(-changes * width / max(width.sum(), 1e-12)), 1e-12, 1 - 1e-12)
    forward, backward = np.zeros(n + 1), np.zeros(n + 1)
    value = _recursions(cumulative, *tables, hazard, forward, backward)
    return _Model(changes, concentration, hazard, base, tables, forward, backward, float(value))


class BayesFit:
    """Posterior over all segmentations, averaged over the hyper-parameter grid.

    Attributes:
        positions: (n,) observed token positions. Between two of them a change is equally likely anywhere in
            proportion to ``1 - p``, so the posterior mean runs from one to the other in that proportion;
            outside them it is constant.
        mean, sd: (n, K) posterior mean and standard deviation at the observed positions.
        change: (n,) posterior probability that the curve changed since the observed position before.
    """

    method = "bayes"

    def __init__(self, observations: Observations, hyperparameters: Mapping[str, Any] | None = None) -> None:
        given = given_floats("bayes", hyperparameters, ("changes", "concentration"))
        counts = observations.counts
        if observations.divergence is not None and not counts.any():
            raise ValueError(
                "bayes needs draws started at grid positions; these are divergence draws: use auto"
            )
        self.categories = observations.categories
        self.positions = observations.positions
        self.grid = observations.grid
        at = np.searchsorted(self.grid, self.positions)
        steps = np.ones(len(self.grid)) if observations.step_p is None else 1.0 - observations.step_p
        # A sure step (p = 1) keeps a trace of the rate, so that a gap of sure steps can still be divided.
        self._clock = np.concatenate([[0.0], np.cumsum(steps + 1e-9)])[:-1]
        width = np.diff(self._clock[at])
        cumulative = np.vstack([np.zeros((1, counts.shape[1]), dtype=np.int64), np.cumsum(counts, axis=0)])
        pooled = counts.sum(axis=0)
        k = counts.shape[1]
        centre = (1 - FLAT) * (pooled + 1.0 / k) / (pooled.sum() + 1.0) + FLAT / k
        models = [
            _model(cumulative, width, centre, changes, concentration)
            for changes in ([given["changes"]] if "changes" in given else CHANGES)
            for concentration in ([given["concentration"]] if "concentration" in given else CONCENTRATIONS)
        ]
        score = np.array([m.log_evidence for m in models])
        shares = np.exp(score - score.max())
        shares /= shares.sum()
        self._models = [m for m, share in zip(models, shares, strict=True) if share > 0.01]
        self._shares = shares[shares > 0.01] / shares[shares > 0.01].sum()
        self._cumulative = cumulative
        n = len(self.positions)
        self.mean: FloatArray = np.zeros((n, k))
        square = np.zeros((n, k))
        self.change: FloatArray = np.zeros(n)
        for share, m in zip(self._shares, self._models, strict=True):
            one, two, change = np.zeros((n, k)), np.zeros((n, k)), np.zeros(n)
            _posterior(cumulative, *m.tables, m.hazard, m.base, m.forward, m.backward, one, two, change)
            self.mean += share * one
            square += share * two
            self.change += share * change
        self.mean /= self.mean.sum(axis=1, keepdims=True)
        self.change = np.minimum(self.change, 1.0)
        self.sd: FloatArray = np.sqrt(np.maximum(square - self.mean**2, 0.0))
        self.hyperparameters: dict[str, Any] = {
            "changes": float(np.exp(self._shares @ np.log([m.changes for m in self._models]))),
            "concentration": float(np.exp(self._shares @ np.log([m.concentration for m in self._models]))),
        }

    @property
    def breakpoints(self) -> list[int]:
        """Ends of runs of observed positions, cut where a change is more likely than not."""
        return [*np.flatnonzero(self.change > 0.5).tolist(), len(self.positions)]

    def predict(self, positions: ArrayLike) -> FloatArray:
        """(len(positions), K) posterior mean curve; rows sum to 1."""
        return self._at(self.mean, positions)

    def band(self, positions: ArrayLike, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """(len(positions), K) ends of central intervals of Beta distributions with the posterior's
        moments.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie strictly between 0 and 1; got {level}")
        variance = np.maximum(self.sd**2, 1e-12)
        mean = np.clip(self.mean, 1e-9, 1 - 1e-9)
        total = np.maximum(mean * (1 - mean) / variance - 1.0, 1e-3)
        ends = [
            np.clip(betaincinv(mean * total, (1 - mean) * total, q), 0.0, 1.0).astype(np.float64)
            for q in ((1 - level) / 2, (1 + level) / 2)
        ]
        return self._at(ends[0], positions), self._at(ends[1], positions)

    def change_probability(self, threshold: float = 0.0) -> FloatArray:
        """(T,) posterior probability of a change at each grid position by more than ``threshold``.

        Between two observed positions the probability is shared out in proportion to ``1 - p``. With a
        threshold, it is that a change happened and moved the curve so far, from 500 joint draws.
        """
        change = self.change
        if threshold > 0:
            curves = self.sample_observed(500)
            moved = 0.5 * np.abs(np.diff(curves, axis=1)).sum(axis=2) > threshold
            change = np.concatenate([[0.0], moved.mean(axis=0)])
        out = np.zeros(len(self.grid))
        at = np.searchsorted(self.grid, self.positions)
        for i in range(1, len(at)):
            share = np.diff(self._clock[at[i - 1] : at[i] + 1])
            out[at[i - 1] + 1 : at[i] + 1] = change[i] * share / share.sum()
        return out

    def sample_observed(self, size: int, seed: int = 0) -> FloatArray:
        """(size, n, K) joint posterior draws of the curve at the observed positions."""
        rng = np.random.default_rng(seed)
        parts = []
        for count, m in zip(rng.multinomial(size, self._shares), self._models, strict=True):
            out = np.empty((count, *self.mean.shape))
            _sample(self._cumulative.astype(np.float64), m.hazard, m.base, m.backward, rng, out)
            parts.append(out)
        return rng.permutation(np.concatenate(parts), axis=0)

    def _at(self, values: FloatArray, positions: ArrayLike) -> FloatArray:
        where = np.interp(np.asarray(positions, dtype=np.float64), self.grid, self._clock)
        known = np.interp(self.positions, self.grid, self._clock)
        return np.stack([np.interp(where, known, column) for column in values.T], axis=1)


def fit_bayes(observations: Observations, hyperparameters: Mapping[str, Any] | None = None) -> BayesFit:
    """Fit exact Bayesian change points to draws started at grid positions.

    Args:
        observations: grid draws; ``step_p`` sharpens where changes may be.
        hyperparameters: ``changes`` (expected number over the base path) and ``concentration`` (of a
            segment's
            prior, in draws), else averaged over a small grid by marginal likelihood.

    Raises:
        ValueError: for unknown or unusable hyper-parameters, or where there are only divergence draws.
    """
    return BayesFit(observations, hyperparameters)
