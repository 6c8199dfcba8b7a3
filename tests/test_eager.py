"""EAGER: where sequences split, what they share, and what each round gives to whom; all worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import END, Scripted
from typer.testing import CliRunner

import fpa
from fpa.cli import app
from fpa.collect import collect
from fpa.eager import TreeSampler, branch_limit, branch_points
from fpa.engines.base import Continuation, EngineError, GreedyPath, Request
from fpa.engines.fake import FakeEngine
from fpa.errors import UsageError
from fpa.plan import plan
from fpa.questions import QuestionSet
from fpa.records import Answer, BasePath, Distribution
from fpa.run import open_run
from fpa.settings import Settings
from fpa.strategies import strategy
from fpa.strategies.base import Known
from fpa.strategies.eager import Eager, divided

# --- where to split


def test_the_limit_is_the_threshold_or_the_99th_percentile_of_what_was_seen() -> None:
    assert branch_limit([], 2.5) == 2.5
    assert branch_limit([1.0, 2.0], 2.5) == 2.5
    assert branch_limit([1.0, 3.0], 2.5) == pytest.approx(2.98)  # 99 % of the way from one to the other
    assert branch_limit(np.arange(101), 2.5) == 99.0


def test_branch_points_of_one_sequence() -> None:
    h = [1.0, 3.0, 2.0, 3.5, 3.4]
    assert branch_points(h, 2.5).tolist() == [False, True, False, True, False]
    # Alone, the percentile of the tokens before: the first is above nothing, each record fires.
    assert branch_points(h, 0.0).tolist() == [True, True, False, True, False]
    assert branch_points([], 1.0).tolist() == []


# --- trees


def even(width: int, likeliest: Sequence[int] = (1, 2)) -> np.ndarray:
    """``width`` tokens from 10 on, nearly alike, and two a little likelier ones: entropy near ln(width + 2)."""
    p = np.zeros(40)
    p[10 : 10 + width] = 1.0
    p[list(likeliest)] = 1.02, 1.01
    return p / p.sum()


def sure(token: int) -> np.ndarray:
    return np.eye(40)[token]


def grow(
    engine: Scripted, n: int, theta: float = 2.5, length: int = 6, seed: int = 100
) -> tuple[Continuation, ...]:
    request = Request("r", (0,), n, seed, 1.0, length, theta=theta)
    [done] = TreeSampler(engine).sample([request])  # type: ignore[arg-type]
    assert done.error is None
    return done.continuations


def at_third(p: np.ndarray) -> Callable[[tuple[int, ...]], np.ndarray]:
    """``p`` for the third token; token 4 before it, and the end of the turn after one more."""
    return lambda ids: p if len(ids) == 2 else sure(4 if len(ids) != 4 else END)


def test_a_sure_model_grows_one_sequence_from_the_requests_own_stream() -> None:
    p = np.array([0.5, 0.2, 0.3])
    [only] = grow(Scripted(lambda ids: p), n=8, length=7)
    at = np.random.default_rng(100).random(7)
    assert only.token_ids == tuple(np.array([0, 2, 1])[np.searchsorted([0.5, 0.8], at, side="right")])
    assert only.trace is not None
    assert (only.trace.states, only.trace.parent, only.finish_reason) == ("d" * 7, None, "length")


def test_an_unsure_token_splits_into_the_two_likeliest() -> None:
    engine = Scripted(at_third(even(14)))  # ln 16 = 2.77 nats
    first, second = grow(engine, n=8)
    assert first.token_ids == (4, 4, 1, 4, END)
    assert second.token_ids == (4, 4, 2, 4, END)
    assert first.trace is not None
    assert second.trace is not None
    assert (first.trace.states, second.trace.states) == ("ddbdd", "ddbdd")
    assert (second.trace.parent, second.trace.shared) == (0, 2)
    assert second.trace.peak_entropy == pytest.approx(math.log(16), abs=1e-3)
    # Four steps for the first; the second is read from its own token on, and what is shared never again.
    assert engine.steps == 5
    assert len(engine.asked) == len(set(engine.asked)) == 5 + 2


@pytest.mark.parametrize(
    ("width", "theta", "sequences"), [(9, 2.5, 1), (11, 2.5, 2), (11, 2.6, 1), (4, 1.7, 2)]
)
def test_the_threshold_is_in_nats_of_the_renormalised_twenty(
    width: int, theta: float, sequences: int
) -> None:
    """ln 11 = 2.40, ln 13 = 2.56, ln 6 = 1.79."""
    assert len(grow(Scripted(at_third(even(width))), n=8, theta=theta)) == sequences


def test_more_than_twenty_equal_tokens_are_no_more_unsure() -> None:
    assert len(grow(Scripted(at_third(even(28))), n=8, theta=2.99)) == 2
    assert len(grow(Scripted(at_third(even(28))), n=8, theta=3.0)) == 1


def test_only_records_split_beside_the_running_percentile() -> None:
    # 2.64, 2.64, 2.71, 2.56, 2.77 nats: the second equals what was seen, the third and the fifth exceed it.
    widths = [12, 12, 13, 11, 14]
    found = grow(Scripted(lambda ids: even(widths[len(ids)])), n=100, length=5)
    # Each of the sequences that are there splits at 0, 2 and 4: 2, 4, 8.
    assert len(found) == 8
    splits = {t for c in found for t, state in enumerate(c.trace.states) if state == "b"}  # type: ignore[union-attr]
    assert splits == {0, 2, 4}


def test_sequences_of_one_step_are_held_against_the_same_limit() -> None:
    # The first token splits; both sequences then see a record, and both split, whoever comes first.
    found = grow(Scripted(lambda ids: even(12 if not ids else 14)), n=100, length=2)
    assert len(found) == 4


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_there_are_never_more_than_the_request_allows(n: int) -> None:
    widths = [12, 13, 14, 15, 16]
    found = grow(Scripted(lambda ids: even(widths[len(ids)])), n=n, length=5)
    assert len(found) == n
    for i, child in enumerate(found[1:], start=1):
        parent = found[child.trace.parent]  # type: ignore[union-attr, index]
        shared = child.trace.shared  # type: ignore[union-attr]
        assert child.trace.parent < i  # type: ignore[union-attr, operator]
        assert child.token_ids[:shared] == parent.token_ids[:shared]
        assert (parent.token_ids[shared], child.token_ids[shared]) == (1, 2)


class Thinking(Scripted):
    """Token 7 ends the thought."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("</think>" if i == 7 else f" {i}" for i in ids)


def test_nothing_splits_after_the_thought() -> None:
    widths = [12, 13, 14, 15]

    def p(ids: tuple[int, ...]) -> np.ndarray:
        # The first split: token 7 ends the thought in one sequence, the other goes on thinking.
        return even(widths[len(ids)], (7, 2) if not ids else (1, 2))

    found = grow(Thinking(p), n=100, length=4)
    ended = [c for c in found if c.token_ids[0] == 7]
    assert len(ended) == 1
    assert ended[0].trace.states == "bddd"  # type: ignore[union-attr]
    assert len(found) == 1 + 8
    assert all(c.trace.states == "bbbb" for c in found if c.token_ids[0] == 2)  # type: ignore[union-attr]


def test_trees_do_not_depend_on_how_much_runs_at_once_and_no_prefix_is_read_twice() -> None:
    widths = [12, 3, 13, 3, 14, 3, 15]
    engines = [Scripted(lambda ids: even(widths[len(ids)]), at_once) for at_once in (64, 3)]
    wide, narrow = (grow(engine, n=12, length=7) for engine in engines)
    assert wide == narrow
    own = sum(len(c.token_ids) - c.trace.shared for c in wide)  # type: ignore[union-attr]
    for engine in engines:
        # A new sequence's first token comes from the reading that split it.
        assert len(engine.asked) == own - (len(wide) - 1)


def test_the_default_threshold_holds_for_requests_without_one() -> None:
    engine = Scripted(at_third(even(11)))
    for theta, sequences in ((2.5, 2), (2.6, 1)):
        [done] = TreeSampler(engine, theta).sample([Request("r", (0,), 8, 1, 1.0, 6)])  # type: ignore[arg-type]
        assert len(done.continuations) == sequences


# --- rounds

A, B = 0, 1


def known(index: int, *rounds: Sequence[int], answer: str | None = "A", peak: float = 1.0) -> Known:
    """A question with so many sequences that ended in A, B or Other, round by round."""
    distribution = Distribution(
        np.array([1, 2], np.int32), np.array([0.9, 0.1]), 0.0, peak, 0.0, top_entropy=peak
    )
    base = BasePath(f"q{index}", (1,), ("a",), (distribution,), (0,), "stop", Answer("A", "parsed"))
    counts = [np.array([*r, 0], np.int64) for r in rounds]
    outcomes = np.sum([np.zeros(3, np.int64), *counts], axis=0)[None, :]
    return Known(index, base, ("A", "B", "Other"), outcomes, np.zeros(1, np.int64), answer, 16, counts)


def given(mode: str, number: int, questions: Sequence[Known], samples: int) -> dict[str, tuple[int, float]]:
    """What a round gives: question id → sequences and threshold."""
    units = Eager(mode).next_round(number, questions, Settings(samples=samples))
    for unit in units:
        assert unit.start == 0
        assert unit.suffix == f"r{number:02d}"
    theta = {u.question_id: u.groups[0].theta for u in units}
    return {u.question_id: (u.draws, round(theta[u.question_id] or 0, 4)) for u in units}


def test_the_first_round_gives_every_question_the_same() -> None:
    questions = [known(i) for i in range(3)]
    for mode in ("init", "adapt", "full"):
        assert given(mode, 0, questions, 4) == {f"q{i}": (4, 2.5) for i in range(3)}


def test_init_stops_after_it() -> None:
    assert given("init", 1, [known(0, (4, 0)), known(1, (1, 0))], 4) == {}


def test_adapt_gives_what_was_saved_to_those_that_reached_the_limit() -> None:
    # Used 4 + 1 + 4 + 1 of 16: 6 are saved, 3 for each of two.
    four = [known(0, (4, 0)), known(1, (1, 0)), known(2, (0, 4)), known(3, (1, 0))]
    assert given("adapt", 1, four, 4) == {"q0": (3, 2.5), "q2": (3, 2.5)}
    # Used 9 of 12: 3 saved, one each and the rest to the first.
    assert given("adapt", 1, four[:3], 4) == {"q0": (2, 2.5), "q2": (1, 2.5)}


def test_adapt_gives_at_most_three_times_the_limit_in_all() -> None:
    questions = [known(0, (4, 0)), *(known(i, (1, 0)) for i in range(1, 8))]  # 21 of 32 are saved
    assert given("adapt", 1, questions, 4) == {"q0": (8, 2.5)}


def test_adapt_with_less_saved_than_there_are_needy_gives_one_each() -> None:
    questions = [known(0, (4, 0)), known(1, (4, 0)), known(2, (0, 4)), known(3, (3, 0))]  # 1 of 16 is saved
    assert given("adapt", 1, questions, 4) == {"q0": (1, 2.5), "q1": (1, 2.5), "q2": (1, 2.5)}


def test_adapt_gives_nothing_where_nothing_is_saved_or_nobody_needs_it_and_only_once() -> None:
    assert given("adapt", 1, [known(0, (4, 0)), known(1, (0, 4))], 4) == {}
    assert given("adapt", 1, [known(0, (3, 0)), known(1, (0, 2))], 4) == {}
    assert given("adapt", 2, [known(0, (4, 0), (1, 0)), known(1, (1, 0), (0, 0))], 4) == {}


def test_full_gives_it_to_those_without_the_right_answer_at_lower_thresholds() -> None:
    met, unsure, full = known(0, (1, 0)), known(1, (0, 4)), known(2, (0, 10))
    # Round 1: 15 of 30 saved. q1 did not use its ten: its threshold falls; q2 did.
    first = [met, unsure, full]
    assert given("full", 1, first, 10) == {"q1": (8, 2.0), "q2": (7, 2.5)}
    # Round 2: 15 + 3 + 7 used, 5 saved: 2 each and the rest to the first.
    second = [known(0, (1, 0), (0, 0)), known(1, (0, 4), (0, 3)), known(2, (0, 10), (0, 7))]
    assert given("full", 2, second, 10) == {"q1": (3, 1.6), "q2": (2, 2.5)}
    # Round 3: one more used of each, 3 saved. After the second round, both thresholds fall once more.
    third = [
        known(0, (1, 0), (0, 0), (0, 0)),
        known(1, (0, 4), (0, 3), (0, 1)),
        known(2, (0, 10), (0, 7), (0, 1)),
    ]
    assert given("full", 3, third, 10) == {"q1": (2, 1.152), "q2": (1, 1.8)}


def test_full_keeps_the_threshold_of_the_saturated_but_for_the_late_factor() -> None:
    questions = [known(0, (1, 0), (0, 0), (0, 0)), known(1, (0, 4), (0, 1), (0, 1)), known(2, *[(1, 0)] * 3)]
    # 12 − 1 − 4 = 7 less q2's 1: 6 given, 1 grown; then 5 less 1: … q1 is unsaturated after rounds 1 and 2.
    assert given("full", 1, [known(0, (1, 0)), known(1, (0, 4)), known(2, (1, 0))], 4) == {"q1": (6, 2.5)}
    assert given("full", 3, questions, 4)["q1"][1] == pytest.approx(2.5 * 0.8 * 0.8 * 0.9, abs=1e-4)
    always = [known(0, (1, 0), (0, 0), (0, 0)), known(1, (0, 8), (0, 7), (0, 0))]
    assert given("full", 2, [known(0, (1, 0), (0, 0)), known(1, (0, 8), (0, 7))], 8) == {}  # all is used
    assert given("full", 3, always, 8) == {}


def test_full_stops_once_every_answer_is_met_and_needs_to_know_them() -> None:
    assert given("full", 1, [known(0, (1, 0)), known(1, (1, 3))], 4) == {}
    with pytest.raises(UsageError, match=r"q1 has none.*mode adapt"):
        given("full", 0, [known(0), known(1, answer=None)], 4)


def test_what_is_saved_is_divided_evenly() -> None:
    assert divided(7, [True, False, True, True], None) == [3, 0, 2, 2]
    assert divided(7, [False, True], 5) == [0, 5]
    assert divided(1, [True, True], None) == [1, 1]


def test_trees_of_all_rounds_have_streams_and_numbers_of_their_own() -> None:
    """Sequences grown 3, 3, 2 and 4 of 4: what the later rounds give out must not repeat a tree of the first."""
    first = [known(i) for i in range(4)]
    second = [known(0, (0, 3)), known(1, (0, 3)), known(2, (0, 2)), known(3, (0, 4))]
    third = [
        known(0, (0, 3), (0, 1)),
        known(1, (0, 3), (0, 1)),
        known(2, (0, 2), (0, 0)),
        known(3, (0, 4), (0, 1)),
    ]
    seeds: list[int] = []
    for number, questions in enumerate((first, second, third)):
        groups = [u.groups[0] for u in Eager("full").next_round(number, questions, Settings(samples=4))]
        assert groups, "the case shows nothing"
        assert all(g.first_draw == int(q.outcomes.sum()) for g, q in zip(groups, questions, strict=False))
        seeds += [g.seed for g in groups]
    assert len(seeds) == len(set(seeds))


def test_the_streams_of_a_question_do_not_hang_on_which_others_are_alive() -> None:
    alive = Eager("init").next_round(0, [known(0), known(2)], Settings(samples=4))
    assert [u.groups[0].seed for u in alive] == [0, 2]


def test_theta_auto_is_read_off_the_first_ten_base_paths() -> None:
    questions = [known(i, peak=float(i)) for i in range(12)]
    [unit, *_] = Eager(theta="auto").next_round(0, questions, Settings(samples=4))
    assert unit.groups[0].theta == pytest.approx(np.percentile(np.arange(10), 99))


# --- whole runs

QUESTIONS = fpa.load_questions("demo", limit=4)
SETTINGS = Settings(strategy="eager", samples=6, base_tokens=40, rollout_tokens=40, keep_ids=True)


def settings_of(mode: str, theta: float = 1.5) -> Settings:
    return replace(SETTINGS, options={"mode": mode, "theta": theta})


@pytest.mark.parametrize("mode", ["init", "adapt", "full"])
def test_a_run_keeps_to_its_budget_and_tells_who_comes_from_whom(mode: str, tmp_path: Path) -> None:
    summary = collect(settings_of(mode), FakeEngine(), QUESTIONS, tmp_path)
    run = open_run(tmp_path)
    total = 0
    for question_id in run.collected_ids:
        rows = run.rollouts(question_id).set_index("draw")
        assert rows.index.is_unique
        assert rows.loc[0, "start"] == 0
        total += len(rows)
        for _, row in rows[rows["parent"].notna()].iterrows():
            parent, shared = rows.loc[int(row["parent"])], int(row["shared"])
            assert list(row["token_ids"][:shared]) == list(parent["token_ids"][:shared])
            assert row["n_tokens"] == len(row["token_ids"]) - shared
            assert row["seed"] == parent["seed"]
    assert total == summary.spent.continuations <= 6 * 4 + 4
    assert total > 4  # the fake model is unsure somewhere


def test_later_rounds_add_sequences(tmp_path: Path) -> None:
    """With few sequences allowed, unsure questions reach the limit and others leave something."""
    counts = {}
    for mode in ("init", "adapt"):
        collect(settings_of(mode), FakeEngine(), QUESTIONS, tmp_path / mode)
        run = open_run(tmp_path / mode)
        counts[mode] = {q: len(run.rollouts(q)) for q in run.collected_ids}
    saved = 24 - sum(counts["init"].values())
    full = [q for q, n in counts["init"].items() if n == 6]
    assert saved > 0, "the case shows nothing"
    assert full, "the case shows nothing"
    assert {q for q in counts["init"] if counts["adapt"][q] > counts["init"][q]} == set(full)


class Dies(FakeEngine):
    """A fake engine that is interrupted after so many readings."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        self.after -= 1
        if self.after < 0:
            raise KeyboardInterrupt
        return super().next_distributions(prefixes, attention, temperature=temperature, entropies=entropies)


@pytest.mark.parametrize("mode", ["adapt", "full"])
@pytest.mark.parametrize("after", [5, 50, 75, 95])
def test_resumes_in_the_middle_of_a_round(mode: str, after: int, tmp_path: Path) -> None:
    collect(settings_of(mode), FakeEngine(), QUESTIONS, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        collect(settings_of(mode), Dies(after), QUESTIONS, tmp_path / "cut")
    collect(settings_of(mode), FakeEngine(), QUESTIONS, tmp_path / "cut")
    parts = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "rollouts").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "cut" / "rollouts").iterdir()} == parts


class FailsOnce(FakeEngine):
    """A fake engine that fails on the second question's base path."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = 0

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        self.paths += 1
        if self.paths == 2:
            raise EngineError("this time it fails")
        return super().greedy(prompt_ids, max_tokens, temperature)


@pytest.mark.parametrize("theta", [1.5, "auto"])
@pytest.mark.parametrize("mode", ["adapt", "full"])
def test_what_all_questions_share_waits_for_one_that_failed(
    mode: str, theta: float | str, tmp_path: Path
) -> None:
    """Resumed, the run is the same as one in which nothing failed: its budget too."""
    settings = replace(SETTINGS, options={"mode": mode, "theta": theta})
    collect(settings, FakeEngine(), QUESTIONS, tmp_path / "whole")
    assert collect(settings, FailsOnce(), QUESTIONS, tmp_path / "cut").failures
    names = [p.name for p in (tmp_path / "cut" / "rollouts").iterdir()]
    assert len(names) == (0 if theta == "auto" else 3)  # the others' first round
    assert not collect(settings, FakeEngine(), QUESTIONS, tmp_path / "cut").failures
    parts = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "rollouts").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "cut" / "rollouts").iterdir()} == parts


def test_what_wants_a_curve_refuses_the_run_in_one_line_and_the_explorer_shows_it(tmp_path: Path) -> None:
    collect(settings_of("init"), FakeEngine(), QUESTIONS, tmp_path / "run")
    run = str(tmp_path / "run")
    for command in (["smooth"], ["forks"], ["score"], ["check"]):
        result = CliRunner().invoke(app, [*command, run])
        assert isinstance(result.exception, UsageError), result.output
        assert "no curve over positions; fpa pass" in str(result.exception)
    assert CliRunner().invoke(app, ["explore", run, "--out", str(tmp_path / "site")]).exit_code == 0
    assert CliRunner().invoke(app, ["pass", run]).exit_code == 0


@pytest.mark.parametrize("mode", ["init", "adapt", "full"])
def test_the_plan_counts_sequences_at_most(mode: str) -> None:
    found = plan(settings_of(mode), FakeEngine(), QUESTIONS)
    assert (found.positions, found.continuations) == (4, 24)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "half"}, "mode"),
        ({"theta": -0.1}, "theta"),
        ({"theta": math.nan}, "theta"),
        ({"theta": "much"}, "theta"),
        ({"theta": True}, "theta"),
        ({"theta": 3.0}, "theta"),
        ({"theta": 1e9}, "theta"),
        ({"width": 3}, "width"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        strategy("eager", options)


def test_an_engine_that_cannot_be_read_token_by_token_is_refused() -> None:
    plain = type("Plain", (), {"info": FakeEngine().info})()
    with pytest.raises(UsageError, match="token by token"):
        Eager().sampler(plain, Settings())  # type: ignore[arg-type]


def test_the_published_numbers_are_the_commands_defaults(tmp_path: Path) -> None:
    asked = ["collect", "--engine", "fake", "--model", "m", "--strategy", "eager", "--limit", "1"]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    config = open_run(tmp_path / "r").config
    assert (config["samples"], config["temperature"]) == (32, 0.6)


def test_answered_questions_only_for_full(tmp_path: Path) -> None:
    [first, *rest] = QUESTIONS.questions
    mixed = QuestionSet("mixed", (replace(first, answer=None), *rest), "mixed")
    with pytest.raises(UsageError, match="needs every question's right answer"):
        collect(settings_of("full"), FakeEngine(), mixed, tmp_path)
