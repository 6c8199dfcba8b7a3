"""Replaying the released rollouts: recorded draws handed out as if they were sampled now, each at most once.

Every branch's draws are split at random: one half is what an experiment may sample from, the other is its
reference, so that errors are independent of the fit. Grid draws are mixtures of the branches at a position;
divergence draws come from the branches other than the base path's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import released_folder
from fpa.answers import extract_answer
from fpa.published import curve_of, decode_pieces, read_record
from smoothing import Observations
from smoothing.allocation import token_choice
from smoothing.metrics import ErrorShare, merge_rare, merged

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

LEAST_COST = 10  # tokens: what a continuation is expected to cost near the end of the base path


def released(track: str, rows: range) -> Iterator[Stored]:
    """The released questions of one track (``llama`` or ``deepseek``), from the folder named by
    FPA_SHARED.
    """
    folder = released_folder()
    if folder is None:
        return
    root = folder / "s200" / track
    for row in rows:
        path = root / f"row{row:03d}.json.gz"
        if path.exists():
            yield Stored.read(path)


def remaining_cost(length: int) -> FloatArray:
    """(length,) expected tokens of a continuation: what is left of the base path, at least a few."""
    return np.maximum(length - np.arange(length), LEAST_COST).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Stored:
    """One released question in branch form, rare categories merged into the last.

    Attributes:
        row: its number in the question set.
        positions: (T,) sampled token positions.
        branch: (B,) index into ``positions`` of each branch.
        weight: (B,) its probability, renormalised over the branches kept.
        is_base: (B,) whether it is the base path's own token.
        outcomes, tokens: (B, S) outcome category and length of each recorded draw.
        curve: (T, K) weighted curve of all draws.
        kept: (T,) probability mass that the kept branches had before they were renormalised.
        entropy: (T,) entropy of the next-token distribution, as far as the kept branches tell it (nats).
        every_token: whether every token of the base path was sampled, so that step probabilities are known.
        base_outcome: category of the base path's own answer; None where cut off or read out by the model.
    """

    row: int
    positions: IntArray
    branch: IntArray
    weight: FloatArray
    is_base: NDArray[np.bool_]
    outcomes: IntArray
    tokens: IntArray
    categories: tuple[str, ...]
    curve: FloatArray
    kept: FloatArray
    entropy: FloatArray
    every_token: bool
    base_outcome: int | None

    @classmethod
    def read(cls, path: Path) -> Stored:
        """Read one record of the released stores."""
        record = read_record(path)
        names = list(record["categories"])
        curve = curve_of(record)
        kept_categories, column = merge_rare(curve)
        positions = np.array(record["idxs"], dtype=np.int64)
        branches = record["branches"]
        place = np.searchsorted(positions, [b["t"] for b in branches])
        p = np.array([b["tok_p"] for b in branches])
        mass = np.bincount(place, weights=p, minlength=len(positions))
        rest = np.maximum(1 - mass, 1e-12)
        entropy = np.bincount(place, weights=-p * np.log(p), minlength=len(positions)) - rest * np.log(rest)
        index = {name: int(column[k]) for k, name in enumerate(names)}
        every_token = len(positions) == len(record["base"]["gen_ids"])
        base_outcome = None
        if every_token and record["base"]["finish_reason"] == "stop":
            text = "".join(decode_pieces(record["base"]["token_texts"]))
            answer = extract_answer(text, record["meta"]["choices"], "stop")
            if answer.status == "parsed":
                base_outcome = index[answer.outcome]
        return cls(
            record["meta"]["row_id"],
            positions,
            place,
            p / mass[place],
            np.array([b["is_base"] for b in branches]),
            np.array([[index[a] for a in b["answers"]] for b in branches], dtype=np.int64),
            np.array([b["cont_lens"] for b in branches], dtype=np.int64),
            tuple(names[k] for k in kept_categories),
            merged(curve, column),
            mass,
            entropy,
            every_token,
            base_outcome,
        )

    @property
    def step_p(self) -> FloatArray:
        """(T,) probability of each base token, renormalised over the branches kept."""
        return np.bincount(self.branch, weights=self.weight * self.is_base, minlength=len(self.positions))


@dataclass(eq=False)
class Replay:
    """One random split of a stored question, and what has been taken from its sampling half.

    Attributes:
        reference: (T, K) weighted curve of the other half.
        reference_variance: (T,) its own expected squared error.
        reference_change: (T,) total variation between the curve at a position and its base branch alone: what
            taking the base token changes, without the noise of two positions' draws where it is all but
            certain.
        divergence: (T, K) divergence draws taken so far; ``taken`` (T,) how many, ``spent`` their tokens.
    """

    stored: Stored
    split: int
    reference: FloatArray = field(init=False)
    reference_variance: FloatArray = field(init=False)
    reference_change: FloatArray = field(init=False)
    divergence: IntArray = field(init=False)
    taken: IntArray = field(init=False)
    spent: int = 0

    def __post_init__(self) -> None:
        s = self.stored
        rng = np.random.default_rng([self.split, s.row])
        order = np.argsort(rng.random(s.outcomes.shape), axis=1)
        half = s.outcomes.shape[1] // 2
        mixed = np.take_along_axis(s.outcomes, order, 1)
        self._outcomes = mixed[:, :half]
        self._tokens = np.take_along_axis(s.tokens, order, 1)[:, :half]
        self._used = np.zeros(len(s.branch), dtype=np.int64)
        width, length = len(s.categories), len(s.positions)
        rest = mixed[:, half:]
        shares = np.stack([(rest == k).mean(axis=1) for k in range(width)], axis=1)
        self.reference = np.zeros((length, width))
        np.add.at(self.reference, s.branch, s.weight[:, None] * shares)
        own = (shares * (1 - shares)).sum(axis=1) / (rest.shape[1] - 1)
        self.reference_variance = np.bincount(s.branch, weights=s.weight**2 * own, minlength=length)
        self._of = [np.flatnonzero(s.branch == t) for t in range(length)]
        self._others = [of[~s.is_base[of]] for of in self._of]
        on_path = s.branch[s.is_base]
        base = np.zeros((length, width))
        base[on_path] = shares[s.is_base]
        self._chain(shares, rest.shape[1])
        self.reference_change = np.abs(self.reference - base).sum(axis=1) / 2
        self.divergence = np.zeros((length, width), dtype=np.int64)
        self.taken = np.zeros(length, dtype=np.int64)
        self._phase = rng.random(length)
        self._rng = rng

    def grid(self, samples: int, every: int) -> tuple[Observations, int]:
        """Observations of ``samples`` mixture draws at every ``every``-th position, and the tokens they
        cost.
        """
        s = self.stored
        rng = np.random.default_rng([self.split, s.row, samples, every])
        at = np.arange(0, len(s.positions), every)
        draws = np.zeros((len(at), samples), dtype=np.int64)
        tokens = 0
        for i, t in enumerate(at):
            of = self._of[t]
            room = np.full(len(of), self._outcomes.shape[1])
            picks = np.minimum(rng.multinomial(samples, s.weight[of] / s.weight[of].sum()), room)
            while picks.sum() < samples:  # branches that ran out pass their picks to the others
                open_weight = np.where(picks < room, s.weight[of], 0.0)
                more = rng.multinomial(samples - picks.sum(), open_weight / open_weight.sum())
                picks = np.minimum(picks + more, room)
            draws[i] = rng.permutation(
                np.concatenate([self._outcomes[b, :n] for b, n in zip(of, picks, strict=True)])
            )
            tokens += sum(int(self._tokens[b, :n].sum()) for b, n in zip(of, picks, strict=True))
        observations = Observations.from_draws(
            s.positions[at], draws, s.categories, grid=s.positions,
            step_p=s.step_p if s.every_token else None, base_outcome=s.base_outcome,
        )  # fmt: skip
        return observations, tokens

    @property
    def can_leave(self) -> NDArray[np.bool_]:
        """(T,) where another branch than the base path's own was kept."""
        return np.array([len(others) > 0 for others in self._others])

    def room(self) -> IntArray:
        """(T,) divergence draws not yet taken."""
        return np.array([self._outcomes.shape[1] * len(o) for o in self._others]) - self.taken

    def diverge(self, at: int, count: int) -> None:
        """Take ``count`` draws that leave the base path at position index ``at``: tokens in proportion."""
        others = self._others[at]
        if not len(others):
            return
        weight = self.stored.weight[others]
        for b in others[token_choice(weight, int(self.taken[at]), count, float(self._phase[at]))]:
            if self._used[b] == self._outcomes.shape[1]:
                open_ = others[self._used[others] < self._outcomes.shape[1]]
                if not len(open_):
                    return
                b = self._rng.choice(open_)
            i = self._used[b]
            self.divergence[at, self._outcomes[b, i]] += 1
            self.spent += int(self._tokens[b, i])
            self._used[b] += 1
            self.taken[at] += 1

    def stratified(self) -> Observations:
        """Observations of the divergence draws taken so far."""
        s = self.stored
        none = np.zeros((0, len(s.categories)), dtype=np.int64)
        return Observations.from_counts(
            np.zeros(0, dtype=np.int64), none, s.categories, grid=s.positions, step_p=s.step_p,
            divergence=self.divergence, base_outcome=s.base_outcome,
        )  # fmt: skip

    def _chain(self, shares: FloatArray, draws: int) -> None:
        """The reference that the identity gives: the other half's divergence draws, unrolled from the end.

        The stores dropped tokens of probability below 0.05, so that the branch-weighted reference of neighbouring
        positions differs a little from what divergence draws of the kept tokens can converge to.
        """
        s = self.stored
        length, width = len(s.positions), len(s.categories)
        p = s.step_p
        left = np.zeros((length, width))
        noise = np.zeros(length)
        for t, others in enumerate(self._of):
            others = others[~s.is_base[others]]
            if len(others):
                share = s.weight[others] / s.weight[others].sum()
                left[t] = share @ shares[others]
                noise[t] = share**2 @ (shares[others] * (1 - shares[others])).sum(axis=1) / (draws - 1)
        here = shares[s.is_base][-1]
        variance = float((here * (1 - here)).sum()) / (draws - 1)
        self.chain = np.zeros((length, width))
        self.chain_variance = np.zeros(length)
        for t in range(length - 1, -1, -1):
            here = p[t] * here + (1 - p[t]) * left[t]
            variance = p[t] ** 2 * variance + (1 - p[t]) ** 2 * noise[t]
            self.chain[t], self.chain_variance[t] = here, variance

    def error(self, curve: FloatArray, by_identity: bool = False) -> ErrorShare:
        """Spread and debiased squared error of a curve against the reference half.

        Args:
            curve: (T, K) probabilities.
            by_identity: refer to the curve that the identity gives from the other half's divergence draws.
        """
        r, variance = self.reference, self.reference_variance
        if by_identity:
            r, variance = self.chain, self.chain_variance
        spread = (r * (1 - r)).sum(axis=1) + variance
        return ErrorShare(float(spread.mean()), float((((curve - r) ** 2).sum(axis=1) - variance).mean()))
