"""Forking points of a curve: where they are, how well they were found, and the survival view.

A forking point is a position where the outcome curve changes abruptly: ``TV(o_{t−1}, o_t) > θ``, located at
the later position (Bigelow et al. 2024, arXiv 2412.07961; "Forking Fast").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothing.metrics import jumps, total_variation

FloatArray = NDArray[np.float64]

THRESHOLDS = (0.10, 0.15, 0.20)


@dataclass(frozen=True)
class ForkScore:
    """Forks found against those of the reference; counts add up over questions."""

    found: int
    right: int
    reference: int
    recalled: int

    def __add__(self, other: ForkScore) -> ForkScore:
        return ForkScore(
            self.found + other.found,
            self.right + other.right,
            self.reference + other.reference,
            self.recalled + other.recalled,
        )

    @property
    def precision(self) -> float:
        """Share of the forks found that are right; NaN where none was found."""
        return self.right / self.found if self.found else float("nan")

    @property
    def recall(self) -> float:
        """Share of the reference's forks that were found; NaN where it has none."""
        return self.recalled / self.reference if self.reference else float("nan")

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 where only one side has forks, NaN where neither has."""
        if not self.found and not self.reference:
            return float("nan")
        if not self.right or not self.recalled:
            return 0.0
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def match_forks(found: ArrayLike, reference: ArrayLike, within: int = 1) -> ForkScore:
    """Compare two sets of grid indices: a fork is right if the other set has one within as many places."""
    a, b = np.asarray(found, int), np.asarray(reference, int)
    near = np.abs(a[:, None] - b[None, :]) <= within
    return ForkScore(len(a), int(near.any(axis=1).sum()), len(b), int(near.any(axis=0).sum()))


def score_forks(curve: ArrayLike, reference: ArrayLike, threshold: float, within: int = 1) -> ForkScore:
    """Forks of a curve at a threshold against those of the reference curve, both (T, K) on the same grid."""
    return match_forks(jumps(curve, threshold), jumps(reference, threshold), within)


@dataclass(frozen=True, eq=False)
class Fork:
    """A forking point.

    Attributes:
        index: its place on the grid.
        position: its token position.
        previous: token position of the place before. What changes the outcome is the text between the two:
            the base path's tokens from ``previous`` up to the one before ``position``.
        tv: total variation between the curve before and after.
        before, after: (K,) the curve at the place before, and at the fork.
        p_change: probability of a change larger than the threshold, where the model tells; else NaN.
        segment_start, segment_end: token positions, first and last, of the stretch without a fork that ends
            before this one, and of the one that begins here.
    """

    index: int
    position: int
    previous: int
    tv: float
    before: FloatArray
    after: FloatArray
    p_change: float
    segment_start: int
    segment_end: int


def find_forks(
    curve: ArrayLike, grid: ArrayLike, threshold: float = 0.15, p_change: ArrayLike | None = None
) -> list[Fork]:
    """The forking points of a curve, in order of position.

    Args:
        curve: (T, K) probabilities.
        grid: (T,) their token positions.
        threshold: least total variation of a fork.
        p_change: (T,) probability of a change at each place against the one before.

    Raises:
        ValueError: the shapes disagree, or the threshold is not between 0 and 1.
    """
    values, places = np.asarray(curve, float), np.asarray(grid, int)
    if values.ndim != 2 or places.shape != values.shape[:1]:
        raise ValueError(f"curve must be (T, K) and grid (T,); got {values.shape} and {places.shape}")
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be from 0 to below 1; got {threshold}")
    at = jumps(values, threshold)
    moved = total_variation(values[1:], values[:-1])
    chance = np.full(len(places), np.nan) if p_change is None else np.asarray(p_change, float)
    edges = [0, *at.tolist(), len(places)]
    return [
        Fork(
            i,
            int(places[i]),
            int(places[i - 1]),
            float(moved[i - 1]),
            values[i - 1],
            values[i],
            float(chance[i]),
            int(places[edges[n]]),
            int(places[edges[n + 2] - 1]),
        )
        for n, i in enumerate(at.tolist())
    ]


@dataclass(frozen=True, eq=False)
class Alternates:
    """The next tokens at one position, other than the base path's own.

    Attributes:
        index: the position's place on the grid.
        p: (w,) their probabilities.
        outcomes: (w, K) outcome distribution after each.
        base: (K,) outcome distribution after the base path's token.
    """

    index: int
    p: FloatArray
    outcomes: FloatArray
    base: FloatArray


def survival(
    length: int, alternates: Sequence[Alternates], threshold: float = 0.6, distance: str = "l2"
) -> FloatArray:
    """Chance that the outcome has not yet been changed by an alternate token, by position.

    The survival analysis of Bigelow et al. 2024 (arXiv 2412.07961): the hazard at a position is the chance of
    drawing an alternate token after which the outcome distribution lies further than ``threshold`` from that
    after the base token, and ``S(t) = Π_{u ≤ t} (1 − Σ_w p_u(w)·1[d(o_{u,w}, o_{u,base}) > threshold])``.

    Args:
        length: T, places on the grid.
        alternates: alternate tokens, at the places that have any.
        threshold: distance that counts as a change (0.6 in the published settings).
        distance: ``l2`` (Euclidean, as published) or ``tv`` (total variation).

    Returns:
        (T,) never increasing, within [0, 1].

    Raises:
        ValueError: a distance of another name.
    """
    if distance not in ("l2", "tv"):
        raise ValueError(f"distance must be l2 or tv; got {distance!r}")
    stays = np.ones(length)
    for here in alternates:
        gap = here.outcomes - here.base
        far = np.abs(gap).sum(axis=1) / 2 if distance == "tv" else np.sqrt(np.square(gap).sum(axis=1))
        stays[here.index] *= 1.0 - min(1.0, float(here.p[far > threshold].sum()))
    return np.cumprod(stays).astype(np.float64)
