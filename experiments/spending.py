"""Spending rollouts where a signal says: recorded draws that leave the base path, handed out at most once each.

Half of the draws may be taken, the other half is the reference. Released stores in branch form are replayed by
``experiments.replay``; in runs of free draws, those of the sampling half that happened to leave at a token are
what can be taken there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.cells import DECIMALS, prepared
from experiments.datasets import opened
from experiments.replay import Replay, Stored, remaining_cost
from experiments.token_signals import FOUR_STATE_ACTS, THRESHOLD_ACTS, token_signals
from smoothing import Observations
from smoothing.allocation import stratified_shares, whole_numbers
from smoothing.auto import fit_auto
from smoothing.metrics import ErrorShare, error_share, merge_rare, merged

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STRATIFIED = "stratified"


class Source(Protocol):
    """A question whose recorded divergence draws are handed out."""

    spent: int

    def room(self) -> IntArray:
        """(T,) divergence draws not yet taken."""

    def diverge(self, at: int, count: int) -> None:
        """Take so many draws that leave the base path at a position index."""

    def stratified(self) -> Observations:
        """Observations of what was taken."""

    def error(self, curve: FloatArray) -> ErrorShare:
        """Spread and debiased squared error of a (T, K) curve against the other half."""


@dataclass(eq=False)
class FreeDraws:
    """A run of free draws as a source: a random half of every position's draws, the other half as reference."""

    path: Path
    question_id: str
    split: int
    spent: int = 0
    taken: IntArray = field(init=False)

    def __post_init__(self) -> None:
        draws, self.positions, _ = prepared(self.path, self.question_id)
        self._draws = draws
        rng = np.random.default_rng([self.split, zlib.crc32(self.question_id.encode())])
        mine = np.argsort(rng.random(draws.outcomes.shape), axis=1) < draws.outcomes.shape[1] // 2
        self._outcomes: list[IntArray] = []
        self._costs: list[IntArray] = []
        for t in range(draws.length):
            row, column = np.nonzero((draws.diverge_at == t) & (draws.outcomes >= 0) & mine)
            shuffled = rng.permutation(len(row))
            row, column = row[shuffled], column[shuffled]
            self._outcomes.append(draws.outcomes[row, column])
            # Started at t itself they would not have had to generate the tokens before.
            self._costs.append(np.maximum(draws.tokens[row, column] - (t - self.positions[row]), 1))
        rest = np.where(mine, -1, draws.outcomes)
        width = len(draws.categories)
        self.reference = np.stack([(rest == k).sum(axis=1) for k in range(width)], axis=1)
        self.taken = np.zeros(draws.length, np.int64)
        self.divergence = np.zeros((draws.length, width), np.int64)

    def room(self) -> IntArray:
        """(T,) divergence draws not yet taken."""
        return np.array([len(o) for o in self._outcomes]) - self.taken

    def diverge(self, at: int, count: int) -> None:
        """Take up to ``count`` of the draws that leave at a position."""
        chosen = slice(self.taken[at], self.taken[at] + count)
        outcomes = self._outcomes[at][chosen]
        np.add.at(self.divergence[at], outcomes, 1)
        self.spent += int(self._costs[at][chosen].sum())
        self.taken[at] += len(outcomes)

    def stratified(self) -> Observations:
        """Observations of what was taken."""
        return Observations.from_counts(
            np.zeros(0, np.int64), np.zeros((0, len(self._draws.categories)), np.int64), self._draws.categories,
            grid=np.arange(self._draws.length), step_p=self._draws.step_p, divergence=self.divergence,
            base_outcome=self._draws.base_outcome,
        )  # fmt: skip

    def error(self, curve: FloatArray) -> ErrorShare:
        """Spread and debiased squared error against the other half's counts."""
        return error_share(curve[self.positions], self.reference)


def stored_of(path: Path, question_id: str) -> Stored:
    """A question of an imported run in branch form, as ``experiments.replay`` takes it."""
    run = opened(path)
    positions, curve, names = run.curve(question_id)
    kept, column = merge_rare(np.round(curve, DECIMALS))
    draws, _, _ = prepared(path, question_id)
    tokens = run.base_table(question_id)["token_id"].to_pylist()
    rows = run.rollouts(question_id, ["start", "first_token", "first_token_p", "outcome", "n_tokens", "draw"])
    rows = rows.sort_values(["start", "first_token", "draw"], kind="stable")
    groups = rows.groupby(["start", "first_token"], sort=True)
    starts = np.array([key[0] for key in groups.groups])
    ids = np.array([key[1] for key in groups.groups])
    p = groups["first_token_p"].first().to_numpy()
    place = np.searchsorted(positions, starts)
    mass = np.bincount(place, weights=p, minlength=len(positions))
    index = {name: int(column[k]) for k, name in enumerate(names)}
    each = len(rows) // len(starts)
    return Stored(
        zlib.crc32(question_id.encode()),
        positions,
        place,
        p / mass[place],
        ids == np.array(tokens)[starts],
        rows["outcome"].map(index).to_numpy().reshape(-1, each),
        rows["n_tokens"].to_numpy().astype(np.int64).reshape(-1, each),
        tuple(names[k] for k in kept),
        merged(curve, column),
        mass,
        np.zeros(len(positions)),
        len(positions) == draws.length,
        draws.base_outcome,
    )


def signal_schemes(signals: pd.DataFrame) -> dict[str, FloatArray]:
    """Where each signal or rule would put its draws: (T,) relative numbers, from the output of ``token_signals``."""
    rules: dict[str, pd.Series] = {
        "entropy": signals["entropy"],
        "varentropy": signals["varentropy"],
        "1 − p": 1 - signals["p"],
        "Entropix, four states": signals["four_state"].isin(FOUR_STATE_ACTS),
        "Entropix, thresholds": signals["threshold_state"].isin(THRESHOLD_ACTS),
        "EAGER, θ=2.5": signals["eager"],
        "EAGER, percentile alone": signals["eager_free"],
    }
    return {name: np.append(column.to_numpy(float), 0.0) for name, column in rules.items()}


def spread_out(weight: FloatArray, cost: FloatArray, room: IntArray, tokens: float) -> FloatArray:
    """(T,) expected draws in proportion to ``weight`` that cost ``tokens``, as far as there is room for them."""
    expected = np.zeros(len(weight))
    open_ = (weight > 0) & (room > 0)
    for _ in range(50):
        left = tokens - float(expected @ cost)
        share = np.where(open_, weight, 0.0)
        price = float(share @ cost)
        if left <= 1e-6 * tokens or price <= 0:
            break
        expected = np.minimum(expected + share * left / price, room)
        open_ &= expected < room
    return expected


def spending(path: Path, question_id: str, budgets: Sequence[float], splits: int) -> pd.DataFrame:
    """Draws placed where each signal says, at the expected tokens of ``stratified``; ``auto`` fitted to each.

    Args:
        budgets: draws per position of ``stratified``.
        splits: random halves.

    Returns:
        Columns ``budget``, ``split``, ``scheme``, ``spread``, ``error``, ``tokens``, ``draws``; no rows where a
        position of the base path was not sampled, so that its step probabilities are not all known.
    """
    columns = ["budget", "split", "scheme", "spread", "error", "tokens", "draws"]
    draws, positions, _ = prepared(path, question_id)
    if len(positions) < draws.length or np.isnan(draws.step_p).any():
        return pd.DataFrame(columns=columns)
    cost = remaining_cost(draws.length)
    free = opened(path).config.get("strategy") != "branches"
    stored = None if free else stored_of(path, question_id)
    schemes = {STRATIFIED: stratified_shares(draws.step_p)} | signal_schemes(token_signals(path, question_id))
    rows = []
    for split in range(splits):
        for budget in budgets:
            for name, weight in schemes.items():
                source: Source = (
                    FreeDraws(path, question_id, split) if stored is None else Replay(stored, split)
                )
                room = source.room()
                goal = budget * draws.length * float(schemes[STRATIFIED] @ cost)
                expected = spread_out(weight, cost, room, goal)
                offset = float(np.random.default_rng([split, draws.length, 3]).random())
                counts = whole_numbers(expected, offset)
                for at in np.flatnonzero(counts):
                    source.diverge(int(at), int(counts[at]))
                share = source.error(fit_auto(source.stratified()).predict(positions))
                rows.append((budget, split, name, share.spread, share.error, source.spent, int(counts.sum())))
    return pd.DataFrame(rows, columns=columns)
