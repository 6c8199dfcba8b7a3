import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import World

from smoothing.allocation import (
    Design,
    curve_weights,
    next_draws,
    stratified_shares,
    token_choice,
    whole_numbers,
)
from smoothing.auto import fit_auto


def weights_by_definition(p: np.ndarray) -> np.ndarray:
    """W[t, u] = (1 - p_u) prod_{t<=v<u} p_v for u >= t."""
    n = len(p)
    return np.array([[(1 - p[u]) * np.prod(p[t:u]) if u >= t else 0.0 for u in range(n)] for t in range(n)])


def test_curve_weights_are_the_summed_squares_of_the_identitys_weights() -> None:
    p = np.random.default_rng(0).uniform(0, 1, 25)
    np.testing.assert_allclose(curve_weights(p), (weights_by_definition(p) ** 2).sum(axis=0), rtol=1e-12)


def test_the_identity_holds_in_the_world_that_tests_use() -> None:
    world = World.draw(np.random.default_rng(1), 30)
    w = weights_by_definition(world.step_p)
    end = np.eye(4)[world.end]
    stay = np.array([np.prod(world.step_p[t:]) for t in range(30)])
    np.testing.assert_allclose(w @ world.diverged + stay[:, None] * end, world.curve, atol=1e-12)


def test_shares_minimise_the_summed_variance_at_equal_cost() -> None:
    rng = np.random.default_rng(2)
    p, variance, cost = rng.uniform(0, 0.99, 12), rng.uniform(0.1, 1, 12), rng.uniform(5, 100, 12)
    shares = stratified_shares(p, cost, variance)

    def loss(x: np.ndarray) -> float:
        return float((curve_weights(p) * variance / x).sum() * (x @ cost))

    for _ in range(200):
        assert loss(shares) <= loss(shares * np.exp(rng.normal(0, 0.3, 12))) + 1e-9


def test_variance_of_the_plain_estimator_is_as_predicted() -> None:
    rng = np.random.default_rng(3)
    world = World.draw(rng, 40)
    w = weights_by_definition(world.step_p)
    counts = np.full(40, 6)
    stay = np.array([np.prod(world.step_p[t:]) for t in range(40)])[:, None] * np.eye(4)[world.end]
    errors = []
    for _ in range(2000):
        table = np.stack([rng.multinomial(6, d) for d in world.diverged]) / 6
        errors.append(((w @ table + stay - world.curve) ** 2).sum())
    predicted = (
        curve_weights(world.step_p) * (world.diverged * (1 - world.diverged)).sum(axis=1) / counts
    ).sum()
    assert abs(np.mean(errors) - predicted) < 4 * np.std(errors) / np.sqrt(2000)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.floats(0, 0.999999))
def test_whole_numbers_round_up_or_down_and_keep_the_total(expected: list[float], offset: float) -> None:
    got = whole_numbers(expected, offset)
    assert (np.abs(got - np.array(expected)) < 1 + 1e-9).all()
    assert abs(got.sum() - sum(expected)) < 1 + 1e-9


def test_rounding_is_unbiased() -> None:
    expected = np.array([0.2, 1.7, 0.05, 3.0, 0.55])
    got = np.mean([whole_numbers(expected, u) for u in (np.arange(10_000) + 0.5) / 10_000], axis=0)
    np.testing.assert_allclose(got, expected, atol=1e-3)


def test_token_choice_is_unbiased_and_even() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    rng = np.random.default_rng(4)
    single = np.bincount([token_choice(p, 3, 1, u)[0] for u in rng.random(40_000)], minlength=4) / 40_000
    assert (np.abs(single - p) < 5 * np.sqrt(p * (1 - p) / 40_000)).all()
    many = np.bincount(token_choice(p, 0, 100, 0.3), minlength=4)
    assert (np.abs(many - 100 * p) <= 3).all()
    halves = [token_choice(p, 0, 60, 0.3), token_choice(p, 60, 40, 0.3)]
    assert np.array_equal(np.concatenate(halves), token_choice(p, 0, 100, 0.3))


def test_certain_paths_cannot_be_stratified() -> None:
    with pytest.raises(ValueError, match="no position can be left"):
        stratified_shares(np.ones(5))


def _design(world: World, rng: np.random.Generator, counts: np.ndarray) -> Design:
    fitted = fit_auto(world.divergences(rng, counts), {"multiplier": 1.0})
    return Design.of(fitted, world.step_p, counts, np.full(len(counts), 10.0), True)


def test_given_out_one_by_one_is_the_same_as_solved_at_once() -> None:
    rng = np.random.default_rng(5)
    world = World.draw(rng, 50)
    counts = rng.integers(1, 4, 50)
    design = _design(world, rng, counts)
    given_out = next_draws([design], 200.0)[0]
    assert given_out.sum() == 20

    def left(drawn: np.ndarray) -> float:
        """Summed variance of the curve that the draws take away, by one dense solve."""
        some = drawn > 0
        seen = design.spread[np.ix_(some, some)] + np.diag(design.noise[some] / drawn[some])
        cross = design.influence[:, some]
        return float(np.einsum("tu,uv,tv->", cross, np.linalg.inv(seen), cross))

    # Greedy choice is not optimal in general; it must beat spreading the same draws at random.
    for _ in range(50):
        other = rng.multinomial(20, np.full(len(given_out), 1 / len(given_out)))
        assert left(given_out) > left(other)


def test_open_questions_get_more_than_settled_ones() -> None:
    rng = np.random.default_rng(6)
    p = np.full(40, 0.8)
    settled = World(p, np.tile([0.995, 0.005], (40, 1)), np.tile([0.995, 0.005], (40, 1)), 0)
    open_ = World(p, np.tile([0.5, 0.5], (40, 1)), np.tile([0.5, 0.5], (40, 1)), 0)
    counts = np.full(40, 3)
    got = next_draws([_design(settled, rng, counts), _design(open_, rng, counts)], 2000.0)
    assert got[1].sum() > 2 * got[0].sum()


def test_room_and_limits_are_kept() -> None:
    rng = np.random.default_rng(7)
    world = World.draw(rng, 30)
    design = _design(world, rng, np.full(30, 2))
    room = [np.ones(len(design.positions), dtype=np.int64)]
    assert (next_draws([design], 1e6, room)[0] <= 1).all()
    assert next_draws([design], 1e6, most=7)[0].sum() == 7
    assert next_draws([], 100.0) == []
