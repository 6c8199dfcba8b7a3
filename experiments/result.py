"""What an experiment gives: tables, a figure, and a sentence that its numbers decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.datasets import Dataset


@dataclass(frozen=True)
class Context:
    """What an experiment works with: the runs, where pieces are cached, and how many processes it may use."""

    datasets: Sequence[Dataset]
    cache: Path
    workers: int | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What an experiment gives.

    Attributes:
        title: what it looks at, a short phrase.
        how: how it was measured, a few sentences.
        verdicts: one sentence per data set: whether the published claim holds on it.
        shown: the table for reports.
        tables: further tables by name, for files of their own; the whole of the numbers.
        figure: the figure.
        caption: what the figure shows.
        notes: what limits the conclusion.
        also: further tables for reports, each with a line above it.
    """

    title: str
    how: str
    verdicts: Sequence[str]
    shown: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    figure: Figure
    caption: str
    notes: Sequence[str] = field(default_factory=tuple)
    also: Sequence[tuple[str, pd.DataFrame]] = field(default_factory=tuple)


def number(value: float, digits: int = 3) -> str:
    """A number to so many significant digits, without an exponent; a dash for NaN."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 4)}f}"


def with_limits(value: float, low: float, high: float, digits: int = 3) -> str:
    """``value [low, high]``."""
    if not math.isfinite(low):
        return number(value, digits)
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown."""
    rows = [[str(c) for c in table.columns], ["---"] * len(table.columns)]
    rows += [
        [number(v) if isinstance(v, float) else str(v) for v in row] for row in table.itertuples(index=False)
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
