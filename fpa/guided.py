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
class _Draw:
    """A continuation in the making.

    ``root`` is the number of the draw that it is or comes from; ``alternatives`` counts those of the root.
    """

    root: int
    stream: np.random.Generator
    ids: tuple[int, ...] = ()
    states: str = ""
    parent: _Draw | None = None
    shared: int = 0
    peak: float = math.nan
    reason: str = ""
    alternatives: int = 0


@dataclass
class RuleSampler:
    """Draws continuations by a rule set, from an engine that is read token by token.

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

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order of the requests: the ``n`` draws, then the alternatives kept on the way."""
        for request in requests:
            try:
                self._check_room(request)
                yield Completion(request.key, self._continuations(request))
            except EngineStopped:
                raise
            except EngineError as error:
                yield Completion(request.key, (), str(error))

    def _check_room(self, request: Request) -> None:
        prefix, new, context = len(request.prefix_ids), request.max_tokens, self.engine.info.context_length
        if prefix + new > context:
            raise ContextOverflow(
                f"{prefix} prompt tokens and up to {new} new ones do not fit the context of {context} tokens: "
                "raise --context or lower the token limits"
            )

    def _continuations(self, request: Request) -> tuple[Continuation, ...]:
        # As many draws in step as the engine works on at once, their alternatives included.
        chunk = max(1, self.engine.at_once // (1 + self.branch_limit))
        roots: list[_Draw] = []
        kept: list[_Draw] = []
        for first in range(0, request.n, chunk):
            some = [
                _Draw(i, np.random.default_rng(request.seed + i))
                for i in range(first, min(first + chunk, request.n))
            ]
            kept += self._in_step(request, some)
            roots += some
        number = {id(draw): i for i, draw in enumerate([*roots, *kept])}
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
            for draw in [*roots, *kept]
        )

    def _in_step(self, request: Request, roots: list[_Draw]) -> list[_Draw]:
        """Draw these to their ends; the alternatives that were kept."""
        own = {draw.root: draw for draw in roots}
        kept: list[_Draw] = []
        running = list(roots)
        while running:
            prefixes = [request.prefix_ids + draw.ids for draw in running]
            read = self.engine.next_distributions(prefixes, attention=self._attends)
            for draw, distribution in zip(list(running), read, strict=True):
                alternatives = self._extend(request, draw, distribution, own[draw.root])
                kept += alternatives
                running += alternatives
            running = [draw for draw in running if not self._ended(request, draw)]
        return kept

    def _extend(self, request: Request, draw: _Draw, read: Distribution, root: _Draw) -> list[_Draw]:
        """Add a token to a draw; the alternatives to be kept."""
        choice = self.rules.choose(
            Seen(
                read.p,
                read.entropy,
                read.varentropy,
                request.temperature,
                self.engine.info.vocabulary - len(read.ids),
                read.attention,
                bool(draw.ids) and draw.ids[-1] == self.clarify,
            )
        )
        at = draw.stream.random()
        chosen = -1
        if choice.p is not None:
            # Below the last sum, so that rounding never picks a token of no probability.
            sums = np.cumsum(choice.p)
            chosen = int(np.searchsorted(sums, min(at * sums[-1], np.nextafter(sums[-1], 0)), side="right"))
        before = draw.ids
        draw.peak = float(np.fmax(draw.peak, read.top_entropy))
        draw.states += LETTERS[choice.state]
        draw.ids = (*before, self.clarify if chosen < 0 else int(read.ids[chosen]))
        if choice.state != "branch":
            return []
        others = tempered(read.p, request.temperature)
        others[chosen] = 0.0
        alternatives = []
        for other in np.argsort(-others, kind="stable"):
            if others[other] < self.branch_min_p or root.alternatives >= self.branch_limit:
                break
            root.alternatives += 1
            alternatives.append(
                _Draw(
                    root.root,
                    np.random.default_rng([request.seed + root.root, root.alternatives]),
                    (*before, int(read.ids[other])),
                    draw.states,
                    draw,
                    len(before),
                    draw.peak,
                )
            )
        return alternatives

    def _ended(self, request: Request, draw: _Draw) -> bool:
        if draw.ids[-1] in self.engine.end_ids or ends_with_stop(self.engine.decode, draw.ids, request.stop):
            draw.reason = "stop"
        elif len(draw.ids) == request.max_tokens:
            draw.reason = "length"
        return bool(draw.reason)


def without_attention(engine: str) -> str:
    """What is said where the rules read attention that the engine does not give."""
    return f"engine {engine} gives no attention: the rules' attention terms are zero (engine transformers has them)"
