"""Pieces of work, one a question: on all cores, with progress, and never done twice.

A piece is kept under a name that follows from everything its content depends on: the run's bytes, the question, the
parameters, and the source of the code that makes it with all it imports from this project.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.datasets import Dataset

Task = Callable[..., pd.DataFrame]
ROOT = Path(__file__).resolve().parent.parent
_IMPORT = re.compile(r"^\s*from ((?:experiments|fpa|smoothing)[\w.]*) import ([\w, ()\n]+)", re.MULTILINE)
LINE_EVERY = 10.0


def compute(
    dataset: Dataset, task: Task, folder: Path, workers: int | None = None, **parameters: Any
) -> pd.DataFrame:
    """``task(path, question_id, **parameters)`` for every question, one below the other.

    Args:
        dataset: the run.
        task: a function of a module, that processes can share.
        folder: where pieces are kept.
        workers: processes; as many as there are cores when left out.

    Returns:
        The pieces' tables with a column ``question_id``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    version = code_version(task.__module__)
    files = {}
    for question in dataset.questions:
        key = json.dumps([version, task.__qualname__, dataset.digest, question, parameters], sort_keys=True)
        files[question] = folder / f"{task.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.parquet"
    missing = [q for q, file in files.items() if not file.exists()]
    label = f"{dataset.name}: {task.__name__.replace('_', ' ')}"
    for question, table in _results(partial(task, dataset.path, **parameters), missing, label, workers):
        scratch = files[question].with_suffix(f".{os.getpid()}.tmp")
        table.to_parquet(scratch)
        scratch.replace(files[question])
    return pd.concat(
        [pd.read_parquet(file).assign(question_id=q) for q, file in files.items()], ignore_index=True
    )


def _results(
    work: Callable[[str], pd.DataFrame], questions: list[str], label: str, workers: int | None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every question's table as it gets done, with a bar on a terminal and plain lines elsewhere."""
    if not questions:
        return
    console = Console(stderr=True)
    began = said = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("questions"),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    count = min(workers or os.cpu_count() or 1, len(questions))
    with bar, ProcessPoolExecutor(count) as pool:
        shown = bar.add_task(label, total=len(questions))
        waiting = {pool.submit(work, q): q for q in questions}
        try:
            for done, future in enumerate(as_completed(waiting), 1):
                yield waiting[future], future.result()
                bar.advance(shown)
                now = time.monotonic()
                if not console.is_terminal and (now - said > LINE_EVERY or done == len(questions)):
                    said = now
                    left = (now - began) / done * (len(questions) - done)
                    print(
                        f"{label}: {done} of {len(questions)} questions, about {left:.0f} s left",
                        file=sys.stderr,
                    )
        finally:
            pool.shutdown(cancel_futures=True)


@cache
def code_version(module: str) -> str:
    """SHA-256 over a module's source and that of all modules of this project that it imports, directly or not."""
    seen: set[Path] = set()
    _follow(ROOT / Path(*module.split(".")), seen)
    whole = hashlib.sha256()
    for file in sorted(seen):
        whole.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def _follow(path: Path, seen: set[Path]) -> None:
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file() and file not in seen:
            seen.add(file)
            for module, names in _IMPORT.findall(file.read_text(encoding="utf-8")):
                target = ROOT / Path(*module.split("."))
                _follow(target, seen)
                for name in re.findall(r"\w+", names):
                    _follow(target / name, seen)
