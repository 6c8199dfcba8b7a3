"""Speed of ``collect`` on the embedded engine, as ratios measured in one run.

    python -m benchmarks.collect [--questions 2] [--samples 32] [--every 4]

``ceiling`` posts the very same requests to llama.cpp with as many in flight as it takes, and does nothing with
the answers. ``one at a time`` asks for one continuation after the other, and computes every prefix anew; as it is
slow, it does a random part of the same work.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fpa.collect import collect
from fpa.demo import SETTINGS
from fpa.engines.base import Completion, Request
from fpa.engines.dialects import LLAMA_SAMPLING as SAMPLING
from fpa.engines.llamacpp import LlamaCppEngine
from fpa.engines.threads import split
from fpa.questions import load_questions


class Recorder:
    """An engine that notes the requests that pass through it."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine
        self.requests: list[Request] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Pass the requests on."""

        def noted() -> Iterator[Request]:
            for request in requests:
                self.requests.append(request)
                yield request

        return self._engine.sample(noted())


def post(engine: LlamaCppEngine, request: Request, first: int, draws: int, cache: bool) -> int:
    """Tokens generated for one part of a request, through llama.cpp directly."""
    answers = engine._post(
        "/completion",
        {
            **SAMPLING,
            "prompt": list(request.prefix_ids),
            "n_predict": request.max_tokens,
            "n_cmpl": draws,
            "seed": request.seed + first,
            "temperature": request.temperature,
            "cache_prompt": cache,
        },
    )
    answers = answers if isinstance(answers, list) else [answers]
    return sum(len(answer["tokens"]) for answer in answers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo", help="question set: a name or a file")
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--single", type=int, default=40, help="continuations of the one-at-a-time part")
    options = parser.parse_args()
    # Readouts are requests of their own, which the ceiling does not make.
    settings = replace(SETTINGS, samples=options.samples, every=options.every, readout=False)
    questions = load_questions(options.data, limit=options.questions)
    with LlamaCppEngine("demo") as engine, tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(engine)
        # Base paths first: they are not part of the comparison.
        collect(replace(settings, samples=1, every=10_000), engine, questions, Path(folder) / "warm")
        out = Path(folder) / "run"
        began = time.monotonic()
        spent = collect(settings, recorder, questions, out).spent  # type: ignore[arg-type]
        ours = spent.generated_tokens / (time.monotonic() - began)

        slots = engine._parallel
        parts = [part for request in recorder.requests for part in split(request, slots // 2)]
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            tokens = sum(pool.map(lambda part: post(engine, *part, True), parts))
        ceiling = tokens / (time.monotonic() - began)

        rng = random.Random(0)
        singles = [
            (rng.choice(recorder.requests), rng.randrange(options.samples)) for _ in range(options.single)
        ]
    # An engine of its own: with 32 sequences' leftovers in the cache, one sequence would be slower.
    with LlamaCppEngine("demo", parallel=1) as engine:
        began = time.monotonic()
        tokens = sum(post(engine, request, draw, 1, False) for request, draw in singles)
        single = tokens / (time.monotonic() - began)
    print(
        json.dumps(
            {
                "continuations": spent.continuations,
                "collect_tokens_per_second": round(ours, 1),
                "ceiling_tokens_per_second": round(ceiling, 1),
                "one_at_a_time_tokens_per_second": round(single, 1),
                "collect_over_ceiling": round(ours / ceiling, 3),
                "collect_over_one_at_a_time": round(ours / single, 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
