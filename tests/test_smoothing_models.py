"""raw, kernel, segment and full: the worked cases, the cross-validation written out, and hard input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoothing import FULL_DEFAULTS, Observations, fit
from smoothing.models import BANDWIDTH_GRID, COST_GRID, PENALTY_GRID
from smoothing.tuning import Folds, _direct_score, _kernel_table, choose, segmentations

METHODS = ("raw", "kernel", "segment", "full")
GIVEN: dict[str, dict[str, Any]] = {
    "raw": {"interpolation": "nearest"},
    "kernel": {"bandwidth": 8.0},
    "segment": {"penalty": 2.0},
    "full": dict(FULL_DEFAULTS),
}


def _observations(n: int, size: int, categories: int, seed: int = 0, every: int = 1) -> Observations:
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.dirichlet(np.ones(categories), size=3), (n + 2) // 3, axis=0)[:n]
    draws = np.stack([rng.choice(categories, size=size, p=p) for p in level])
    return Observations.from_draws(np.arange(n) * every, draws, [str(k) for k in range(categories)])


def test_worked_cases(shared: Path) -> None:
    """The hyper-parameters chosen are the published ones, and the curves agree to within 1e-9."""
    with gzip.open(shared / "reference" / "full_model_cases.json.gz") as file:
        cases = json.load(file)
    assert len(cases) == 40
    variants = {"mult": "multinomial", "linear": "logit_linear"}
    for case in cases:
        grid = np.array(case["positions"])
        observed = Observations.from_draws(grid[case["observed"]], case["draws"], case["categories"], grid)
        models = case["models"]
        full = models["M5a_segkernel"]["cv_params"]
        wanted = {
            "M0_raw": ("raw", {"interpolation": models["M0_raw"]["cv_params"]["kind"]}),
            "M1_kernel": ("kernel", {"bandwidth": models["M1_kernel"]["cv_params"]["h"]}),
            "M4_segment": ("segment", {"penalty": models["M4_segment"]["cv_params"]["pen"]}),
            "M5a_segkernel": (
                "full",
                {"cost": variants[full["variant"]], "penalty": full["pen"], "bandwidth": full["h"]},
            ),
        }
        for key, (method, hyperparameters) in wanted.items():
            fitted = fit(observed, method)
            assert fitted.hyperparameters == hyperparameters
            assert np.abs(fitted.predict(grid) - np.array(models[key]["curve"])).max() < 1e-9


def test_scores_are_those_of_direct_sums() -> None:
    observed = _observations(40, 12, 3, seed=4, every=3)
    folds = Folds.of(observed)
    split = segmentations(folds, COST_GRID, PENALTY_GRID)
    table = _kernel_table(folds, split, BANDWIDTH_GRID)
    totals = np.zeros((split.index.shape[1], len(BANDWIDTH_GRID)))
    for f in range(len(folds.held)):
        for d in set(split.index[f].tolist()):
            direct = [_direct_score(folds, split, f, d, h) for h in BANDWIDTH_GRID]
            assert table[f, d] == pytest.approx(direct, abs=1e-9)
        totals += table[f, split.index[f]]
    candidate, width = choose(folds, split, BANDWIDTH_GRID)
    assert totals[candidate, width] >= totals.max() - 1e-8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize(
    ("n", "size", "categories"),
    [(1, 5, 3), (2, 1, 2), (7, 1, 3), (7, 2, 3), (7, 3, 3), (7, 4, 3), (9, 10, 1), (30, 6, 5)],
)
def test_curves_and_bands_are_probabilities(
    method: str, tuned: bool, n: int, size: int, categories: int
) -> None:
    observed = _observations(n, size, categories)
    fitted = fit(observed, method, None if tuned else GIVEN[method])
    query = np.linspace(-500.0, n + 500.0, 97)
    curve = fitted.predict(query)
    assert curve.shape == (97, categories)
    assert np.allclose(curve.sum(axis=1), 1.0, atol=1e-12)
    narrow, wide = fitted.band(query, 0.5), fitted.band(query, 0.99)
    for lower, upper in (narrow, wide):
        assert np.all((lower >= 0) & (lower <= upper) & (upper <= 1))
    assert np.all((wide[0] <= narrow[0]) & (narrow[1] <= wide[1]))
    assert fitted.breakpoints[-1] == n


@pytest.mark.parametrize("method", METHODS)
def test_agreement_and_absent_categories_stay_finite(method: str) -> None:
    observed = Observations.from_draws(np.arange(20), np.ones((20, 30), dtype=int), "ABC")
    fitted = fit(observed, method)
    curve, (lower, upper) = fitted.predict(observed.grid), fitted.band(observed.grid)
    for values in (curve, lower, upper):
        assert np.all((values >= 0) & (values <= 1))
    assert np.all(curve[:, 1] > 0.95)


@pytest.mark.parametrize("method", METHODS)
def test_counts_need_every_hyperparameter(method: str) -> None:
    observed = Observations.from_counts(np.arange(9), np.arange(18).reshape(9, 2))
    assert fit(observed, method, GIVEN[method]).hyperparameters == GIVEN[method]
    if method != "raw":
        with pytest.raises(ValueError, match="cannot cross-validate"):
            fit(observed, method)


def test_missing_draws_decide_the_interpolation() -> None:
    """Where a fold leaves a position without draws, the two interpolations differ, and a step prefers nearest."""
    draws = np.full((5, 5), -1)
    draws[[0, 1]] = 0
    draws[[3, 4]] = 1
    draws[2, 0] = 0
    assert fit(Observations.from_draws([0, 9, 10, 30, 40], draws, "AB"), "raw").hyperparameters == {
        "interpolation": "nearest"
    }


@pytest.mark.parametrize(
    ("method", "hyperparameters", "message"),
    [
        ("spline", {}, "unknown method"),
        ("full", {"beta": 1.0}, "no hyper-parameter"),
        ("full", {"penalty": -1.0}, "at least 0"),
        ("full", {"bandwidth": 0.0}, "above 0"),
        ("kernel", {"bandwidth": np.nan}, "above 0"),
        ("segment", {"penalty": np.inf}, "finite"),
        ("full", {"cost": "l1"}, "unknown cost"),
        ("full", {"cost": object()}, "BaseCost"),
        ("full", {"search": "greedy"}, "unknown search"),
        ("raw", {"interpolation": "cubic"}, "interpolation must be"),
    ],
)
def test_malformed_hyperparameters_are_refused(
    method: str, hyperparameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(_observations(9, 5, 2), method, hyperparameters)


@pytest.mark.parametrize("method", METHODS)
def test_malformed_queries_are_refused(method: str) -> None:
    fitted = fit(_observations(9, 5, 2), method)
    with pytest.raises(ValueError, match="finite"):
        fitted.predict([np.nan])
    for level in (0.0, 1.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="level"):
            fitted.band([1.0], level)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_observed_is_refused(method: str) -> None:
    observed = Observations.from_counts([], [], "AB", grid=[0, 1], divergence=[[1, 2], [0, 3]])
    with pytest.raises(ValueError, match="no position was sampled"):
        fit(observed, method)
