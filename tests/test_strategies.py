"""Stratified and adaptive collection on the fake model, whose distributions are exact and fully listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fpa
from fpa.check import check
from fpa.collect import collect
from fpa.engines.base import EngineError, GreedyPath, Request
from fpa.engines.fake import FakeEngine
from fpa.errors import UsageError
from fpa.questions import QuestionSet
from fpa.run import open_run
from fpa.settings import Settings
from smoothing.allocation import stratified_shares

SETTINGS = Settings(every=2, samples=8, base_tokens=40, rollout_tokens=40, prompt="published")


@pytest.fixture(scope="module")
def questions() -> QuestionSet:
    return fpa.load_questions("demo", limit=3)


def divergence_truth(
    engine: FakeEngine, prompt: tuple[int, ...], base: tuple[int, ...], t: int, n: int
) -> np.ndarray:
    """Outcome shares, by brute force, of ``n`` free continuations from ``t`` that leave the base path there."""
    prefix = prompt + base[:t]
    found = []
    seed = 10_000_000
    while len(found) < n:
        [done] = engine.sample([Request("x", prefix, 200, seed, 1.0, 60)])
        seed += 200
        found += [c for c in done.continuations if c.token_ids[0] != base[t]]
    letters = ["ABCD".find(engine.decode(c.token_ids).split("(")[-1][:1]) for c in found[:n]]
    return np.bincount(letters, minlength=4) / n


def test_every_stratified_draw_leaves_where_it_was_forced_to(questions: QuestionSet, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, strategy="stratified")
    collect(settings, FakeEngine(), questions, tmp_path)
    run = open_run(tmp_path)
    for question_id in run.question_ids:
        base, rows = run.base(question_id), run.rollouts(question_id)
        # As many draws as the grid of the same S and N would take; rounding moves at most one.
        grid = settings.samples * len(range(0, len(base.token_ids), settings.every))
        assert abs(len(rows) - grid) <= 1
        assert (rows["diverge_at"] == rows["start"]).all()
        for row in rows.itertuples():
            assert row.first_token != base.token_ids[row.start]
            listed = base.distributions[row.start]
            assert row.first_token_p == listed.p[list(listed.ids).index(row.first_token)]
        expected = len(rows) * stratified_shares(
            base.p, np.clip(len(base.p) - np.arange(len(base.p)), 4, settings.rollout_tokens)
        )
        counts = np.bincount(rows["start"], minlength=len(expected))
        assert (np.abs(counts - expected) <= 1).all()


def test_stratified_draws_are_of_the_divergence_distribution(questions: QuestionSet, tmp_path: Path) -> None:
    """Forced first tokens in proportion, then free: the same outcomes as free draws that happen to leave."""
    engine = FakeEngine()
    settings = dataclasses.replace(SETTINGS, strategy="stratified", samples=150, every=1)
    collect(settings, engine, questions, tmp_path)
    run = open_run(tmp_path)
    question_id = run.question_ids[0]
    rows, base, prompt = run.rollouts(question_id), run.base(question_id), run.prompt_ids(question_id)
    assert prompt is not None
    t = int(rows["start"].value_counts().index[0])
    ours = rows.loc[rows["start"] == t, "outcome"]
    truth = divergence_truth(engine, prompt, base.token_ids, t, 2000)
    counts = np.array([(ours == letter).sum() for letter in "ABCD"])
    table = np.array([counts, 2000 * truth])[:, (counts + truth) > 0]
    # Systematic first tokens only lower the variance, so the test errs on the side of passing at the null.
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_the_adaptive_budget_is_kept_and_moves_between_questions(
    questions: QuestionSet, tmp_path: Path
) -> None:
    settings = dataclasses.replace(SETTINGS, strategy="adaptive", budget=3000)
    spent = collect(settings, FakeEngine(), questions, tmp_path).spent
    # Rounds aim at expected tokens; a draw of the fake model has 5 to 30.
    assert abs(spent.generated_tokens - 3000) < 300
    run = open_run(tmp_path)
    shares = [run.rollouts(q)["n_tokens"].sum() for q in run.question_ids]
    assert max(shares) > 1.2 * min(shares)
    seeds = [s for q in run.question_ids for s in run.rollouts(q)["seed"]]
    assert len(set(seeds)) == len(seeds)


def test_a_target_error_is_reached(questions: QuestionSet, tmp_path: Path) -> None:
    from smoothing.auto import fit_auto

    target = 0.05
    settings = dataclasses.replace(SETTINGS, strategy="adaptive", target_error=target)
    collect(settings, FakeEngine(), questions, tmp_path)
    run = open_run(tmp_path)
    for question_id in run.question_ids:
        observations = run.observations(question_id)
        lo, hi = fit_auto(observations).band(observations.grid, 0.9)
        assert (hi - lo).mean() / 2 <= target


class Dies(FakeEngine):
    """A fake engine that is interrupted after so many completions."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def sample(self, requests):  # type: ignore[no-untyped-def]
        """Completions until the interrupt."""
        for completion in super().sample(requests):
            self.after -= 1
            if self.after < 0:
                raise KeyboardInterrupt
            yield completion


@pytest.mark.parametrize("after", [3, 40, 90])
def test_adaptive_resumes_in_the_middle_of_a_round(
    questions: QuestionSet, tmp_path: Path, after: int
) -> None:
    settings = dataclasses.replace(SETTINGS, strategy="adaptive", budget=1500)
    collect(settings, FakeEngine(), questions, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        collect(settings, Dies(after), questions, tmp_path / "cut")
    collect(settings, FakeEngine(), questions, tmp_path / "cut")
    parts = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "rollouts").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "cut" / "rollouts").iterdir()} == parts


def test_no_draws_share_a_stream_when_a_failed_question_is_taken_up_again(
    questions: QuestionSet, tmp_path: Path
) -> None:
    class FailsOnce(FakeEngine):
        def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
            self.paths = getattr(self, "paths", 0) + 1
            if self.paths == 2:
                raise EngineError("this time it fails")
            return super().greedy(prompt_ids, max_tokens, temperature)

    settings = Settings(strategy="adaptive", budget=20_000, base_tokens=30, rollout_tokens=40)
    assert collect(settings, FailsOnce(), questions, tmp_path).failures
    assert not collect(settings, FakeEngine(), questions, tmp_path).failures
    run = open_run(tmp_path)
    seeds = [seed for q in run.collected_ids for seed in run.rollouts(q)["seed"]]
    assert len(run.collected_ids) == len(questions.questions)
    assert len(seeds) == len(set(seeds))


def test_adaptive_needs_to_know_when_to_stop() -> None:
    with pytest.raises(UsageError, match="--budget"):
        Settings(strategy="adaptive")


def test_the_identity_holds_for_the_fake_model(questions: QuestionSet, tmp_path: Path) -> None:
    collect(dataclasses.replace(SETTINGS, every=1, samples=60), FakeEngine(), questions, tmp_path)
    found, table = check(open_run(tmp_path))
    assert found.pairs == len(table) > 20
    assert found.p_outcomes > 1e-3
    assert found.p_stay > 1e-3
    assert found.tv < 1.3 * found.tv_expected


class Biased(FakeEngine):
    """An engine whose continuations are hotter than it says."""

    def sample(self, requests):  # type: ignore[no-untyped-def]
        """Continuations at twice the temperature."""
        return super().sample(dataclasses.replace(r, temperature=2.0) for r in requests)


def test_the_check_notices_a_wrong_temperature(questions: QuestionSet, tmp_path: Path) -> None:
    collect(dataclasses.replace(SETTINGS, every=1, samples=60), Biased(), questions, tmp_path)
    found, _ = check(open_run(tmp_path))
    assert found.p_stay < 1e-6
