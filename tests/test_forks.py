"""Forking points: found, compared, and the survival view."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoothing.forks import Alternates, ForkScore, find_forks, match_forks, score_forks, survival

places = st.lists(st.integers(0, 40), max_size=8, unique=True).map(sorted)


class TestMatching:
    @given(places, places, st.integers(0, 3))
    def test_counts_are_those_of_the_definition(self, found: list[int], true: list[int], within: int) -> None:
        score = match_forks(found, true, within)
        assert score.found == len(found)
        assert score.reference == len(true)
        assert score.right == sum(any(abs(a - b) <= within for b in true) for a in found)
        assert score.recalled == sum(any(abs(a - b) <= within for a in found) for b in true)

    @given(places)
    def test_a_perfect_match(self, forks: list[int]) -> None:
        score = match_forks(forks, forks)
        if forks:
            assert score.precision == score.recall == score.f1 == 1
        else:
            assert np.isnan([score.precision, score.recall, score.f1]).all()

    def test_scores_add_up_over_questions(self) -> None:
        total = ForkScore(2, 1, 4, 1) + ForkScore(0, 0, 1, 0)
        assert total == ForkScore(2, 1, 5, 1)
        assert total.precision == 0.5
        assert total.recall == 0.2
        assert total.f1 == pytest.approx(2 / 7)

    def test_one_side_without_forks(self) -> None:
        assert match_forks([3], []).f1 == 0
        assert match_forks([], [3]).f1 == 0

    def test_curves_are_compared_at_the_threshold(self) -> None:
        step = np.array([[1, 0]] * 5 + [[0.7, 0.3]] * 5)
        late = np.array([[1, 0]] * 6 + [[0.7, 0.3]] * 4)
        assert score_forks(late, step, 0.2).f1 == 1
        assert score_forks(late, step, 0.2, within=0).f1 == 0
        assert np.isnan(score_forks(late, step, 0.35).f1)


class TestFinding:
    def test_forks_lie_between_the_segments_they_part(self) -> None:
        curve = np.array([[1, 0], [1, 0], [0.5, 0.5], [0.5, 0.5], [0, 1]])
        first, second = find_forks(curve, [0, 4, 9, 12, 20], 0.2, [0, 0.1, 0.9, 0.2, 0.8])
        assert (first.position, first.previous, first.tv, first.p_change) == (9, 4, 0.5, 0.9)
        assert (first.segment_start, first.segment_end) == (0, 12)
        assert (second.position, second.segment_start, second.segment_end) == (20, 9, 20)
        assert second.before.tolist() == [0.5, 0.5]
        assert second.after.tolist() == [0, 1]

    @given(st.integers(1, 30), st.floats(0, 0.9), st.integers(0, 1000))
    def test_every_larger_step_is_a_fork_and_no_other(self, length: int, threshold: float, seed: int) -> None:
        curve = np.random.default_rng(seed).dirichlet([0.5] * 3, size=length)
        step = np.abs(np.diff(curve, axis=0)).sum(axis=1) / 2
        forks = find_forks(curve, np.arange(length), threshold)
        assert [f.position for f in forks] == (np.flatnonzero(step > threshold) + 1).tolist()
        assert all(np.isnan(f.p_change) for f in forks)

    def test_bad_input_is_named(self) -> None:
        with pytest.raises(ValueError, match="grid"):
            find_forks([[1, 0]], [0, 1])
        with pytest.raises(ValueError, match="threshold"):
            find_forks([[1, 0]], [0], threshold=1.0)


class TestSurvival:
    def test_the_worked_example(self) -> None:
        calm = Alternates(0, np.array([0.4]), np.array([[0.9, 0.1]]), np.array([1.0, 0.0]))
        two = Alternates(2, np.array([0.3, 0.1]), np.array([[0, 1.0], [0.8, 0.2]]), np.array([1.0, 0.0]))
        last = Alternates(3, np.array([0.5]), np.array([[0, 1.0]]), np.array([1.0, 0.0]))
        assert survival(5, [calm, two, last]).tolist() == pytest.approx([1, 1, 0.7, 0.35, 0.35])
        assert survival(5, [calm, two, last], threshold=0.05).tolist() == pytest.approx(
            [0.6, 0.6, 0.36, 0.18, 0.18]
        )

    def test_distances_differ(self) -> None:
        here = Alternates(0, np.array([0.5]), np.array([[0.5, 0.5]]), np.array([1.0, 0.0]))
        assert survival(1, [here], threshold=0.6).tolist() == [0.5]  # Euclidean distance 0.71
        assert survival(1, [here], threshold=0.6, distance="tv").tolist() == [1.0]  # total variation 0.5
        with pytest.raises(ValueError, match="l2 or tv"):
            survival(1, [here], distance="kl")

    @given(st.integers(0, 10_000))
    def test_it_falls_from_one_and_sooner_for_smaller_changes(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        alternates = []
        for t in range(8):
            p = rng.dirichlet([1.0] * 4)
            alternates.append(
                Alternates(t, p[:3], rng.dirichlet([0.5] * 3, size=3), rng.dirichlet([0.5] * 3))
            )
        found = [survival(10, alternates, threshold) for threshold in (0.2, 0.6, 1.5)]
        for curve in found:
            assert ((curve >= 0) & (curve <= 1)).all()
            assert (np.diff(curve) <= 0).all()
        assert (found[0] <= found[1] + 1e-12).all()
        assert found[2].tolist() == [1.0] * 10
