"""Pass@k, Cons@k and pass rates: against enumeration, and on a run by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpa
from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.errors import UsageError
from fpa.passes import consensus, interval, pass_at, passes, summary
from fpa.questions import QuestionSet
from fpa.run import open_run
from fpa.settings import Settings

QUESTIONS = fpa.load_questions("demo", limit=3)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 10))
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(right: list[bool], k: int) -> None:
    chosen = list(combinations(right, min(k, len(right))))
    expected = sum(map(any, chosen)) / len(chosen)
    assert pass_at(k, len(right), sum(right)) == pytest.approx(expected)


def test_consensus_shares_ties() -> None:
    assert consensus(["A", "A", "B"], "A") == 1.0
    assert consensus(["A", "A", "B"], "B") == 0.0
    assert consensus(["A", "B", "Other"], "B") == pytest.approx(1 / 3)


def test_passes_of_a_run(tmp_path: Path) -> None:
    settings = Settings(every=100, samples=9, base_tokens=40, rollout_tokens=40)
    collect(settings, FakeEngine(), QUESTIONS, tmp_path)
    run = open_run(tmp_path)
    found = passes(run, k=3).set_index("question_id")
    for question_id in run.collected_ids:
        rows = run.rollouts(question_id)
        right = (rows["outcome"] == run.question(question_id).answer).to_numpy()
        row = found.loc[question_id]
        assert row["pass_rate"] == right.mean()
        assert row["pass"] == pytest.approx(np.mean([any(c) for c in combinations(right, 3)]))
        assert (row["sequences"], row["tokens"]) == (9, rows["n_tokens"].sum())
    assert np.isnan(found["peak_entropy"]).all()
    [total] = summary([("run", found.reset_index())]).to_dict("records")
    assert total["questions"] == 3
    assert total["pass_lo"] <= total["pass"] <= total["pass_hi"]


def test_only_draws_from_the_prompt_count(tmp_path: Path) -> None:
    settings = Settings(every=3, samples=4, base_tokens=40, rollout_tokens=40)
    collect(settings, FakeEngine(), QUESTIONS, tmp_path)
    assert (passes(open_run(tmp_path))["sequences"] == 4).all()


def test_without_answers_there_is_nothing_to_say(tmp_path: Path) -> None:
    asked = QuestionSet("asked", tuple(replace(q, answer=None) for q in QUESTIONS.questions), "asked")
    collect(Settings(every=100, samples=2), FakeEngine(), asked, tmp_path)
    with pytest.raises(UsageError, match="right answer"):
        passes(open_run(tmp_path))


def test_intervals_cover_the_mean_of_a_population() -> None:
    """Of 200 samples of 40 questions; at 95 % nominal, percentile intervals of a mean reach 93 % or so."""
    rng = np.random.default_rng(0)
    hits = [lo <= 0.3 <= hi for lo, hi in (interval(rng.random(40) < 0.3) for _ in range(200))]
    assert sum(hits) >= 200 * 0.92 - 4 * np.sqrt(200 * 0.92 * 0.08)
    assert np.isnan(interval([1.0])).all()
