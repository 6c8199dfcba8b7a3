"""Figures fit for a paper: vector output, one look for all experiments, colours that colour-blind readers tell
apart."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from numpy.typing import ArrayLike
from pandas import DataFrame

from experiments.files import write_file

# Okabe and Ito's colours; markers differ as well, so that no line is told by colour alone.
STYLES: dict[str, tuple[str, str]] = {
    "raw": ("#6b6b6b", "o"),
    "kernel": ("#56B4E9", "v"),
    "segment": ("#E69F00", "^"),
    "full": ("#D55E00", "s"),
    "martingale": ("#CC79A7", "P"),
    "bayes": ("#009E73", "X"),
    "auto": ("#0072B2", "D"),
}
PANEL = (3.3, 2.7)  # inches
BANDED = ("full", "auto")
"""Methods drawn with their band by default, the best-known: seven would hide one another."""


def panels(count: int, rows: int = 1, height: float = PANEL[1]) -> tuple[Figure, np.ndarray]:
    """A figure with (rows, count) axes, room above them for one legend."""
    with mpl.rc_context({"font.size": 8}):
        figure, axes = plt.subplots(
            rows,
            count,
            squeeze=False,
            layout="constrained",
            figsize=(PANEL[0] * max(count, 1), height * rows + 0.6),
        )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=7)
    return figure, axes


def line(
    ax: Axes,
    name: str,
    x: ArrayLike,
    y: ArrayLike,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    label: str | None = None,
    style: tuple[str, str] | None = None,
    dashes: str = "-",
    band: bool = True,
) -> None:
    """A line with markers, in the colour of the method, and its interval as a band."""
    colour, marker = style or STYLES[name]
    ax.plot(
        x, y, dashes, color=colour, marker=marker, ms=3.6, lw=1.3, mec="white", mew=0.3, label=label or name
    )
    if low is not None and high is not None and band:
        ax.fill_between(
            np.asarray(x, float),
            np.asarray(low, float),
            np.asarray(high, float),
            color=colour,
            alpha=0.15,
            lw=0,
        )


def methods(ax: Axes, table: DataFrame, x: str, names: Sequence[str], banded: Sequence[str] = BANDED) -> None:
    """A line for each method of a table with columns ``method``, ``value``, ``low``, ``high`` and ``x``."""
    for name in names:
        own = table[table["method"] == name].sort_values(x)
        if len(own):
            line(ax, name, own[x], own["value"], own["low"], own["high"], band=name in banded)


def bars(
    ax: Axes, names: Sequence[str], values: ArrayLike, low: ArrayLike, high: ArrayLike, colours: Sequence[str]
) -> None:
    """Horizontal points with interval lines, the first name at the top."""
    y = np.arange(len(names))[::-1]
    v, lo, hi = (np.asarray(a, float) for a in (values, low, high))
    for i in range(len(names)):
        ax.plot([lo[i], hi[i]], [y[i], y[i]], color=colours[i], lw=2, alpha=0.6, solid_capstyle="butt")
        ax.plot(v[i], y[i], "o", color=colours[i], ms=4)
    ax.set_yticks(y, names, fontsize=7)
    ax.set_ylim(-0.6, len(names) - 0.4)


def log_ticks(ax: Axes, axis: str, ticks: Iterable[float]) -> None:
    """A logarithmic axis with exactly these labelled ticks."""
    shown = list(ticks)
    getattr(ax, f"set_{axis}scale")("log")
    which = getattr(ax, f"{axis}axis")
    which.set_major_locator(FixedLocator(shown))
    which.set_major_formatter(FuncFormatter(lambda v, _: short(v)))
    which.set_minor_locator(NullLocator())
    which.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """A tick's label: 2000 as 2k, 1000000 as 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def nice_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten within a range, thinned to at most seven."""
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
        if len(found) <= 7:
            return found
    return found[:: len(found) // 7 + 1]


def legend(figure: Figure, columns: int = 7) -> None:
    """One legend above all axes, each label once."""
    handles = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper center", ncols=min(columns, len(handles)),
        frameon=False, fontsize=7, handlelength=1.8, columnspacing=1.2,
    )  # fmt: skip


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Write a figure whole or not at all in each format, the same bytes every time; then close it."""
    written = []
    with mpl.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
        for kind in formats:
            target = stem.with_name(f"{stem.name}.{kind}")
            buffer = io.BytesIO()
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            write_file(target, buffer.getvalue())
            written.append(target)
    plt.close(figure)
    return written
