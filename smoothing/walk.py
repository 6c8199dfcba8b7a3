"""The outcome curve as a walk whose steps are bounded by the model's own certainty.

A continuation restarted at ``t`` either takes the base token, with known probability ``p_t``, and is then a
draw from ``o_{t+1}``, or leaves the base path and is a draw from ``d_t``:

    o_t = p_t o_{t+1} + (1 - p_t) d_t        (derived and checked in docs/method.md)

so one step moves the curve by ``(1 - p_t)(d_t - o_{t+1})``. What is not known is how far a divergence moves
the answer. The prior says: usually hardly at all, sometimes completely. ``d_t`` has mean ``o_{t+1}`` and
variance ``scale * o(1 - o)``, with ``scale`` one of a few classes: the discrete form of a heavy-tailed
innovation. The curve's stationary law is a Dirichlet distribution, draws are multinomial, and a step of
relative variance ``s`` turns a message worth ``A`` draws into one worth ``A / (1 + s A)``: the power steady
model (Smith 1979) with a known, token-wise discount, mixed over classes as in a Gaussian-sum filter
(Alspach & Sorenson 1972). Messages from both ends are joined at every node. Time and memory grow linearly
with the length of the base path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from smoothing import walk_kernels as kernels
from smoothing.observations import FloatArray, Observations

LEAVING_PER_TOKEN = 0.05
"""Mean of ``(1 - p)²`` per token, assumed where the base path's certainty is unknown; capped at 1 a step."""
MISFIT = 0.003
"""How far, as a probability of leaving, the identity may be off (rounding, batch variance of the model)."""
KNOWN_END = 1000.0
"""Draws that the base path's own answer is worth at its end, where it is known."""
FLAT = 0.1
"""Share of the stationary law spread evenly over the categories; the rest follows the pooled draws."""


@dataclass(frozen=True)
class StepPrior:
    """Classes of step: how far a divergence moves the answer, relative to ``o(1 - o)``, and how often."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.weights) or not self.scales:
            raise ValueError("scales and weights must have the same length, at least 1")
        if not all(np.isfinite(x) and x > 0 for x in (*self.scales, *self.weights)):
            raise ValueError("scales and weights must be positive and finite")


@dataclass(frozen=True, eq=False)
class Nodes:
    """One question's data on its grid: (T, K) draws, (T, K) divergence draws, (T,) chance of leaving."""

    counts: FloatArray
    divergence: FloatArray
    leaving: FloatArray
    end: FloatArray

    @classmethod
    def of(cls, observations: Observations) -> Nodes:
        """Lay the observations out on their grid.

        Where ``divergence`` is given it stands for every draw, and ``counts`` add nothing to it: given
        where a draw left the base path, where it was started from says no more about its outcome.
        """
        grid = observations.grid
        width = len(observations.categories)
        counts = np.zeros((len(grid), width))
        divergence = np.zeros((len(grid), width))
        if observations.divergence is not None:
            divergence[:] = observations.divergence
        else:
            counts[np.searchsorted(grid, observations.positions)] = observations.counts
        if observations.step_p is None:
            gaps = np.diff(grid).astype(np.float64)
            last = np.median(gaps) if gaps.size else 1.0
            square = np.minimum(LEAVING_PER_TOKEN * np.append(gaps, last), 1.0)
        else:
            square = np.minimum((1.0 - observations.step_p) ** 2 + MISFIT**2, 1.0)
        end = np.zeros(width)
        if observations.base_outcome is not None:
            end[observations.base_outcome] = KNOWN_END
        return cls(counts, divergence, np.sqrt(square), end)

    def stationary(self, concentration: float) -> FloatArray:
        """(K,) pseudo-counts of the curve's stationary law, centred on the pooled draws."""
        pooled = self.counts.sum(axis=0) + self.divergence.sum(axis=0)
        width = len(pooled)
        centre = (pooled + 1.0 / width) / (pooled.sum() + 1.0)
        return concentration * ((1 - FLAT) * centre + FLAT / width)


@dataclass(frozen=True, eq=False)
class Messages:
    """What the two ends say, for one step prior: ``left`` without each node's own draws, ``right`` with
    them.
    """

    left: FloatArray
    left_w: FloatArray
    left_own: FloatArray
    left_own_w: FloatArray
    right: FloatArray
    right_w: FloatArray
    log_evidence: float


def evidence(nodes: Nodes, prior: StepPrior, base: FloatArray, slots: int) -> float:
    """Log marginal likelihood of all draws under a step prior (multinomial coefficients left out)."""
    width = len(base)
    empty, empty_w = np.empty((0, slots, width)), np.empty((0, slots))
    return float(
        kernels.sweep(
            nodes.counts, nodes.divergence, nodes.leaving, *_classes(prior), base, nodes.end, True,
            empty, empty_w, empty, empty_w,
        )
    )  # fmt: skip


def messages(nodes: Nodes, prior: StepPrior, base: FloatArray, slots: int) -> Messages:
    """Both sweeps; arrays are (T, slots, K) and (T, slots)."""
    shape = (len(nodes.leaving), slots, len(base))
    vectors = [np.empty(shape) for _ in range(4)]
    weights = [np.empty(shape[:2]) for _ in range(4)]
    common = (nodes.counts, nodes.divergence, nodes.leaving, *_classes(prior), base)
    kernels.sweep(*common, np.zeros(len(base)), False, vectors[0], weights[0], vectors[1], weights[1])
    value = kernels.sweep(*common, nodes.end, True, vectors[2], weights[2], vectors[3], weights[3])
    return Messages(vectors[0], weights[0], vectors[1], weights[1], vectors[3], weights[3], float(value))


def _classes(prior: StepPrior) -> tuple[FloatArray, FloatArray]:
    weights = np.array(prior.weights)
    return np.array(prior.scales), np.log(weights / weights.sum())


class WalkFit:
    """Posterior of an outcome curve under one step prior, or an average over a few.

    Attributes:
        method, hyperparameters: what was fitted, and with which constants.
        grid: (T,) token positions of the nodes; between them curve and bands are interpolated linearly, and
            outside they are constant.
        mean, sd: (T, K) posterior mean and standard deviation at the nodes.
    """

    def __init__(
        self,
        method: str,
        hyperparameters: dict[str, Any],
        observations: Observations,
        nodes: Nodes,
        priors: list[StepPrior],
        shares: ArrayLike,
        base: FloatArray,
        slots: int,
    ) -> None:
        self.method = method
        self.hyperparameters = hyperparameters
        self.categories = observations.categories
        self.grid = observations.grid
        self._observed = np.searchsorted(observations.grid, observations.positions)
        self._nodes = nodes
        self._priors = priors
        self._shares = np.asarray(shares, dtype=np.float64) / np.sum(shares)
        self._base = base
        self._messages = [messages(nodes, prior, base, slots) for prior in priors]
        mean = np.zeros((len(self.grid), len(base)))
        square = np.zeros_like(mean)
        for share, m in zip(self._shares, self._messages, strict=True):
            kernels.moments(m.left, m.left_w, m.right, m.right_w, base, share, mean, square)
        sd = np.sqrt(np.maximum(square - mean**2, 0.0))
        mean /= mean.sum(axis=1, keepdims=True)
        if observations.step_p is None and observations.divergence is None:
            mean = self._bridged(mean)
        self.mean: FloatArray = mean
        self.sd: FloatArray = sd
        self._bands: dict[float, tuple[FloatArray, FloatArray]] = {}
        self._forks: dict[float, tuple[FloatArray, FloatArray, FloatArray]] = {}

    def predict(self, positions: ArrayLike) -> FloatArray:
        """(len(positions), K) posterior mean curve; rows sum to 1."""
        return self._at(self.mean, positions)

    def band(self, positions: ArrayLike, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """(len(positions), K) lower and upper ends of the central ``level`` interval of each category."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie strictly between 0 and 1; got {level}")
        where = np.asarray(positions, dtype=np.float64)
        # Only nodes on either side of a position asked for are worked out, and kept for the next call.
        right = np.clip(np.searchsorted(self.grid, where), 0, len(self.grid) - 1)
        left = np.clip(np.searchsorted(self.grid, where, side="right") - 1, 0, len(self.grid) - 1)
        if level not in self._bands:
            self._bands[level] = np.full_like(self.mean, np.nan), np.full_like(self.mean, np.nan)
        low, high = self._bands[level]
        wanted = np.union1d(left, right)
        wanted = wanted[np.isnan(low[wanted, 0])]
        if len(wanted):
            stacks = [
                np.stack([getattr(m, name) for m in self._messages])
                for name in ("left", "left_w", "right", "right_w")
            ]
            bases = np.stack([self._base] * len(self._messages))
            ends = np.empty((2, len(wanted), len(self._base)))
            tails = (1 - level) / 2, (1 + level) / 2
            kernels.bands(
                stacks[0], stacks[1], stacks[2], stacks[3], bases, self._shares, wanted, *tails, *ends
            )
            # Where nearly all mass sits at 0 or 1, the mean lies outside the central interval: include it.
            low[wanted] = np.minimum(ends[0], self.mean[wanted])
            high[wanted] = np.maximum(ends[1], self.mean[wanted])
        low, high = (np.where(np.isnan(x), 0.0, x) for x in (low, high))
        return self._at(low, where), self._at(high, where)

    def change_probability(self, threshold: float) -> FloatArray:
        """(T,) posterior probability that the curve moved by more than ``threshold`` in total variation.

        Element ``i`` is about the step from ``grid[i - 1]`` to ``grid[i]``; element 0 is 0.
        """
        return self._fork(threshold)[0]

    @property
    def expected_change(self) -> FloatArray:
        """(T,) posterior mean total variation of the step into each node; element 0 is 0."""
        return self._fork(0.15)[1]

    @property
    def expected_square(self) -> FloatArray:
        """(T,) posterior mean of ``Σ_k (o_t,k - o_{t-1},k)²`` of the step into each node; element 0 is 0."""
        return self._fork(0.15)[2]

    @property
    def breakpoints(self) -> list[int]:
        """Ends of runs of observed positions between which the curve more likely than not moved by over
        0.1.
        """
        calm = np.log1p(-np.minimum(self.change_probability(0.1), 1 - 1e-12)).cumsum()
        cuts = np.flatnonzero(np.diff(calm[self._observed]) < np.log(0.5)) + 1
        return [*cuts.tolist(), len(self._observed)]

    def sample(self, size: int, seed: int = 0) -> FloatArray:
        """(size, T, K) joint posterior draws of the whole curve at the nodes."""
        rng = np.random.default_rng(seed)
        parts = []
        which = rng.multinomial(size, self._shares)
        for count, prior, m in zip(which, self._priors, self._messages, strict=True):
            out = np.empty((count, *self.mean.shape))
            kernels.sample_curves(
                m.right, m.right_w, self._base, self._nodes.divergence, self._nodes.leaving, *_classes(prior),
                rng, out,
            )  # fmt: skip
            parts.append(out)
        return rng.permutation(np.concatenate(parts), axis=0)

    def total_variation(self, first: int, second: int, size: int = 1000, seed: int = 0) -> FloatArray:
        """(size,) posterior draws of the total variation between two token positions (nearest earlier
        nodes).
        """
        at = [max(int(np.searchsorted(self.grid, t, side="right")) - 1, 0) for t in (first, second)]
        curves = self.sample(size, seed)
        return 0.5 * np.abs(curves[:, at[0]] - curves[:, at[1]]).sum(axis=1)

    def _bridged(self, mean: FloatArray) -> FloatArray:
        """The mean, drawn straight in token position between observed nodes: for use where certainty is unknown.

        There, every token is as likely to be the fork as any other, so the expected curve is the straight
        line. A step per node would put too much of the change on short steps.
        """
        drawn = self._observed[self._nodes.counts[self._observed].any(axis=1)]
        if not len(drawn):
            return mean
        inside = slice(drawn[0], drawn[-1] + 1)
        out = mean.copy()
        for k in range(mean.shape[1]):
            out[inside, k] = np.interp(self.grid[inside], self.grid[drawn], mean[drawn, k])
        return out

    def _at(self, values: FloatArray, positions: ArrayLike) -> FloatArray:
        where = np.asarray(positions, dtype=np.float64)
        if where.shape == self.grid.shape and np.array_equal(where, self.grid):
            return values.copy()
        return np.stack([np.interp(where, self.grid, column) for column in values.T], axis=1)

    def _fork(self, threshold: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and below 1; got {threshold}")
        if threshold not in self._forks:
            chance, (size, square) = np.zeros((len(self.grid), 1)), np.zeros((2, len(self.grid)))
            for share, prior, m in zip(self._shares, self._priors, self._messages, strict=True):
                one, length, squared = np.zeros_like(chance), np.zeros_like(size), np.zeros_like(size)
                kernels.fork_probability(
                    m.left_own, m.left_own_w, m.right, m.right_w, self._base, self._nodes.divergence,
                    self._nodes.leaving, *_classes(prior), np.array([threshold]), one, length, squared,
                )  # fmt: skip
                chance += share * one
                size += share * length
                square += share * squared
            self._forks[threshold] = chance[:, 0], size, square
        return self._forks[threshold]


def given_floats(
    method: str, hyperparameters: Mapping[str, Any] | None, names: tuple[str, ...]
) -> dict[str, float]:
    """Check hyper-parameters given by name: known, positive and finite."""
    given = dict(hyperparameters or {})
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ValueError(f"{method} has no hyper-parameter {unknown[0]!r}; it has {', '.join(names)}")
    for name, value in given.items():
        if not (
            isinstance(value, int | float | np.integer | np.floating) and np.isfinite(value) and value > 0
        ):
            raise ValueError(f"{name} must be a positive number; got {value!r}")
    return {name: float(value) for name, value in given.items()}
