"""Scoring on runs of the fake engine: references, regions of data, prices, refusals."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fpa
from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.errors import UsageError
from fpa.run import Run, open_run
from fpa.score import change_scores, score, score_questions
from fpa.settings import Settings
from smoothing import Observations, fit
from smoothing.metrics import merge_rare, merged, total_variation

SETTINGS = Settings(samples=40, base_tokens=30, rollout_tokens=30)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Two questions: a dense grid, a copy of it, one of other seeds, and stratified draws."""
    folder = tmp_path_factory.mktemp("score")
    questions = fpa.load_questions("demo", limit=2)
    made = {
        "dense": SETTINGS,
        "other": dataclasses.replace(SETTINGS, samples=15, seed=1),
        "stratified": dataclasses.replace(SETTINGS, strategy="stratified", samples=10, seed=2),
    }
    for name, settings in made.items():
        assert not collect(settings, FakeEngine(), questions, folder / name).failures
    collect(
        dataclasses.replace(SETTINGS, samples=3), FakeEngine(model="another"), questions, folder / "model"
    )
    shutil.copytree(folder / "dense", folder / "copy")
    return {name: open_run(folder / name) for name in (*made, "model", "copy")}


def test_raw_scores_are_those_of_the_definition(runs: dict[str, Run]) -> None:
    run = runs["dense"]
    rows = score_questions(run, samples=[10], every=[3], methods=["raw"])
    rows = rows[rows["asked"]]
    assert sorted(rows["replicate"].unique()) == [0, 1, 2, 3]
    for row in rows.itertuples():
        positions, curve, _ = run.curve(row.question_id)
        _, column = merge_rare(np.round(curve, 6))
        draws = run.draws(row.question_id)
        outcomes = column[draws.outcomes]
        used = np.arange(10) + 10 * row.replicate
        rest = np.setdiff1d(np.arange(40), used)
        width = column.max() + 1
        ours = np.stack([(outcomes[:, used] == k).mean(axis=1) for k in range(width)], axis=1)
        theirs = np.stack([(outcomes[:, rest] == k).mean(axis=1) for k in range(width)], axis=1)
        seen = positions[::3]
        predicted = np.stack([np.interp(positions, seen, ours[::3, k]) for k in range(width)], axis=1)
        assert row.tv == pytest.approx(total_variation(predicted, theirs).mean(), abs=1e-12)
        chosen = draws.tokens[::3][:, used]
        assert row.continuations == chosen.size
        assert row.generated_tokens == chosen.sum()
        for name, level in (("0.10", 0.10), ("0.20", 0.20)):
            steps = total_variation(*(lambda c: (c[1:], c[:-1]))(merged(np.round(curve, 6), column)))
            assert getattr(row, f"_{rows.columns.get_loc(f'jumps@{name}') + 1}") == (steps > level).sum()


def test_a_table_has_a_row_for_every_cell(runs: dict[str, Run]) -> None:
    table = score(
        runs["dense"], samples=[5, 10], every=[2, 4], replicates=1, methods=["raw", "kernel", "auto"]
    )
    assert len(table) == 12
    assert (table["questions"] == 2).all()
    raw = table[table["method"] == "raw"]
    assert np.allclose(raw["multiplier"], 1)
    assert (raw.groupby("every")["tv"].apply(lambda tv: tv.is_monotonic_decreasing)).all()
    for name in ("tv", "heldout_loglik", "coverage", "coverage_predictive", "s_eff"):
        assert table[name].notna().all(), name
    assert table["coverage_predictive"].between(0, 1).all()
    prices = table.set_index(["method", "samples", "every"])["continuations"].unstack("method")
    assert (prices["raw"] == prices["auto"]).all()


def test_a_methods_figures_do_not_depend_on_its_company(runs: dict[str, Run]) -> None:
    alone = score(runs["dense"], samples=[5], methods=["kernel"])
    beside = score(runs["dense"], samples=[5, 10], methods=["raw", "kernel"])
    beside = beside[(beside["method"] == "kernel") & (beside["samples"] == 5)].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, beside)


def test_processes_change_nothing(runs: dict[str, Run]) -> None:
    one, two = (score(runs["dense"], samples=[5], methods=["raw"], workers=n) for n in (1, 2))
    pd.testing.assert_frame_equal(one, two)


def test_the_run_itself_as_reference_means_its_other_draws(runs: dict[str, Run]) -> None:
    run = runs["dense"]
    own = score(run, open_run(run.path), samples=[10], methods=["raw"])
    pd.testing.assert_frame_equal(own, score(run, samples=[10], methods=["raw"]))


def test_no_draw_is_on_both_sides(runs: dict[str, Run]) -> None:
    """A reference that holds the scored draws too is used without them."""
    dense, copy = runs["dense"], runs["copy"]
    beside = score(copy, dense, samples=[10], every=[1, 2], methods=["raw"])
    pd.testing.assert_frame_equal(beside, score(dense, samples=[10], every=[1, 2], methods=["raw"]))
    with pytest.raises(UsageError, match="others to refer to"):
        score(copy, dense, samples=[40])
    # "other" has seeds of its own: the whole reference counts.
    assert all(
        (runs["dense"].draws(q).without(runs["other"].draws(q)).outcomes >= 0).all()
        for q in dense.question_ids
    )


def test_an_independent_run_is_worth_its_draws(runs: dict[str, Run]) -> None:
    [raw] = score(runs["other"], runs["dense"], samples=[15], methods=["raw"]).to_dict("records")
    # Neighbouring positions of a hash model share nothing, so that about 30 positions are independent; the
    # squared error of a frequency varies by about its own size, over 30 x 3 of them by some 15 %.
    assert 15 / 2 < raw["s_eff"] < 15 * 2


def test_stratified_draws_are_scored_as_they_are(runs: dict[str, Run]) -> None:
    table = score(runs["stratified"], runs["dense"], methods=["martingale", "auto"])
    assert table["method"].tolist() == ["martingale", "auto"]
    assert table["samples"].isna().all()
    assert table["multiplier"].isna().all()
    collected = runs["stratified"].manifest["collected"]
    assert table["continuations"].iloc[0] * 2 == collected["continuations"]
    assert table["generated_tokens"].iloc[0] * 2 == collected["generated_tokens"]
    assert (table["tv"] < 0.2).all()


def test_what_cannot_be_scored_is_refused_in_one_line(runs: dict[str, Run], tmp_path: Path) -> None:
    dense = runs["dense"]
    alien = fpa.load_questions("demo", limit=3)
    last = dataclasses.replace(alien, questions=alien.questions[2:])
    collect(dataclasses.replace(SETTINGS, samples=3), FakeEngine(), last, tmp_path / "third")
    for says, attempt in (
        ("others to refer to", lambda: score(dense, samples=[40])),
        ("others to refer to", lambda: score(dense, samples=[41])),
        ("base paths .* differ", lambda: score(runs["model"], dense)),
        ("both must have", lambda: score(open_run(tmp_path / "third"), dense)),
        ("must have rollouts of nonsense", lambda: score(dense, questions=["nonsense"])),
        ("unknown method 'magic'", lambda: score(dense, samples=[5], methods=["magic"])),
    ):
        with pytest.raises(UsageError, match=says) as refused:
            attempt()
        assert "\n" not in str(refused.value)


def test_chances_of_change_add_up_between_coarse_places() -> None:
    rng = np.random.default_rng(0)
    grid = np.arange(12)
    observed = Observations.from_draws(grid, rng.integers(0, 2, (12, 6)), ("A", "Other"), grid=grid)
    fitted = fit(observed, "auto")
    fine = change_scores(fitted, grid, grid, 0.1)
    assert fine is not None
    assert np.allclose(fine, fitted.change_probability(0.1), atol=1e-9)  # type: ignore[attr-defined]
    coarse = change_scores(fitted, grid, grid[::4], 0.1)
    assert coarse is not None
    assert coarse[1] == pytest.approx(1 - np.prod(1 - fine[1:5]))
    assert change_scores(fit(observed, "raw"), grid, grid, 0.1) is None
