from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from smoothing import Observations
from smoothing.bayes import FLAT, fit_bayes


def by_enumeration(
    counts: np.ndarray, hazard: np.ndarray, concentration: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Posterior mean, standard deviation and change probabilities by listing all 2^(n-1) segmentations."""
    n, width = counts.shape
    pooled = counts.sum(axis=0)
    base = concentration * ((1 - FLAT) * (pooled + 1 / width) / (pooled.sum() + 1) + FLAT / width)
    total, mean, square, change = 0.0, np.zeros((n, width)), np.zeros((n, width)), np.zeros(n)
    for size in range(n):
        for cuts in combinations(range(1, n), size):
            weight = np.prod([hazard[i] if i in cuts else 1 - hazard[i] for i in range(1, n)])
            here, here_square = np.zeros((n, width)), np.zeros((n, width))
            for s, e in zip((0, *cuts), (*cuts, n), strict=True):
                a = base + counts[s:e].sum(axis=0)
                weight *= np.exp(
                    gammaln(a).sum() - gammaln(a.sum()) - gammaln(base).sum() + gammaln(base.sum())
                )
                here[s:e] = a / a.sum()
                here_square[s:e] = a * (a + 1) / (a.sum() * (a.sum() + 1))
            total += weight
            mean += weight * here
            square += weight * here_square
            change[list(cuts)] += weight
    mean, square = mean / total, square / total
    return mean, np.sqrt(square - mean**2), change / total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [True, False])
def test_equals_the_sum_over_all_segmentations(seed: int, known: bool) -> None:
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.dirichlet([1, 1, 1], 3), 3, axis=0)
    counts = np.array([rng.multinomial(rng.integers(1, 9), level) for level in levels])
    p = rng.uniform(0.2, 1, 9) if known else None
    fitted = fit_bayes(
        Observations.from_counts(range(9), counts, step_p=p), {"changes": 2.0, "concentration": 1.5}
    )
    width = 1 - p[:-1] if p is not None else np.ones(8)
    hazard = np.concatenate([[1.0], 1 - np.exp(-2.0 * width / width.sum())])
    mean, sd, change = by_enumeration(counts, hazard, 1.5)
    np.testing.assert_allclose(fitted.mean, mean, atol=1e-7)
    np.testing.assert_allclose(fitted.sd, sd, atol=1e-6)
    np.testing.assert_allclose(fitted.change, change, atol=1e-7)


def test_joint_draws_have_the_exact_moments() -> None:
    rng = np.random.default_rng(1)
    counts = np.vstack([rng.multinomial(8, [0.8, 0.1, 0.1], 6), rng.multinomial(8, [0.2, 0.7, 0.1], 6)])
    fitted = fit_bayes(Observations.from_counts(range(12), counts))
    curves = fitted.sample_observed(4000, seed=2)
    # Five standard errors of a mean over 4000 draws.
    assert (np.abs(curves.mean(axis=0) - fitted.mean) < 5 * fitted.sd / np.sqrt(4000) + 1e-6).all()
    np.testing.assert_allclose(curves.std(axis=0), fitted.sd, rtol=0.12, atol=1e-3)


def test_a_clear_change_is_found_where_the_model_was_unsure() -> None:
    p = np.full(20, 0.999)
    p[9] = 0.3
    counts = np.array([[9, 1]] * 10 + [[1, 9]] * 10)
    fitted = fit_bayes(Observations.from_counts(range(20), counts, step_p=p))
    assert fitted.breakpoints == [10, 20]
    assert fitted.change[10] > 0.99
    assert fitted.change_probability(0.5)[10] > 0.95
    assert fitted.change_probability(0.95)[10] < 0.05


def test_unobserved_positions_share_the_change_in_proportion_to_uncertainty() -> None:
    p = np.array([0.9, 0.5, 1.0, 0.6, 0.9])
    fitted = fit_bayes(Observations.from_counts([0, 4], [[20, 0], [0, 20]], grid=range(5), step_p=p))
    curve = fitted.predict(range(5))[:, 0]
    steps = -np.diff(curve) / (curve[0] - curve[-1])
    np.testing.assert_allclose(steps, (1 - p[:4]) / (1 - p[:4]).sum(), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_counts_give_a_curve_on_the_simplex_inside_its_band(data: st.DataObject) -> None:
    n, width = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    counts = [[data.draw(st.integers(0, 5)) for _ in range(width)] for _ in range(n)]
    fitted = fit_bayes(Observations.from_counts(range(0, 3 * n, 3), counts))
    where = np.arange(-2, 3 * n + 2)
    curve = fitted.predict(where)
    low, high = fitted.band(where, 0.9)
    assert np.allclose(curve.sum(axis=1), 1)
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    assert (low >= 0).all()
    assert (low <= high).all()
    assert (high <= 1).all()
    assert ((fitted.change >= 0) & (fitted.change <= 1)).all()


def test_divergence_draws_alone_are_refused() -> None:
    only = Observations.from_counts(
        [], np.zeros((0, 2), int), ("A", "B"), grid=[0, 1], divergence=[[1, 0], [0, 1]]
    )
    with pytest.raises(ValueError, match="use auto"):
        fit_bayes(only)
