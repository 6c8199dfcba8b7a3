"""A model made of a hash: fast, exact, deterministic. For tests and dry runs, never for results.

It speaks a small language: a few thought words, then "The answer is (X).". Each next-token distribution follows
from the prompt, the position and the words so far, so that outcomes fork at some words and not at others.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fpa.engines.base import (
    STEP_LISTED,
    Completion,
    ContextOverflow,
    Continuation,
    EngineError,
    EngineInfo,
    GreedyPath,
    Message,
    Request,
)
from fpa.engines.options import Bounds, Count, checked
from fpa.records import LETTERS, Distribution
from fpa.signals import MIN_LISTED, next_token_distribution

BEGIN, END = 0, 1
WORDS = (
    "so",
    "then",
    "but",
    "hence",
    "also",
    "maybe",
    "now",
    "first",
    "next",
    "thus",
    "perhaps",
    "wait",
    "clearly",
    "because",
    "both",
)
CLOSING = (". The", " answer", " is", " (")
VOCABULARY = ("<s>", "</s>", *(f" {word}" for word in WORDS), *CLOSING, *LETTERS, ").", "\n", "?")
WORD_IDS = range(2, 2 + len(WORDS))
CLOSING_IDS = tuple(range(2 + len(WORDS), 2 + len(WORDS) + len(CLOSING)))
LETTER_IDS = tuple(range(CLOSING_IDS[-1] + 1, CLOSING_IDS[-1] + 1 + len(LETTERS)))
STOP_ID, NEWLINE, UNKNOWN = LETTER_IDS[-1] + 1, LETTER_IDS[-1] + 2, LETTER_IDS[-1] + 3
_PIECE_IDS = {piece: i for i, piece in enumerate(VOCABULARY)}
CACHED = 4096  # distributions: those of the questions in hand


class FakeEngine:
    """The fake model.

    Args:
        model: any name; another name is another model.
        thought: mean number of thought words before the answer.
        delay: seconds that each request takes.
        fail: a question whose text holds this string fails, as a broken request would.
        context: tokens that one sequence may have, prompt included.
    """

    @checked("fake")
    def __init__(
        self,
        model: str = "fake",
        *,
        thought: Count = 8,
        delay: Annotated[float, Bounds(0)] = 0.0,
        fail: str = "",
        context: Count = 4096,
    ) -> None:
        self._salt = zlib.crc32(model.encode())
        self._thought = thought
        self._delay = delay
        self.at_once = 32
        self._fail = {self._word_id(word) for word in fail.split()}
        self.info = EngineInfo(
            name="fake",
            version="1",
            model=model,
            fingerprint=f"{self._salt:08x}-{thought}",
            context_length=context,
            vocabulary=len(VOCABULARY),
            reproducible=True,
        )

    @staticmethod
    def _word_id(word: str) -> int:
        """Unknown words get ids above the vocabulary, so that different prompts stay different."""
        return len(VOCABULARY) + zlib.crc32(word.encode()) % 1_000_000

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """One id a word, after one BOS."""
        words = [word for message in messages for word in message["content"].split()]
        return (BEGIN, *(self._word_id(word) for word in words))

    def encode(self, text: str) -> tuple[int, ...]:
        """Longest pieces first; what is in no piece is the unknown token."""
        ids: list[int] = []
        while text:
            piece = max((p for p in _PIECE_IDS if text.startswith(p)), key=len, default="")
            ids.append(_PIECE_IDS.get(piece, UNKNOWN))
            text = text[max(len(piece), 1) :]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without the tokens that begin and end a turn."""
        return "".join(VOCABULARY[i] if i < len(VOCABULARY) else " ?" for i in token_ids if i > END)

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds."""
        return tuple(VOCABULARY[i] for i in token_ids)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        return frozenset((END,))

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; every distribution is listed in full."""
        self._check(prompt_ids, max_tokens)
        prompt = self._prompt_key(prompt_ids)
        ids: list[int] = []
        distributions = []
        while len(ids) < max_tokens and (not ids or ids[-1] != END):
            p = self._next(prompt, tuple(ids))
            distributions.append(self._listed(p, temperature))
            ids.append(int(p.argmax()))
        return GreedyPath(tuple(ids), tuple(distributions), "stop" if ids[-1] == END else "length")

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order of the requests."""
        for request in requests:
            if self._delay:
                time.sleep(self._delay)
            try:
                self._check(request.prefix_ids, request.max_tokens)
            except EngineError as error:
                yield Completion(request.key, (), str(error))
                continue
            yield Completion(
                request.key, tuple(self._draw(request, request.seed + i) for i in range(request.n))
            )

    def _draw(self, request: Request, seed: int) -> Continuation:
        rng = np.random.default_rng(seed)
        prompt, ids = self._split(request.prefix_ids)
        begun = len(ids)
        while len(ids) - begun < request.max_tokens:
            p = self._next(prompt, ids) ** (1.0 / request.temperature)
            ids = (*ids, int(np.searchsorted(np.cumsum(p / p.sum()), rng.random(), side="right")))
            text = self.decode(ids[begun:]) if request.stop else ""
            if ids[-1] == END or any(stop in text for stop in request.stop):
                return Continuation(ids[begun:], "stop")
        return Continuation(ids[begun:], "length")

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        """The raw next-token distribution after each prefix, listed in full."""
        found = []
        for prefix in prefixes:
            self._check(prefix, 1)
            p = self._next(*self._split(prefix))
            found.append(self._listed(p, 1.0, STEP_LISTED, drawn_at=temperature))
        return found

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) next-token probabilities."""
        table = np.zeros((len(prefixes), len(candidates)))
        for row, prefix in enumerate(prefixes):
            self._check(prefix, 1)
            table[row] = self._next(*self._split(prefix))[list(candidates)]
        return table

    def close(self) -> None:
        """Nothing to free."""

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the model

    def _check(self, prefix: Sequence[int], new: int) -> None:
        if len(prefix) + new > self.info.context_length:
            raise ContextOverflow(
                f"{len(prefix)} prompt tokens and up to {new} new ones do not fit the context of "
                f"{self.info.context_length} tokens: raise --context or lower the token limits"
            )
        if self._fail & set(prefix):
            raise EngineError("the fake engine was told to fail on this question")

    def _listed(
        self,
        p: NDArray[np.float64],
        temperature: float,
        least: int = MIN_LISTED,
        drawn_at: float | None = None,
    ) -> Distribution:
        with np.errstate(divide="ignore"):
            logprobs = np.log(p)
        return next_token_distribution(
            np.arange(len(p)), logprobs, temperature, len(VOCABULARY), least=least, drawn_at=drawn_at
        )

    def _split(self, prefix: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Prompt key and response so far: the prompt ends with its last word id above the vocabulary."""
        last = max((i for i, token in enumerate(prefix) if token >= len(VOCABULARY)), default=0)
        return self._prompt_key(prefix[: last + 1]), tuple(prefix[last + 1 :])

    def _prompt_key(self, prompt_ids: Sequence[int]) -> int:
        return zlib.crc32(np.asarray(prompt_ids, np.int64).tobytes(), self._salt)

    def _next(self, prompt: int, ids: tuple[int, ...]) -> NDArray[np.float64]:
        """Next-token probabilities: a function of the prompt, the position and the last two words."""
        last = ids[-1] if ids else BEGIN
        if last == END:
            return _one(END)
        if last == STOP_ID:
            return _one(END)
        if last in LETTER_IDS:
            return _one(STOP_ID)
        if last in CLOSING_IDS[:-1]:
            return _one(last + 1)
        words = ids[:-1] if last == CLOSING_IDS[-1] else ids
        turns = tuple(word for word in words if word in (WORD_IDS[2], WORD_IDS[11]))  # "but", "wait"
        if last == CLOSING_IDS[-1]:
            return _letters(prompt, turns)
        return _words(prompt, min(len(ids), 3 * self._thought), last, self._thought)


def _one(token: int) -> NDArray[np.float64]:
    p = np.zeros(len(VOCABULARY))
    p[token] = 1.0
    return p


@lru_cache(maxsize=CACHED)
def _letters(prompt: int, turns: tuple[int, ...]) -> NDArray[np.float64]:
    rng = np.random.default_rng([prompt, 1, *turns])
    p = np.zeros(len(VOCABULARY))
    p[list(LETTER_IDS[:4])] = rng.dirichlet(np.full(4, 0.4))
    return p


@lru_cache(maxsize=CACHED)
def _words(prompt: int, position: int, last: int, thought: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([prompt, 2, position, last])
    p = np.zeros(len(VOCABULARY))
    p[list(WORD_IDS)] = rng.dirichlet(np.full(len(WORDS), 0.15))
    stop = min(1.0, position / (2.0 * thought)) ** 2
    p *= 1.0 - stop
    p[CLOSING_IDS[0]] = stop
    return p
