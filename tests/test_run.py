"""Reading a run: counts, curves and observations, whatever it was collected by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpa.draws import UNKNOWN, Draws, Rows, mixture, weights
from fpa.errors import FpaError, UsageError
from fpa.records import Answer, BasePath, Distribution, Question, Rollout
from fpa.run import Run, open_run
from fpa.store import RunWriter, unit_name

LENGTH = 12
P = np.linspace(0.4, 0.95, LENGTH)
CATEGORIES = ("A", "B", "C", "Other")


def base(question_id: str = "q", finish_reason: str = "stop", answer: str = "B") -> BasePath:
    """Tokens 100, 101, … with probabilities ``P``; the alternative at each is token 7."""
    return BasePath(
        question_id,
        tuple(range(100, 100 + LENGTH)),
        tuple(f" w{i}" for i in range(LENGTH)),
        tuple(
            Distribution(np.array([100 + t, 7], np.int32), np.array([P[t], 1 - P[t]]), 0.0, 0.1, 0.1)
            for t in range(LENGTH)
        ),
        tuple(t // 4 for t in range(LENGTH)),
        finish_reason,
        Answer(answer, "parsed"),
    )


def draw(start: int, i: int, rng: np.random.Generator, **other: object) -> Rollout:
    at = int(rng.integers(start, LENGTH + 2))
    diverge = None if at > LENGTH else at
    fields = {
        "first_token": None, "first_token_p": None, "seed": 1000 * start + i, "diverge_at": diverge,
        "outcome": CATEGORIES[rng.integers(4)], **other,
    }  # fmt: skip
    return Rollout("q", start, i, status="parsed", n_tokens=i, finish_reason="stop", **fields)  # type: ignore[arg-type]


def make(
    path: Path,
    rows: dict[tuple[int, str], list[Rollout]],
    path_base: BasePath | None = None,
    **config: object,
) -> Run:
    with RunWriter.open(path, config, engine={"fingerprint": "f"}, questions_fingerprint="") as writer:
        writer.put_question(Question("q", "?", ("x", "y", "z")), None)
        writer.put_base(path_base or base())
        for (start, suffix), part in rows.items():
            writer.put_rollouts(unit_name("q", start, suffix), part)
    return open_run(path)


@pytest.fixture
def grid(tmp_path: Path) -> Run:
    """20 free draws at every second position, in two parts each, the later draws stored first."""
    rng = np.random.default_rng(3)
    rows = {}
    for start in range(0, LENGTH, 2):
        drawn = [draw(start, i, rng) for i in range(20)]
        rows[start, "a"], rows[start, "b"] = drawn[12:], drawn[:12]
    return make(tmp_path / "grid", rows)


class TestGrid:
    def test_counts_are_those_of_the_rows(self, grid: Run) -> None:
        positions, counts, categories = grid.counts("q")
        table = grid.rollouts("q")
        assert categories == CATEGORIES
        assert positions.tolist() == list(range(0, LENGTH, 2))
        for t, row in zip(positions, counts, strict=True):
            outcome = table[table["start"] == t]["outcome"]
            assert row.tolist() == [(outcome == c).sum() for c in categories]
        at, curve, _ = grid.curve("q")
        assert at.tolist() == positions.tolist()
        assert np.allclose(curve, counts / 20)
        assert sum(grid.statuses("q").values()) == len(table)

    def test_draws_are_in_draw_order_across_parts(self, grid: Run) -> None:
        draws = grid.draws("q")
        assert (draws.tokens == np.arange(20)).all()
        assert (draws.identity == 1000 * draws.positions[:, None] + np.arange(20)).all()
        assert draws.available == 20

    @pytest.mark.parametrize(
        ("samples", "every", "replicate"), [(5, 1, 0), (5, 3, 3), (20, 2, 0), (None, 2, 0)]
    )
    def test_observations_are_the_draws_asked_for(
        self, grid: Run, samples: int | None, every: int, replicate: int
    ) -> None:
        observed = grid.observations("q", samples, every, replicate)
        table = grid.rollouts("q").sort_values(["start", "draw"])
        first = 0 if samples is None else samples * replicate
        wanted = table[(table["draw"] >= first) & (table["draw"] < first + (samples or 20))]
        positions = np.unique(table["start"])[::every]
        assert observed.positions.tolist() == positions.tolist()
        assert observed.draws is not None
        for t, row in zip(positions, observed.draws, strict=True):
            assert [CATEGORIES[k] for k in row] == wanted[wanted["start"] == t]["outcome"].tolist()
        assert observed.grid.tolist() == list(range(LENGTH))
        assert observed.base_outcome == 1

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            ({"samples": 21}, "draws 0 to 20"),
            ({"samples": 5, "replicate": 4}, "draws 20 to 24.*only 20"),
            ({"samples": 0}, "at least 1"),
            ({"every": 0}, "at least 1"),
            ({"replicate": 1}, "give samples too"),
        ],
    )
    def test_draws_that_are_not_there_are_refused(self, grid: Run, asked: dict, says: str) -> None:
        with pytest.raises(UsageError, match=says) as refused:
            grid.observations("q", **asked)
        assert "\n" not in str(refused.value)

    def test_replicates_share_no_draw(self, grid: Run) -> None:
        seen = [set(grid.draws("q").select(6, 1, r).identity[2]) for r in range(3)]
        assert len(set.union(*seen)) == 18

    def test_steps_and_divergence_on_any_grid(self, grid: Run) -> None:
        table = grid.rollouts("q")
        for name, places in (("token", np.arange(LENGTH)), ("sampled", np.arange(0, LENGTH, 2))):
            observed = grid.observations("q", grid=name)  # type: ignore[arg-type]
            ends = [*places[1:], LENGTH]
            steps = [np.prod(P[a:b]) for a, b in zip(places, ends, strict=True)]
            cells = [
                [
                    ((table["diverge_at"] >= a) & (table["diverge_at"] < b) & (table["outcome"] == c)).sum()
                    for c in CATEGORIES
                ]
                for a, b in zip(places, ends, strict=True)
            ]
            assert observed.step_p is not None
            assert np.allclose(observed.step_p, steps, rtol=1e-12)
            assert observed.divergence is not None
            assert observed.divergence.tolist() == cells

    def test_a_base_path_cut_off_has_no_answer_yet(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(1)
        run = make(tmp_path / "cut", {(0, ""): [draw(0, 0, rng)]}, base(finish_reason="length"))
        assert run.observations("q").base_outcome is None

    def test_unknown_steps_are_not_guessed(self, tmp_path: Path) -> None:
        known = base()
        blank = Distribution(np.zeros(0, np.int32), np.zeros(0), np.nan, np.nan, np.nan)
        path_base = replace(known, distributions=(*known.distributions[:5], blank, *known.distributions[6:]))
        run = make(tmp_path / "run", {(0, ""): [draw(0, 0, np.random.default_rng(1))]}, path_base)
        assert run.observations("q").step_p is None
        assert run.draws("q").default_grid().tolist() == [0]

    def test_an_outcome_that_the_question_has_not_is_told(self, tmp_path: Path) -> None:
        run = make(tmp_path / "run", {(0, ""): [draw(0, 0, np.random.default_rng(1), outcome="E")]})
        with pytest.raises(FpaError, match="'E'"):
            run.counts("q")

    def test_what_is_not_there_is_named(self, grid: Run, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no question 'x'; it has: q"):
            grid.rollouts("x")
        with RunWriter.open(tmp_path / "new", {}, engine=None, questions_fingerprint="") as writer:
            writer.put_question(Question("q", "?", ("x", "y")), None)
        fresh = open_run(tmp_path / "new")
        assert len(fresh.rollouts("q")) == 0
        assert fresh.collected_ids == ()
        with pytest.raises(UsageError, match="no base path yet"):
            fresh.observations("q")

    def test_two_runs_of_one_model_know_their_common_draws(self, grid: Run, tmp_path: Path) -> None:
        rows = {(0, ""): [draw(0, i, np.random.default_rng(i)) for i in range(15, 25)]}
        other = make(tmp_path / "other", rows)
        left = other.draws("q").without(grid.draws("q"))
        assert other.same_streams(grid)
        assert (left.outcomes >= 0).sum() == 5
        assert left.identity[left.outcomes >= 0].tolist() == [20, 21, 22, 23, 24]
        assert left.generated_tokens == sum(range(20, 25))


class TestForced:
    def test_draws_with_the_base_token_excluded_are_divergences(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(5)
        free = [draw(0, i, rng) for i in range(4)]
        tied = [
            draw(u, i, rng, first_token=7, first_token_p=0.3, diverge_at=u) for u in (0, 3) for i in range(6)
        ]
        run = make(tmp_path / "run", {(0, "grid"): free, (0, "x"): tied[:6], (3, "x"): tied[6:]})
        observed = run.observations("q")
        assert observed.positions.tolist() == [0]
        assert observed.counts.sum() == 4
        assert observed.divergence is not None
        for u in (0, 3):
            own = [r for r in tied if r.start == u] + [r for r in free if r.diverge_at == u]
            assert observed.divergence[u].tolist() == [sum(r.outcome == c for r in own) for c in CATEGORIES]
        assert run.draws("q").continuations == 16
        assert run.draws("q").generated_tokens == sum(r.n_tokens for r in free + tied)
        with pytest.raises(UsageError, match="cannot be sub-sampled"):
            run.observations("q", samples=2)
        assert run.curve("q")[0].tolist() == [0]

    def test_a_run_of_nothing_else_has_no_sampled_position(self, tmp_path: Path) -> None:
        tied = [
            draw(3, i, np.random.default_rng(1), first_token=7, first_token_p=0.3, diverge_at=3)
            for i in range(5)
        ]
        run = make(tmp_path / "run", {(3, ""): tied})
        observed = run.observations("q")
        assert len(observed.positions) == 0
        assert observed.divergence is not None
        assert observed.divergence.sum() == 5
        with pytest.raises(UsageError, match="grid of tokens"):
            run.observations("q", grid="sampled")


def branch(token: int, p: float, outcomes: str, first: int = 0) -> Rows:
    n = len(outcomes)
    whole = np.full(n, 0)
    return Rows(
        whole, np.arange(n), np.full(n, token), np.full(n, p), np.array([int(c) for c in outcomes]), whole,
        whole, first + np.arange(n),
    )  # fmt: skip


class TestBranches:
    def test_the_curve_weighs_branches_and_draws_are_mixed(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(2)
        shares = {100: (0.6, "A"), 7: (0.2, "B"), 9: (0.1, "C")}
        rows = [
            draw(
                0,
                i,
                rng,
                first_token=w,
                first_token_p=p,
                outcome=o,
                seed=1000 * w + i,
                diverge_at=None if w == 100 else 0,
            )
            for w, (p, o) in shares.items()
            for i in range(60)
        ]
        run = make(tmp_path / "run", {(0, ""): rows})
        _, curve, _ = run.curve("q")
        assert np.allclose(curve, [[6 / 9, 2 / 9, 1 / 9, 0]])
        draws = run.draws("q")
        assert draws.outcomes.shape == (1, 60)
        # A mixture draw is of branch w with probability p: within 4 standard deviations over 60 draws.
        share = draws.counts()[0] / 60
        assert (np.abs(share - curve[0]) <= 4 * np.sqrt(curve[0] * (1 - curve[0]) / 60)).all()
        for w in shares:  # each branch's draws are taken in turn
            own = draws.identity[0][draws.identity[0] // 1000 == w]
            assert own.tolist() == [1000 * w + i for i in range(len(own))]
        assert draws.step_p[0] == pytest.approx(6 / 9)
        assert draws.step_p[1] == P[1]
        assert open_run(run.path).draws("q").outcomes.tolist() == draws.outcomes.tolist()

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 12)), min_size=1, max_size=5),
        st.integers(0, 99),
    )
    def test_no_draw_is_used_twice(self, shapes: list[tuple[float, int]], seed: int) -> None:
        branches = [branch(w, p, str(w) * n, 100 * w) for w, (p, n) in enumerate(shapes)]
        mixed = mixture(branches, np.random.default_rng(seed))
        assert len(mixed) == max(n for _, n in shapes)
        assert len(set(mixed.identity.tolist())) == len(mixed)
        assert (mixed.identity // 100 == mixed.token).all()
        assert np.isclose(weights(branches).sum(), 1)

    def test_an_exhausted_branch_is_replaced_by_the_same_stream(self) -> None:
        branches = [branch(0, 0.9, "0"), branch(1, 0.05, "1" * 30, 100), branch(2, 0.05, "2" * 30, 200)]
        rng, p, used = np.random.default_rng(8), np.array([0.9, 0.05, 0.05]), [0, 0, 0]
        expected = []
        for pick in rng.choice(3, size=30, p=p):
            if used[pick] == (1, 30, 30)[pick]:
                others = [w for w in range(3) if used[w] < (1, 30, 30)[w]]
                pick = rng.choice(others, p=p[others] / p[others].sum())
            expected.append(100 * pick + used[pick])
            used[pick] += 1
        assert mixture(branches, np.random.default_rng(8)).identity.tolist() == expected

    def test_divergence_is_left_out_where_a_store_does_not_tell_it(self, tmp_path: Path) -> None:
        rows = {(0, ""): [draw(0, i, np.random.default_rng(i)) for i in range(3)]}
        run = make(tmp_path / "run", rows, divergence_recorded=False)
        assert (run.draws("q").diverge_at == UNKNOWN).all()
        assert run.observations("q").divergence is None


def test_merging_categories_keeps_every_draw() -> None:
    rng = np.random.default_rng(0)
    draws = Draws(
        np.array([0, 2]), rng.integers(-1, 4, (2, 9)), np.zeros((2, 9), int), np.zeros((2, 9), int),
        np.zeros((2, 9), int), np.array([[1, 0], [1, 3]]), 0, CATEGORIES, 4, np.ones(4), 3,
    )  # fmt: skip
    merged = draws.merged(np.array([1, 0, 1, 1]), ("B", "Other"))
    counts = draws.counts()
    assert (
        merged.counts().tolist()
        == np.stack([counts[:, 1], counts[:, [0, 2, 3]].sum(axis=1)], axis=1).tolist()
    )
    assert merged.forced.tolist() == [[1, 1], [1, 1]]
    assert merged.base_outcome == 1
