"""Figures of one question: outcome curves over the base path, with bands, forks and a reference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fpa.curves import Smoothed
from fpa.fonts import drawable, families
from fpa.labels import shortened
from fpa.parts import replacing

FloatArray = NDArray[np.float64]
# Okabe and Ito's colours, told apart by colour-blind readers too; the last is for "Other".
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
OTHER_COLOUR = "#8a8a8a"
SHOWN = 0.02  # categories that never reach this are left out of a figure
TITLE_CHARACTERS = 28  # of a question's id
TITLE_PAD, FORK_ROW, FORK_ROWS = 5.0, 9.5, 2  # points; rows of fork labels between axes and title


@dataclass(frozen=True, eq=False)
class Reference:
    """A curve to compare with: (n,) positions, (n, K) probabilities, and what it is."""

    positions: NDArray[np.int64]
    curve: FloatArray
    label: str


@dataclass(frozen=True, eq=False)
class Panel:
    """What one set of axes shows.

    ``forks`` are ``(position, token text)``, the largest first: where labels would collide the first is kept.
    ``draws`` says what was sampled (S, N and its unit); ``answer`` is the correct category, where it is known.
    """

    smoothed: Smoothed
    draws: str
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


def marks(forks: pd.DataFrame) -> list[tuple[int, str]]:
    """Position and token text of each row of ``fork_table``, the largest jump first."""
    largest_first = forks.sort_values("tv", ascending=False, kind="stable")
    return list(zip(largest_first["t"], largest_first["token_text"], strict=True))


def draw(rows: Sequence[Sequence[Panel]]) -> Figure:
    """One figure with a set of axes for each panel, row by row, and one legend.

    The smoothed curve is a line with its 90 % band, raw shares are dots, the reference is dashed. Forks are dotted
    lines, with their tokens above the axes.
    """
    wide = max(len(row) for row in rows)
    width, height = (7.2 if wide == 1 else 4.6 * wide), 2.35 * len(rows)  # inches
    with mpl.rc_context({"font.family": families()}):
        # Not by pyplot, which would choose a backend for whoever calls this, notebooks among them.
        figure = Figure(figsize=(width, height))
        axes = figure.subplots(len(rows), wide, squeeze=False, sharey=True)
        for row, panels in zip(axes, rows, strict=True):
            for ax, panel in zip(row, panels, strict=True):
                _draw_panel(ax, panel)
            row[0].set_ylabel("share of outcomes")
        for ax in axes[-1]:
            ax.set_xlabel("position in the base path (tokens)")
        _legend(
            figure, {category for row in rows for p in row for category in p.smoothed.observations.categories}
        )
        figure.draw_without_rendering()  # the room for labels is known once the axes have their place
        for row, panels in zip(axes, rows, strict=True):
            labelled = max(_label_forks(ax, panel.forks) for ax, panel in zip(row, panels, strict=True))
            for ax, panel in zip(row, panels, strict=True):
                _title(ax, panel, labelled)
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
        ax.plot(observed.positions, raw[:, k], "o", color=colour, ms=3.2, mec="white", mew=0.4, clip_on=False)
        if panel.reference is not None:
            ax.plot(panel.reference.positions, panel.reference.curve[:, k], "--", color=colour, lw=1.0)
    if len(observed.positions):  # not where every draw left the base path at a place of the strategy's choice
        ax.plot([], [], "o", color="0.3", ms=3.2, label=f"raw share, {panel.draws}")
    curve = "raw" if panel.smoothed.method == "raw" else "smoothed"
    ax.plot([], [], "-", color="0.3", lw=1.8, label=f"{curve}, 90 % band, {panel.draws}")
    if panel.reference is not None:
        ax.plot([], [], "--", color="0.3", lw=1.0, label=panel.reference.label)
    for position, _ in panel.forks:
        ax.axvline(position, color="0.35", lw=0.8, ls=":")
    ax.set(xlim=(grid[0] - 0.5, grid[-1] + 0.5), ylim=(-0.02, 1.02))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    _title(ax, panel, FORK_ROWS if panel.forks else 0)


def _title(ax: Axes, panel: Panel, rows: int) -> None:
    """The title, above so many rows of fork labels."""
    correct = f"   correct: {panel.answer}" if panel.answer else ""
    ax.set_title(
        _escape(f"{shortened(panel.title, TITLE_CHARACTERS)}   {panel.smoothed.method}{correct}"),
        fontsize=9,
        loc="left",
        pad=TITLE_PAD + FORK_ROW * rows,
    )


def _legend(figure: Figure, categories: Collection[str]) -> None:
    """Two legends above all axes: the categories, and below them the kinds of lines, each filled by rows."""
    handles: dict[str, Artist] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    width, height = figure.get_size_inches()
    legends = []
    for group in ([n for n in handles if n in categories], [n for n in handles if n not in categories]):
        for columns in range(len(group), 0, -1):
            # Matplotlib fills columns first.
            order = [name for column in range(columns) for name in group[column::columns]]
            legend = figure.legend(
                [handles[name] for name in order], [_escape(name) for name in order], ncols=columns,
                loc="upper center", frameon=False, fontsize=8, borderaxespad=0, borderpad=0.3, columnspacing=1.4,
            )  # fmt: skip
            legend.set_in_layout(False)
            box = legend.get_window_extent()
            if columns == 1 or box.width <= width * figure.dpi:
                legends.append((legend, box.height / figure.dpi))
                break
            legend.remove()
    room = sum(tall for _, tall in legends)
    figure.set_size_inches(width, height + room)
    top = 1.0
    for legend, tall in legends:
        legend.set_bbox_to_anchor((0.5, top))
        top -= tall / (height + room)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, 0, 1, top)))


def _label_forks(ax: Axes, forks: Sequence[tuple[int, str]]) -> int:
    """The tokens of forks above the axes, in the lower row where there is room; how many rows there are."""
    texts = [
        ax.annotate(
            _one_line(text), (position, 1.0), xycoords=ax.get_xaxis_transform(), fontsize=7, color="0.25",
            xytext=(0, 0), textcoords="offset points", ha="center", va="bottom", annotation_clip=False,
        )
        for position, text in forks
    ]  # fmt: skip
    pixels = ax.figure.dpi / 72
    frame = ax.get_window_extent()
    at = [float(ax.transData.transform((position, 0.0))[0]) for position, _ in forks]
    places = place(at, [t.get_window_extent().width for t in texts], (frame.x0, frame.x1), gap=3 * pixels)
    for text, x, spot in zip(texts, at, places, strict=True):
        if spot is None:
            text.remove()
            continue
        row, middle = spot
        text.set_in_layout(False)
        text.set_position(((middle - x) / pixels, 1.5 + FORK_ROW * row))
        if row:
            ax.plot(
                [text.xy[0]] * 2, [1.0, 1.0 + (1.5 + FORK_ROW * row) * pixels / frame.height],
                transform=ax.get_xaxis_transform(), color="0.35", lw=0.8, ls=":", clip_on=False,
            )[0].set_in_layout(False)  # fmt: skip
    return 1 + max((spot[0] for spot in places if spot is not None), default=-1)


def place(
    at: Sequence[float],
    widths: Sequence[float],
    inside: tuple[float, float],
    gap: float,
    rows: int = FORK_ROWS,
) -> list[tuple[int, float] | None]:
    """Row and middle of each label so that none touches another, earlier ones first; None where there is no room.

    Args:
        at: where each label's line is; a label of a higher row has its line through the rows below.
        widths: of the labels, in the same unit.
        inside: between what the labels must lie; near an end they are moved in.
        gap: least distance between labels of a row.
        rows: how many there are, the lowest first.
    """
    boxes: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    lines: list[list[float]] = [[] for _ in range(rows)]
    found: list[tuple[int, float] | None] = []
    for x, width in zip(at, widths, strict=True):
        middle = min(max(x, inside[0] + width / 2), max(inside[1] - width / 2, inside[0] + width / 2))
        low, high = middle - width / 2 - gap, middle + width / 2 + gap
        spot = None
        for row in range(rows):
            free = not any(low < b and a < high for a, b in boxes[row])
            free &= not any(low < line < high for line in lines[row])
            free &= not any(a - gap < x < b + gap for below in boxes[:row] for a, b in below)
            if free:
                spot = row, middle
                boxes[row].append((low + gap, high - gap))
                for below in lines[:row]:
                    below.append(x)
                break
        found.append(spot)
    return found


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; the ending of ``path`` chooses the format (png, pdf, svg)."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=160)


def _one_line(text: str) -> str:
    shown = drawable(text.strip() or repr(text)[1:-1])
    return _escape(shown if len(shown) <= 14 else shown[:13] + "…")


def _escape(text: str) -> str:
    """Dollar signs start formulas in matplotlib; here they are prices. What no font can draw becomes an escape."""
    return drawable(text.replace("\n", " ")).replace("$", r"\$")
