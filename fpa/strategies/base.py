"""The strategy contract: which continuations to draw, as units of work.

A strategy is one file in this folder and one line in ``fpa.strategies.STRATEGIES``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fpa.engines.base import Engine, Sampler
from fpa.positions import every_sentences, every_tokens
from fpa.records import BasePath
from fpa.settings import Settings
from smoothing import Observations

SPREAD = 2_654_435_761  # Knuth's multiplicative constant: keeps the streams of different run seeds apart
SEEDS = 2**31


@dataclass(frozen=True)
class Group:
    """Draws that share one prefix: ``n`` continuations after the position's own prefix and ``first_token``.

    ``first_token`` is None for free continuations. Draw ``i`` is stored as number ``first_draw + i`` and uses
    the stream ``seed + i``. ``theta`` is for samplers that split sequences at high entropies.
    """

    n: int
    seed: int
    first_token: int | None = None
    first_token_p: float | None = None
    first_draw: int = 0
    theta: float | None = None


@dataclass(frozen=True)
class Unit:
    """One unit of work: all draws of one question from one position. It becomes one part file."""

    question_id: str
    start: int
    groups: tuple[Group, ...]
    suffix: str = ""

    @property
    def draws(self) -> int:
        """Continuations in all groups."""
        return sum(group.n for group in self.groups)


class Strategy(Protocol):
    """Where to resample one question's base path, and how, when that follows from the base path alone."""

    def units(self, index: int, base: BasePath, settings: Settings) -> Iterator[Unit]:
        """The units of one question; ``index`` is its place in the question set, which fixes the seeds."""


@dataclass(eq=False)
class Known:
    """What a strategy in rounds knows of one question.

    Attributes:
        index: its place in the question set.
        base: its base path.
        categories: its outcomes.
        outcomes: (T, K) outcomes of the draws so far, by the position they were forced off the base path.
        tokens: (T,) tokens generated for them.
        answer: the question's right answer, where it is known.
        asked: how many questions the set has.
        rounds: for each round so far, (K,) outcomes of its draws.
    """

    index: int
    base: BasePath
    categories: tuple[str, ...]
    outcomes: NDArray[np.int64]
    tokens: NDArray[np.int64]
    answer: str | None = None
    asked: int = 1
    rounds: list[NDArray[np.int64]] = field(default_factory=list)

    def observations(self) -> Observations:
        """What the smoothers take."""
        ended = self.base.finish_reason == "stop"
        return Observations.from_counts(
            np.zeros(0, np.int64),
            np.zeros((0, len(self.categories)), np.int64),
            self.categories,
            grid=np.arange(len(self.base.token_ids)),
            step_p=self.base.p,
            divergence=self.outcomes,
            base_outcome=self.categories.index(self.base.answer.outcome) if ended else None,
        )


@runtime_checkable
class RoundStrategy(Protocol):
    """A strategy whose next units depend on what earlier ones found, over all questions."""

    def waits(self, number: int) -> bool:
        """Whether round ``number`` needs every question of the run, and so waits while one has failed."""

    def next_round(self, number: int, questions: Sequence[Known], settings: Settings) -> list[Unit]:
        """The units of round ``number``, from the outcomes of all rounds before it; none to stop.

        The same outcomes must give the same units: an interrupted round is worked out anew.
        """


@runtime_checkable
class GuidedStrategy(Protocol):
    """A strategy whose continuations a sampler of its own draws, token by token."""

    def check_engine(self, engine: object, name: str) -> None:
        """Refuse an engine, or a class of engines, that lacks what the sampler needs.

        Raises:
            UsageError: it cannot be steered in this way.
        """

    def sampler(self, engine: Engine, settings: Settings) -> Sampler:
        """The sampler that takes the place of the engine's own.

        Raises:
            UsageError: the engine cannot be steered in this way.
        """


def sampled_positions(base: BasePath, settings: Settings) -> tuple[int, ...]:
    """The positions that ``--every`` and ``--unit`` choose on this base path; position 0 is always in."""
    if settings.unit == "token":
        return every_tokens(len(base.token_ids), settings.every)
    return every_sentences(base.sentences, settings.every)


def seed_of(index: int, position: int, group: int, groups: int, settings: Settings) -> int:
    """First seed of a group of draws: no two draws of a run share a seed.

    Args:
        index: place of the question in the set.
        position: token position, below ``settings.base_tokens + 1``.
        group: number of the group at this position, below ``groups``, the most that a position can have.
    """
    offset = settings.seed * SPREAD % SEEDS
    stream = (index * (settings.base_tokens + 1) + position) * groups + group
    return offset + stream * settings.samples
