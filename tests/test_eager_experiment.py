"""The experiment on EAGER, on the fake engine: what it compares with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fpa
from experiments import eager
from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.run import open_run
from fpa.settings import Settings


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four questions in the experiment's layout: M=6, θ=1.5, and 8 independent sequences."""
    folder = tmp_path_factory.mktemp("eager") / "demo"
    questions = fpa.load_questions("demo", limit=4)
    plain = Settings(every=1000, samples=8, base_tokens=40, rollout_tokens=40)
    collect(plain, FakeEngine(), questions, folder / "parallel")
    for mode in ("adapt", "full"):
        settings = replace(plain, every=1, strategy="eager", samples=6, options={"mode": mode, "theta": 1.5})
        collect(settings, FakeEngine(), questions, folder / f"{mode}-6-1.5")
    (folder / "adapt-6-2.0").mkdir()  # begun, not there yet
    return folder.parent


def test_finished_cells_alone_are_compared(out: Path) -> None:
    assert eager.grid(out / "demo") == {6: [1.5]}


def test_init_is_adapts_first_round_and_parallel_its_first_sequences(out: Path) -> None:
    run, plain = open_run(out / "demo" / "adapt-6-1.5"), open_run(out / "demo" / "parallel")
    init, adapt = (eager.sequences(out / "demo", mode, 6, 1.5) for mode in ("init", "adapt"))
    beside = eager.sequences(out / "demo", "parallel", 6, 0.0)
    assert (beside["sequences"] == 6).all()
    for question_id in run.collected_ids:
        rows = run.rollouts(question_id)
        # The first tree's rows are those that its root's stream is behind.
        first = rows[rows["seed"] == rows.sort_values("draw")["seed"].iloc[0]]
        assert init.loc[question_id, "tokens"] == first["n_tokens"].sum()
        assert adapt.loc[question_id, "tokens"] == rows["n_tokens"].sum()
        six = plain.rollouts(question_id).query("draw < 6")
        assert beside.loc[question_id, "tokens"] == six["n_tokens"].sum()
    assert (adapt["sequences"] > init["sequences"]).any()


def test_the_comparison_and_its_report(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = eager.compared(out / "demo")
    assert found["mode"].tolist() == ["parallel", "init", "adapt", "full"]
    plain = found.iloc[0]
    for _, row in found.iterrows():
        assert row["tokens_ratio"] == pytest.approx(row["tokens"] / plain["tokens"])
        assert row["gain"] == pytest.approx(row["pass"] - plain["pass"])
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    eager.report(out)
    said = capsys.readouterr().out
    assert "### demo, 4 questions" in said
    assert said.count("\n- ") == 4  # a sentence for each published claim
    assert (out / "eager.svg").stat().st_size > 5_000


def test_peak_entropy_against_pass_rate() -> None:
    x = np.arange(40.0)
    rho, low, high = eager.peak_correlation(pd.DataFrame({"peak_entropy": x, "pass_rate": -x}))
    assert (rho, low, high) == pytest.approx((-1.0, -1.0, -1.0))
    noise = np.random.default_rng(0).normal(size=(2, 40))
    rho, low, high = eager.peak_correlation(pd.DataFrame({"peak_entropy": noise[0], "pass_rate": noise[1]}))
    assert low < rho < high
