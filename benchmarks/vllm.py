"""Speed of ``collect`` on vLLM, as ratios measured in one run.

    .venv-vllm/bin/python -m benchmarks.vllm MODEL [--questions 8] [--samples 32] [--every 4]

MODEL is a folder in Hugging Face's form (``fpa.engines.convert.gguf_to_hub`` makes one of the demo model).
``ceiling`` hands the very same base paths and requests to vLLM's own ``generate`` and does nothing with the answers;
``loop`` draws one continuation after the other with ``transformers``' ``generate`` and, as it is slow, does a random
part of the same work. The share of time in our own code is that of a profile of ``collect``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fpa.collect import collect
from fpa.engines.base import Completion, GreedyPath, Request
from fpa.engines.vllm import VllmEngine
from fpa.questions import load_questions
from fpa.settings import Settings


class Recorder:
    """An engine that notes what passes through it."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.requests: list[Request] = []
        self.greedy_asked: list[tuple[tuple[int, ...], int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def greedy(self, prompt_ids: Any, max_tokens: int, temperature: float) -> GreedyPath:
        """Note a base path."""
        self.greedy_asked.append((tuple(prompt_ids), max_tokens))
        return self._engine.greedy(prompt_ids, max_tokens, temperature)

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Note the requests."""

        def noted() -> Iterator[Request]:
            for request in requests:
                self.requests.append(request)
                yield request

        return self._engine.sample(noted())


def ceiling(engine: VllmEngine, asked: Recorder) -> tuple[int, float]:
    """Tokens and seconds of vLLM's own ``generate`` on the same base paths, then the same requests."""
    ends = sorted(engine.end_ids)
    plain = {"top_p": 1.0, "top_k": -1, "stop_token_ids": ends, "detokenize": False}
    engine._engine.reset_prefix_cache()
    began = time.perf_counter()
    base = engine._llm.generate(
        [{"prompt_token_ids": list(prompt)} for prompt, _ in asked.greedy_asked],
        [
            engine._params(temperature=0.0, max_tokens=most, logprobs=1000, flat_logprobs=True, **plain)
            for _, most in asked.greedy_asked
        ],
        use_tqdm=False,
    )
    drawn = engine._llm.generate(
        [{"prompt_token_ids": list(r.prefix_ids)} for r in asked.requests],
        [
            engine._params(temperature=r.temperature, max_tokens=r.max_tokens, n=r.n, seed=r.seed, **plain)
            for r in asked.requests
        ],
        use_tqdm=False,
    )
    seconds = time.perf_counter() - began
    return sum(len(o.token_ids) for answer in (*base, *drawn) for o in answer.outputs), seconds


def loop(
    model: str, requests: list[Request], ends: frozenset[int], dtype: str, part: int
) -> tuple[int, float]:
    """Tokens and seconds of a plain loop over ``part`` continuations with ``transformers``."""
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    chosen = random.Random(0).choices(requests, [r.n for r in requests], k=part)
    tokens = 0
    began = time.perf_counter()
    for number, request in enumerate(chosen):
        torch.manual_seed(number)
        ids = torch.tensor([request.prefix_ids])
        with torch.inference_mode():
            whole = loaded.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=request.temperature,
                top_k=0, top_p=1.0, max_new_tokens=request.max_tokens, eos_token_id=sorted(ends),
                pad_token_id=min(ends),
            )  # fmt: skip
        tokens += whole.shape[1] - ids.shape[1]
    return tokens, time.perf_counter() - began


def share_of_own_code(profile: cProfile.Profile) -> float:
    """Share of the profiled time spent in functions of this project, not counting what they call elsewhere."""
    stats = pstats.Stats(profile)
    mine = str(Path(__file__).resolve().parents[1] / "fpa")
    own = sum(
        t
        for (file, _, _), (_, _, t, _, _) in stats.stats.items()
        if file.startswith(mine)  # type: ignore[attr-defined]
    )
    return own / stats.total_tt  # type: ignore[attr-defined]


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--loop", type=int, default=12, help="continuations of the plain loop")
    options = parser.parse_args()
    settings = Settings(
        every=options.every, samples=options.samples, base_tokens=60, rollout_tokens=60, prompt="demo"
    )
    questions = load_questions("demo", limit=options.questions)
    figures: dict[str, float] = {}
    with (
        VllmEngine(options.model, context=1024, parallel=options.parallel, dtype=options.dtype) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        collect(settings, engine, load_questions("demo", limit=1), Path(folder) / "warm")  # compiles
        speeds: dict[str, list[float]] = {"collect": [], "ceiling": []}
        for turn in range(2):  # in turns, so that a machine that slows down slows both
            asked = Recorder(engine)
            engine._engine.reset_prefix_cache()
            summary = collect(settings, asked, questions, Path(folder) / f"run{turn}")  # type: ignore[arg-type]
            spent = summary.spent
            speeds["collect"].append((spent.generated_tokens + spent.base_tokens) / spent.seconds)
            tokens, seconds = ceiling(engine, asked)
            speeds["ceiling"].append(tokens / seconds)
        profile = cProfile.Profile()
        engine._engine.reset_prefix_cache()
        profile.runcall(collect, settings, engine, questions, Path(folder) / "profiled")
        figures["own_code_share"] = share_of_own_code(profile)
        figures["readouts"] = spent.readouts
        ends = engine.end_ids
    for name, each in speeds.items():
        figures[f"{name}_tokens_per_second"] = sum(each) / len(each)
    tokens, seconds = loop(options.model, asked.requests, ends, options.dtype, options.loop)
    figures["loop_tokens_per_second"] = tokens / seconds
    figures["of_ceiling"] = figures["collect_tokens_per_second"] / figures["ceiling_tokens_per_second"]
    figures["over_loop"] = figures["collect_tokens_per_second"] / figures["loop_tokens_per_second"]
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
