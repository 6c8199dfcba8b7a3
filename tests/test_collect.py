"""The collect loop on the fake engine: what it stores, resumes, refuses and survives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fpa
from fpa.collect import collect, divergence
from fpa.engines import load_engine
from fpa.engines.fake import LETTER_IDS, FakeEngine
from fpa.errors import UsageError
from fpa.plan import plan
from fpa.questions import QuestionSet
from fpa.records import STATUSES
from fpa.run import open_run
from fpa.settings import Settings

SETTINGS = Settings(every=3, samples=7, base_tokens=40, rollout_tokens=40, keep_text=True, keep_ids=True)


@pytest.fixture(scope="module")
def questions() -> QuestionSet:
    return fpa.load_questions("demo", limit=4)


@pytest.fixture(scope="module")
def run(questions: QuestionSet, tmp_path_factory: pytest.TempPathFactory) -> fpa.Run:
    out = tmp_path_factory.mktemp("collect") / "run"
    summary = collect(SETTINGS, FakeEngine(), questions, out)
    assert not summary.failures
    return open_run(out)


def test_every_position_has_all_its_draws(run: fpa.Run) -> None:
    for question_id in run.question_ids:
        base, rollouts = run.base(question_id), run.rollouts(question_id)
        per_start = rollouts.groupby("start").size()
        assert list(per_start.index) == list(range(0, len(base.token_ids), SETTINGS.every))
        assert set(per_start) == {SETTINGS.samples}
        assert set(rollouts["status"]) <= set(STATUSES)
        assert rollouts["outcome"].isin(run.question(question_id).categories).all()


def test_seeds_are_unique_in_a_run(run: fpa.Run) -> None:
    seeds = [seed for q in run.question_ids for seed in run.rollouts(q)["seed"]]
    assert len(set(seeds)) == len(seeds)


def test_seeds_of_branches_and_of_another_run_seed_do_not_meet(
    questions: QuestionSet, tmp_path: Path
) -> None:
    seen: set[int] = set()
    total = 0
    for seed in (0, 1, 2):
        settings = dataclasses.replace(SETTINGS, strategy="branches", seed=seed, samples=3)
        collect(settings, FakeEngine(), questions, tmp_path / str(seed))
        run = open_run(tmp_path / str(seed))
        for q in run.question_ids:
            drawn = run.rollouts(q)["seed"]
            seen.update(drawn)
            total += len(drawn)
    assert len(seen) == total


def test_divergence_is_where_the_ids_differ(run: fpa.Run) -> None:
    engine = FakeEngine()
    for question_id in run.question_ids:
        base = run.base(question_id).token_ids
        for row in run.rollouts(question_id).itertuples():
            response = base[: row.start] + tuple(row.token_ids)
            assert row.text == engine.decode(response)
            if row.diverge_at != row.diverge_at or row.diverge_at is None:
                assert response == base
            else:
                at = int(row.diverge_at)
                assert response[:at] == base[:at]
                assert response[at] != base[at]


@pytest.mark.parametrize(
    ("base", "start", "tokens", "expected"),
    [
        ((5, 6, 7), 0, (5, 6, 7), None),
        ((5, 6, 7), 0, (5, 9, 7), 1),
        ((5, 6, 7), 2, (8,), 2),
        ((5, 6, 7), 1, (6, 7, 1), 3),
        ((5, 6, 7), 1, (6,), None),
        ((5, 6, 7), 1, (), None),
    ],
)
def test_divergence(base: tuple[int, ...], start: int, tokens: tuple[int, ...], expected: int | None) -> None:
    assert divergence(base, start, tokens) == expected


def test_another_collection_gives_the_same_bytes(
    run: fpa.Run, questions: QuestionSet, tmp_path: Path
) -> None:
    collect(SETTINGS, FakeEngine(), questions, tmp_path / "again")
    for part in sorted((run.path / "rollouts").iterdir()):
        assert (tmp_path / "again" / "rollouts" / part.name).read_bytes() == part.read_bytes()


def test_a_finished_run_is_not_done_again(run: fpa.Run, questions: QuestionSet) -> None:
    summary = collect(SETTINGS, FakeEngine(), questions, run.path)
    assert summary.spent.continuations == 0
    assert summary.spent.base_tokens == 0


def test_another_configuration_is_refused_by_name(run: fpa.Run, questions: QuestionSet) -> None:
    with pytest.raises(UsageError, match=r"samples.*temperature"):
        collect(dataclasses.replace(SETTINGS, samples=8, temperature=0.5), FakeEngine(), questions, run.path)
    with pytest.raises(UsageError, match=r"engine\.model"):
        collect(SETTINGS, FakeEngine("other"), questions, run.path)


def test_one_bad_question_does_not_stop_the_others(questions: QuestionSet, tmp_path: Path) -> None:
    bad = questions.questions[1]
    word = next(
        w for w in bad.question.split()
        if all(w not in q.question.split() for q in questions.questions if q is not bad)
    )  # fmt: skip
    settings = dataclasses.replace(SETTINGS, prompt="published")
    summary = collect(settings, FakeEngine(fail=word), questions, tmp_path / "run")
    assert list(summary.failures) == [bad.question_id]
    run = open_run(tmp_path / "run")
    assert len(run.collected_ids) == len(questions.questions) - 1
    assert bad.question_id in run.failures
    # The same command again retries it, and finishes the run.
    assert not collect(settings, FakeEngine(), questions, tmp_path / "run").failures
    assert len(open_run(tmp_path / "run").collected_ids) == len(questions.questions)


def test_a_question_that_overflows_the_context_is_named(questions: QuestionSet, tmp_path: Path) -> None:
    summary = collect(SETTINGS, FakeEngine(context=50), questions, tmp_path / "run")
    assert set(summary.failures) == {q.question_id for q in questions.questions}
    assert all("--context" in message for message in summary.failures.values())


def test_branches_force_each_kept_token(questions: QuestionSet, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, strategy="branches", every=5, samples=4)
    collect(settings, FakeEngine(), questions, tmp_path / "run")
    run = open_run(tmp_path / "run")
    for question_id in run.question_ids:
        base = run.base(question_id)
        for start, rows in run.rollouts(question_id).groupby("start"):
            distribution = base.distributions[start]
            expected = {
                int(token)
                for rank, (token, p) in enumerate(zip(distribution.ids, distribution.p, strict=True))
                if (rank < settings.top_k and p >= settings.min_p) or token == base.token_ids[start]
            }
            assert set(rows["first_token"]) == expected
            assert set(rows.groupby("first_token").size()) == {settings.samples}
            for row in rows.itertuples():
                if row.first_token != base.token_ids[start]:
                    assert row.diverge_at == start


def test_readout_settles_what_names_no_letter(questions: QuestionSet, tmp_path: Path) -> None:
    short = dataclasses.replace(SETTINGS, rollout_tokens=3, base_tokens=8)
    collect(short, FakeEngine(), questions, tmp_path / "on")
    collect(dataclasses.replace(short, readout=False), FakeEngine(), questions, tmp_path / "off")
    on, off = open_run(tmp_path / "on"), open_run(tmp_path / "off")
    settled = 0
    for question_id in on.question_ids:
        with_readout, without = on.rollouts(question_id), off.rollouts(question_id)
        assert list(with_readout["seed"]) == list(without["seed"])
        cut = without["status"] == "truncated"
        assert (without.loc[cut, "outcome"] == "Other").all()
        assert (with_readout.loc[cut, "status"] == "readout").all()
        assert (with_readout.loc[cut, "outcome"] != "Other").all()
        settled += int(cut.sum())
    assert settled > 0


def test_readout_takes_the_likeliest_letter(questions: QuestionSet, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, rollout_tokens=1, base_tokens=2, every=1)
    engine = FakeEngine()
    collect(settings, engine, questions, tmp_path / "run")
    run = open_run(tmp_path / "run")
    question_id = run.question_ids[0]
    prompt, base = run.prompt_ids(question_id), run.base(question_id)
    assert prompt is not None
    for row in run.rollouts(question_id).itertuples():
        response = base.token_ids[: row.start] + tuple(row.token_ids)
        prefix = (*prompt, *response, *engine.encode(". The answer is ("))
        best = engine.choose([prefix], LETTER_IDS[:4])[0].argmax()
        # The phrase may begin on a new line; the fake model only looks at its turning words, which are the same.
        assert row.outcome == "ABCD"[int(best)]


def test_plan_foresees_the_cost(questions: QuestionSet, tmp_path: Path) -> None:
    planned = plan(SETTINGS, FakeEngine(), questions)
    summary = collect(SETTINGS, FakeEngine(), questions, tmp_path / "run")
    assert planned.questions == len(questions.questions)
    assert planned.probed == 2
    # Base paths of four questions differ by a few tokens; the plan scales up from two of them.
    assert planned.continuations == pytest.approx(summary.spent.continuations, rel=0.5)
    assert planned.generated_tokens == pytest.approx(summary.spent.generated_tokens, rel=0.5)


def test_plan_is_exact_where_the_probe_is_everything(tmp_path: Path) -> None:
    two = fpa.load_questions("demo", limit=2)
    planned = plan(SETTINGS, FakeEngine(), two)
    summary = collect(SETTINGS, FakeEngine(), two, tmp_path / "run")
    assert planned.continuations == summary.spent.continuations


def test_an_unknown_engine_or_strategy_is_named(questions: QuestionSet, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llamacpp"):
        load_engine("llama", "demo")
    with pytest.raises(UsageError, match="branches"):
        collect(dataclasses.replace(SETTINGS, strategy="tree"), FakeEngine(), questions, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"every": 0}, "--every"),
        ({"samples": -1}, "--samples"),
        ({"temperature": 0.0}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"unit": "word"}, "--unit"),
        ({"min_p": 1.5}, "--min-p"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_settings_refuse_what_cannot_be(changed: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        dataclasses.replace(SETTINGS, **changed)


def test_base_paths_are_asked_of_an_idle_engine_where_it_needs_that(tmp_path: Path) -> None:
    class Alone(FakeEngine):
        greedy_alone = True

        def __init__(self) -> None:
            super().__init__()
            self.did: list[str] = []

        def greedy(self, prompt_ids, max_tokens, temperature):  # type: ignore[no-untyped-def]
            self.did.append("greedy")
            return super().greedy(prompt_ids, max_tokens, temperature)

        def sample(self, requests):  # type: ignore[no-untyped-def]
            for completion in super().sample(requests):
                self.did.append("sample")
                yield completion

    questions = fpa.load_questions("demo", limit=3)
    settings = Settings(every=4, samples=2, base_tokens=30, rollout_tokens=30)
    engine = Alone()
    collect(settings, engine, questions, tmp_path / "alone")
    assert engine.did[:4] == ["greedy", "greedy", "greedy", "sample"]
    assert engine.did.count("greedy") == 3
    collect(settings, FakeEngine(), questions, tmp_path / "other")
    parts = [
        {p.name: p.read_bytes() for p in (tmp_path / run / "rollouts").iterdir()}
        for run in ("alone", "other")
    ]
    assert parts[0] == parts[1]
