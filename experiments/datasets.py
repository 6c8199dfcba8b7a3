"""The runs that experiments read: given on the command line, or this project's own and the released ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fpa.data import data_path
from fpa.errors import FpaError
from fpa.labels import stride_text
from fpa.published import import_published
from fpa.run import Run, open_run

STORES = Path(".cache") / "stores"
"""Where released rollouts are imported to."""


@dataclass(frozen=True)
class Dataset:
    """One run and how reports call it."""

    path: Path

    @cached_property
    def run(self) -> Run:
        """The run, opened."""
        return opened(self.path)

    @cached_property
    def questions(self) -> tuple[str, ...]:
        """Ids of the questions with rollouts."""
        return self.run.collected_ids

    @property
    def name(self) -> str:
        """Short name: the folder's."""
        return self.path.resolve().name

    @property
    def by_sentence(self) -> bool:
        """Whether positions are sentence ends, so that a stride N counts sentences."""
        return self.run.config.get("unit") == "sentence"

    def stride_text(self, every: int) -> str:
        """A stride with its unit."""
        return stride_text(every, "sentence" if self.by_sentence else "token")

    @cached_property
    def title(self) -> str:
        """For tables and figures: name and how many questions."""
        n = len(self.questions)
        return f"{self.name} ({n} question{'s' if n != 1 else ''})"

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides to look at: those of the published work for each unit."""
        return (1, 2, 4, 8) if self.by_sentence else (1, 4, 8, 16)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the files that hold the run's data."""
        whole = hashlib.sha256()
        files = [self.path / n for n in ("manifest.json", "questions.parquet", "base.parquet")]
        for file in [*files, *sorted((self.path / "rollouts").glob("*.parquet"))]:
            if file.exists():
                whole.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return whole.hexdigest()


@cache
def opened(path: Path) -> Run:
    """A run, opened once per process."""
    return open_run(path)


def shared_folder() -> Path:
    """The folder of the released rollouts and reference cases: FPA_SHARED, or one beside the project."""
    return Path(os.environ.get("FPA_SHARED", "../shared"))


def released_folder() -> Path | None:
    """Where the released "Forking Fast" rollouts are, in ``shared_folder``; None where they are not."""
    folder = shared_folder() / "data" / "forking-fast"
    return folder if folder.is_dir() else None


def find(paths: Sequence[Path], stores: Path = STORES) -> list[Dataset]:
    """The data sets named, or, with none named, all there are.

    The latter are this project's reference run and, where FPA_SHARED leads to them, the released rollouts,
    imported into ``stores``.

    Raises:
        UsageError: a path is no run.
        FpaError: a run holds no rollouts.
    """
    chosen = list(paths)
    if not chosen:
        chosen = [data_path("reference")]
        released = released_folder()
        if released is not None:
            report = import_published(released, stores)
            chosen += sorted(report.runs, reverse=True)
    found = [Dataset(Path(path)) for path in chosen]
    for dataset in found:
        if not dataset.questions:
            raise FpaError(f"{dataset.path} holds no rollouts: finish its collection first")
    return found


def distinct(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Those whose draws are not also another's: of runs of one model and store, the one of most questions."""
    kept: list[Dataset] = []
    for dataset in sorted(datasets, key=lambda d: -len(d.questions)):
        if not any(_same_source(dataset, other) for other in kept):
            kept.append(dataset)
    return [d for d in datasets if d in kept]


def _same_source(a: Dataset, b: Dataset) -> bool:
    return a.run.same_streams(b.run) and bool(set(a.questions) & set(b.questions))
