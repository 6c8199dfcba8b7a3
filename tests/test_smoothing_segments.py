"""Segmentations: the compiled searches against ruptures, against formulas written out, and against all there are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ruptures
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from ruptures.base import BaseCost
from ruptures.costs import NotEnoughPoints

from smoothing import COSTS, L2Cost, LogitLinearCost, MultinomialCost, segment
from smoothing.costs import CompiledCost
from smoothing.pelt import search_many, shortest_split

Counts = NDArray[np.int64]
PENALTIES = [0.0, 0.5, 1.0, 2.0, 3.0, 8.0, 32.0, 128.0]


def _cost(name: str, positions: Any = None) -> BaseCost:
    return LogitLinearCost(positions) if name == "logit_linear" else COSTS[name]()


def _ruptures(cost: BaseCost, counts: Counts, penalty: float) -> list[int]:
    n = len(counts)
    if n < shortest_split(cost):
        return [n]
    return [int(e) for e in ruptures.Pelt(custom_cost=cost, jump=1).fit(counts).predict(pen=penalty)]


def _written_out(name: str, counts: Counts, positions: NDArray[np.float64], start: int, end: int) -> float:
    """The costs as their formulas read, without prefix sums or tables."""
    part = counts[start:end]
    if name == "multinomial":
        n = part.sum(axis=0)
        n = n[n > 0]
        return float(-(n * np.log(n / n.sum())).sum())
    if name == "l2":
        return float(((part - part.mean(axis=0)) ** 2).sum())
    totals = part.sum(axis=1, keepdims=True)
    p = (part + 0.5) / (totals + 1)
    y, w, x = np.log(p / (1 - p)), np.maximum(totals * p * (1 - p), 1e-9), positions[start:end, None]
    x_mean, y_mean = (w * x).sum(0) / w.sum(0), (w * y).sum(0) / w.sum(0)
    # The determinant of the normal equations is the sum of weights times this.
    spread = (w * (x - x_mean) ** 2).sum(0)
    singular = w.sum(0) * spread <= 1e-12
    slope = np.where(
        singular, 0.0, (w * (x - x_mean) * (y - y_mean)).sum(0) / np.where(singular, 1.0, spread)
    )
    return float((w * (y - y_mean - slope * (x - x_mean)) ** 2).sum())


def _total(name: str, counts: Counts, positions: Any, ends: list[int], penalty: float) -> float:
    bounds = [0, *ends]
    return sum(_written_out(name, counts, positions, s, e) + penalty for s, e in pairwise(bounds))


def _random_counts(rng: np.random.Generator, longest: int) -> Counts:
    """Piecewise constant, drifting or extreme tables with equal or unequal totals."""
    n, categories = int(rng.integers(1, longest + 1)), int(rng.integers(1, 6))
    size = rng.choice([1, 2, 5, 5, 24, 160]) * np.ones(n, dtype=np.int64)
    if rng.random() < 0.3:
        size = rng.integers(0, size + 1)
    levels = rng.dirichlet(np.full(categories, rng.choice([0.1, 0.5, 2.0])), size=4)
    if rng.random() < 0.3:
        levels = np.eye(categories)[rng.integers(0, categories, 4)]
    rows = levels[np.sort(rng.integers(0, 4, n))]
    return np.stack([rng.multinomial(s, p) for s, p in zip(size, rows, strict=True)])


tables = st.integers(1, 14).flatmap(
    lambda n: st.integers(1, 4).flatmap(lambda k: arrays(np.int64, (n, k), elements=st.integers(0, 5)))
)


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=300)
@given(counts=tables, penalty=st.sampled_from(PENALTIES))
@example(counts=np.array([[2, 3], [5, 0], [0, 5], [5, 0], [5, 0], [0, 5]]), penalty=1.0)
def test_pelt_is_ruptures_on_any_table(name: str, counts: Counts, penalty: float) -> None:
    assert segment(counts, cost=name, penalty=penalty) == _ruptures(_cost(name), counts, penalty)


@pytest.mark.parametrize("name", COSTS)
def test_pelt_is_ruptures_on_random_tables(name: str) -> None:
    """700 inputs per cost: the cost that ruptures is given is ours, so that there is no excuse of rounding."""
    rng = np.random.default_rng(20_240_601)
    for _ in range(700):
        counts = _random_counts(rng, 30)
        positions = np.cumsum(rng.integers(1, 9, len(counts)))
        penalty = float(rng.choice(PENALTIES))
        wanted = _ruptures(_cost(name, positions), counts, penalty)
        assert segment(counts, positions, name, penalty) == wanted


class _Formula(BaseCost):  # type: ignore[misc]
    """A cost that a user might write: the formula, over the rows of a segment."""

    model = "formula"

    def __init__(self, name: str, positions: NDArray[np.float64]) -> None:
        self.name, self.positions, self.min_size = name, positions, COSTS[name].min_size

    def fit(self, signal: Counts) -> _Formula:
        self.signal = signal
        return self

    def error(self, start: int, end: int) -> float:
        return _written_out(self.name, self.signal, self.positions, start, end)


@pytest.mark.parametrize("name", COSTS)
def test_pelt_is_ruptures_with_the_formula(name: str) -> None:
    """A difference is allowed only where two segmentations tie within 1e-9, which rounding decides."""
    rng = np.random.default_rng(7)
    for _ in range(100):
        counts = _random_counts(rng, 22)
        positions = np.cumsum(rng.integers(1, 9, len(counts))).astype(np.float64)
        penalty = float(rng.choice(PENALTIES[1:]))
        ours = segment(counts, positions, name, penalty)
        if len(counts) < shortest_split(_cost(name)):
            assert ours == [len(counts)]
            continue
        theirs = ruptures.Pelt(custom_cost=_Formula(name, positions), jump=1).fit(counts).predict(pen=penalty)
        if ours != theirs:
            difference = _total(name, counts, positions, ours, penalty) - _total(
                name, counts, positions, theirs, penalty
            )
            assert abs(difference) <= 1e-9, (ours, theirs)


def test_pelt_is_ruptures_on_released_rollouts(shared: Path) -> None:
    """Every worked case's counts, whole and by fold, with every cost."""
    number = 0
    for case in _cases(shared):
        counts, positions = _case_counts(case)
        if len(counts) > 60:
            counts, positions = counts[:60], positions[:60]
        for name in COSTS:
            for penalty in (2.0, 16.0):
                assert segment(counts, positions, name, penalty) == _ruptures(
                    _cost(name, positions), counts, penalty
                )
                number += 1
    assert number == 40 * 3 * 2


def test_published_breakpoints(shared: Path) -> None:
    names = {"mult": "multinomial", "linear": "logit_linear", "l2": "l2"}
    number = 0
    for case in _cases(shared):
        counts, positions = _case_counts(case)
        for key, wanted in case["breakpoints"].items():
            variant, penalty = key.split("|")
            assert segment(counts, positions, names[variant], float(penalty)) == wanted
            number += 1
    assert number > 400


def _cases(shared: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(shared / "reference" / "full_model_cases.json.gz") as file:
        yield from json.load(file)


def _case_counts(case: dict[str, Any]) -> tuple[Counts, NDArray[np.int64]]:
    draws = np.array(case["draws"])
    counts = np.stack([(draws == k).sum(axis=1) for k in range(len(case["categories"]))], axis=1)
    return counts, np.array(case["positions"])[case["observed"]]


def _all_segmentations(n: int, shortest: int) -> Iterator[list[int]]:
    if n >= shortest:
        yield [n]
    for last in range(shortest, n - shortest + 1):
        for left in _all_segmentations(last, shortest):
            yield [*left, n]


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=60)
@given(
    counts=st.integers(6, 10).flatmap(
        lambda n: st.integers(1, 3).flatmap(lambda k: arrays(np.int64, (n, k), elements=st.integers(0, 4)))
    ),
    penalty=st.sampled_from(PENALTIES),
)
def test_optimal_is_the_best_of_all(name: str, counts: Counts, penalty: float) -> None:
    x = np.arange(len(counts), dtype=np.float64)
    found = segment(counts, cost=name, penalty=penalty, search="optimal")
    least = min(
        _total(name, counts, x, ends, penalty)
        for ends in _all_segmentations(len(counts), COSTS[name].min_size)
    )
    assert _total(name, counts, x, found, penalty) == pytest.approx(least, abs=1e-8)
    pelt = segment(counts, cost=name, penalty=penalty)
    assert _total(name, counts, x, found, penalty) <= _total(name, counts, x, pelt, penalty) + 1e-8


def test_pruning_is_not_always_exact() -> None:
    counts = np.array([[2, 3], [5, 0], [0, 5], [5, 0], [5, 0], [0, 5]])
    x = np.arange(6.0)
    assert segment(counts, penalty=1.0) == [3, 6]
    assert segment(counts, penalty=1.0, search="optimal") == [6]
    assert _total("multinomial", counts, x, [3, 6], 1.0) == pytest.approx(21.91, abs=0.005)
    assert _total("multinomial", counts, x, [6], 1.0) == pytest.approx(21.53, abs=0.005)


@pytest.mark.parametrize("name", COSTS)
def test_error_is_the_formula(name: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        counts = _random_counts(rng, 25)
        n = len(counts)
        positions = np.cumsum(rng.integers(1, 9, n)).astype(np.float64)
        cost = _cost(name, positions).fit(counts)
        if n < cost.min_size:
            continue
        start = int(rng.integers(0, n - cost.min_size + 1))
        end = int(rng.integers(start + cost.min_size, n + 1))
        wanted = _written_out(name, counts, positions, start, end)
        assert cost.error(start, end) == pytest.approx(wanted, rel=1e-9, abs=1e-7)
        with pytest.raises(NotEnoughPoints):
            cost.error(start, start + cost.min_size - 1)


def test_totals_beyond_the_table() -> None:
    """Counts whose total has no table of n ln n give the segmentation of the formula."""
    counts = np.array([[10**7, 1], [10**7, 3], [10**7, 2], [3, 10**7], [1, 10**7], [2, 10**7]])
    assert segment(counts, penalty=10.0) == [3, 6]
    assert segment(counts, penalty=10.0) == _ruptures(MultinomialCost(), counts, 10.0)


def test_one_search_for_many_penalties() -> None:
    rng = np.random.default_rng(5)
    for name in COSTS:
        counts = _random_counts(rng, 30)
        cost = _cost(name).fit(counts)
        together = [ends.tolist() for ends in search_many(cost, len(counts), PENALTIES)]
        assert together == [segment(counts, cost=name, penalty=penalty) for penalty in PENALTIES]


def test_a_custom_cost_is_searched() -> None:
    counts = np.array([[5, 0]] * 4 + [[0, 5]] * 4)
    assert segment(counts, cost=ruptures.costs.CostL2(), penalty=1.0) == [4, 8]
    assert segment(counts, cost=ruptures.costs.CostL2(), penalty=1.0, search="optimal") == [4, 8]


@pytest.mark.parametrize("cost", [object(), L2Cost, None, lambda s, e: 0.0])
def test_a_cost_must_be_a_base_cost(cost: Any) -> None:
    with pytest.raises(ValueError, match=r"ruptures\.base\.BaseCost"):
        segment([[1, 2]] * 8, cost=cost)


def test_fewer_rows_than_a_split_needs_are_one_segment() -> None:
    pure = np.array([[9, 0], [0, 9], [9, 0], [0, 9], [9, 0]])
    for n in range(1, 6):
        assert segment(pure[:n], cost="l2", penalty=0.0) == [n]
        assert segment(pure[:n], cost="logit_linear", penalty=0.0) == [n]
    for n in range(1, 4):
        assert segment(pure[:n], penalty=0.0) == [n]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": []}, "table"),
        ({"counts": np.zeros((0, 2))}, "table"),
        ({"counts": np.zeros((2, 0))}, "table"),
        ({"counts": np.zeros((2, 2, 2))}, "table"),
        ({"counts": [[1, -1]]}, "negative"),
        ({"counts": [[1, 0.5]]}, "fractions"),
        ({"counts": [[1, np.nan]]}, "NaN"),
        ({"counts": [[1, np.inf]]}, "infinity"),
        ({"counts": [[1, 1e300]]}, "2\\*\\*53"),
        ({"counts": [["a", "b"]]}, "whole numbers"),
        ({"positions": [1, 0]}, "increase strictly"),
        ({"positions": [1, 1]}, "increase strictly"),
        ({"positions": [0]}, "one per row"),
        ({"positions": [0, np.nan]}, "finite"),
        ({"penalty": -1.0}, "at least 0"),
        ({"penalty": np.nan}, "at least 0"),
        ({"penalty": np.inf}, "finite"),
        ({"cost": "l1"}, "unknown cost"),
        ({"search": "greedy"}, "unknown search"),
    ],
)
def test_malformed_input_is_refused(changes: dict[str, Any], message: str) -> None:
    given = {"counts": [[1, 2], [2, 1]], **changes}
    with pytest.raises(ValueError, match=message):
        segment(**given)


def test_a_cost_asked_before_it_is_fitted() -> None:
    cost: CompiledCost = MultinomialCost()
    with pytest.raises(ValueError, match="fit the cost"):
        cost.error(0, 2)
