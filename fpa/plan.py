"""What a collection will cost, before anything is spent: positions, continuations, tokens, time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from fpa.engines.base import Engine, EngineError, Request, Sampler
from fpa.positions import sentence_of_tokens
from fpa.prompts import messages, prompt_style
from fpa.questions import QuestionSet
from fpa.records import Answer, BasePath, Question
from fpa.settings import Settings
from fpa.strategies import strategy
from fpa.strategies.base import GuidedStrategy, Known, RoundStrategy, Unit

PROBE_QUESTIONS = 2
PROBE_DRAWS = 8


@dataclass(frozen=True)
class Plan:
    """The expected cost of a collection, measured on a probe of ``probed`` questions.

    ``positions``, ``continuations`` and the token counts are for all ``questions`` together, scaled up from
    the probe. ``seconds`` assumes the probe's speed.
    """

    questions: int
    probed: int
    mean_base_tokens: float
    positions: int
    continuations: int
    mean_continuation_tokens: float
    generated_tokens: int
    tokens_per_second: float
    seconds: float


def plan(settings: Settings, engine: Engine, questions: QuestionSet) -> Plan:
    """Probe the engine on at most two questions and scale up; nothing is stored.

    The probe computes base paths and draws a few continuations from the beginning and the middle of each.

    Raises:
        EngineError: none of the probed questions could be put to the model.
    """
    style, kind = prompt_style(settings.prompt), strategy(settings.strategy, settings.options)
    sampler = kind.sampler(engine, settings) if isinstance(kind, GuidedStrategy) else engine
    bases: list[tuple[BasePath, list[Unit], tuple[int, ...]]] = []
    failure: EngineError | None = None
    for index, question in enumerate(questions.questions[:PROBE_QUESTIONS]):
        try:
            prompt = engine.encode_chat(messages(question, style))
            base = _base(engine, question, prompt, settings)
        except EngineError as error:
            failure = error
            continue
        units = (
            _first_round(kind, index, question, base, settings)
            if isinstance(kind, RoundStrategy)
            else list(kind.units(index, base, settings))
        )
        bases.append((base, units, prompt))
    if not bases:
        raise failure or EngineError("there is no question to plan for")

    lengths, tokens_per_second = _probe(settings, sampler, bases)
    # Continuations get shorter along the base path: take the length as linear between the two probes.
    slope = (lengths[1] - lengths[0]) / 0.5
    positions = continuations = tokens = 0.0
    for base, units, _ in bases:
        for unit in units:
            share = unit.start / max(len(base.token_ids), 1)
            expected = max(lengths[0] + slope * share, 1.0)
            if sampler is engine:
                expected = min(expected, settings.rollout_tokens)
            positions += 1
            continuations += unit.draws
            tokens += unit.draws * expected
    scale = len(questions.questions) / len(bases)
    if settings.strategy == "adaptive" and settings.budget is not None:
        # Rounds go on until the budget is spent: draws in proportion, positions as the pilot's.
        scale_up = settings.budget / max(tokens * scale, 1.0)
        continuations, tokens = continuations * scale_up, tokens * scale_up
    return Plan(
        questions=len(questions.questions),
        probed=len(bases),
        mean_base_tokens=float(np.mean([len(base.token_ids) for base, _, _ in bases])),
        positions=round(positions * scale),
        continuations=round(continuations * scale),
        mean_continuation_tokens=tokens / max(continuations, 1.0),
        generated_tokens=round(tokens * scale),
        tokens_per_second=tokens_per_second,
        seconds=tokens * scale / tokens_per_second,
    )


def _first_round(
    kind: RoundStrategy, index: int, question: Question, base: BasePath, settings: Settings
) -> list[Unit]:
    """The pilot of a strategy in rounds for one question; what follows depends on what it finds."""
    length, width = len(base.token_ids), len(question.categories)
    known = Known(
        index,
        base,
        question.categories,
        np.zeros((length, width), np.int64),
        np.zeros(length, np.int64),
        question.answer,
    )
    return kind.next_round(0, [known], settings)


def _base(engine: Engine, question: Question, prompt: tuple[int, ...], settings: Settings) -> BasePath:
    path = engine.greedy(prompt, settings.base_tokens, settings.temperature)
    pieces = engine.pieces(path.token_ids)
    return BasePath(
        question_id=question.question_id,
        token_ids=path.token_ids,
        token_texts=pieces,
        distributions=path.distributions,
        sentences=sentence_of_tokens(pieces),
        finish_reason=path.finish_reason,
        answer=Answer("Other", "none"),
    )


def _probe(
    settings: Settings, sampler: Sampler, bases: list[tuple[BasePath, list[Unit], tuple[int, ...]]]
) -> tuple[tuple[float, float], float]:
    """Tokens of a draw from the beginning and from the middle, on average, and tokens per second overall.

    What splits from a draw of a sampler of ours counts as its tokens.
    """
    requests = [
        Request(
            key=f"{number}/{place}",
            prefix_ids=prompt + base.token_ids[: len(base.token_ids) * place // 2],
            n=PROBE_DRAWS,
            seed=(2 * number + place) * PROBE_DRAWS,
            temperature=settings.temperature,
            max_tokens=settings.rollout_tokens,
            stop=settings.stop,
        )
        for number, (base, _, prompt) in enumerate(bases)
        for place in (0, 1)
    ]
    lengths: dict[str, list[int]] = {"0": [], "1": []}
    began = time.monotonic()
    for completion in sampler.sample(requests):
        if completion.error is not None:
            raise EngineError(completion.error)
        place = completion.key.rpartition("/")[2]
        made = [len(c.token_ids) - (c.trace.shared if c.trace else 0) for c in completion.continuations]
        lengths[place].append(sum(made))
    seconds = max(time.monotonic() - began, 1e-9)
    means = float(np.mean(lengths["0"])) / PROBE_DRAWS, float(np.mean(lengths["1"])) / PROBE_DRAWS
    return means, sum(map(sum, lengths.values())) / seconds


def lasts(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
