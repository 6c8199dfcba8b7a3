import numpy as np
import pytest
from growth import growth_is_linear
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln
from scipy.stats import beta
from walks import World

from smoothing import Observations
from smoothing import walk_kernels as kernels
from smoothing.allocation import stratified_shares, whole_numbers
from smoothing.martingale import fit_martingale
from smoothing.walk import KNOWN_END, Nodes


def generalised_least_squares(
    observations: Observations, scale: float, concentration: float = 0.3
) -> np.ndarray:
    """The same posterior mean by one dense solve over (end, steps), with V = 1: an independent derivation."""
    nodes = Nodes.of(observations)
    q, n = nodes.leaving, len(nodes.leaving)
    rows, values, weights = [], [], []
    centre = nodes.stationary(concentration) / concentration
    # Unknowns: o_T, then x_0 … x_{n-1}; o_t = o_T + sum_{v>=t} q_v x_v.
    curve = np.hstack([np.ones((n, 1)), np.triu(np.ones((n, n))) * q])
    rows.append(np.eye(n + 1)[0])
    values.append(nodes.end / max(nodes.end.sum(), 1))
    weights.append(nodes.end.sum())
    for v in range(n):
        rows.append(np.eye(n + 1)[v + 1])
        values.append(np.zeros_like(centre))
        weights.append(1 / scale)
        if nodes.counts[v].any():
            rows.append(curve[v])
            values.append(nodes.counts[v] / nodes.counts[v].sum())
            weights.append(nodes.counts[v].sum())
        if nodes.divergence[v].any():
            after = curve[v + 1] if v + 1 < n else np.eye(n + 1)[0]
            rows.append(after + np.eye(n + 1)[v + 1])
            values.append(nodes.divergence[v] / nodes.divergence[v].sum())
            weights.append(nodes.divergence[v].sum())
    a, w = np.array(rows), np.array(weights)
    precision = (a.T * w) @ a
    solution = np.linalg.solve(precision, (a.T * w) @ np.array(values))
    here = curve @ solution
    strength = 1 / np.einsum("ti,ij,tj->t", curve, np.linalg.inv(precision), curve)
    # The stationary law enters each node's own posterior once, as pseudo-counts.
    return (here * strength[:, None] + concentration * centre) / (strength[:, None] + concentration)


@pytest.mark.parametrize("kind", ["grid", "strided", "divergence"])
def test_equals_a_dense_least_squares_solve(kind: str) -> None:
    rng = np.random.default_rng(3)
    world = World.draw(rng, 60)
    if kind == "divergence":
        # A jump that would leave the simplex is clipped; small steps keep this comparison linear.
        calm = World(
            world.step_p, np.tile([0.4, 0.3, 0.2, 0.1], (60, 1)), np.tile([0.4, 0.3, 0.2, 0.1], (60, 1)), 0
        )
        observations = calm.divergences(rng, rng.integers(0, 30, 60) + 5)
        observations = Observations.from_counts(
            [], np.zeros((0, 4), int), calm.categories, grid=observations.grid, step_p=calm.step_p,
            divergence=observations.divergence,
        )  # fmt: skip
    else:
        observations = world.grid(rng, 10, 1 if kind == "grid" else 7)
    fitted = fit_martingale(observations, {"scale": 0.02})
    np.testing.assert_allclose(fitted.mean, generalised_least_squares(observations, 0.02), atol=2e-6)


def test_divergence_draws_tell_more_than_the_same_number_of_grid_draws() -> None:
    rng = np.random.default_rng(11)
    grid_error, divergence_error = 0.0, 0.0
    for _ in range(30):
        world = World.draw(rng, 100)
        counts = whole_numbers(2000 * stratified_shares(world.step_p), rng.random())
        grid = fit_martingale(world.grid(rng, 20, 1))
        stratified = fit_martingale(world.divergences(rng, counts))
        grid_error += ((grid.mean - world.curve) ** 2).sum()
        divergence_error += ((stratified.mean - world.curve) ** 2).sum()
    assert divergence_error < 0.8 * grid_error


def test_more_draws_lead_to_the_truth() -> None:
    rng = np.random.default_rng(5)
    world = World.draw(rng)
    errors = [
        np.abs(fit_martingale(world.grid(rng, s, 1)).mean - world.curve).mean() for s in (3, 300, 30_000)
    ]
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_input_gives_a_curve_on_the_simplex_inside_its_band(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 5))
    grid = sorted(data.draw(st.sets(st.integers(0, 50), min_size=1, max_size=12)))
    some = data.draw(st.sets(st.sampled_from(grid), min_size=1))
    counts = [[data.draw(st.integers(0, 6)) for _ in range(width)] for _ in some]
    step_p = (
        [data.draw(st.sampled_from([0.0, 0.2, 0.9, 1.0])) for _ in grid] if data.draw(st.booleans()) else None
    )
    end = data.draw(st.one_of(st.none(), st.integers(0, width - 1)))
    observations = Observations.from_counts(sorted(some), counts, grid=grid, step_p=step_p, base_outcome=end)
    fitted = fit_martingale(observations)
    where = [-3, *grid, 60]
    curve = fitted.predict(where)
    low, high = fitted.band(where, 0.8)
    assert np.allclose(curve.sum(axis=1), 1)
    assert (low >= 0).all()
    assert (low <= curve + 1e-9).all()
    assert (curve <= high + 1e-9).all()
    assert (high <= 1).all()


def test_where_the_model_is_certain_nothing_moves() -> None:
    p = np.ones(40)
    p[20] = 0.4
    counts = np.zeros((40, 2), int)
    counts[:21] = [3, 7]
    counts[21:] = [10, 0]
    curve = fit_martingale(Observations.from_counts(range(40), counts, step_p=p)).mean
    assert np.abs(np.diff(curve[:21], axis=0)).max() < 0.01
    assert np.abs(np.diff(curve[21:], axis=0)).max() < 0.01
    assert np.abs(curve[20] - curve[21]).max() > 0.5


def test_base_answer_is_where_the_curve_ends() -> None:
    none = Observations.from_counts([0], [[1, 1]], grid=range(30), step_p=np.full(30, 0.97), base_outcome=1)
    curve = fit_martingale(none, {"scale": 0.1}).mean
    assert curve[-1, 1] > 0.98
    assert curve[-1, 1] > curve[0, 1]


def test_time_grows_linearly_to_a_million_positions() -> None:
    rng = np.random.default_rng(0)
    length = 1_000_000
    counts, p = rng.multinomial(5, [0.6, 0.4], size=length), rng.uniform(0.8, 1, length)
    short, long = (
        Observations.from_counts(np.arange(n), counts[:n], step_p=p[:n]) for n in (length // 20, length)
    )
    fit_martingale(short)  # compile
    assert growth_is_linear(lambda: fit_martingale(short), lambda: fit_martingale(long), 20)
    assert np.isfinite(fit_martingale(long).mean).all()


def test_mixture_quantiles_against_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = rng.integers(1, 6)
        a, b, w = 10 ** rng.uniform(-2, 3.5, n), 10 ** rng.uniform(-2, 3.5, n), rng.dirichlet(np.ones(n))
        level = rng.choice([0.025, 0.05, 0.25, 0.75, 0.95, 0.975])
        x = kernels.mixture_quantile(a, b, betaln(a, b), w, level)
        below, above = ((w * beta.cdf(y, a, b)).sum() for y in (x - 3e-6, x + 3e-6))
        assert below <= level + 1e-6
        assert above >= level - 1e-6


@pytest.mark.parametrize(
    ("given_values", "message"),
    [({"scal": 1}, "no hyper-parameter 'scal'"), ({"scale": 0}, "positive"), ({"scale": np.nan}, "positive")],
)
def test_unusable_hyperparameters_are_refused(given_values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_martingale(Observations.from_counts([0], [[1, 1]]), given_values)


def test_end_weight_is_what_the_messages_start_from() -> None:
    nodes = Nodes.of(Observations.from_counts([0], [[1, 1]], base_outcome=1))
    assert nodes.end.tolist() == [0, KNOWN_END]
