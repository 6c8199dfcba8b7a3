"""What was observed: outcome counts at sampled positions of one question's base path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observations:
    """Outcomes of the continuations sampled for one question.

    Attributes:
        positions: (n,) strictly increasing token positions that were sampled.
        counts: (n, K) outcome counts of the continuations started at each position.
        categories: K outcome names, in column order.
        grid: (T,) strictly increasing token positions to predict at; holds every sampled position.
        draws: (n, S) category indices in draw order, padded with -1 where a position has fewer than S;
            None when only counts are known (then nothing can be cross-validated by draw order).
        step_p: (T,) probability that a continuation on the base path at ``grid[i]`` is still on it at
            ``grid[i + 1]`` (for the last one: to the end of the base path), known exactly from the model;
            None where unknown.
        divergence: (T, K) outcomes of all draws whose divergence position is known, counted in the cell
            ``grid[i] <= diverge_at < grid[i + 1]``; None where divergence was not recorded. Draws that
            never leave the base path appear in no cell.
        base_outcome: category index of the base path's own answer, None where it has none (truncated).
    """

    positions: IntArray
    counts: IntArray
    categories: tuple[str, ...]
    grid: IntArray
    draws: IntArray | None = None
    step_p: FloatArray | None = None
    divergence: IntArray | None = None
    base_outcome: int | None = None

    @classmethod
    def from_draws(
        cls,
        positions: ArrayLike,
        draws: ArrayLike,
        categories: Sequence[str],
        grid: ArrayLike | None = None,
        step_p: ArrayLike | None = None,
        divergence: ArrayLike | None = None,
        base_outcome: int | None = None,
    ) -> Observations:
        """Observations from single draws, (n, S) category indices in draw order, -1 where missing."""
        raise NotImplementedError

    @classmethod
    def from_counts(
        cls,
        positions: ArrayLike,
        counts: ArrayLike,
        categories: Sequence[str] | None = None,
        grid: ArrayLike | None = None,
        step_p: ArrayLike | None = None,
        divergence: ArrayLike | None = None,
        base_outcome: int | None = None,
    ) -> Observations:
        """Observations from (n, K) counts; tuning by draw order is refused on them."""
        raise NotImplementedError
