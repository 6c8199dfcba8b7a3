"""Scaling of a pool of engines on Ray, as ratios measured in one run.

    .venv-vllm/bin/python -m benchmarks.pool [--workers 1 2] [--samples 8] [--questions 8]

``model`` collects with the embedded demo model on one thread a worker, so that two workers use two cores.
``waiting`` collects with an engine that only waits: what it loses is the pool's own share, whatever else the cores do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpa.cluster import RayEngine
from fpa.collect import collect
from fpa.questions import QuestionSet, load_questions
from fpa.settings import Settings

MODEL = {"threads": 1, "parallel": 16, "context": 512}
WAITING = {"delay": 0.25, "context": 512}  # seconds a request


@dataclass(frozen=True)
class Speed:
    """What one collection took: its generated tokens and the seconds of collecting, start-up not counted."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds


def measure(
    engine: str, options: dict[str, Any], workers: int, settings: Settings, questions: QuestionSet
) -> Speed:
    """Collect once with so many workers."""
    with (
        RayEngine(engine, "demo" if engine == "llamacpp" else "fake", options, workers=workers) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        began = time.perf_counter()
        spent = collect(settings, pool, questions, Path(folder) / "run").spent
        return Speed(spent.generated_tokens + spent.base_tokens, time.perf_counter() - began)


def main() -> None:
    """Measure each number of workers on both engines, and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--questions", type=int, default=8)
    given = parser.parse_args()
    settings = Settings(every=4, samples=given.samples, base_tokens=48, rollout_tokens=48, prompt="demo")
    questions = load_questions("demo", limit=given.questions)
    for name, engine, options in (("waiting", "fake", WAITING), ("model", "llamacpp", MODEL)):
        speeds = {n: measure(engine, options, n, settings, questions) for n in given.workers}
        first = speeds[given.workers[0]]
        for n, speed in speeds.items():
            print(
                json.dumps(
                    {
                        "engine": name,
                        "workers": n,
                        "tokens_per_second": round(speed.tokens_per_second, 1),
                        "ratio": round(speed.tokens_per_second / first.tokens_per_second, 2),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
