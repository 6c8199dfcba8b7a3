"""Sampling token by token by rules of ours: every draw of a request in step, one uniform number a token each.

What the rules make of a next-token distribution is a distribution again (``fpa.entropix``); the draw's own stream
picks the token. So the same seeds give the same tokens as far as the engine's distributions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fpa.engines.base import (
    Completion,
    ContextOverflow,
    Continuation,
    Engine,
    EngineError,
    EngineStopped,
    ReadsNext,
    Request,
    ends_with_stop,
)
from fpa.entropix import LETTERS, Rules, Seen, tempered
from fpa.records import Distribution, Trace


class StepEngine(Engine, ReadsNext, Protocol):
    """An engine that can be read token by token."""


@dataclass(eq=False)
class Draw:
    """A continuation in the making.

    ``root`` is the number of the draw that it is or comes from; ``alternatives`` counts those of the root.
    """

    root: int
    stream: np.random.Generator
    ids: tuple[int, ...] = ()
    states: str = ""
    parent: Draw | None = None
    shared: int = 0
    peak: float = math.nan
    reason: str = ""
    alternatives: int = 0

    def take(self, token: int, state: str, read: Distribution) -> None:
        """Go on by one token, chosen in that state from what was read."""
        self.ids = (*self.ids, token)
        self.states += LETTERS[state]
        self.peak = float(np.fmax(self.peak, read.top_entropy))

    def split(self, number: int, seed: int, token: int) -> Draw:
        """An alternative to the token just taken, with a stream of its own: the ``number``-th of those of ``seed``."""
        return Draw(
            self.root,
            np.random.default_rng([seed, number]),
            (*self.ids[:-1], token),
            self.states,
            self,
            len(self.ids) - 1,
            self.peak,
        )


def pick(p: NDArray[np.float64], at: float) -> int:
    """Index of the outcome that a uniform number picks; ``p`` are (k,) weights. None of weight 0 is picked."""
    sums = np.cumsum(p)
    # Below the last sum, so that rounding never picks a token of no probability.
    return int(np.searchsorted(sums, min(at * sums[-1], np.nextafter(sums[-1], 0)), side="right"))


Steps = Generator[list[tuple[int, ...]], list[Distribution], list[Draw]]
"""Draws in the making: yields prefixes, is sent the distribution after each, and returns the draws, finished."""


@dataclass(eq=False)
class Running:
    """A request whose draws are in the making, and the prefixes that they wait for."""

    request: Request
    steps: Steps
    wanted: list[tuple[int, ...]]


class StepSampler:
    """What samplers share that choose every token themselves, from an engine that is read token by token."""

    engine: StepEngine

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish, as many requests in step as the engine has room for.

        One request after another where the engine promises the same tokens again: what it is read with in one step
        must then not hang on which other requests are there.
        """
        coming = iter(requests)
        running: list[Running] = []
        while True:
            while self._has_room(running) and (request := next(coming, None)) is not None:
                try:
                    self._check_room(request)
                except EngineError as error:
                    yield Completion(request.key, (), str(error))
                    continue
                steps = self._draws(request)
                running.append(Running(request, steps, next(steps)))
            if not running:
                return
            now = self._in_turn(running)
            for one, read in zip(now, self._read(now), strict=True):
                ended = self._go_on(one, read)
                if ended is not None:
                    running.remove(one)
                    yield ended

    def _has_room(self, running: Sequence[Running]) -> bool:
        if self.engine.info.reproducible:
            return not running
        return sum(len(one.wanted) for one in running) < self.engine.reads_at_once

    def _in_turn(self, running: Sequence[Running]) -> list[Running]:
        """Whose turn it is: the oldest, and of the others what still fits beside it and is read alike."""
        oldest = running[0]
        now, room = [oldest], self.engine.reads_at_once - len(oldest.wanted)
        for one in running[1:]:
            if len(one.wanted) <= room and one.request.temperature == oldest.request.temperature:
                now.append(one)
                room -= len(one.wanted)
        return now

    def _read(self, running: Sequence[Running]) -> list[list[Distribution] | EngineError]:
        """What each request waits for, or the error that befell it alone."""
        wanted = [prefix for one in running for prefix in one.wanted]
        try:
            read = iter(self._next(wanted, running[0].request.temperature))
        except EngineStopped:
            raise
        except EngineError as error:
            return [error] if len(running) == 1 else [found for one in running for found in self._read([one])]
        return [list(islice(read, len(one.wanted))) for one in running]

    def _go_on(self, one: Running, read: list[Distribution] | EngineError) -> Completion | None:
        """Make a step of what was read; the completion of a request that has ended by it."""
        try:
            if isinstance(read, EngineError):
                raise read
            one.wanted = one.steps.send(read)
        except StopIteration as ended:
            return Completion(one.request.key, continuations(ended.value))
        except EngineStopped:
            raise
        except EngineError as error:
            return Completion(one.request.key, (), str(error))
        return None

    def _draws(self, request: Request) -> Steps:
        """The continuations of one request."""
        raise NotImplementedError

    def _next(self, prefixes: Sequence[tuple[int, ...]], temperature: float) -> list[Distribution]:
        """What there is to know of the next token after each prefix, for draws at ``temperature``."""
        raise NotImplementedError

    def _check_room(self, request: Request) -> None:
        prefix, new, context = len(request.prefix_ids), request.max_tokens, self.engine.info.context_length
        if prefix + new > context:
            raise ContextOverflow(
                f"{prefix} prompt tokens and up to {new} new ones do not fit the context of {context} tokens: "
                "raise --context or lower the token limits"
            )

    def _ended(self, request: Request, draw: Draw) -> bool:
        if draw.ids[-1] in self.engine.end_ids or ends_with_stop(self.engine.decode, draw.ids, request.stop):
            draw.reason = "stop"
        elif len(draw.ids) == request.max_tokens:
            draw.reason = "length"
        return bool(draw.reason)


@dataclass
class RuleSampler(StepSampler):
    """Draws continuations by a rule set: the ``n`` draws, then the alternatives kept on the way.

    Args:
        engine: where the next-token distributions come from.
        rules: what to make of them.
        clarify: the token that is inserted in the state ``clarify``.
        branch_limit: alternatives that one draw keeps at most, those of its alternatives included.
        branch_min_p: least probability, at the run's temperature, of an alternative.

    Attributes:
        notices: what the user should know of this engine under these rules, one line each.
    """

    engine: StepEngine
    rules: Rules
    clarify: int
    branch_limit: int = 0
    branch_min_p: float = 0.05
    notices: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find out what there is to say."""
        self._attends = self.rules.reads_attention and bool(getattr(self.engine, "attends", False))
        self.notices = ()
        if self.rules.reads_attention and not self._attends:
            self.notices = (without_attention(self.engine.info.name),)

    def _draws(self, request: Request) -> Steps:
        # As many draws in step as the engine works on at once, their alternatives included.
        chunk = max(1, self.engine.reads_at_once // (1 + self.branch_limit))
        roots: list[Draw] = []
        kept: list[Draw] = []
        for first in range(0, request.n, chunk):
            some = [
                Draw(i, np.random.default_rng(request.seed + i))
                for i in range(first, min(first + chunk, request.n))
            ]
            kept += yield from self._in_step(request, some)
            roots += some
        return [*roots, *kept]

    def _in_step(self, request: Request, roots: list[Draw]) -> Steps:
        """Draw these to their ends; returns the alternatives that were kept."""
        own = {draw.root: draw for draw in roots}
        kept: list[Draw] = []
        running = list(roots)
        while running:
            read = yield [request.prefix_ids + draw.ids for draw in running]
            for draw, distribution in zip(list(running), read, strict=True):
                alternatives = self._extend(request, draw, distribution, own[draw.root])
                kept += alternatives
                running += alternatives
            running = [draw for draw in running if not self._ended(request, draw)]
        return kept

    def _next(self, prefixes: Sequence[tuple[int, ...]], temperature: float) -> list[Distribution]:
        return self.engine.next_distributions(
            prefixes,
            attention=self._attends,
            temperature=temperature if self.rules.reads_temperature else 1.0,
        )

    def _extend(self, request: Request, draw: Draw, read: Distribution, root: Draw) -> list[Draw]:
        """Add a token to a draw; the alternatives to be kept."""
        choice = self.rules.choose(
            Seen(
                read.p,
                read.entropy,
                read.varentropy,
                request.temperature,
                self.engine.info.vocabulary - len(read.ids),
                read.attention,
                (request.prefix_ids + draw.ids)[-1] == self.clarify,
            )
        )
        at = draw.stream.random()
        if choice.p is None:
            draw.take(self.clarify, choice.state, read)
            return []
        chosen = pick(choice.p, at)
        draw.take(int(read.ids[chosen]), choice.state, read)
        if choice.state != "branch":
            return []
        others = tempered(read.p, request.temperature)
        others[chosen] = 0.0
        alternatives = []
        for other in np.argsort(-others, kind="stable"):
            if others[other] < self.branch_min_p or root.alternatives >= self.branch_limit:
                break
            root.alternatives += 1
            alternatives.append(draw.split(root.alternatives, request.seed + root.root, int(read.ids[other])))
        return alternatives


def continuations(draws: Sequence[Draw]) -> tuple[Continuation, ...]:
    """Finished draws as an engine's continuations, each with its trace; parents are numbered as the draws are."""
    number = {id(draw): i for i, draw in enumerate(draws)}
    return tuple(
        Continuation(
            draw.ids,
            draw.reason,
            Trace(
                draw.states,
                None if draw.parent is None else number[id(draw.parent)],
                draw.shared,
                draw.peak,
            ),
        )
        for draw in draws
    )


def without_attention(engine: str) -> str:
    """What is said where the rules read attention that the engine does not give."""
    return f"engine {engine} gives no attention: the rules' attention terms are zero (engine transformers has them)"
