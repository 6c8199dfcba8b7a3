"""The demo's pipeline on the fake engine, against references that cannot or can only in part be compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fpa.collect import collect
from fpa.demo import demo, reference_settings
from fpa.engines.base import GreedyPath
from fpa.engines.fake import FakeEngine
from fpa.questions import load_questions


class Elsewhere(FakeEngine):
    """The same model where sums round otherwise: its second base path ends early."""

    calls = 0

    def greedy(self, prompt_ids: tuple[int, ...], max_tokens: int, temperature: float) -> GreedyPath:
        path = super().greedy(prompt_ids, max_tokens, temperature)
        self.calls += 1
        if self.calls != 2:
            return path
        return replace(
            path, token_ids=path.token_ids[:5], distributions=path.distributions[:5], finish_reason="length"
        )


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reference of two questions, one of them on another base path."""
    path = tmp_path / "reference"
    collect(replace(reference_settings(), samples=30), Elsewhere("m"), load_questions("demo", limit=2), path)
    monkeypatch.setattr("fpa.demo.data_path", lambda name: tmp_path / name)
    return path


@pytest.mark.usefixtures("reference")
def test_what_has_no_reference_is_named_and_the_rest_is_scored(tmp_path: Path) -> None:
    made = demo(lambda: FakeEngine("m"), tmp_path / "demo")
    assert made.scores is not None
    assert set(made.scores["questions"]) == {1}
    assert made.not_scored.keys() == {"demo-02", "demo-03"}
    assert "leaves the reference's at token 5" in made.not_scored["demo-02"]
    assert "does not hold it" in made.not_scored["demo-03"]
    report = made.report.read_text(encoding="utf-8")
    assert made.figure.stat().st_size > 10_000
    for question_id in made.not_scored:
        assert f"{question_id} is not scored" in report


@pytest.mark.usefixtures("reference")
def test_without_any_reference_the_demo_still_ends_in_figure_and_report(tmp_path: Path) -> None:
    made = demo(lambda: FakeEngine("another model"), tmp_path / "demo")
    assert made.scores is None
    assert made.not_scored.keys() == {"demo-01", "demo-02", "demo-03"}
    assert made.figure.is_file()
    assert "demo-01 is not scored" in made.report.read_text(encoding="utf-8")
