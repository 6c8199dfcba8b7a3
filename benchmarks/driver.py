"""What the collecting process itself costs: rollouts per second, and memory over the number of questions.

    python -m benchmarks.driver [--questions 10 100 1000] [--samples 20]

The fake engine's draws cost almost nothing, so the time is that of decoding, reading answers and writing. Each size
runs in a process of its own, which also reads the run back as counts; ``peak_mib`` is its largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.questions import QuestionSet
from fpa.records import Question
from fpa.run import open_run
from fpa.settings import Settings


def measure(count: int, samples: int, send: Any) -> None:
    """Collect ``count`` made-up questions; send what it took."""
    questions = tuple(
        Question(f"q{i}", f"Which one is number {i}?", ("one", "two", "three", "four"), "A")
        for i in range(count)
    )
    settings = Settings(every=2, samples=samples, base_tokens=40, rollout_tokens=40)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        summary = collect(
            settings, FakeEngine(), QuestionSet("made", questions, "made"), Path(folder) / "run"
        )
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        run = open_run(Path(folder) / "run")
        counted = sum(int(run.counts(q)[1].sum()) for q in run.question_ids)
        reading = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    send.send(
        {
            "questions": count,
            "samples": samples,
            "rollouts": summary.spent.continuations,
            "rollouts_per_second": round(summary.spent.continuations / seconds),
            "counted": counted,
            "seconds_to_count": round(reading, 1),
            "peak_mib": round(peak),
        }
    )


def main() -> None:
    """Measure each size, and print the figures as JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--samples", type=int, nargs="+", default=[20])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for count in options.questions:
        for samples in options.samples:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(count, samples, send))
            process.start()
            print(json.dumps(receive.recv()), flush=True)
            process.join()


if __name__ == "__main__":
    main()
