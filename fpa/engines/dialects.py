"""How two kinds of server are asked for completions of token ids, and how their answers are read.

``VllmDialect`` is the completions API of OpenAI with vLLM's additions (token ids out, samplers off).
``LlamaDialect`` is llama.cpp's own ``/completion`` endpoint: its ``/v1/completions`` leaves token ids out
where they end within a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Samplers other than temperature switched off; llama.cpp's defaults cut the distribution three times.
LLAMA_SAMPLING: dict[str, Any] = {
    "samplers": ["temperature"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "stream": False,
    "return_tokens": True,
}
NEVER = -9000.0  # servers write minus infinity as null, as -9999 or as the lowest double


class BadAnswer(ValueError):
    """The server's answer is not what was asked for."""


@dataclass(frozen=True)
class Ask:
    """One completion request, in no server's words. ``listed``: log-probabilities wanted at each step."""

    prefix_ids: tuple[int, ...]
    n: int
    seed: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()
    listed: int = 0
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Step:
    """The likeliest next tokens at one step: (k,) ids and raw natural log-probabilities."""

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Choice:
    """One continuation; ``steps`` are there where log-probabilities were asked for."""

    token_ids: tuple[int, ...]
    finish_reason: str
    steps: tuple[Step, ...]


class Dialect(Protocol):
    """How one kind of server speaks."""

    path: str

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """The JSON body of a request."""

    def choices(self, answer: Any, ask: Ask) -> tuple[Choice, ...]:
        """The continuations in draw order.

        Raises:
            BadAnswer: something asked for is missing; the message names it.
        """


class VllmDialect:
    """vLLM, and servers that took over its additions to the completions API."""

    path = "/v1/completions"

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """See ``Dialect``."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(ask.prefix_ids),
            "n": ask.n,
            "seed": ask.seed,
            "temperature": ask.temperature,
            "max_tokens": ask.max_tokens,
            "stop": list(ask.stop),
            "stop_token_ids": list(ask.end_ids),
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "stream": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if ask.listed:
            body["logprobs"] = ask.listed
        if ask.candidates:
            body["logprob_token_ids"] = list(ask.candidates)
            body["logprobs"] = len(ask.candidates)
        return body

    def choices(self, answer: Any, ask: Ask) -> tuple[Choice, ...]:
        """See ``Dialect``."""
        given = _sorted_choices(answer, "choices", ask.n)
        return tuple(self._choice(choice, ask) for choice in given)

    def _choice(self, choice: dict[str, Any], ask: Ask) -> Choice:
        ids, reason = choice.get("token_ids"), choice.get("finish_reason")
        if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
            raise BadAnswer("it returns no token ids (vLLM: return_token_ids)")
        if reason not in ("stop", "length"):
            raise BadAnswer(f"a continuation ended by {reason!r}")
        steps: list[Step] = []
        if ask.listed or ask.candidates:
            tops = (choice.get("logprobs") or {}).get("top_logprobs")
            if not isinstance(tops, list) or len(tops) != len(ids):
                raise BadAnswer("it returns no log-probabilities")
            for top in tops:
                if not top or not all(str(k).startswith("token_id:") for k in top):
                    raise BadAnswer(
                        "its log-probabilities name no token ids (vLLM: return_tokens_as_token_ids)"
                    )
                steps.append(step((int(k[9:]), v) for k, v in top.items()))
        return Choice(tuple(ids), reason, tuple(steps))


class LlamaDialect:
    """llama.cpp's server."""

    path = "/completion"

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """See ``Dialect``."""
        return {
            **LLAMA_SAMPLING,
            "prompt": list(ask.prefix_ids),
            "n_predict": ask.max_tokens,
            "n_cmpl": ask.n,
            "seed": ask.seed,
            "temperature": ask.temperature,
            "stop": list(ask.stop),
            "n_probs": max(ask.listed, len(ask.candidates)),
            "cache_prompt": True,
        }

    def choices(self, answer: Any, ask: Ask) -> tuple[Choice, ...]:
        """See ``Dialect``."""
        given = answer if isinstance(answer, list) else [answer]
        result = []
        for one in _sorted_choices({"choices": given}, "choices", ask.n):
            ids, reason = one.get("tokens"), one.get("stop_type")
            if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
                raise BadAnswer("it returns no token ids (return_tokens)")
            if reason not in ("eos", "word", "limit"):
                raise BadAnswer(f"a continuation ended by {reason!r}")
            steps = [
                step((entry["id"], entry["logprob"]) for entry in listed["top_logprobs"])
                for listed in one.get("completion_probabilities") or ()
            ]
            if (ask.listed or ask.candidates) and not steps:
                raise BadAnswer("it returns no log-probabilities")
            result.append(Choice(tuple(ids), "length" if reason == "limit" else "stop", tuple(steps)))
        return tuple(result)


def step(entries: Any) -> Step:
    """A step from pairs of token id and log-probability.

    Raises:
        BadAnswer: they are no such pairs.
    """
    try:
        pairs = {int(i): -np.inf if p is None or p < NEVER else float(p) for i, p in entries}
    except (TypeError, ValueError, KeyError) as error:
        raise BadAnswer(f"its log-probabilities cannot be read ({error})") from error
    return Step(np.fromiter(pairs, np.int64), np.fromiter(pairs.values(), np.float64))


def _sorted_choices(answer: Any, name: str, n: int) -> Sequence[dict[str, Any]]:
    """The choices by their index, which must be 0 to n - 1, each once."""
    given = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(given, list) or not all(isinstance(c, dict) for c in given):
        raise BadAnswer("it is no list of completions")
    if sorted(c.get("index", -1) for c in given) != list(range(n)):
        raise BadAnswer(f"it returns {len(given)} continuations for n={n}")
    return sorted(given, key=lambda c: int(c["index"]))
