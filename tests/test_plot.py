"""Figures of one question: what their texts say, and that none lies on another."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fpa import fonts
from fpa.cli import main
from fpa.collect import collect
from fpa.curves import smooth_question
from fpa.engines.fake import FakeEngine
from fpa.labels import draws_text, reference_text, shortened
from fpa.plot import Panel, Reference, draw, marks, place, save
from fpa.questions import load_questions
from fpa.run import Run, open_run
from fpa.settings import Settings

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference"


def panel(
    forks: Sequence[tuple[int, str]] = (),
    title: str = "demo-01",
    method: str = "raw",
    reference: bool = False,
) -> Panel:
    """A panel of the shipped run, S=20 at every 4th token."""
    run = open_run(REFERENCE)
    positions, curve, _ = run.curve("demo-01")
    dense = Reference(positions, curve, reference_text(run, "demo-01"))
    smoothed = smooth_question(run, "demo-01", method, 20, 4)
    drawn = draws_text(run, "demo-01", 20, 4)
    return Panel(smoothed, drawn, forks, dense if reference else None, title, "A")


def labels(figure: Figure) -> list[str]:
    """Texts of the legends."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def boxes(figure: Figure, texts: Sequence[Text]) -> list[Bbox]:
    """Where texts lie, in pixels."""
    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in texts]


def sampled(tmp_path: Path, **settings: object) -> Run:
    """A run of the fake engine on one question."""
    path = tmp_path / "run"
    collect(Settings(**settings), FakeEngine("m"), load_questions("demo", limit=1), path)
    return open_run(path)


# --- S and N ----------------------------------------------------------------------------------------------


def test_n_is_in_the_unit_of_the_run(tmp_path: Path) -> None:
    run = sampled(tmp_path, samples=6, unit="sentence")
    assert draws_text(run, "demo-01", 4, 2) == "S=4, N=2 sentences"
    assert draws_text(run, "demo-01") == "S=6, N=1 sentence"


def test_n_counts_from_every_token_not_from_every_position_of_the_run(tmp_path: Path) -> None:
    run = sampled(tmp_path, samples=6, every=3)
    assert draws_text(run, "demo-01") == "S=6, N=3 tokens"
    assert draws_text(run, "demo-01", 2, 2) == "S=2, N=6 tokens"


def test_branches_and_draws_without_a_grid_say_what_they_are(tmp_path: Path) -> None:
    branches = sampled(tmp_path / "b", samples=6, strategy="branches")
    assert reference_text(branches, "demo-01") == "reference, S=6 per branch, N=1 token"
    stratified = sampled(tmp_path / "s", samples=6, strategy="stratified")
    count = stratified.draws("demo-01").continuations
    assert draws_text(stratified, "demo-01") == f"{count} draws, placed by stratified"


def test_the_legend_says_s_and_n() -> None:
    assert labels(draw([[panel(method="auto", reference=True)]]))[-3:] == [
        "raw share, S=20, N=4 tokens",
        "smoothed, 90 % band, S=20, N=4 tokens",
        "reference, S=200, N=1 token",
    ]
    assert "raw, 90 % band, S=20, N=4 tokens" in labels(draw([[panel()]]))


def test_the_command_says_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("fpa.plot.save", lambda figure, target: drawn.append(figure))
    options = ["--samples", "10", "--every", "2", "--reference", str(REFERENCE), "--method", "full"]
    monkeypatch.setattr(sys, "argv", ["fpa", "plot", str(REFERENCE), "demo-02", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "smoothed, 90 % band, S=10, N=2 tokens" in labels(drawn[0])
    assert "reference, S=200, N=1 token" in labels(drawn[0])


def test_a_long_id_leaves_all_texts_on_the_canvas() -> None:
    figure = draw([[panel(title="a-very-long-question-id-" * 20 + "17", reference=True)]])
    texts = [figure.axes[0].title, figure.axes[0]._left_title]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    width, height = figure.get_size_inches() * figure.dpi
    for box in boxes(figure, texts):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    assert shortened("question-000017", 9) == "ques…0017"


# --- room -------------------------------------------------------------------------------------------------


def test_legends_are_filled_by_rows_and_touch_nothing() -> None:
    figure = draw([[panel(((18, "C"),), method="auto", reference=True)]])
    names, kinds = figure.legends
    assert [t.get_text() for t in names.get_texts()] == ["A", "B", "C", "D"]
    assert len({round(box.y0) for box in boxes(figure, names.get_texts())}) == 1  # one row, not a block
    where = [
        names.get_window_extent(),
        kinds.get_window_extent(),
        *boxes(figure, [figure.axes[0]._left_title]),
    ]
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(where))


def test_fork_labels_lie_above_the_axes_and_not_on_each_other() -> None:
    forks = [(position, "reproduces") for position in (9, 10, 1, 19, 0, 11, 4, 5, 6, 12)]
    figure = draw([[panel(forks), panel(forks)]])
    for ax in figure.axes:
        kept = list(ax.texts)
        assert 2 <= len(kept) < len(forks)
        assert (kept[0].xy[0], kept[0].get_text()) == (9, "reproduces")  # the largest has its label
        assert sum(line.get_linestyle() == ":" and len(line.get_ydata()) == 2 for line in ax.lines) >= len(
            forks
        )
        spots = boxes(figure, [*kept, ax._left_title])
        frame = ax.get_window_extent()
        assert all(box.y0 >= frame.y1 for box in spots)
        assert all(frame.x0 - 1 <= box.x0 and box.x1 <= frame.x1 + 1 for box in spots[:-1])
        assert not any(Bbox.intersection(a, b) for a, b in combinations(spots, 2))


def test_titles_of_a_row_are_level() -> None:
    figure = draw([[panel(), panel(((18, "C"),))]])
    left, right = boxes(figure, [ax._left_title for ax in figure.axes])
    assert left.y0 == pytest.approx(right.y0, abs=1)


def test_places_of_labels() -> None:
    # Lines of the second and third would cross the first's label: no room. The last is moved in.
    assert place([50, 60, 45, 99], [30, 30, 4, 30], (0, 100), gap=1) == [(0, 50), None, None, (0, 85)]
    assert place([50, 70], [30, 30], (0, 100), gap=1) == [(0, 50), (1, 70)]
    assert place([], [], (0, 100), gap=1) == []


def test_the_largest_fork_comes_first() -> None:
    found = pd.DataFrame({"t": [1, 5, 9], "tv": [0.2, 0.6, 0.3], "token_text": ["a", "b", "c"]})
    assert marks(found) == [(5, "b"), (9, "c"), (1, "a")]


# --- glyphs -----------------------------------------------------------------------------------------------


def test_what_no_font_can_draw_is_an_escape_and_warns_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FALLBACKS", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw([[panel(((9, " 答"), (18, " $5")), title="問 1")]])
        for kind in ("png", "svg", "pdf"):
            save(figure, tmp_path / f"figure.{kind}")
    assert [text.get_text() for text in figure.axes[0].texts] == [r"\u7b54", r"\$5"]
    assert figure.axes[0].get_title(loc="left").startswith(r"\u554f 1")


def test_a_font_at_hand_draws_other_scripts(tmp_path: Path) -> None:
    if len(fonts.families()) == 1 or fonts.drawable("答") != "答":
        pytest.skip("no font for CJK at hand")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw([[panel(((9, " 答案"),))]])
        for kind in ("png", "svg", "pdf"):
            save(figure, tmp_path / f"figure.{kind}")
    assert figure.axes[0].texts[0].get_text() == "答案"
