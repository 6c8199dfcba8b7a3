"""The reference engine: Hugging Face ``transformers``, full distributions at every step. Small models only.

Its sampling is as plain as it can be: one softmax in double precision, one uniform number per token from the
draw's own stream, one look-up in the cumulative distribution. Other engines are checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.engines.attention import IMPLEMENTATION, LastAttention
from fpa.engines.base import (
    STEP_LISTED,
    Completion,
    Continuation,
    EngineError,
    EngineInfo,
    GreedyPath,
    Request,
    ends_with_stop,
)
from fpa.engines.hub import HubTokenizer, TextSide, check_room, fingerprint, loading, model_name, package
from fpa.engines.options import Count, checked
from fpa.errors import UsageError
from fpa.records import AttentionSignals, Distribution
from fpa.signals import next_token_distribution


class TransformersEngine(TextSide):
    """A causal language model of ``transformers`` in this process.

    Args:
        model: a folder, or a name on the Hugging Face hub.
        parallel: continuations generated at once.
        context: tokens that one sequence may have, prompt included; the model's own limit by default.
        dtype: number format of weights and arithmetic: float32, bfloat16, float16.
        threads: CPU threads; all cores by default.
        device: where the model runs, ``cuda`` where there is one, else ``cpu``.
        chat_template: Jinja text that replaces the model's own template.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run code that the model brings along.

    Raises:
        UsageError: an option of the wrong type, or out of its range.
        EngineError: a package is missing, or the model does not load.
    """

    @checked("transformers")
    def __init__(
        self,
        model: str,
        *,
        parallel: Count = 32,
        context: Count | None = None,
        dtype: str = "float32",
        threads: Count | None = None,
        device: str | None = None,
        chat_template: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self._torch = package("torch", "transformers", "transformers")
        transformers = package("transformers", "transformers", "transformers")
        if dtype not in ("float32", "bfloat16", "float16"):
            raise UsageError(
                f"engine transformers: dtype must be float32, bfloat16 or float16, got {dtype!r}"
            )
        if threads is not None:
            self._torch.set_num_threads(threads)
        self._text = HubTokenizer(
            model, chat_template=chat_template, revision=revision, trust_remote_code=trust_remote_code
        )
        self._device = device or ("cuda" if self._torch.cuda.is_available() else "cpu")
        with loading(model):
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                model,
                dtype=getattr(self._torch, dtype),
                attn_implementation="sdpa",
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
            self._model.to(self._device).eval()
        self._seen = LastAttention.watch(self._model)
        self.attends = self._seen is not None
        self._cache_class = transformers.DynamicCache
        self._parallel = self.at_once = parallel
        self._kept: tuple[tuple[int, ...], ...] = ()  # sequences whose cache ``next_distributions`` holds
        self._kept_cache: Any = None
        limit = int(getattr(self._model.config, "max_position_embeddings", 0)) or 2048
        self.info = EngineInfo(
            name="transformers",
            version=transformers.__version__,
            model=model_name(model),
            fingerprint=fingerprint(model, revision, dtype),
            context_length=min(context or limit, limit),
            vocabulary=int(self._model.get_output_embeddings().weight.shape[0]),
            reproducible=True,
        )

    # --- generation

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; every distribution follows from the full vocabulary's logits."""
        check_room(len(prompt_ids), max_tokens, self.info.context_length)
        vocabulary = np.arange(self.info.vocabulary)
        cache, logits = self._read(prompt_ids)
        ids: list[int] = []
        distributions = []
        while True:
            logprobs = self._logprobs(logits)[0]
            found = next_token_distribution(vocabulary, logprobs, temperature, self.info.vocabulary)
            signals = self._signals()
            distributions.append(found if signals is None else replace(found, attention=signals[0]))
            ids.append(int(logprobs.argmax()))
            ended = ids[-1] in self.end_ids
            if ended or len(ids) == max_tokens:
                return GreedyPath(tuple(ids), tuple(distributions), "stop" if ended else "length")
            logits = self._step(cache, [ids[-1]])

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order of the requests, ``parallel`` draws of one request at a time."""
        for request in requests:
            try:
                check_room(len(request.prefix_ids), request.max_tokens, self.info.context_length)
                drawn: list[Continuation] = []
                for first in range(0, request.n, self._parallel):
                    drawn += self._draw(request, range(first, min(first + self._parallel, request.n)))
                yield Completion(request.key, tuple(drawn))
            except (EngineError, self._torch.OutOfMemoryError) as error:
                yield Completion(request.key, (), str(error))

    def _draw(self, request: Request, draws: range) -> list[Continuation]:
        """Some draws of one request, in step with each other; those that end leave the batch."""
        torch = self._torch
        streams = [np.random.default_rng(request.seed + i) for i in draws]
        ids: list[list[int]] = [[] for _ in draws]
        reasons = [""] * len(draws)
        running = list(range(len(draws)))
        cache, logits = self._read(request.prefix_ids)
        logits = logits.repeat_interleave(len(draws), 0)
        cache.batch_repeat_interleave(len(draws))
        while True:
            p = torch.softmax(logits.double() / request.temperature, -1).cumsum(-1)
            at = torch.tensor([[streams[i].random()] for i in running], dtype=p.dtype, device=p.device)
            # Below the last sum, so that rounding never picks a token beyond the vocabulary.
            chosen = torch.searchsorted(p, at * p[:, -1:], right=True).clamp_max(p.shape[1] - 1)
            kept = []
            for row, (i, token) in enumerate(zip(running, chosen[:, 0].tolist(), strict=True)):
                ids[i].append(token)
                if token in self.end_ids or ends_with_stop(self.decode, ids[i], request.stop):
                    reasons[i] = "stop"
                elif len(ids[i]) == request.max_tokens:
                    reasons[i] = "length"
                else:
                    kept.append(row)
            if not kept:
                return [Continuation(tuple(t), why) for t, why in zip(ids, reasons, strict=True)]
            if len(kept) < len(running):
                running = [running[row] for row in kept]
                cache.batch_select_indices(torch.tensor(kept, device=self._device))
            logits = self._step(cache, [ids[i][-1] for i in running])

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""
        table = np.zeros((len(prefixes), len(candidates)))
        for row, prefix in enumerate(prefixes):
            table[row] = np.exp(self.next_logprobs(prefix)[list(candidates)])
        return table

    def next_logprobs(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """(vocabulary,) raw next-token log-probabilities after a prefix."""
        check_room(len(prefix), 1, self.info.context_length)
        return self._logprobs(self._read(prefix)[1])[0]

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        """The raw next-token distribution after each prefix.

        The key-value cache of the call before is kept: sequences that go on by one token cost one step.

        Raises:
            EngineError: a sequence does not fit the context, or all of them the memory.
        """
        for prefix in prefixes:
            check_room(len(prefix), 1, self.info.context_length)
        try:
            logits, signals = self._after(prefixes)
        except self._torch.OutOfMemoryError as error:
            self._kept, self._kept_cache = (), None
            raise EngineError(str(error)) from error
        vocabulary = np.arange(self.info.vocabulary)
        found = [
            next_token_distribution(
                vocabulary, row, 1.0, self.info.vocabulary, least=STEP_LISTED, drawn_at=temperature
            )
            for row in self._logprobs(logits)
        ]
        if attention and signals is not None:
            return [replace(d, attention=s) for d, s in zip(found, signals, strict=True)]
        return found

    def _after(self, prefixes: Sequence[tuple[int, ...]]) -> tuple[Any, list[AttentionSignals] | None]:
        """(n, vocabulary) logits after each prefix, from the kept cache where all of them extend it; signals."""
        rows = {prefix: row for row, prefix in enumerate(self._kept)}
        parents = [rows.get(tuple(prefix[:-1])) for prefix in prefixes]
        if None not in parents:
            if parents != list(range(len(rows))):
                self._kept_cache.batch_select_indices(self._torch.tensor(parents, device=self._device))
            logits = self._step(self._kept_cache, [prefix[-1] for prefix in prefixes])
            signals = self._signals()
        elif len(set(prefixes)) == 1:
            self._kept_cache, logits = self._read(prefixes[0])
            signals = self._signals()
            signals = signals and signals * len(prefixes)
            self._kept_cache.batch_repeat_interleave(len(prefixes))
            logits = logits.repeat_interleave(len(prefixes), 0)
        else:
            self._kept = ()
            each, signals = [], []
            for prefix in prefixes:
                each.append(self._read(prefix)[1])
                signals += self._signals() or []
            return self._torch.cat(each), signals or None
        self._kept = tuple(tuple(prefix) for prefix in prefixes)
        return logits, signals

    def _signals(self) -> list[AttentionSignals] | None:
        """What the last layer's attention says at the last position of each sequence of the last pass."""
        return None if self._seen is None else self._seen.signals()

    def attention(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """(layers, heads, T, T) attention weights over a sequence; row ``t`` sums to 1 over ``0..t``."""
        check_room(len(token_ids), 0, self.info.context_length)
        self._model.set_attn_implementation("eager")  # the fused kernels never form the weights
        try:
            with self._torch.inference_mode():
                ids = self._torch.tensor([list(token_ids)], device=self._device)
                layers = self._model(input_ids=ids, output_attentions=True, use_cache=False).attentions
        finally:
            self._model.set_attn_implementation(IMPLEMENTATION if self.attends else "sdpa")
        return np.stack([layer[0].float().cpu().numpy() for layer in layers])

    def _read(self, prefix: Sequence[int]) -> tuple[Any, Any]:
        """The key-value cache of a prefix, and the (1, vocabulary) logits after it."""
        cache = self._cache_class(config=self._model.config)
        ids = self._torch.tensor([[int(i) for i in prefix]], device=self._device)
        return cache, self._forward(ids, cache)

    def _step(self, cache: Any, tokens: Sequence[int]) -> Any:
        """(n, vocabulary) logits after one more token for each of the n sequences in the cache."""
        return self._forward(self._torch.tensor([[t] for t in tokens], device=self._device), cache)

    def _forward(self, ids: Any, cache: Any) -> Any:
        if self._seen is not None:
            self._seen.forget()
        with self._torch.inference_mode():
            return self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
                :, -1
            ]

    def _logprobs(self, logits: Any) -> NDArray[np.float64]:
        """(n, vocabulary) raw log-probabilities in double precision."""
        p: NDArray[np.float64] = self._torch.log_softmax(logits.double(), -1).cpu().numpy()
        return p

    def close(self) -> None:
        """Free the model."""
        self._model = None
