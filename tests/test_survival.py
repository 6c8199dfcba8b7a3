"""The survival view on runs of the fake engine, in branch form and free."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import fpa
from fpa.collect import collect
from fpa.curves import smooth_question
from fpa.engines.fake import FakeEngine
from fpa.errors import UsageError
from fpa.run import Run, open_run
from fpa.settings import Settings
from fpa.survival import survival_table

SETTINGS = Settings(samples=30, base_tokens=30, rollout_tokens=30)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("survival")
    questions = fpa.load_questions("demo", limit=1)
    for strategy in ("grid", "branches"):
        collect(dataclasses.replace(SETTINGS, strategy=strategy), FakeEngine(), questions, folder / strategy)
    return {strategy: open_run(folder / strategy) for strategy in ("grid", "branches")}


@pytest.mark.parametrize("strategy", ["grid", "branches"])
def test_survival_falls_from_position_to_position(runs: dict[str, Run], strategy: str) -> None:
    run = runs[strategy]
    [question_id] = run.question_ids
    smoothed = smooth_question(run, question_id, "raw")
    loose, strict = (survival_table(run, smoothed, threshold, "tv") for threshold in (0.2, 0.8))
    assert loose["t"].tolist() == run.draws(question_id).positions.tolist()
    assert loose["survival"].between(0, 1).all()
    assert (np.diff(loose["survival"]) <= 0).all()
    assert (loose["survival"] <= strict["survival"] + 1e-12).all()
    assert loose["survival"].iloc[-1] < 1


def test_branches_are_judged_by_their_own_draws(runs: dict[str, Run]) -> None:
    run = runs["branches"]
    [question_id] = run.question_ids
    base = run.base(question_id).token_ids
    table = run.rollouts(question_id)
    expected, alive = [], 1.0
    for start, rows in table.groupby("start"):
        shares = {
            token: np.array([(part["outcome"] == c).mean() for c in run.question(question_id).categories])
            for token, part in rows.groupby("first_token")
        }
        p = rows.groupby("first_token")["first_token_p"].first()
        own = shares[base[start]]
        alive *= 1 - sum(
            p[w] for w, share in shares.items() if w != base[start] and np.linalg.norm(share - own) > 0.6
        )
        expected.append(alive)
    smoothed = smooth_question(run, question_id, "raw")
    assert survival_table(run, smoothed)["survival"].tolist() == pytest.approx(expected)


def test_a_run_that_does_not_tell_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["grid"]
    [question_id] = run.question_ids
    smoothed = smooth_question(run, question_id, "raw")
    blind = dataclasses.replace(
        smoothed, observations=dataclasses.replace(smoothed.observations, divergence=None)
    )
    with pytest.raises(UsageError, match="does not tell where"):
        survival_table(run, blind)
