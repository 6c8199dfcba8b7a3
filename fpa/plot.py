"""Figures of one question: outcome curves over the base path, with bands, forks and a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fpa.curves import Smoothed
from fpa.parts import replacing

FloatArray = NDArray[np.float64]
# Okabe and Ito's colours, told apart by colour-blind readers too; the last is for "Other".
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
OTHER_COLOUR = "#8a8a8a"
SHOWN = 0.02  # categories that never reach this are left out of a figure


@dataclass(frozen=True, eq=False)
class Reference:
    """A curve to compare with: (n,) positions, (n, K) probabilities, and what it is."""

    positions: NDArray[np.int64]
    curve: FloatArray
    label: str


@dataclass(frozen=True, eq=False)
class Panel:
    """What one set of axes shows.

    ``forks`` are ``(position, token text)``. ``answer`` is the correct category, where it is known.
    """

    smoothed: Smoothed
    forks: Sequence[tuple[int, str]] = ()
    reference: Reference | None = None
    title: str = ""
    answer: str | None = None


def colours(categories: Sequence[str]) -> dict[str, str]:
    """A colour for each category, the same in every figure."""
    return {
        category: OTHER_COLOUR if category == "Other" else COLOURS[i % len(COLOURS)]
        for i, category in enumerate(categories)
    }


def draw(rows: Sequence[Sequence[Panel]]) -> Figure:
    """One figure with a set of axes for each panel, row by row, and one legend.

    The smoothed curve is a line with its 90 % band, raw shares are dots, the reference is dashed.
    """
    wide = max(len(row) for row in rows)
    # Not by pyplot, which would choose a backend for whoever calls this, notebooks among them.
    figure = Figure(figsize=(7.2 if wide == 1 else 4.6 * wide, 0.6 + 2.2 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), wide, squeeze=False, sharey=True)
    for row, panels in zip(axes, rows, strict=True):
        for ax, panel in zip(row, panels, strict=True):
            _draw_panel(ax, panel)
        row[0].set_ylabel("share of outcomes")
    handles: dict[str, Artist] = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    for ax in axes[-1]:
        ax.set_xlabel("position in the base path (tokens)")
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=min(len(handles), 8 if wide > 1 else 5),
        frameon=False,
        fontsize=8,
    )
    return figure


def _draw_panel(ax: Axes, panel: Panel) -> None:
    observed, palette = panel.smoothed.observations, colours(panel.smoothed.observations.categories)
    raw = observed.counts / np.maximum(observed.counts.sum(axis=1, keepdims=True), 1)
    grid = observed.grid
    for k, category in enumerate(observed.categories):
        reference = panel.reference.curve[:, k].max(initial=0.0) if panel.reference is not None else 0.0
        if max(panel.smoothed.curve[:, k].max(), raw[:, k].max(initial=0.0), reference) < SHOWN:
            continue
        colour = palette[category]
        ax.fill_between(
            grid, panel.smoothed.lo[:, k], panel.smoothed.hi[:, k], color=colour, alpha=0.18, lw=0
        )
        ax.plot(grid, panel.smoothed.curve[:, k], color=colour, lw=1.8, label=category)
        ax.plot(observed.positions, raw[:, k], "o", color=colour, ms=3.2, mec="white", mew=0.4)
        if panel.reference is not None:
            ax.plot(panel.reference.positions, panel.reference.curve[:, k], "--", color=colour, lw=1.0)
    per_position = observed.counts.sum(axis=1)
    samples = f"S={per_position.max(initial=0)}" if per_position.size else "no draws"
    stride = np.diff(observed.positions)
    spacing = f", N={int(np.median(stride))}" if stride.size else ""
    ax.plot([], [], "o", color="0.3", ms=3.2, label="raw share")
    ax.plot([], [], "-", color="0.3", lw=1.8, label="smoothed, 90 % band")
    if panel.reference is not None:
        ax.plot([], [], "--", color="0.3", lw=1.0, label=panel.reference.label)
    for position, text in panel.forks:
        ax.axvline(position, color="0.35", lw=0.8, ls=":")
        ax.annotate(
            _one_line(text), (position, 1.0), xytext=(2, -2), textcoords="offset points",
            fontsize=7, rotation=90, va="top", color="0.25",
        )  # fmt: skip
    ax.set(xlim=(grid[0] - 0.5, grid[-1] + 0.5), ylim=(-0.02, 1.02))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    correct = f"   correct: {panel.answer}" if panel.answer else ""
    ax.set_title(
        _escape(f"{panel.title}   {panel.smoothed.method}, {samples}{spacing}{correct}"),
        fontsize=9,
        loc="left",
    )


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; the ending of ``path`` chooses the format (png, pdf, svg)."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=160)


def _one_line(text: str) -> str:
    shown = text.strip() or repr(text)[1:-1]
    return _escape(shown if len(shown) <= 14 else shown[:13] + "…")


def _escape(text: str) -> str:
    """Dollar signs start formulas in matplotlib; here they are prices."""
    return text.replace("$", r"\$").replace("\n", " ")
