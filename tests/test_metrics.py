"""Measures of a curve, against their definitions and against simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta

from smoothing.metrics import (
    ErrorShare,
    average_precision,
    coverage,
    effective_samples,
    error_share,
    heldout_loglik,
    jump_region,
    jumps,
    merge_rare,
    merged,
    multiplier,
    predictive_coverage,
    total_variation,
)

curves = arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.floats(0.01, 1)).map(
    lambda a: a / a.sum(axis=1, keepdims=True)
)


class TestDistances:
    @given(curves)
    def test_total_variation_is_a_distance(self, p: np.ndarray) -> None:
        q = p[::-1]
        assert np.allclose(total_variation(p, p), 0)
        assert np.allclose(total_variation(p, q), total_variation(q, p))
        assert (total_variation(p, q) <= 1 + 1e-12).all()
        assert total_variation([[1, 0], [0.5, 0.5]], [[0, 1], [0.5, 0.5]]).tolist() == [1, 0]

    def test_jumps_are_located_at_the_later_position(self) -> None:
        curve = [[1, 0], [1, 0], [0.8, 0.2], [0.5, 0.5], [0.5, 0.5]]
        assert jumps(curve, 0.15).tolist() == [2, 3]
        assert jumps(curve, 0.25).tolist() == [3]
        assert jumps(curve, 0.5).tolist() == []
        assert jumps([[1, 0]], 0.1).tolist() == []

    @given(
        st.lists(st.integers(0, 200), min_size=1, max_size=20, unique=True).map(sorted),
        st.data(),
        st.integers(0, 15),
        st.integers(0, 2),
    )
    def test_the_region_of_jumps(self, grid: list[int], data: st.DataObject, reach: int, near: int) -> None:
        at = data.draw(st.lists(st.integers(0, len(grid) - 1), max_size=4))
        expected = [
            any(abs(t - grid[j]) <= reach or abs(i - j) <= near for j in at) for i, t in enumerate(grid)
        ]
        assert jump_region(grid, at, reach, near).tolist() == expected


class TestMerging:
    def test_rare_categories_join_the_last(self) -> None:
        kept, column = merge_rare([[0.5, 0.009, 0.491, 0.0], [0.5, 0.0, 0.49, 0.01]])
        assert kept.tolist() == [0, 2, 3]
        assert column.tolist() == [0, 2, 1, 2]
        assert np.allclose(merged([[0.5, 0.009, 0.491, 0.0]], column), [[0.5, 0.491, 0.009]])

    def test_the_last_category_stays_even_where_it_never_occurs(self) -> None:
        kept, column = merge_rare([[1.0, 0.0]])
        assert kept.tolist() == [0, 1]
        assert column.tolist() == [0, 1]

    @given(curves, st.floats(0, 1))
    def test_merging_moves_no_mass(self, curve: np.ndarray, level: float) -> None:
        kept, column = merge_rare(curve, level)
        assert np.allclose(merged(curve, column).sum(axis=1), 1)
        assert merged(curve, column).shape[1] == len(kept)


class TestLikelihood:
    def test_it_is_per_draw_floored_and_renormalised(self) -> None:
        assert heldout_loglik([[0.5, 0.5]], [[3, 1]]) == pytest.approx(np.log(0.5))
        floored = np.array([1.0, 1e-9]) / (1 + 1e-9)
        assert heldout_loglik([[1.0, 0.0]], [[3, 1]]) == pytest.approx((np.log(floored) @ [3, 1]) / 4)

    @given(curves)
    def test_the_truth_is_the_best_prediction(self, p: np.ndarray) -> None:
        assert heldout_loglik(p, p) >= heldout_loglik(p[:, ::-1], p) - 1e-12


class TestCoverage:
    def test_ends_count_as_inside(self) -> None:
        assert coverage([[0.1, 0.2]], [[0.3, 0.4]], [[0.1, 0.4]]) == 1
        assert coverage([[0.1, 0.2]], [[0.3, 0.4]], [[0.09, 0.41]]) == 0

    @pytest.mark.parametrize("worth", [10, 50, 200])
    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_a_calibrated_band_scores_its_level(self, worth: int, level: float) -> None:
        # Truth drawn from the very Beta distributions that the band belongs to, references of 170 draws. With
        # 8000 positions the standard error is below 0.006; normal widening costs up to 0.012 at these shapes.
        rng = np.random.default_rng(worth)
        p = np.clip(rng.beta(0.5, 1.0, 8000), 0.005, 0.995)[:, None]
        a, b = p * worth, (1 - p) * worth
        lower, upper = beta.ppf((1 - level) / 2, a, b), beta.ppf((1 + level) / 2, a, b)
        reference = rng.binomial(170, rng.beta(a, b)) / 170
        inside, of = predictive_coverage(p, lower, upper, reference, 170, level)
        assert of == ((reference >= 0.02) & (reference <= 0.98)).sum()
        assert inside / of == pytest.approx(level, abs=0.035)
        narrow, _ = predictive_coverage(p, (lower + p) / 2, (upper + p) / 2, reference, 170, level)
        assert narrow < inside

    def test_without_a_band_only_the_references_noise_is_covered(self) -> None:
        rng = np.random.default_rng(1)
        truth = np.full((20000, 1), 0.3)
        reference = rng.binomial(100, truth) / 100
        inside, of = predictive_coverage(truth, truth, truth, reference, 100)
        # binomial frequencies are discrete: the 90 % interval holds one value of k more or less
        assert inside / of == pytest.approx(0.9, abs=0.035)


class TestEffectiveSamples:
    @pytest.mark.parametrize("size", [5, 30])
    def test_raw_curves_are_worth_their_own_draws(self, size: int) -> None:
        rng = np.random.default_rng(size)
        shares = []
        for _ in range(60):
            truth = rng.dirichlet([0.6] * 4, size=100)
            counts = np.stack([rng.multinomial(150, p) for p in truth])
            raw = np.stack([rng.multinomial(size, p) for p in truth]) / size
            shares.append(error_share(raw, counts))
        estimate, error = effective_samples(shares)
        assert abs(estimate - size) < 4 * error
        assert error < size * 0.1

    def test_the_error_is_free_of_the_references_noise(self) -> None:
        rng = np.random.default_rng(7)
        truth = np.tile([0.2, 0.3, 0.5], (400, 1))
        off = truth + np.array([0.05, -0.02, -0.03])
        few = [error_share(off, np.stack([rng.multinomial(8, p) for p in truth])) for _ in range(60)]
        errors, spreads = np.array([s.error for s in few]), np.array([s.spread for s in few])
        for found, true in (
            (errors, 0.05**2 + 0.02**2 + 0.03**2),
            (spreads, 0.2 * 0.8 + 0.3 * 0.7 + 0.5 * 0.5),
        ):
            assert abs(found.mean() - true) < 4 * found.std() / np.sqrt(len(found))

    def test_the_standard_error_matches_the_spread_over_repetitions(self) -> None:
        rng = np.random.default_rng(3)

        def once() -> tuple[float, float]:
            return effective_samples([ErrorShare(*(rng.gamma(9, 1 / 9, 2) * (0.6, 0.02))) for _ in range(40)])

        runs = np.array([once() for _ in range(300)])
        # the standard deviation of 300 repetitions is itself known to 1/sqrt(600), 4 %
        assert runs[:, 1].mean() == pytest.approx(runs[:, 0].std(), rel=0.2)

    def test_what_cannot_be_told_is_nan(self) -> None:
        assert np.isnan(effective_samples([])).all()
        assert np.isnan(effective_samples([ErrorShare(0.5, -0.001)])).all()
        assert effective_samples([ErrorShare(0.5, 0.05)])[0] == pytest.approx(10)
        assert np.isnan(effective_samples([ErrorShare(0.5, 0.05)])[1])
        with pytest.raises(ValueError, match="at least 2 draws"):
            error_share([[0.5, 0.5]], [[1, 0]])


class TestMultiplier:
    @settings(max_examples=50)
    @given(st.floats(0.05, 2), st.integers(1, 200), st.floats(0.2, 0.8), st.floats(0.3, 20))
    def test_exact_on_a_power_law_inside_and_outside_the_grid(
        self, level: float, size: int, slope: float, times: float
    ) -> None:
        samples = np.array([5, 10, 15, 20, 30, 50, 75, 100])
        tv = level * samples**-slope
        assert multiplier(level * (times * size) ** -slope, size, samples, tv) == pytest.approx(
            times, rel=1e-6
        )

    def test_raw_itself_is_worth_one(self) -> None:
        tv = [0.1, 0.08, 0.05]
        assert [
            multiplier(t, s, [5, 10, 30], tv) for t, s in zip(tv, (5, 10, 30), strict=True)
        ] == pytest.approx([1, 1, 1])

    def test_no_line_no_multiplier(self) -> None:
        assert np.isnan(multiplier(0.1, 5, [5], [0.1]))
        assert np.isnan(multiplier(0.01, 5, [5, 10], [0.1, 0.2]))
        assert np.isnan(multiplier(0.0, 5, [5, 10], [0.2, 0.1]))


class TestAveragePrecision:
    @given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
    def test_it_is_the_sum_over_thresholds(self, pairs: list[tuple[int, bool]]) -> None:
        score, truth = np.array([s for s, _ in pairs]), np.array([y for _, y in pairs])
        expected, recall = 0.0, 0.0
        for level in sorted(set(score.tolist()), reverse=True):
            found = score >= level
            now = (found & truth).sum() / max(truth.sum(), 1)
            expected += (now - recall) * (found & truth).sum() / found.sum()
            recall = now
        got = average_precision(score, truth)
        assert np.isnan(got) if not truth.any() else got == pytest.approx(expected)

    def test_a_perfect_ranking_is_one_and_none_is_the_base_rate(self) -> None:
        assert average_precision([3, 2, 1, 0], [True, True, False, False]) == 1
        assert average_precision([0, 0, 0, 0], [True, False, False, False]) == 0.25
