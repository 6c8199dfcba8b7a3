"""Models behind a server: vLLM's, llama.cpp's, or any other of the completions API that takes token ids.

Several servers of the same model share the load. A server that cannot do what is needed (token ids in and
out, several continuations of one prompt, raw log-probabilities of the whole vocabulary) is refused on
connecting, with what is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fpa.engines.base import (
    Completion,
    Continuation,
    EngineError,
    EngineInfo,
    EngineStopped,
    GreedyPath,
    Message,
    Request,
    pieces_by_prefix,
)
from fpa.engines.dialects import Ask, BadAnswer, Choice, Dialect, LlamaDialect, Step, VllmDialect
from fpa.engines.ends import END_TEXTS
from fpa.engines.hub import HubTokenizer, Text, TextSide, check_room
from fpa.engines.midtext import MidText
from fpa.engines.options import Bounds, Count, checked
from fpa.engines.servers import Server, Servers, base_urls
from fpa.engines.threads import sample_in_threads
from fpa.errors import UsageError
from fpa.records import Distribution
from fpa.signals import NotEnoughListed, next_token_distribution

FIRST_LISTED = 1000  # log-probabilities asked for at first; all of them where these leave mass out
SAME = 0.01  # total variation by which the next-token distributions of two servers of one model may differ
PROBES: tuple[tuple[int, ...], ...] = (
    (5,),
    (5, 11),
    (5, 11, 17, 23),
)  # prefixes of token ids that every vocabulary has
LLAMA_SEEDS = 2**32 - 1
LONGEST = 1e6  # seconds to wait for an answer: sockets take no more than some years


class OpenAIEngine(TextSide):
    """A served model.

    Args:
        model: the name it is served under; ``served`` for the only one there.
        url: base URLs, separated by commas, with or without ``/v1``.
        in_flight: most requests that one server has at a time.
        chunk: most continuations in one request; a request that fails is asked again whole.
        timeout: seconds to wait for one answer.
        retries: tries after the first, before a request is given up.
        context: tokens that one sequence may have, where the server does not say or less is wanted.
        tokenizer: folder or hub name of the model's tokenizer; by default what vLLM says it serves, and with
            llama.cpp the server itself. The package ``transformers`` is needed for it.
        chat_template: Jinja text that replaces the model's own template.

    The key for servers that want one is read from the environment variable OPENAI_API_KEY.

    Raises:
        UsageError: an option of the wrong type, out of its range, or no base URL.
        EngineError: no server there, one that lacks something, or servers of different models.
    """

    @checked("openai")
    def __init__(
        self,
        model: str = "served",
        *,
        url: str = "http://127.0.0.1:8000",
        in_flight: Count = 16,
        chunk: Count = 32,
        timeout: Annotated[float, Bounds(0, LONGEST, above=True)] = 600.0,
        retries: Annotated[int, Bounds(0)] = 8,
        context: Count | None = None,
        tokenizer: str | Text | None = None,
        chat_template: str | None = None,
    ) -> None:
        urls = base_urls(url)
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UsageError("OPENAI_API_KEY holds characters that no key has: set it anew")
        self._servers = Servers(urls, in_flight=in_flight, timeout=timeout, retries=retries, key=key)
        first, *others = self._servers.all
        self._llama = self._is_llama(first)
        self._dialect: Dialect = LlamaDialect() if self._llama else VllmDialect()
        cards = self._get(first, "/v1/models")["data"]
        card = self._pick(model, cards)
        self._model = str(card["id"])
        meta = card.get("meta") or {}
        self._chunk = chunk
        if self._llama:
            # More continuations than the server has slots are refused.
            self._chunk = min(chunk, int(self._get(first, "/props").get("total_slots", 1)))
        probe = self._probe(first)
        for other in others:
            self._check_same(first, other, probe)
        vocabulary = int(meta.get("n_vocab") or len(probe[0].ids))
        limit = card.get("max_model_len") or self._slot_context(first) or context
        if limit is None:
            raise EngineError(f"{first.url} does not say how long a context may be: give --context")
        self._text = self._text_side(tokenizer, str(card.get("root") or self._model), chat_template, first)
        name = os.path.basename(self._model.rstrip("/")) if os.path.isabs(self._model) else self._model
        self.info = EngineInfo(
            name="openai",
            version="llama.cpp" if self._llama else self._version(first),
            model=name,
            # A server does not show its weights: what it says and how it answers stand for them.
            fingerprint=hashlib.sha256(f"{name} {vocabulary}".encode()).hexdigest()[:16],
            context_length=min(int(limit), context or int(limit)),
            vocabulary=vocabulary,
            reproducible=False,
        )
        self._in_flight = in_flight * len(urls)
        self.at_once = self._in_flight * self._chunk
        self.ahead = min(8, self._in_flight)
        self._early = ThreadPoolExecutor(self.ahead, thread_name_prefix="fpa-base")
        self._expected: dict[Any, Future[GreedyPath]] = {}

    # --- connecting

    def _get(self, server: Server, path: str) -> Any:
        try:
            return self._servers.ask("GET", path, None, _mapping, only=server)
        except EngineStopped:
            raise
        except EngineError as error:
            raise EngineError(f"{server.url}{path}: {error}") from error

    def _is_llama(self, server: Server) -> bool:
        self._get(server, "/v1/models")  # is anybody there at all?
        try:
            return "default_generation_settings" in self._get(server, "/props")
        except EngineStopped:
            raise
        except EngineError:
            return False

    def _version(self, server: Server) -> str:
        try:
            return f"vllm {self._get(server, '/version')['version']}"
        except (EngineError, KeyError):
            return "unknown"

    def _pick(self, model: str, cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = [str(card["id"]) for card in cards]
        for card in cards:
            if model in (card["id"], os.path.basename(str(card["id"]))) or (
                model == "served" and len(cards) == 1
            ):
                return card
        raise EngineError(f"no model {model!r} is served there: choose one of {', '.join(names)}")

    def _slot_context(self, server: Server) -> int | None:
        if not self._llama:
            return None
        settings = self._get(server, "/props")["default_generation_settings"]
        return int(settings["n_ctx"]) if settings.get("n_ctx") else None

    def _probe(self, server: Server) -> list[Step]:
        """The next-token distributions after fixed prefixes, over the whole vocabulary if the server can.

        Raises:
            EngineError: naming everything that this server cannot do.
        """
        missing: list[str] = []

        def attempt(ask: Ask) -> Choice | None:
            try:
                return self._ask(ask, server)[0]
            except EngineStopped:
                raise
            except EngineError as error:
                missing.append(self._lacks(error))
                return None

        listed = FIRST_LISTED if self._llama else -1
        steps: list[Step] = []
        for prefix in PROBES:
            choice = attempt(Ask(prefix, 1, 1, 0.0, 1, listed=listed))
            if choice is None:
                break  # it would fail on the next one too
            steps.append(choice.steps[0])
        else:
            fewest = min(len(step.ids) for step in steps)
            if fewest < FIRST_LISTED:
                missing.append(f"log-probabilities of all tokens (it lists {fewest})")
            # Temperature shows where the model is least sure.
            likeliest, prefix = min((float(s.logprobs.max()), p) for s, p in zip(steps, PROBES, strict=True))
            cool = attempt(Ask(prefix, 1, 1, 0.5, 1, listed=1))
            if cool is not None and abs(float(cool.steps[0].logprobs.max()) - likeliest) > SAME:
                missing.append(
                    "raw log-probabilities, before temperature (vLLM: --logprobs-mode raw_logprobs)"
                )
        attempt(Ask(PROBES[0], 2 if self._chunk > 1 else 1, 1, 1.0, 2))
        if missing:
            reasons = "; ".join(dict.fromkeys(missing))
            raise EngineError(f"{server.url} cannot be used, it lacks: {reasons}")
        return steps

    @staticmethod
    def _lacks(error: EngineError) -> str:
        text = str(error)
        if "logprobs" in text and "refused" in text:
            return f"log-probabilities of all tokens (vLLM: --max-logprobs -1); it says: {text}"
        if "prompt" in text and "refused" in text:
            return f"prompts of token ids; it says: {text}"
        return text.rpartition("the last: ")[2]

    def _check_same(self, first: Server, other: Server, probe: Sequence[Step]) -> None:
        """Refuse a server that serves another model than the first."""
        if self._is_llama(other) != self._llama:
            raise EngineError(f"{other.url} is another kind of server than {first.url}")
        names = [str(card["id"]) for card in self._get(other, "/v1/models")["data"]]
        if not self._llama and self._model not in names:
            raise EngineError(f"{other.url} does not serve {self._model}, but {', '.join(names)}")
        apart = max(_variation(a, b) for a, b in zip(probe, self._probe(other), strict=True))
        if apart > SAME:
            raise EngineError(
                f"{other.url} serves another model than {first.url}: their next-token distributions differ "
                f"by {apart:.3f}"
            )

    def _text_side(
        self, tokenizer: str | Text | None, root: str, chat_template: str | None, server: Server
    ) -> Text:
        if tokenizer is not None and not isinstance(tokenizer, str):
            return tokenizer
        if tokenizer is None and self._llama:
            if chat_template is not None:
                raise EngineError(
                    "llama.cpp's server uses its own chat template: give it --chat-template-file"
                )
            return _LlamaText(self._servers)
        try:
            return HubTokenizer(
                tokenizer or root, engine="openai", extra="transformers", chat_template=chat_template
            )
        except EngineError as error:
            raise EngineError(
                f"{server.url}: the tokenizer of its model is needed here ({error}); name it with "
                "--engine-option tokenizer=FOLDER_OR_NAME"
            ) from error

    # --- generation

    def _ask(self, ask: Ask, server: Server | None = None) -> tuple[Choice, ...]:
        body = self._dialect.body(self._model, ask)
        result: tuple[Choice, ...] = self._servers.ask(
            "POST", self._dialect.path, body, partial(self._dialect.choices, ask=ask), only=server
        )
        return result

    def expect(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> None:
        """Begin a base path that ``greedy`` will be asked for soon."""
        asked = (tuple(prompt_ids), max_tokens, temperature)
        if asked not in self._expected:
            self._expected[asked] = self._early.submit(self._greedy, *asked)

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; see the contract in ``fpa.engines.base``."""
        asked = (tuple(prompt_ids), max_tokens, temperature)
        begun = self._expected.pop(asked, None)
        return self._greedy(*asked) if begun is None else begun.result()

    def _greedy(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> GreedyPath:
        check_room(len(prompt), max_tokens, self.info.context_length)
        ends = tuple(sorted(self.end_ids))
        [choice] = self._ask(Ask(prompt, 1, 0, 0.0, max_tokens, end_ids=ends, listed=self._listed))
        ids = choice.token_ids
        steps: list[Step | None] = [
            choice.steps[t] if t < len(choice.steps) else None for t in range(len(ids))
        ]
        distributions = self._distributions(prompt, ids, steps, temperature)
        if choice.finish_reason == "stop" and (not ids or ids[-1] not in self.end_ids):
            # Some servers leave the end-of-turn token out.
            [last] = self._distributions(prompt + ids, (0,), [None], temperature)
            ids, distributions = (*ids, int(last.ids[0])), [*distributions, last]
        return GreedyPath(ids, tuple(distributions), choice.finish_reason)

    @property
    def _listed(self) -> int:
        return min(FIRST_LISTED, self.info.vocabulary)

    def _distributions(
        self, prompt: tuple[int, ...], ids: tuple[int, ...], steps: Sequence[Step | None], temperature: float
    ) -> list[Distribution]:
        """The distribution before each token; all is asked for where a step lists too little."""

        def distribution(t: int) -> Distribution:
            step = steps[t]
            listed = self._listed
            while True:
                if step is None:
                    step = self._next(prompt + ids[:t], listed)
                try:
                    return next_token_distribution(step.ids, step.logprobs, temperature, self.info.vocabulary)
                except NotEnoughListed:
                    if listed == self.info.vocabulary:
                        raise EngineError("the server lists too few log-probabilities") from None
                    listed, step = self.info.vocabulary, None

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(distribution, range(len(ids))))

    def _next(self, prefix: tuple[int, ...], listed: int) -> Step:
        check_room(len(prefix), 1, self.info.context_length)
        [choice] = self._ask(Ask(prefix, 1, 0, 0.0, 1, listed=listed))
        return choice.steps[0]

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish, over all servers."""
        return sample_in_threads(requests, self._complete, chunk=self._chunk, in_flight=self._in_flight)

    def _complete(self, request: Request, first: int, draws: int) -> list[Continuation]:
        check_room(len(request.prefix_ids), request.max_tokens, self.info.context_length)
        if self._llama and request.seed + request.n > LLAMA_SEEDS:
            raise EngineError(f"seed {request.seed} is too large: llama.cpp takes seeds below 2^32")
        ask = Ask(
            request.prefix_ids,
            draws,
            request.seed + first,
            request.temperature,
            request.max_tokens,
            stop=request.stop,
            end_ids=tuple(sorted(self.end_ids)),
        )
        return [Continuation(choice.token_ids, choice.finish_reason) for choice in self._ask(ask)]

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""
        table = np.zeros((len(prefixes), len(candidates)))
        if prefixes:
            with ThreadPoolExecutor(min(8, len(prefixes))) as pool:
                rows = pool.map(lambda prefix: self._choose(prefix, tuple(candidates)), prefixes)
                for row, probabilities in enumerate(rows):
                    table[row] = probabilities
        return table

    def _choose(self, prefix: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        check_room(len(prefix), 1, self.info.context_length)
        listed = self._listed
        [choice] = self._ask(Ask(prefix, 1, 0, 0.0, 1, candidates=candidates, listed=listed))
        step = choice.steps[0]
        given = dict(zip(step.ids.tolist(), np.exp(step.logprobs).tolist(), strict=True))
        if not all(c in given for c in candidates) and listed < self.info.vocabulary:
            step = self._next(prefix, self.info.vocabulary)
            given = dict(zip(step.ids.tolist(), np.exp(step.logprobs).tolist(), strict=True))
        return [given.get(c, 0.0) for c in candidates]

    def close(self) -> None:
        """Let go of the servers."""
        self._servers.close()
        self._early.shutdown(wait=False, cancel_futures=True)


class _LlamaText:
    """Text through llama.cpp's server."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._bos = self._tokens({"content": "", "add_special": True})[:1]
        ends = set()
        for text in END_TEXTS:
            ids = self._tokens({"content": text, "add_special": False, "parse_special": True})
            if len(ids) == 1:
                ends.add(ids[0])
        self.end_ids = frozenset(ends)
        self._within = MidText(self._ids, self._raw)

    def _post(self, path: str, body: dict[str, Any], key: str) -> Any:
        return self._servers.ask("POST", path, body, lambda answer: _mapping(answer, key)[key])

    def _tokens(self, body: dict[str, Any]) -> tuple[int, ...]:
        return tuple(int(i) for i in self._post("/tokenize", body, "tokens"))

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        text = self._post("/apply-template", {"messages": list(messages)}, "prompt")
        ids = self._tokens({"content": text, "add_special": False, "parse_special": True})
        while self._bos and ids[:1] == self._bos:
            ids = ids[1:]
        return self._bos + ids

    def encode(self, text: str) -> tuple[int, ...]:
        return self._within.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._within.decode([int(i) for i in token_ids if i not in self.end_ids])

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return pieces_by_prefix(lambda ids: self._within.decode([int(i) for i in ids]), token_ids)

    def _ids(self, text: str) -> tuple[int, ...]:
        return self._tokens({"content": text, "add_special": False, "parse_special": False})

    def _raw(self, ids: Sequence[int]) -> str:
        return str(self._post("/detokenize", {"tokens": list(ids)}, "content"))


def _variation(a: Step, b: Step) -> float:
    """Total variation between two next-token distributions."""
    p, q = (dict(zip(s.ids.tolist(), np.exp(s.logprobs).tolist(), strict=True)) for s in (a, b))
    return 0.5 * sum(abs(p.get(i, 0.0) - q.get(i, 0.0)) for i in p.keys() | q.keys())


def _mapping(answer: Any, *keys: str) -> dict[str, Any]:
    if not isinstance(answer, dict) or not all(key in answer for key in keys):
        raise BadAnswer(f"it is no JSON object with {', '.join(keys)}" if keys else "it is no JSON object")
    return answer
