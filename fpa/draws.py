"""The draws of one question as arrays, and the mixture that makes forced branches draws of a position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fpa.errors import FpaError, UsageError
from smoothing import Observations

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NEVER = -1
UNKNOWN = -2


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Everything that was sampled for one question, as arrays.

    Attributes:
        positions: (n,) sampled positions.
        outcomes: (n, S) category indices in draw order, -1 where a position has fewer draws.
        diverge_at: (n, S) first position off the base path; ``NEVER``, or ``UNKNOWN`` if not recorded.
        tokens: (n, S) tokens generated for each draw.
        identity: (n, S) what tells a draw from the others of its position, also across runs of one model: its
            seed, or in a store without seeds its first token and number.
        forced: (m, 2) position and outcome of each draw that had the base token excluded at first.
        forced_tokens: tokens generated for those.
        categories: K names.
        length: T, the length of the base path.
        step_p: (T,) probability of each base token at the sampling temperature, NaN where unknown.
        base_outcome: category index of the base path's own answer, None where it has none.
    """

    positions: IntArray
    outcomes: IntArray
    diverge_at: IntArray
    tokens: IntArray
    identity: IntArray
    forced: IntArray
    forced_tokens: int
    categories: tuple[str, ...]
    length: int
    step_p: FloatArray
    base_outcome: int | None

    @property
    def available(self) -> int:
        """Draws that every sampled position has."""
        if not len(self.positions):
            return 0
        return int((self.outcomes >= 0).sum(axis=1).min())

    def select(self, samples: int | None = None, every: int = 1, replicate: int = 0) -> Draws:
        """Every ``every``-th sampled position, with draws ``[replicate·samples, (replicate+1)·samples)``.

        Raises:
            UsageError: the draws asked for are not there.
        """
        if every < 1 or replicate < 0 or (samples is not None and samples < 1):
            raise UsageError("every and samples must be at least 1, replicate at least 0")
        if samples is None and every == 1 and replicate == 0:
            return self
        if len(self.forced):
            raise UsageError(
                "this question has draws with the base token excluded, which belong to no sample of a "
                "position: it cannot be sub-sampled, leave samples, every and replicate out"
            )
        if samples is None:
            if replicate:
                raise UsageError("a replicate needs a number of samples: give samples too")
            columns = slice(None)
        else:
            columns = slice(replicate * samples, (replicate + 1) * samples)
            if columns.stop > self.available:
                raise UsageError(
                    f"draws {columns.start} to {columns.stop - 1} of each position are asked for, but some "
                    f"position has only {self.available}: ask for fewer samples or an earlier replicate"
                )
        return replace(
            self,
            positions=self.positions[::every],
            outcomes=self.outcomes[::every, columns],
            diverge_at=self.diverge_at[::every, columns],
            tokens=self.tokens[::every, columns],
            identity=self.identity[::every, columns],
        )

    def without(self, others: Draws) -> Draws:
        """These draws less those that are also among ``others``, by position and identity."""
        keep = np.ones_like(self.outcomes, bool)
        _, here, there = np.intersect1d(self.positions, others.positions, return_indices=True)
        for i, j in zip(here, there, strict=True):
            keep[i] = ~np.isin(self.identity[i], others.identity[j][others.outcomes[j] >= 0])
        return replace(
            self, outcomes=np.where(keep, self.outcomes, -1), tokens=np.where(keep, self.tokens, 0)
        )

    def merged(self, column: IntArray, categories: tuple[str, ...]) -> Draws:
        """The same draws with category ``k`` become ``column[k]`` of the new categories."""
        return replace(
            self,
            outcomes=np.where(self.outcomes < 0, -1, column[self.outcomes]),
            forced=np.stack([self.forced[:, 0], column[self.forced[:, 1]]], axis=1),
            categories=categories,
            base_outcome=None if self.base_outcome is None else int(column[self.base_outcome]),
        )

    @property
    def continuations(self) -> int:
        """How many continuations these are."""
        return int((self.outcomes >= 0).sum()) + len(self.forced)

    @property
    def generated_tokens(self) -> int:
        """Tokens generated for all of them."""
        return int(self.tokens.sum()) + self.forced_tokens

    def counts(self) -> IntArray:
        """(n, K) outcome counts of the draws at each position."""
        return np.stack([(self.outcomes == k).sum(axis=1) for k in range(len(self.categories))], axis=1)

    def default_grid(self) -> IntArray:
        """Every token of the base path where its probabilities are all known, else the sampled positions."""
        known = not np.isnan(self.step_p).any()
        return np.arange(self.length) if known or not len(self.positions) else self.positions

    def observations(self, grid: IntArray) -> Observations:
        """What the smoothers take, to be predicted at the positions ``grid``."""
        return Observations.from_draws(
            self.positions,
            self.outcomes,
            self.categories,
            grid=grid,
            step_p=self._steps(grid),
            divergence=self._divergence(grid),
            base_outcome=self.base_outcome,
        )

    def _steps(self, grid: IntArray) -> FloatArray | None:
        """Chance to stay on the base path from each grid position to the next, the last to the end."""
        if not len(grid) or np.isnan(self.step_p[grid[0] :]).any():
            return None
        return np.multiply.reduceat(self.step_p, grid)

    def _divergence(self, grid: IntArray) -> IntArray | None:
        """(len(grid), K) outcomes by the grid cell in which a draw leaves the base path."""
        if (self.diverge_at[self.outcomes >= 0] == UNKNOWN).any():
            return None
        left = (self.outcomes >= 0) & (self.diverge_at >= 0)
        at = np.concatenate([self.diverge_at[left], self.forced[:, 0]])
        outcome = np.concatenate([self.outcomes[left], self.forced[:, 1]])
        inside = (at < self.length) & (at >= grid[0])  # past the end of a truncated path is no cell
        table = np.zeros((len(grid), len(self.categories)), np.int64)
        np.add.at(table, (np.searchsorted(grid, at[inside], side="right") - 1, outcome[inside]), 1)
        return table


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Stored rollouts as arrays, one element each: ``token`` is the forced first token, -1 where free."""

    start: IntArray
    draw: IntArray
    token: IntArray
    p: FloatArray
    outcomes: IntArray
    diverge_at: IntArray
    tokens: IntArray
    identity: IntArray

    COLUMNS = ("start", "draw", "first_token", "first_token_p", "seed", "outcome", "diverge_at", "n_tokens")

    @classmethod
    def of(cls, table: pa.Table, categories: tuple[str, ...]) -> Rows:
        """From a table with the columns ``COLUMNS``.

        Raises:
            FpaError: an outcome is none of the categories.
        """
        outcome = pc.index_in(table["outcome"], pa.array(categories, pa.string()))
        if outcome.null_count:
            strange = pc.unique(table["outcome"].filter(pc.is_null(outcome))).to_pylist()
            raise FpaError(f"rollouts with outcomes {strange}: the question has {', '.join(categories)}")
        draw, token = _integers(table["draw"], 0), _integers(table["first_token"], -1)
        seedless = pc.is_null(table["seed"]).to_numpy()
        return cls(
            _integers(table["start"], 0),
            draw,
            token,
            pc.fill_null(table["first_token_p"], 1.0).to_numpy(),
            _integers(outcome, 0),
            _integers(table["diverge_at"], NEVER),
            _integers(table["n_tokens"], 0),
            np.where(seedless, ((token + 1) << 32) + draw, _integers(table["seed"], 0)),
        )

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, chosen: IntArray | NDArray[np.bool_] | slice) -> Rows:
        return Rows(*(getattr(self, f)[chosen] for f in _FIELDS))

    def by_position(self) -> Iterator[tuple[int, Rows]]:
        """Each position in turn with its rows, in the order they were stored."""
        rows = self[np.argsort(self.start, kind="stable")]
        edges = [0, *(np.flatnonzero(np.diff(rows.start)) + 1), len(rows)] if len(rows) else [0]
        for a, b in pairwise(edges):
            yield int(rows.start[a]), rows[a:b]

    def in_draw_order(self) -> Rows:
        """The same rows sorted by draw."""
        return self[np.argsort(self.draw, kind="stable")]

    def branches(self, base_token: int) -> list[Rows] | None:
        """The branches of one position, as first stored; None where its rows are not in branch form.

        In branch form every draw was forced, and the base path's own next token is among the first tokens;
        where divergence was forced, it is excluded.
        """
        tokens, first = np.unique(self.token, return_index=True)
        if -1 in tokens or base_token not in tokens:
            return None
        return [self[self.token == token].in_draw_order() for token in tokens[np.argsort(first)]]


_FIELDS = tuple(f.name for f in fields(Rows))


def weights(branches: Sequence[Rows]) -> FloatArray:
    """Probabilities of the branches, renormalised over those kept."""
    p = np.array([b.p[0] for b in branches])
    return p / p.sum()


def mixture(branches: Sequence[Rows], rng: np.random.Generator) -> Rows:
    """Draws of the position itself, as many as the longest branch has.

    Each picks a branch with its renormalised probability and takes that branch's next draw; a pick of an
    exhausted branch is made again among the others.
    """
    p = weights(branches)
    left = np.array([len(b) for b in branches])
    picks = rng.choice(len(branches), size=int(left.max()), p=p)
    if (np.bincount(picks, minlength=len(branches)) > left).any():
        used = np.zeros_like(left)
        for i, pick in enumerate(picks):
            if used[pick] == left[pick]:
                others = np.flatnonzero(used < left)
                picks[i] = rng.choice(others, p=p[others] / p[others].sum())
            used[picks[i]] += 1
    in_turn = np.empty_like(picks)
    in_turn[np.argsort(picks, kind="stable")] = np.concatenate(
        [first + np.arange(n) for first, n in zip(np.cumsum(left) - left, np.bincount(picks), strict=False)]
    )
    return Rows(*(np.concatenate([getattr(b, f) for b in branches])[in_turn] for f in _FIELDS))


def padded(rows: Sequence[IntArray], fill: int) -> IntArray:
    """Rows of unequal length as one table."""
    table = np.full((len(rows), max((len(r) for r in rows), default=0)), fill, np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def _integers(column: pa.ChunkedArray, null: int) -> IntArray:
    return pc.fill_null(column, null).to_numpy().astype(np.int64)
