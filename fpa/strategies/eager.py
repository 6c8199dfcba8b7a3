"""EAGER (Scalena et al. 2025, arXiv 2510.11170): sequences from the prompt that split where the model is unsure.

A first round gives every question ``samples`` sequences at most. What easy questions left of them goes to others in
further rounds, which grow trees of their own from the prompt: no sequence is thrown away or generated again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fpa.eager import PERCENTILE, THETA, TreeSampler
from fpa.engines.base import Engine, ReadsNext, Sampler
from fpa.errors import UsageError
from fpa.guided import StepEngine
from fpa.records import BasePath
from fpa.settings import Settings
from fpa.signals import TOP
from fpa.strategies.base import SEEDS, SPREAD, Group, Known, Unit

MODES = ("init", "adapt", "full")
CALIBRATED_ON = 10  # questions
MOST_THETA = math.log(TOP)  # nats
MOST = 3  # times ``samples``: sequences that ``adapt`` gives one question at most
LOWERED = 0.8  # factor of the threshold of questions that did not use what they were given
LATE = 0.9  # factor of all thresholds, once more, after the second round


@dataclass(frozen=True)
class Eager:
    """At most ``samples`` sequences a question on average, all from position 0.

    Attributes:
        mode: ``init`` stops after the first round; ``adapt`` gives what was saved, once, to the questions that
            reached the limit; ``full`` gives it, round after round, to those whose right answer has not been met.
        theta: least entropy of a token that splits a sequence, in nats; or ``auto``, the 99th percentile over
            the tokens of the first ten questions' base paths.

    Raises:
        UsageError: a value that makes no sense.
    """

    mode: str = "adapt"
    theta: float | str = THETA

    def __post_init__(self) -> None:
        """Refuse what makes no sense, naming the option."""
        if self.mode not in MODES:
            raise UsageError(f"strategy option mode: choose {', '.join(MODES)}, got {self.mode!r}")
        number = isinstance(self.theta, int | float) and not isinstance(self.theta, bool)
        if self.theta != "auto" and not (number and 0 <= self.theta < MOST_THETA):  # type: ignore[operator]
            raise UsageError(
                "strategy option theta: nats from 0 to below ln 20 = 3.0, which is the entropy of 20 equal tokens "
                f"and is never exceeded, or auto; got {self.theta!r}"
            )

    def check_engine(self, engine: object, name: str) -> None:
        """Refuse an engine, or a class of engines, that cannot be read token by token.

        Raises:
            UsageError: it cannot.
        """
        if not hasattr(engine, ReadsNext.next_distributions.__name__):
            raise UsageError(
                "strategy eager needs an engine that can be read token by token (llamacpp, transformers; not over "
                f"Ray), and {name} cannot"
            )

    def sampler(self, engine: Engine, settings: Settings) -> Sampler:
        """The sampler that grows trees.

        Raises:
            UsageError: the engine cannot be read token by token.
        """
        self.check_engine(engine, engine.info.name)
        return TreeSampler(cast(StepEngine, engine), THETA if isinstance(self.theta, str) else self.theta)

    def threshold(self, bases: Sequence[BasePath]) -> float:
        """θ of the first round, in nats, from the run's base paths in their order."""
        if not isinstance(self.theta, str):
            return float(self.theta)
        entropies = [d.top_entropy for base in bases[:CALIBRATED_ON] for d in base.distributions]
        return float(np.nanpercentile(entropies, PERCENTILE))

    def waits(self, number: int) -> bool:
        """What later rounds give out is what all questions have left; ``auto`` reads all base paths."""
        return number > 0 or self.theta == "auto"

    def next_round(self, number: int, questions: Sequence[Known], settings: Settings) -> list[Unit]:
        """A tree for every question that is given sequences in this round; none where nobody is.

        Raises:
            UsageError: mode ``full``, and a question has no right answer.
        """
        if not questions:
            return []
        unanswered = [q.base.question_id for q in questions if q.answer is None]
        if self.mode == "full" and unanswered:
            raise UsageError(
                f"strategy eager, mode full, needs every question's right answer; {', '.join(unanswered[:3])} "
                f"{'has' if len(unanswered) == 1 else 'have'} none: use mode adapt, or leave them out"
            )
        # A tree splits its streams off one seed; no two trees of the run, of whatever round, share it.
        seed = settings.seed * SPREAD % SEEDS + number * questions[0].asked
        units = []
        for question, (given, theta) in zip(
            questions, self._given(number, questions, settings.samples), strict=True
        ):
            if given:
                drawn = int(question.outcomes.sum())
                group = Group(given, seed + question.index, first_draw=drawn, theta=theta)
                units.append(Unit(question.base.question_id, 0, (group,), f"r{number:02d}"))
        return units

    def _given(self, number: int, questions: Sequence[Known], samples: int) -> list[tuple[int, float]]:
        """Sequences that each question may grow in a round, and its threshold; from the rounds before it."""
        theta = self.threshold([q.base for q in questions])
        given, thetas = [samples] * len(questions), [theta] * len(questions)
        for past in range(number):
            grown = [int(q.rounds[past].sum()) for q in questions]
            saved = samples * len(questions) - sum(
                int(r.sum()) for q in questions for r in q.rounds[: past + 1]
            )
            saturated = [g > 0 and n >= g for n, g in zip(grown, given, strict=True)]
            needy = self._needy(past, questions, saturated)
            if saved <= 0 or not any(needy):
                return [(0, t) for t in thetas]
            if self.mode == "full":
                thetas = [
                    t * (1.0 if not n or full else LOWERED) * (LATE if n and past >= 2 else 1.0)
                    for t, n, full in zip(thetas, needy, saturated, strict=True)
                ]
            given = divided(saved, needy, (MOST - 1) * samples if self.mode == "adapt" else None)
        return list(zip(given, thetas, strict=True))

    def _needy(self, past: int, questions: Sequence[Known], saturated: Sequence[bool]) -> list[bool]:
        """Which questions are given more after a round."""
        if self.mode == "adapt" and past == 0:
            return list(saturated)
        if self.mode == "full":
            return [
                not any(r[q.categories.index(cast(str, q.answer))] for r in q.rounds[: past + 1])
                for q in questions
            ]
        return [False] * len(questions)


def divided(saved: int, needy: Sequence[bool], most: int | None) -> list[int]:
    """Sequences for each question of a round: ``saved`` evenly among the needy, the rest to the first of them.

    Where there are fewer than one for each, each has one all the same. ``most`` bounds each.
    """
    share, rest = divmod(saved, sum(needy))
    first = needy.index(True)
    given = [0] * len(needy)
    for i, needs in enumerate(needy):
        if needs:
            given[i] = 1 if share == 0 else share + (rest if i == first else 0)
            if most is not None:
                given[i] = min(given[i], most)
    return given
