"""A million rollouts written, resumed and read back as counts: seconds, megabytes, memory.

    python -m benchmarks.store [--rollouts 1000000] [--folder DIR]

Each step runs in a process of its own, so that its peak of memory is its own; the peak of a process that has only
imported the same modules is given beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fpa.records import LETTERS, OTHER, Answer, BasePath, Distribution, Question, Rollout
from fpa.run import open_run
from fpa.store import RunWriter, unit_name

POSITIONS, DRAWS = 200, 200
STEPS = ("import", "write", "resume", "finish", "counts")


def base(question_id: str) -> BasePath:
    """A base path of ``POSITIONS`` tokens, 40 next tokens listed at each."""
    p = np.geomspace(0.6, 1e-4, 40)
    listed = Distribution(np.arange(40, dtype=np.int32), p / p.sum() * 0.999, 0.001, 1.0, 1.0)
    ids = tuple(range(POSITIONS))
    texts = tuple(f" w{i}" for i in ids)
    return BasePath(
        question_id, ids, texts, (listed,) * POSITIONS, (0,) * POSITIONS, "stop", Answer("A", "parsed")
    )


def rollouts(question_id: str, start: int) -> list[Rollout]:
    """``DRAWS`` rollouts from one position, with outcomes, lengths and divergences that vary."""
    rng = np.random.default_rng(start)
    outcome = rng.integers(0, 5, DRAWS)
    length, leave = rng.integers(1, 400, DRAWS), rng.integers(start, start + 60, DRAWS)
    names = (*LETTERS[:4], OTHER)
    return [
        Rollout(
            question_id,
            start,
            i,
            None,
            None,
            start * DRAWS + i,
            names[outcome[i]],
            "parsed",
            int(leave[i]) if leave[i] < POSITIONS else None,
            int(length[i]),
            "stop",
        )
        for i in range(DRAWS)
    ]


def open_writer(run: Path) -> RunWriter:
    """The run of this benchmark, begun or resumed."""
    return RunWriter.open(run, {"samples": DRAWS}, engine=None, questions_fingerprint="benchmark")


def do(step: str, run: Path, questions: int) -> Iterator[str]:
    """One step; what it saw, as text."""
    if step == "write":
        with open_writer(run) as writer:
            for q in range(questions):
                question_id = f"q{q}"
                writer.put_question(Question(question_id, "Which?", ("a", "b", "c", "d"), "A"), range(100))
                writer.put_base(base(question_id))
                for start in range(POSITIONS):
                    writer.put_rollouts(unit_name(question_id, start), rollouts(question_id, start))
    elif step == "resume":
        with open_writer(run) as writer:
            yield f"{len(writer.finished)} parts checked"
    elif step == "finish":
        with open_writer(run) as writer:
            writer.finish({"seconds": 0.0})
    elif step == "counts":
        opened = open_run(run)
        total = sum(int(opened.counts(q)[1].sum()) for q in opened.question_ids)
        yield f"{total} rollouts counted"


def measure(step: str, run: Path, questions: int) -> dict[str, object]:
    """A step in this process: its seconds, its peak memory in MiB, what it saw."""
    began = time.perf_counter()
    said = list(do(step, run, questions))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return {"step": step, "seconds": round(seconds, 2), "peak_mib": round(peak / unit), "saw": said}


def measure_all(rollout_count: int, folder: Path) -> list[dict[str, object]]:
    """Every step in turn, a process each."""
    questions = max(1, round(rollout_count / (POSITIONS * DRAWS)))
    found = []
    for step in STEPS:
        command = [sys.executable, "-m", "benchmarks.store", "--step", step, "--folder", str(folder)]
        command += ["--rollouts", str(questions * POSITIONS * DRAWS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return found


def main() -> None:
    """Measure, or be the process of one step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder when left out")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    questions = max(1, round(chosen.rollouts / (POSITIONS * DRAWS)))
    if chosen.step is not None:
        print(json.dumps(measure(chosen.step, chosen.folder / "run", questions)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        for row in measure_all(chosen.rollouts, folder):
            print(f"{row['step']:8} {row['seconds']:8} s {row['peak_mib']:6} MiB  {' '.join(row['saw'])}")
        size = sum(p.stat().st_size for p in (folder / "run").rglob("*") if p.is_file())
        parts = len(list((folder / "run" / "rollouts").iterdir()))
    print(f"{questions * POSITIONS * DRAWS} rollouts in {parts} parts, {size / 1e6:.1f} MB on disk")


if __name__ == "__main__":
    main()
