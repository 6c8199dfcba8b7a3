"""Collecting a run: questions → base paths → rollouts on disk, resumable at any moment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from pathlib import Path
from typing import Protocol

import numpy as np

from fpa.answers import closing_phrase, extract_answer, readout_candidates
from fpa.engines.base import (
    Completion,
    Continuation,
    Engine,
    EngineError,
    EngineStopped,
    LooksAhead,
    Request,
    Sampler,
)
from fpa.positions import sentence_of_tokens
from fpa.prompts import messages, prompt_style
from fpa.questions import QuestionSet
from fpa.records import Answer, BasePath, Distribution, Question, Rollout, Trace
from fpa.settings import Settings
from fpa.store import RunWriter, unit_name
from fpa.strategies import strategy
from fpa.strategies.base import Group, GuidedStrategy, Known, RoundStrategy, Strategy, Unit

WITHOUT_LETTER = ("none", "truncated", "empty")
TEXTS = 10  # likeliest next tokens whose text is stored, for people to read


class Progress(Protocol):
    """Who is told how far the work is."""

    def begin(self, questions: int) -> None:
        """The number of questions."""

    def question(self, question_id: str, continuations: int, stored: int) -> None:
        """A question's base path is known: its continuations, and how many of them are on disk already."""

    def advance(self, continuations: int, tokens: int) -> None:
        """A unit is on disk."""

    def note(self, line: str) -> None:
        """Something the user should know."""


class Silent:
    """Progress that nobody watches."""

    def begin(self, questions: int) -> None:
        """Nothing."""

    def question(self, question_id: str, continuations: int, stored: int) -> None:
        """Nothing."""

    def advance(self, continuations: int, tokens: int) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Nothing."""


@dataclass
class Spent:
    """What a collection has cost so far."""

    seconds: float = 0.0
    continuations: int = 0
    generated_tokens: int = 0
    base_tokens: int = 0
    readouts: int = 0


@dataclass
class Summary:
    """How a collection ended.

    Attributes:
        path: the run directory.
        spent: what this session has cost.
        failures: question id → why it failed.
        notices: what was found damaged on opening, one line each.
    """

    path: Path
    spent: Spent
    failures: dict[str, str]
    notices: list[str]


@dataclass
class _Open:
    """A unit in flight: the completions still missing."""

    asked: _Asked
    unit: Unit
    missing: int
    parts: dict[int, tuple[Continuation, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asked:
    """A question put to the model, with what every rollout of it needs."""

    question: Question
    prompt_ids: tuple[int, ...]
    thinking: bool
    base: BasePath


def collect(
    settings: Settings,
    engine: Engine,
    questions: QuestionSet,
    out: str | Path,
    progress: Progress | None = None,
) -> Summary:
    """Collect a run into ``out``, or resume the one there; what is on disk already is not done again.

    A question that fails is recorded and does not stop the others.

    Raises:
        UsageError: ``out`` holds a run of another configuration.
        FpaError: ``out`` cannot be written, or the engine stopped altogether. Finished units stay on disk.
    """
    progress = progress or Silent()
    # Refuse unknown names, options and engines before anything is made.
    kind, _ = strategy(settings.strategy, settings.options), prompt_style(settings.prompt)
    sampler = kind.sampler(engine, settings) if isinstance(kind, GuidedStrategy) else engine
    with RunWriter.open(
        out, settings.config(), engine=engine.info, questions_fingerprint=questions.fingerprint
    ) as writer:
        for notice in writer.notices:
            progress.note(notice)
        for notice in getattr(sampler, "notices", ()):
            progress.note(notice)
        return _Collection(settings, engine, questions, writer, progress, kind, sampler).run()


class _Collection:
    """The state of one collecting session."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        questions: QuestionSet,
        writer: RunWriter,
        progress: Progress,
        kind: Strategy | RoundStrategy,
        sampler: Sampler,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.questions = questions
        self.writer = writer
        self.progress = progress
        self.strategy = kind
        self.guided = isinstance(kind, GuidedStrategy)
        self.sampler = sampler
        self.style = prompt_style(settings.prompt)
        self.spent = Spent()
        self.failures: dict[str, str] = {}
        self.open: dict[str, _Open] = {}
        self.texts: dict[int, str] = {}  # of tokens listed so far

    def run(self) -> Summary:
        """Do all the work; account for it even when interrupted."""
        began = time.monotonic()
        self.progress.begin(len(self.questions.questions))
        try:
            if isinstance(self.strategy, RoundStrategy):
                self.do_rounds(self.strategy)
            else:
                if getattr(self.engine, "greedy_alone", False):
                    for question in self.questions.questions:
                        self.ask(question)  # and keep none: they are read from disk in their turn
                self.do(self.all_requests(self.strategy))
        except BaseException:
            self.spent.seconds = time.monotonic() - began
            self.writer.spend(vars(self.spent))
            raise
        self.spent.seconds = time.monotonic() - began
        if self.failures:
            self.writer.spend(vars(self.spent))
        else:
            self.writer.finish(vars(self.spent))
        return Summary(self.writer.path, self.spent, self.failures, self.writer.notices)

    def fail(self, question_id: str, error: str) -> None:
        """Record the first failure of a question."""
        if question_id not in self.failures:
            self.failures[question_id] = error
            self.writer.put_failure(question_id, error)
            self.progress.note(f"{question_id}: {error}")

    def do(self, requests: Iterator[Request]) -> None:
        """Put requests to the engine and store their units as they finish."""
        for completion in self.sampler.sample(requests):
            self.receive(completion)

    def announced(self) -> Iterator[tuple[int, Question]]:
        """The questions in order; an engine that can begin base paths early is told of the next few."""
        questions = self.questions.questions
        told = 0
        for index, question in enumerate(questions):
            if isinstance(self.engine, LooksAhead):
                for coming in questions[told : index + 1 + self.engine.ahead]:
                    self.announce(self.engine, coming)
                told = max(told, index + 1 + self.engine.ahead)
            yield index, question

    def announce(self, engine: LooksAhead, question: Question) -> None:
        """Have the engine begin a base path, unless it is on disk."""
        if self.writer.base(question.question_id) is None:
            try:
                prompt_ids = self.engine.encode_chat(messages(question, self.style))
            except EngineError:
                return  # it fails again, and is recorded, in its turn
            engine.expect(prompt_ids, self.settings.base_tokens, self.settings.temperature)

    def all_requests(self, strategy: Strategy) -> Iterator[Request]:
        """Requests of all unfinished units, question by question; base paths are computed on the way."""
        for index, question in self.announced():
            asked = self.ask(question)
            if asked is not None:
                yield from self.requests(asked, list(strategy.units(index, asked.base, self.settings)))

    def do_rounds(self, strategy: RoundStrategy) -> None:
        """Rounds over all questions until the strategy wants no more.

        What a round asks for follows from the outcomes of all earlier ones, read from disk: resumed in the
        middle of a round, the collection asks for the same units and does those that are missing.
        """
        asked: dict[str, _Asked] = {}
        known: dict[str, Known] = {}
        for index, question in self.announced():
            put = self.ask(question)
            if put is not None:
                asked[question.question_id] = put
                shape = len(put.base.token_ids), len(question.categories)
                known[question.question_id] = Known(
                    index,
                    put.base,
                    question.categories,
                    np.zeros(shape, np.int64),
                    np.zeros(shape[0], np.int64),
                    question.answer,
                    len(self.questions.questions),
                )
        for number in count():
            # A question that has failed is left out for the rest of this session; resuming takes it up again.
            alive = [k for question_id, k in known.items() if question_id not in self.failures]
            if self.failures and strategy.waits(number):
                self.progress.note(
                    f"strategy {self.settings.strategy}: round {number + 1} hangs on all questions and waits for those "
                    "that failed; run again to take them up, or collect without them"
                )
                return
            units = strategy.next_round(number, alive, self.settings)
            if not units:
                return
            by_question = groupby(units, key=lambda unit: unit.question_id)
            self.do(r for q, part in by_question for r in self.requests(asked[q], list(part)))
            for state in alive:
                state.rounds.append(np.zeros(len(state.categories), np.int64))
            for unit in units:
                name = unit_name(unit.question_id, unit.start, unit.suffix)
                if unit.question_id not in self.failures:
                    rows = self.writer.rollouts(name, ["outcome", "n_tokens"])
                    state = known[unit.question_id]
                    for outcome, tokens in zip(*rows.to_pydict().values(), strict=True):
                        category = state.categories.index(outcome)
                        state.outcomes[unit.start, category] += 1
                        state.rounds[-1][category] += 1
                        state.tokens[unit.start] += tokens

    def requests(self, asked: _Asked, units: Sequence[Unit]) -> Iterator[Request]:
        """The engine requests of those units of one question that are not on disk."""
        question_id = asked.question.question_id
        names = [unit_name(unit.question_id, unit.start, unit.suffix) for unit in units]
        stored = sum(u.draws for u, name in zip(units, names, strict=True) if self.writer.has(name))
        self.progress.question(question_id, sum(u.draws for u in units), stored)
        for unit, name in zip(units, names, strict=True):
            if self.writer.has(name):
                continue
            self.open[name] = _Open(asked, unit, len(unit.groups))
            prefix = asked.prompt_ids + asked.base.token_ids[: unit.start]
            for number, group in enumerate(unit.groups):
                if question_id in self.failures:
                    self.open.pop(name, None)
                    return
                yield self.request(f"{name}/{number}", prefix, group)

    def request(self, key: str, prefix: tuple[int, ...], group: Group) -> Request:
        """The engine request of one group of draws."""
        forced = () if group.first_token is None else (group.first_token,)
        return Request(
            key=key,
            prefix_ids=prefix + forced,
            n=group.n,
            seed=group.seed,
            temperature=self.settings.temperature,
            max_tokens=self.settings.rollout_tokens,
            stop=self.settings.stop,
            theta=group.theta,
        )

    def ask(self, question: Question) -> _Asked | None:
        """Put a question to the model: its prompt and its base path, from disk where they are there.

        Returns None where the model cannot be asked; the failure is recorded.
        """
        try:
            prompt_ids = self.engine.encode_chat(messages(question, self.style))
            thinking = self.engine.decode(prompt_ids[-8:]).rstrip().endswith("<think>")
            self.writer.put_question(question, prompt_ids)
            base = self.writer.base(question.question_id)
            if base is None:
                base = self.base_path(question, prompt_ids, thinking)
                self.writer.put_base(base)
                self.spent.base_tokens += len(base.token_ids)
        except EngineStopped:
            raise
        except EngineError as error:
            self.fail(question.question_id, str(error))
            return None
        return _Asked(question, prompt_ids, thinking, base)

    def base_path(self, question: Question, prompt_ids: tuple[int, ...], thinking: bool) -> BasePath:
        """The greedy answer and its readout."""
        path = self.engine.greedy(prompt_ids, self.settings.base_tokens, self.settings.temperature)
        pieces = self.engine.pieces(path.token_ids)
        text = self.engine.decode(path.token_ids)
        answer = extract_answer(text, question.choices, path.finish_reason, thinking=thinking)
        if self.settings.readout and answer.status in WITHOUT_LETTER:
            [answer] = self.read_out(question, thinking, prompt_ids, [path.token_ids], [text], [answer])
        return BasePath(
            question_id=question.question_id,
            token_ids=path.token_ids,
            token_texts=pieces,
            distributions=tuple(self.with_texts(d) for d in path.distributions),
            sentences=sentence_of_tokens(pieces),
            finish_reason=path.finish_reason,
            answer=answer,
        )

    def with_texts(self, distribution: Distribution) -> Distribution:
        """The distribution with the texts of its likeliest tokens."""
        texts = []
        for token in distribution.ids[:TEXTS].tolist():
            if token not in self.texts:
                [self.texts[token]] = self.engine.pieces((token,))
            texts.append(self.texts[token])
        return replace(distribution, texts=tuple(texts))

    def receive(self, completion: Completion) -> None:
        """Take one completion in; write its unit when it was the last one missing."""
        name, _, number = completion.key.rpartition("/")
        if name not in self.open:
            return  # another group of this unit has failed
        state = self.open[name]
        group = state.unit.groups[int(number)]
        error = completion.error
        if error is None and not self.guided and len(completion.continuations) != group.n:
            error = f"the engine returned {len(completion.continuations)} continuations for {group.n}"
        if error is not None:
            del self.open[name]
            self.fail(state.unit.question_id, error)
            return
        state.parts[int(number)] = completion.continuations
        state.missing -= 1
        if state.missing:
            return
        del self.open[name]
        try:
            rows = self.rollouts(state)
        except EngineStopped:
            raise
        except EngineError as error_in_readout:
            self.fail(state.unit.question_id, str(error_in_readout))
            return
        self.writer.put_rollouts(name, rows)
        tokens = sum(row.n_tokens for row in rows)
        self.spent.continuations += len(rows)
        self.spent.generated_tokens += tokens
        # Alternatives that a sampler kept on the way were never counted as work to do.
        self.progress.advance(state.unit.draws, tokens)

    def rollouts(self, state: _Open) -> list[Rollout]:
        """The rows of one unit: each continuation with its answer and where it leaves the base path."""
        asked, unit = state.asked, state.unit
        base_ids = asked.base.token_ids
        drawn = [
            (number, group, draw, continuation)
            for number, group in enumerate(unit.groups)
            for draw, continuation in enumerate(state.parts[number])
        ]
        new_ids = [
            (() if group.first_token is None else (group.first_token,)) + continuation.token_ids
            for _, group, _, continuation in drawn
        ]
        # An answer is read from the whole response, base prefix included: late in a response
        # "The answer is" may already stand there.
        responses = [base_ids[: unit.start] + ids for ids in new_ids]
        texts = [self.engine.decode(response) for response in responses]
        answers = [
            extract_answer(text, asked.question.choices, c.finish_reason, thinking=asked.thinking)
            for text, (*_, c) in zip(texts, drawn, strict=True)
        ]
        if self.settings.readout:
            answers = self.read_out(
                asked.question, asked.thinking, asked.prompt_ids, responses, texts, answers
            )
        return [
            Rollout(
                question_id=unit.question_id,
                start=unit.start,
                draw=group.first_draw + draw,
                first_token=group.first_token,
                first_token_p=group.first_token_p,
                seed=group.seed + origin(state.parts[number], draw),
                outcome=answer.outcome,
                status=answer.status,
                diverge_at=divergence(base_ids, unit.start, ids),
                n_tokens=len(continuation.token_ids)
                - (continuation.trace.shared if continuation.trace else 0),
                finish_reason=continuation.finish_reason,
                token_ids=ids if self.settings.keep_ids else None,
                text=text if self.settings.keep_text else None,
                trace=numbered(continuation.trace, group.first_draw),
            )
            for (number, group, draw, continuation), ids, text, answer in zip(
                drawn, new_ids, texts, answers, strict=True
            )
        ]

    def read_out(
        self,
        question: Question,
        thinking: bool,
        prompt_ids: tuple[int, ...],
        responses: Sequence[tuple[int, ...]],
        texts: Sequence[str],
        answers: Sequence[Answer],
    ) -> list[Answer]:
        """Answers with those that name no letter read from the model after a closing phrase.

        Where the phrase does not fit the context any more, the answer stays as it is.
        """
        letters = readout_candidates(question.choices)
        candidates = [self.engine.encode(letter)[0] for letter in letters]
        ends = self.engine.end_ids
        result = list(answers)
        asked: list[int] = []
        prefixes: list[tuple[int, ...]] = []
        for i, (response, text, answer) in enumerate(zip(responses, texts, answers, strict=True)):
            if answer.status in WITHOUT_LETTER:
                phrase = self.engine.encode(closing_phrase(text, thinking=thinking))
                prefix = (*prompt_ids, *(t for t in response if t not in ends), *phrase)
                if len(prefix) < self.engine.info.context_length:
                    asked.append(i)
                    prefixes.append(prefix)
        if not asked:
            return result
        probabilities = self.engine.choose(prefixes, candidates)
        self.spent.readouts += len(asked)
        for i, row in zip(asked, probabilities, strict=True):
            if row.max() > 0:
                result[i] = Answer(letters[int(row.argmax())], "readout")
        return result


def origin(continuations: Sequence[Continuation], number: int) -> int:
    """Number of the draw that a continuation is, or split from at last: its stream is the one behind it."""
    while (trace := continuations[number].trace) is not None and trace.parent is not None:
        number = trace.parent
    return number


def numbered(trace: Trace | None, first_draw: int) -> Trace | None:
    """A trace whose parent is numbered as the run's draws are."""
    if trace is None or trace.parent is None:
        return trace
    return replace(trace, parent=first_draw + trace.parent)


def divergence(base_ids: Sequence[int], start: int, token_ids: Sequence[int]) -> int | None:
    """First position at which a continuation from ``start`` leaves the base path.

    Returns:
        The position of its first token that is not the base path's; ``len(base_ids)`` where it goes on past
        the end of a base path that was cut off; None where it never leaves. A continuation that stops short
        (at a token limit, or a stop string) while still on the base path never left it.
    """
    for offset, token in enumerate(token_ids):
        position = start + offset
        if position >= len(base_ids):
            return len(base_ids)
        if token != base_ids[position]:
            return position
    return None
