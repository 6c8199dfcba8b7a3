"""Sampling token by token by rules of ours: every draw of a request in step, one uniform number a token each.

What the rules make of a next-token distribution is a distribution again (``fpa.entropix``); the draw's own stream
picks the token. So the same seeds give the same tokens as far as the engine's distributions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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


class StepSampler:
    """What samplers share that choose every token themselves, from an engine that is read token by token."""

    engine: StepEngine

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order of the requests."""
        for request in requests:
            try:
                self._check_room(request)
                draws = self._draws(request)
            except EngineStopped:
                raise
            except EngineError as error:
                yield Completion(request.key, (), str(error))
                continue
            number = {id(draw): i for i, draw in enumerate(draws)}
            yield Completion(
                request.key,
                tuple(
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
                ),
            )

    def _draws(self, request: Request) -> list[Draw]:
        """All continuations of one request, finished."""
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

    def _draws(self, request: Request) -> list[Draw]:
        # As many draws in step as the engine works on at once, their alternatives included.
        chunk = max(1, self.engine.at_once // (1 + self.branch_limit))
        roots: list[Draw] = []
        kept: list[Draw] = []
        for first in range(0, request.n, chunk):
            some = [
                Draw(i, np.random.default_rng(request.seed + i))
                for i in range(first, min(first + chunk, request.n))
            ]
            kept += self._in_step(request, some)
            roots += some
        return [*roots, *kept]

    def _in_step(self, request: Request, roots: list[Draw]) -> list[Draw]:
        """Draw these to their ends; the alternatives that were kept."""
        own = {draw.root: draw for draw in roots}
        kept: list[Draw] = []
        running = list(roots)
        while running:
            prefixes = [request.prefix_ids + draw.ids for draw in running]
            read = self.engine.next_distributions(
                prefixes,
                attention=self._attends,
                temperature=request.temperature if self.rules.reads_temperature else 1.0,
            )
            for draw, distribution in zip(list(running), read, strict=True):
                alternatives = self._extend(request, draw, distribution, own[draw.root])
                kept += alternatives
                running += alternatives
            running = [draw for draw in running if not self._ended(request, draw)]
        return kept

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


def without_attention(engine: str) -> str:
    """What is said where the rules read attention that the engine does not give."""
    return f"engine {engine} gives no attention: the rules' attention terms are zero (engine transformers has them)"
