import numpy as np
import pytest
from growth import growth_is_linear
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import World

from smoothing import Observations
from smoothing.auto import fit_auto
from smoothing.bayes import fit_bayes
from smoothing.martingale import fit_martingale
from smoothing.metrics import average_precision
from smoothing.models import fit


def test_beats_every_other_model_where_most_steps_are_still_and_few_jump() -> None:
    rng = np.random.default_rng(4)
    errors = {"auto": 0.0, "martingale": 0.0, "bayes": 0.0, "full": 0.0, "raw": 0.0}
    for _ in range(25):
        world = World.draw(rng)
        observations = world.grid(rng, 10, 2)
        fits = {
            "auto": fit_auto(observations).mean,
            "martingale": fit_martingale(observations).mean,
            "bayes": fit_bayes(observations).predict(observations.grid),
            "full": fit(observations, "full").predict(observations.grid),
            "raw": fit(observations, "raw").predict(observations.grid),
        }
        for name, curve in fits.items():
            errors[name] += float(((curve - world.curve) ** 2).mean())
    for other in ("martingale", "bayes", "full", "raw"):
        assert errors["auto"] < 0.9 * errors[other], (other, errors)


@pytest.mark.parametrize("kind", ["grid", "divergence"])
def test_bands_and_fork_probabilities_are_calibrated(kind: str) -> None:
    rng = np.random.default_rng(8)
    inside = {0.5: [], 0.9: [], 0.95: []}
    claimed, happened = [], []
    for _ in range(40):
        world = World.draw(rng, 80)
        observations = (
            world.grid(rng, 8, 2) if kind == "grid" else world.divergences(rng, rng.integers(0, 8, 80))
        )
        fitted = fit_auto(observations)
        open_ = (world.curve > 0.02) & (world.curve < 0.98)
        for level, found in inside.items():
            low, high = fitted.band(observations.grid, level)
            found.append(((low <= world.curve) & (world.curve <= high))[open_].mean())
        claimed.append(fitted.change_probability(0.1)[1:])
        happened.append(np.abs(np.diff(world.curve, axis=0)).sum(axis=1) / 2 > 0.1)
    for level, found in inside.items():
        # Questions are independent, positions within one are not: the error is that of a mean over questions.
        # The model is close to the story that drew the data, not equal to it: 5 points are allowed on top.
        off = abs(np.mean(found) - level)
        assert off < 0.05 + 3 * np.std(found) / np.sqrt(len(found)), (level, np.mean(found))
    p, y = np.concatenate(claimed), np.concatenate(happened)
    assert abs(p.sum() - y.sum()) < 0.4 * y.sum() + 3 * np.sqrt((p * (1 - p)).sum()), (p.sum(), y.sum())
    assert average_precision(p, y) > 5 * y.mean()


def test_joint_draws_agree_with_the_marginal_posterior() -> None:
    rng = np.random.default_rng(6)
    world = World.draw(rng, 60)
    fitted = fit_auto(world.grid(rng, 10, 3))
    curves = fitted.sample(600, seed=1)
    assert curves.shape == (600, 60, 4)
    assert np.allclose(curves.sum(axis=2), 1)
    # Monte Carlo error, and the sampler's own moment matching.
    assert np.abs(curves.mean(axis=0) - fitted.mean).max() < 0.06
    ratio = curves.std(axis=0)[fitted.sd > 0.02] / fitted.sd[fitted.sd > 0.02]
    assert 0.8 < np.median(ratio) < 1.2
    moved = np.abs(np.diff(curves, axis=1)).sum(axis=2) / 2
    from_draws, exact = (moved > 0.1).mean(axis=0), fitted.change_probability(0.1)[1:]
    # Two approximations of one posterior: the draws step by Dirichlet distributions, the sum by Gaussian ones.
    assert np.abs(from_draws - exact).mean() < 0.03
    assert np.corrcoef(from_draws, exact)[0, 1] > 0.85
    far = fitted.total_variation(0, 59, size=200)
    assert far.shape == (200,)
    assert ((far >= 0) & (far <= 1)).all()
    assert np.array_equal(fitted.sample(5, seed=3), fitted.sample(5, seed=3))


def test_no_step_is_larger_than_the_chance_of_leaving_allows() -> None:
    rng = np.random.default_rng(2)
    p = np.full(30, 0.999)
    counts = np.vstack([rng.multinomial(20, [0.9, 0.1], 15), rng.multinomial(20, [0.2, 0.8], 15)])
    fitted = fit_auto(Observations.from_counts(range(30), counts, step_p=p))
    assert (fitted.change_probability(0.15) < 0.01).all()
    assert (np.abs(np.diff(fitted.mean, axis=0)).max(axis=1) < 0.02).all()


def test_approaches_raw_as_draws_grow() -> None:
    rng = np.random.default_rng(9)
    truth = rng.dirichlet(np.ones(3), 20)
    for draws, worst in ((1_000, 1.1), (100_000, 1.02)):
        counts = np.array([rng.multinomial(draws, o) for o in truth])
        auto = fit_auto(Observations.from_counts(range(0, 400, 20), counts)).mean
        raw = counts / counts.sum(axis=1, keepdims=True)
        assert np.abs(auto - truth).sum() < worst * np.abs(raw - truth).sum()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_input_gives_finite_curves_bands_and_probabilities(data: st.DataObject) -> None:
    width, length = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 10))
    grid = np.cumsum([data.draw(st.integers(1, 40)) for _ in range(length)])
    some = sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1)))
    counts = [[data.draw(st.sampled_from([0, 1, 3, 500])) for _ in range(width)] for _ in some]
    step_p = data.draw(
        st.one_of(st.none(), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=length, max_size=length))
    )
    divergence = None
    if data.draw(st.booleans()):
        divergence = [[data.draw(st.integers(0, 4)) for _ in range(width)] for _ in range(length)]
    end = data.draw(st.one_of(st.none(), st.integers(0, width - 1)))
    observations = Observations.from_counts(
        grid[some], counts, grid=grid, step_p=step_p, divergence=divergence, base_outcome=end
    )
    fitted = fit_auto(observations)
    where = np.arange(grid[0] - 2, grid[-1] + 3)
    curve = fitted.predict(where)
    low, high = fitted.band(where, 0.9)
    assert np.isfinite(curve).all()
    assert np.allclose(curve.sum(axis=1), 1)
    assert (low >= 0).all()
    assert (low <= curve + 1e-9).all()
    assert (curve <= high + 1e-9).all()
    assert (high <= 1 + 1e-12).all()
    chance = fitted.change_probability(0.15)
    assert np.isfinite(chance).all()
    assert ((chance >= 0) & (chance <= 1)).all()
    assert fitted.breakpoints[-1] == len(some)
    assert np.isfinite(fitted.sample(2)).all()


def test_many_categories_and_one_position() -> None:
    wide = fit_auto(Observations.from_counts(range(5), np.eye(50, dtype=int)[:5] * 9)).mean
    assert np.allclose(wide.sum(axis=1), 1)
    one = fit_auto(Observations.from_counts([7], [[1, 0]]))
    assert one.predict([0, 7, 99]).shape == (3, 2)
    assert one.change_probability(0.1).tolist() == [0.0]


def test_time_grows_linearly() -> None:
    rng = np.random.default_rng(0)
    short, long = (World.draw(rng, length, 5).grid(rng, 30, 1) for length in (400, 8000))
    fit_auto(short)  # compile
    assert growth_is_linear(lambda: fit_auto(short), lambda: fit_auto(long), 20)


@pytest.mark.parametrize("values", [{"multiplier": -1}, {"concentration": np.inf}, {"penalty": 3}])
def test_unusable_hyperparameters_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"auto has no|must be a positive"):
        fit_auto(Observations.from_counts([0], [[1, 1]]), values)


@pytest.mark.parametrize("level", [0, 1, -0.5, 2])
def test_levels_outside_the_unit_interval_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        fit_auto(Observations.from_counts([0], [[1, 1]])).band([0], level)


def test_unknown_certainty_is_bridged_straight_in_token_position() -> None:
    observations = Observations.from_counts([0, 40], [[90, 10], [20, 80]], grid=[0, 4, 30, 40])
    fitted = fit_auto(observations)
    first, last = fitted.mean[0], fitted.mean[3]
    np.testing.assert_allclose(fitted.mean[1], 0.9 * first + 0.1 * last, atol=1e-12)
    np.testing.assert_allclose(fitted.mean[2], 0.25 * first + 0.75 * last, atol=1e-12)
