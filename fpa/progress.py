"""Progress of long work: a bar with an honest estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 10.0  # seconds between plain lines


class CollectProgress:
    """Progress of a collection, as ``fpa.collect.Progress``; a context manager.

    The total is exact for the questions whose base path is known, and takes their mean for the others. Of a strategy in
    rounds it is that of the rounds begun.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("continuations · {task.fields[rate]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                speed_estimate_period=60,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task("collecting", total=None, rate="") if self._bar else None
        self._began = self._last_line = time.monotonic()
        self._known: dict[str, int] = {}  # continuations asked for, by question
        self._questions = self._stored = 0
        self._done = self._tokens = 0

    def begin(self, questions: int) -> None:
        """The number of questions."""
        self._questions = questions

    def question(self, question_id: str, continuations: int, stored: int) -> None:
        """One more question is known, or one more round of it."""
        self._known[question_id] = self._known.get(question_id, 0) + continuations
        self._stored += stored
        self._show()

    def advance(self, continuations: int, tokens: int) -> None:
        """A unit is on disk."""
        self._done += continuations
        self._tokens += tokens
        self._show()

    def note(self, line: str) -> None:
        """Something the user should know, above the bar."""
        self._console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    @property
    def total(self) -> int:
        """Continuations of the whole run, as far as they are known."""
        return round(sum(self._known.values()) / max(len(self._known), 1) * self._questions)

    def _show(self) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self._tokens / seconds:,.0f} tokens/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self.total, completed=self._stored + self._done, rate=rate)
        elif time.monotonic() - self._last_line >= LINE_EVERY and self._done:
            self._last_line = time.monotonic()
            remaining = (self.total - self._stored - self._done) * seconds / self._done
            self._console.print(
                f"{self._stored + self._done} of about {self.total} continuations, {rate}, "
                f"about {remaining:,.0f} s left",
                highlight=False,
                soft_wrap=True,
            )

    def __enter__(self) -> CollectProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class CountProgress:
    """Progress of work in steps of about equal size; a context manager, to be called after each step.

    Args:
        console: where it is shown.
        doing: what is done, such as ``building pages``.
        things: what is counted, such as ``questions``.
    """

    def __init__(self, console: Console, doing: str, things: str) -> None:
        self._console = console
        self._things = things
        self._bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(things),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                speed_estimate_period=60,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task(doing, total=None) if self._bar else None
        self._began = self._last_line = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """So many steps of all are done."""
        now = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=done)
        elif now - self._last_line >= LINE_EVERY and done < total:
            self._last_line = now
            remaining = (total - done) * (now - self._began) / done
            self._console.print(
                f"{done} of {total} {self._things}, about {remaining:,.0f} s left",
                highlight=False,
                soft_wrap=True,
            )

    def __enter__(self) -> CountProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
