"""The engine contract: token ids in, token ids out.

An engine is one file in this folder and one line in ``fpa.engines.ENGINES``. It knows nothing of questions,
positions or answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fpa.errors import FpaError
from fpa.records import Distribution, Trace

Message = dict[str, str]

STEP_LISTED = 100
"""Tokens that ``ReadsNext`` lists at least, where there are so many: as many as a rule may choose from."""


class EngineError(FpaError):
    """The engine cannot load, or cannot serve a request."""


class ContextOverflow(EngineError):
    """A request would not fit the model's context."""


class EngineStopped(EngineError):
    """The engine is gone: no further request can succeed."""


@dataclass(frozen=True)
class EngineInfo:
    """What goes into the manifest: the same fingerprint means the same model."""

    name: str
    version: str
    model: str
    fingerprint: str
    context_length: int
    vocabulary: int
    reproducible: bool


@dataclass(frozen=True)
class GreedyPath:
    """The greedy continuation of a prompt, the end-of-turn token included where one was produced."""

    token_ids: tuple[int, ...]
    distributions: tuple[Distribution, ...]
    finish_reason: str


@dataclass(frozen=True)
class Request:
    """``n`` continuations of one prefix; draw ``i`` uses the stream ``seed + i``.

    ``max_tokens`` bounds each continuation; ``stop`` are strings that end one (their tokens are kept). ``theta``
    is for samplers that split sequences at high entropies; engines do not read it.
    """

    key: str
    prefix_ids: tuple[int, ...]
    n: int
    seed: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    theta: float | None = None


@dataclass(frozen=True)
class Continuation:
    """One draw: its tokens (end-of-turn token included) and why it ended, ``stop`` or ``length``."""

    token_ids: tuple[int, ...]
    finish_reason: str
    trace: Trace | None = None


@dataclass(frozen=True)
class Completion:
    """The answer to one request: its ``n`` continuations in draw order, or the error that befell it alone."""

    key: str
    continuations: tuple[Continuation, ...]
    error: str | None = None


class Engine(Protocol):
    """What every engine offers. Engines are context managers; leaving one frees the model.

    One whose attribute ``greedy_alone`` is true gives the same base path each time only where nothing else is in
    flight: base paths are asked of it before anything else.
    """

    info: EngineInfo

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation through the model's own chat template, ready for an answer, one BOS."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text as it continues another: no special tokens or spaces added, none parsed."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids: those that end a turn are left out, other special tokens may be."""

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, special tokens shown; joined they are the whole text."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path with the next-token distribution, at ``temperature``, before each of its tokens."""

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish, many requests in flight; ``requests`` is read no faster than needed."""

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""

    def close(self) -> None:
        """Free the model."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exc: object) -> None: ...


class Sampler(Protocol):
    """Whatever draws continuations: an engine, or a sampler of ours that chooses an engine's tokens one by one.

    The latter may return more or fewer continuations than ``n``, each with its ``trace``.
    """

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish; ``requests`` is read no faster than needed."""


@runtime_checkable
class ReadsNext(Protocol):
    """An engine that can be read token by token.

    Attributes:
        at_once: sequences that it works on at the same time.

    One whose attribute ``attends`` is true gives ``Distribution.attention`` where it is asked for.
    """

    at_once: int

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        """The raw next-token distribution (temperature 1) after each prefix, ``STEP_LISTED`` tokens or more.

        Prefixes that extend those of the call before by one token, in any order and number, cost one step.

        Args:
            prefixes: token ids.
            attention: ask for ``Distribution.attention``; engines that have none leave it None.
            temperature: at which the caller draws: the listed tokens hold nearly all of the mass there.
            entropies: whether ``entropy`` and ``varentropy`` are read, which can take a far longer list than a draw
                at a low temperature; ``top_entropy`` is right in any case.
        """


@runtime_checkable
class SteersItself(Protocol):
    """An engine that applies rules of ours to its logits by itself, instead of being read token by token."""

    def steered(self, steer: Mapping[str, Any]) -> Sampler:
        """The engine's sampler with those rules; ``steer`` is plain data that names them."""


@runtime_checkable
class LooksAhead(Protocol):
    """An engine that can begin base paths while it does other work.

    Attributes:
        ahead: how many base paths it wants to be told of in advance.
    """

    ahead: int

    def expect(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> None:
        """Begin a base path that ``greedy`` will be asked for soon; errors are raised there."""


def ends_with_stop(
    decode: Callable[[Sequence[int]], str], token_ids: Sequence[int], stop: Sequence[str]
) -> bool:
    """Whether a stop string ends in the last token; a window of tokens is enough to see it."""
    if not stop:
        return False
    window = 4 * max(len(text) for text in stop) + 4  # a character has at most 4 bytes, a token at least 1
    text = decode(token_ids[-window:])
    return any(end in text for end in stop)


def pieces_by_prefix(decode: Callable[[Sequence[int]], str], token_ids: Sequence[int]) -> tuple[str, ...]:
    """The text each token adds, from an engine that only decodes whole sequences.

    A character spread over several tokens is given to the last of them; the others add nothing.
    Work is linear: once a token boundary is a character boundary, decoding starts afresh there.
    """
    pieces: list[str] = []
    start = 0
    for end in range(1, len(token_ids) + 1):
        text = decode(token_ids[start:end])
        complete = not text.endswith("\ufffd") or end - start >= 4  # a character has at most 4 bytes
        if complete or end == len(token_ids):
            pieces.extend([""] * (end - start - 1))
            pieces.append(text)
            start = end
    return tuple(pieces)
