"""What the progress of a collection says."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from fpa.progress import CollectProgress


def test_the_total_is_known_where_it_is_and_estimated_elsewhere() -> None:
    progress = CollectProgress(Console(file=StringIO()))
    progress.begin(4)
    progress.question("q1", 10, 0)
    progress.question("q2", 30, 5)
    assert progress.total == 80  # 20 a question


def test_rounds_add_to_their_questions() -> None:
    progress = CollectProgress(Console(file=StringIO()))
    progress.begin(2)
    for draws in (10, 20, 40):
        progress.question("q1", draws, 0)
        progress.question("q2", 5, 0)
    assert progress.total == 85
