"""The records that flow from questions to disk: one data class per table row or group of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

OTHER = "Other"
LETTERS = "ABCDEFGHIJ"
STATUSES = ("parsed", "readout", "ambiguous", "none", "truncated", "empty")


@dataclass(frozen=True)
class Question:
    """A multiple-choice question with 2 to 10 choices; ``answer`` is a letter, or None where unknown."""

    question_id: str
    question: str
    choices: tuple[str, ...]
    answer: str | None = None
    subject: str | None = None

    @property
    def categories(self) -> tuple[str, ...]:
        """The letters of the choices, then ``Other``."""
        return (*LETTERS[: len(self.choices)], OTHER)


@dataclass(frozen=True)
class Answer:
    """What a response answers: a category and how it was found (one of ``STATUSES``)."""

    outcome: str
    status: str


@dataclass(frozen=True)
class AttentionSignals:
    """What the last layer's attention says at one position; the heads' weights over the tokens so far.

    Attributes:
        entropy: mean over heads of the entropy of their weights, in nats.
        varentropy: variance over heads of that entropy, in nats squared.
        agreement: mean absolute deviation of the heads' weights from their mean, over heads and tokens. Small
            where heads agree.
        interaction: mean absolute score before the softmax, over heads and tokens.
    """

    entropy: float
    varentropy: float
    agreement: float
    interaction: float


@dataclass(frozen=True, eq=False)
class Distribution:
    """The model's next-token distribution at one position.

    Attributes:
        ids: (k,) token ids, likeliest first, enough of them to cover 99.9 % of the mass where the engine can.
        p: (k,) their probabilities at the sampling temperature, normalised over the full vocabulary.
        tail_mass: probability, at the sampling temperature, of all tokens not listed.
        entropy, varentropy: of the raw distribution (temperature 1), in nats and nats squared.
        texts: the text of the likeliest tokens, as many as were asked for; may be empty.
        top_entropy: entropy of the 20 likeliest tokens of the raw distribution, renormalised, in nats.
        attention: signals of the attention, where the engine gives them.
    """

    ids: NDArray[np.int32]
    p: NDArray[np.float64]
    tail_mass: float
    entropy: float
    varentropy: float
    texts: tuple[str, ...] = ()
    top_entropy: float = math.nan
    attention: AttentionSignals | None = None


@dataclass(frozen=True)
class Trace:
    """How a continuation came about whose tokens a sampler of ours chose one by one.

    Attributes:
        states: a letter for each token: the state of the rules that chose it (the sampler says what it means).
        parent: number of the continuation that it split from, among those of one request; None for one that
            began at the prefix.
        shared: tokens that it has from its parent, and that were not generated again.
        peak_entropy: largest entropy of the 20 likeliest tokens, renormalised, that it met; in nats.
    """

    states: str
    parent: int | None = None
    shared: int = 0
    peak_entropy: float = math.nan


@dataclass(frozen=True, eq=False)
class BasePath:
    """The model's greedy answer to one question, token by token.

    ``token_ids`` includes the end-of-turn token where the model produced one, so that stopping is a
    position like any other. ``sentences[t]`` is the index of the sentence that token ``t`` begins or is in.
    """

    question_id: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    distributions: tuple[Distribution, ...]
    sentences: tuple[int, ...]
    finish_reason: str
    answer: Answer

    @property
    def p(self) -> NDArray[np.float64]:
        """(T,) probability of each base token at the sampling temperature; 0 where it is in the tail."""
        probabilities = np.zeros(len(self.token_ids))
        for t, (token, distribution) in enumerate(zip(self.token_ids, self.distributions, strict=True)):
            hit = np.flatnonzero(distribution.ids == token)
            if hit.size:
                probabilities[t] = distribution.p[hit[0]]
        return probabilities


@dataclass(frozen=True)
class Rollout:
    """One sampled continuation: a row of ``rollouts/*.parquet``.

    Attributes:
        start: position resampled from.
        draw: index of this draw among those of the same start (and the same first token, if forced).
        first_token, first_token_p: the forced next token and its probability; None when free.
        seed: the seed of this draw's own stream.
        diverge_at: first position at which the rollout leaves the base path (``len(base)`` when it goes on
            past a truncated base path); None when it never does.
        n_tokens: tokens generated, the forced one and those of a parent not counted.
        trace: how it came about where a guided sampler drew it. One with a parent is no draw of its own: it is
            stored, and left out of the counts.
    """

    question_id: str
    start: int
    draw: int
    first_token: int | None
    first_token_p: float | None
    seed: int
    outcome: str
    status: str
    diverge_at: int | None
    n_tokens: int
    finish_reason: str
    token_ids: tuple[int, ...] | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    trace: Trace | None = None
