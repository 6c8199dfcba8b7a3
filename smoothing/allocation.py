"""Where the next continuations buy most: the arithmetic behind stratified and adaptive collection.

With ``o_t = o_{t+1} + (1 - p_t) x_t`` and ``d_u = o_{u+1} + x_u`` (docs/method.md), draws that leave the
base path at ``u`` observe ``d_u``. Without smoothing, ``o_t = Σ_{u>=t} W_{t,u} d_u + const``, and the
summed variance of the whole curve is ``Σ_u A_u V_u / n_u`` with ``A_u = (1 - p_u)² Σ_{t<=u} Π_{t<=v<u}
p_v²``: least, for a given cost, at ``n_u ∝ √(A_u V_u / cost_u)`` (Neyman 1934). With smoothing, neighbours
inform each other, and draws are given one after the other to where they lower the posterior variance of the
curve most per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from smoothing.observations import FloatArray, IntArray
from smoothing.walk import WalkFit

LEAST_LEAVING = 0.02
"""Positions with a smaller chance of leaving get no draws from the sequential design: nothing moves there."""
TYPICAL_SCALE = 0.04
"""Mean squared move of a divergence relative to ``o(1 - o)``: that of the classes of ``smoothing.auto``."""
CALM = 1e-6
"""Least prior variance of a divergence, so that no position is taken to be settled for good."""


def curve_weights(step_p: ArrayLike) -> FloatArray:
    """(T,) ``A_u``: how much the variance of ``d_u`` counts in the summed variance of the whole curve."""
    p = np.asarray(step_p, dtype=np.float64)
    weights = np.zeros(len(p))
    reach = 0.0
    for u in range(len(p)):
        reach = 1.0 + (reach * p[u - 1] ** 2 if u else 0.0)
        weights[u] = (1 - p[u]) ** 2 * reach
    return weights


def stratified_shares(
    step_p: ArrayLike, cost: ArrayLike | None = None, variance: ArrayLike | None = None
) -> FloatArray:
    """(T,) shares ``∝ √(A_u V_u / cost_u)`` of the draws, adding up to 1.

    Args:
        step_p: (T,) probabilities of the base tokens.
        cost: (T,) expected tokens of a continuation that leaves at u; equal where left out.
        variance: (T,) ``Σ_k d(1 - d)``; equal where left out.

    Raises:
        ValueError: where the model is certain of every token, so that nothing ever leaves the base path.
    """
    value = curve_weights(step_p)
    if variance is not None:
        value = value * np.asarray(variance, dtype=np.float64)
    if cost is not None:
        value = value / np.asarray(cost, dtype=np.float64)
    shares = np.sqrt(value)
    if not shares.sum() > 0:
        raise ValueError("no position can be left: every base token has probability 1")
    return shares / shares.sum()


def whole_numbers(expected: ArrayLike, offset: float) -> IntArray:
    """Integers with the given expectations, each rounded up or down, by systematic sampling.

    Args:
        expected: (T,) draws wanted, at least 0.
        offset: uniform on [0, 1); it makes the rounding unbiased and spreads it evenly along the path.
    """
    edges = np.floor(np.concatenate([[0.0], np.cumsum(np.asarray(expected, dtype=np.float64))]) + offset)
    return np.diff(edges).astype(np.int64)


def token_choice(p: ArrayLike, first: int, count: int, offset: float) -> IntArray:
    """Which alternative token each of ``count`` draws takes: in proportion to ``p``, and spread evenly.

    Draws ``first, first + 1, …`` of a position use the points ``offset + i φ`` (mod 1), φ the golden ratio's
    fractional part: a low-discrepancy sequence that can be continued in any round. Every draw by itself is
    distributed as ``p``, since ``offset`` is uniform on [0, 1).
    """
    edges = np.cumsum(np.asarray(p, dtype=np.float64))
    points = (offset + np.arange(first, first + count) * 0.6180339887498949) % 1.0
    return np.minimum(np.searchsorted(edges / edges[-1], points, side="right"), len(edges) - 1)


@dataclass(frozen=True, eq=False)
class Design:
    """What further draws at each candidate position would do, in one question.

    Attributes:
        positions: (U,) indices of candidate positions.
        influence: (T, U) posterior covariance of the curve and ``d_u``.
        spread: (U, U) posterior covariance of the ``d_u``.
        noise: (U,) variance of a single draw of ``d_u``, ``Σ_k d(1 - d)``.
        cost: (U,) expected tokens of a draw.
    """

    positions: IntArray
    influence: FloatArray
    spread: FloatArray
    noise: FloatArray
    cost: FloatArray

    @classmethod
    def of(
        cls, fit: WalkFit, step_p: ArrayLike, counts: ArrayLike, cost: ArrayLike, known_end: bool,
        allowed: ArrayLike | None = None,
    ) -> Design:  # fmt: skip
        """The linear-Gaussian design around a fitted curve.

        Prior variances of the divergences are their posterior mean squares in ``fit`` (so a jump that may be
        there counts with its probability); all is conditioned on the draws made so far.

        Args:
            fit: posterior on every token of the base path.
            step_p: (T,) probabilities of the base tokens.
            counts: (T,) divergence draws made so far.
            cost: (T,) expected tokens of a draw.
            known_end: whether the base path's own answer is known.
            allowed: (T,) where draws can be made; wherever the base path can be left when omitted.
        """
        p = np.asarray(step_p, dtype=np.float64)
        made = np.asarray(counts, dtype=np.float64)
        leaving = 1 - p
        candidate = leaving > LEAST_LEAVING
        if allowed is not None:
            candidate &= np.asarray(allowed, dtype=bool)
        at = np.flatnonzero(candidate)
        q = leaving[at]
        after = np.vstack([fit.mean[1:], fit.mean[-1:]])[at]
        believed = np.maximum((after * (1 - after)).sum(axis=1), 1e-4)
        # After n draws that all agree, another outcome may still have a chance of about 1 / n.
        noise = np.maximum(believed, 2.0 / (made.sum() + 2.0))
        square = np.append(fit.expected_square[1:], 0.0)[at] * noise / believed
        if len(at) and at[-1] == len(p) - 1:
            square[-1] = q[-1] ** 2 * TYPICAL_SCALE * noise[-1]
        prior = np.append(square / q**2 + CALM, 1e-9 if known_end else noise.mean() if len(at) else 1.0)
        # Unknowns: the divergences at the candidates, and where the curve ends. Row u of ``see`` gives d_u.
        see = np.hstack([np.triu(np.tile(q, (len(at), 1)), 1) + np.eye(len(at)), np.ones((len(at), 1))])
        reach = np.arange(len(p))[:, None] <= at[None, :]
        build = np.hstack([reach * q, np.ones((len(p), 1))])
        precision = np.diag(1 / prior) + (see.T * (made[at] / noise)) @ see
        covariance = np.linalg.inv(precision)
        seen = covariance @ see.T
        costs = np.asarray(cost, dtype=np.float64)[at]
        return cls(at, build @ seen, see @ seen, noise, costs)

    @property
    def curve_variance_gain(self) -> FloatArray:
        """(U,) by how much one more draw lowers the mean posterior variance of the curve."""
        gain = (self.influence**2).sum(axis=0) / len(self.influence)
        return gain / (np.diag(self.spread) + self.noise)


@njit(cache=True)
def _best(
    square: np.ndarray, spread: np.ndarray, noise: np.ndarray, cost: np.ndarray, room: np.ndarray
) -> tuple[int, float]:
    best = -1
    value = -1.0
    for u in range(len(noise)):
        if room[u] > 0:
            gain = square[u] / (spread[u, u] + noise[u]) / cost[u]
            if gain > value:
                best, value = u, gain
    return best, value


@njit(cache=True)
def _draw(u: int, influence: np.ndarray, spread: np.ndarray, noise: np.ndarray, square: np.ndarray) -> None:
    """Condition on one more draw of d_u (rank one); ``square`` is kept at the summed squares of
    ``influence``.
    """
    below = spread[u, u] + noise[u]
    column = influence[:, u].copy()
    row = spread[u].copy()
    for t in range(influence.shape[0]):
        for v in range(influence.shape[1]):
            influence[t, v] -= column[t] * row[v] / below
    for v in range(len(row)):
        for w in range(len(row)):
            spread[v, w] -= row[v] * row[w] / below
    square[:] = 0.0
    for t in range(influence.shape[0]):
        for v in range(influence.shape[1]):
            square[v] += influence[t, v] * influence[t, v]


def next_draws(
    designs: list[Design], tokens: float, room: list[IntArray] | None = None, most: int | None = None
) -> list[IntArray]:
    """Give out draws one by one, each to the position and question where a token buys most.

    Args:
        designs: one per open question.
        tokens: expected tokens to spend; the last draw may exceed it.
        room: per question (U,) draws that can still be made at each candidate.
        most: draws to give out at most.

    Returns:
        Per question (U,) draws for each of its candidates.
    """
    given = [np.zeros(len(d.positions), dtype=np.int64) for d in designs]
    left = [
        np.full(len(d.positions), 2**40) if room is None else room[i].copy() for i, d in enumerate(designs)
    ]
    state = [(d.influence.copy(), d.spread.copy(), (d.influence**2).sum(axis=0)) for d in designs]
    scale = [1.0 / max(len(d.influence), 1) for d in designs]
    best: list[tuple[int, float]] = []
    for i, d in enumerate(designs):
        best.append(_best(state[i][2], state[i][1], d.noise, d.cost, left[i]) if len(d.noise) else (-1, -1.0))
    spent = 0.0
    while spent < tokens and (most is None or sum(int(g.sum()) for g in given) < most):
        value = [b[1] * s if b[0] >= 0 else -1.0 for b, s in zip(best, scale, strict=True)]
        if not value or max(value) <= 0:
            break
        i = int(np.argmax(value))
        u, d = best[i][0], designs[i]
        given[i][u] += 1
        left[i][u] -= 1
        spent += float(d.cost[u])
        _draw(u, state[i][0], state[i][1], d.noise, state[i][2])
        best[i] = _best(state[i][2], state[i][1], d.noise, d.cost, left[i])
    return given
