"""What was observed: outcome counts at sampled positions of one question's base path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_LARGEST = 2**53
"""Integers up to here are exact as floating-point numbers; no count or position is allowed beyond."""


@njit(cache=True, nogil=True)
def count_draws(draws: IntArray, edges: IntArray, categories: int) -> IntArray:
    """(F, n, K) outcome counts of the draws ``edges[f]`` to ``edges[f + 1]`` of (n, S) category indices."""
    n = draws.shape[0]
    counts = np.zeros((edges.size - 1, n, categories), dtype=np.int64)
    for f in range(edges.size - 1):
        for i in range(n):
            for s in range(edges[f], edges[f + 1]):
                if draws[i, s] >= 0:
                    counts[f, i, draws[i, s]] += 1
    return counts


@dataclass(frozen=True, eq=False)
class Observations:
    """Outcomes of the continuations sampled for one question.

    Build one with ``from_draws`` or ``from_counts``, which check their input.

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
        """Observations from single draws.

        Args:
            positions: (n,) strictly increasing sampled positions; none only beside ``divergence``.
            draws: (n, S) category indices in draw order, -1 where a draw is missing.
            categories: K different outcome names.
            grid: (T,) positions to predict at; the sampled positions when left out.
            step_p, divergence, base_outcome: see the attributes.

        Raises:
            ValueError: the arrays disagree in shape, or hold anything but what is described here.
        """
        names = _names(categories)
        places = _positions(positions, "positions")
        table = _table(draws, "draws", len(places), None)
        if table.size and (table.min() < -1 or table.max() >= len(names)):
            raise ValueError(
                f"draws must be category indices from 0 to {len(names) - 1}, or -1 where missing; "
                f"found {table.min()} to {table.max()}"
            )
        counts = count_draws(table, np.array([0, table.shape[1]]), len(names))[0]
        return cls._checked(places, counts, names, table, grid, step_p, divergence, base_outcome)

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
        """Observations from (n, K) counts; tuning by draw order is refused on them.

        Totals may differ between positions, and may be 0. Categories left out are named ``"0"``, ``"1"``, …
        The other arguments and errors are those of ``from_draws``.
        """
        places = _positions(positions, "positions")
        names = None if categories is None else _names(categories)
        table = _table(counts, "counts", len(places), None if names is None else len(names))
        if table.size and table.min() < 0:
            raise ValueError(f"counts must not be negative; found {table.min()}")
        if names is None:
            names = _names([str(k) for k in range(table.shape[1])])
        return cls._checked(places, table, names, None, grid, step_p, divergence, base_outcome)

    @classmethod
    def _checked(
        cls,
        positions: IntArray,
        counts: IntArray,
        categories: tuple[str, ...],
        draws: IntArray | None,
        grid: ArrayLike | None,
        step_p: ArrayLike | None,
        divergence: ArrayLike | None,
        base_outcome: int | None,
    ) -> Observations:
        if not len(positions) and divergence is None:
            raise ValueError("no position was sampled: give at least one position with its draws")
        places = positions if grid is None else _positions(grid, "grid")
        missing = np.setdiff1d(positions, places)
        if missing.size:
            raise ValueError(f"grid must hold every sampled position; it lacks {missing[0]}")
        steps = None
        if step_p is not None:
            steps = np.asarray(step_p, dtype=np.float64)
            if steps.shape != places.shape:
                raise ValueError(
                    f"step_p must have one probability per grid position, shape {places.shape}; "
                    f"got {steps.shape}"
                )
            if not np.all((steps >= 0) & (steps <= 1)):
                raise ValueError("step_p must be probabilities between 0 and 1")
        left = None
        if divergence is not None:
            left = _table(divergence, "divergence", len(places), len(categories))
            if left.size and left.min() < 0:
                raise ValueError(f"divergence counts must not be negative; found {left.min()}")
        if base_outcome is not None and not 0 <= base_outcome < len(categories):
            raise ValueError(
                f"base_outcome must be a category index from 0 to {len(categories) - 1}, "
                f"or None; got {base_outcome}"
            )
        return cls(positions, counts, categories, places, draws, steps, left, base_outcome)


def _names(categories: Sequence[str]) -> tuple[str, ...]:
    names = tuple(categories)
    if not names:
        raise ValueError("categories must name at least one outcome")
    if len(set(names)) != len(names):
        raise ValueError(f"categories must differ from each other; got {', '.join(map(str, names))}")
    return names


def _integers(values: ArrayLike, name: str) -> IntArray:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{name} must be whole numbers; got {array.dtype}")
    if array.dtype.kind == "f":
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be finite; found NaN or infinity")
        if np.any(array != np.floor(array)):
            raise ValueError(f"{name} must be whole numbers; found fractions")
    if array.max() > _LARGEST or array.min() < -_LARGEST:
        raise ValueError(f"{name} must lie between -2**53 and 2**53")
    return np.array(array, dtype=np.int64, order="C")


def _positions(values: ArrayLike, name: str) -> IntArray:
    places = _integers(values, name)
    if places.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional; got shape {places.shape}")
    if np.any(np.diff(places) <= 0):
        raise ValueError(f"{name} must increase strictly: sort them, and add up the draws of repeated ones")
    return places


def _table(values: ArrayLike, name: str, rows: int, columns: int | None) -> IntArray:
    table = _integers(values, name)
    if rows == 0 and table.size == 0:
        return np.zeros((0, table.shape[1] if table.ndim == 2 else columns or 0), dtype=np.int64)
    if table.ndim != 2 or table.shape[0] != rows or (columns is not None and table.shape[1] != columns):
        wanted = f"({rows}, {'any' if columns is None else columns})"
        raise ValueError(f"{name} must have shape {wanted}, one row per position; got {table.shape}")
    return table
