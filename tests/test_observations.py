"""Observations: counts follow from draws, and anything malformed is refused with a line that says why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smoothing import Observations


@given(st.integers(1, 6), st.integers(0, 9), st.integers(1, 5), st.data())
def test_counts_are_the_draws_counted(n: int, size: int, categories: int, data: st.DataObject) -> None:
    draws = data.draw(arrays(np.int64, (n, size), elements=st.integers(-1, categories - 1)))
    names = [f"c{k}" for k in range(categories)]
    observed = Observations.from_draws(np.arange(n) * 3, draws, names)
    for i in range(n):
        assert observed.counts[i].tolist() == [list(draws[i]).count(k) for k in range(categories)]
    assert np.array_equal(observed.draws, draws)
    assert np.array_equal(observed.grid, observed.positions)


def test_arrays_are_copies() -> None:
    counts = np.array([[1, 2], [3, 4]])
    observed = Observations.from_counts([0, 1], counts)
    counts[0, 0] = 9
    assert observed.counts[0, 0] == 1


def test_whole_numbers_may_come_as_floats() -> None:
    observed = Observations.from_counts([0.0, 5.0], [[1.0, 2.0], [0.0, 0.0]])
    assert observed.counts.dtype == np.int64
    assert observed.categories == ("0", "1")
    assert observed.draws is None


def test_divergence_alone_is_an_observation() -> None:
    observed = Observations.from_counts([], [], "AB", grid=[0, 1], divergence=[[1, 2], [0, 3]])
    assert observed.counts.shape == (0, 2)


TWO = {"positions": [0, 1], "draws": [[0, 1], [1, 1]], "categories": "AB"}

REFUSED = {
    "no position": ({"positions": [], "draws": []}, "no position was sampled"),
    "unsorted": ({"positions": [1, 0]}, "increase strictly"),
    "repeated": ({"positions": [1, 1]}, "increase strictly"),
    "fractional position": ({"positions": [0, 0.5]}, "whole numbers"),
    "infinite position": ({"positions": [0, np.inf]}, "finite"),
    "category out of range": ({"draws": [[0, 2], [0, 0]]}, "category indices from 0 to 1"),
    "below -1": ({"draws": [[0, -2], [0, 0]]}, "or -1 where missing"),
    "NaN": ({"draws": [[0, np.nan], [0, 0]]}, "finite"),
    "rows": ({"draws": [[0, 1]]}, "one row per position"),
    "one dimension": ({"draws": [0, 1]}, "one row per position"),
    "text": ({"draws": [["A", "B"], ["A", "A"]]}, "whole numbers"),
    "no category": ({"categories": []}, "at least one outcome"),
    "equal names": ({"categories": ["A", "A"]}, "differ from each other"),
    "grid lacks": ({"grid": [0, 2]}, "it lacks 1"),
    "step_p shape": ({"step_p": [0.5]}, "one probability per grid position"),
    "step_p range": ({"step_p": [0.5, 1.5]}, "between 0 and 1"),
    "step_p NaN": ({"step_p": [0.5, np.nan]}, "between 0 and 1"),
    "divergence shape": ({"divergence": [[1, 1]]}, "one row per position"),
    "divergence negative": ({"divergence": [[1, -1], [0, 0]]}, "not be negative"),
    "base outcome": ({"base_outcome": 2}, "category index from 0 to 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_draws_are_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Observations.from_draws(**{**TWO, **changes})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, -1], [0, 0]], "not be negative"),
        ([[1, 0.5], [0, 0]], "fractions"),
        ([[1, np.nan], [0, 0]], "finite"),
        ([[1, np.inf], [0, 0]], "finite"),
        ([[1, 1e300], [0, 0]], "2\\*\\*53"),
        ([[1, 0]], "one row per position"),
        ([[1, 0, 0], [0, 0, 0]], "one row per position"),
    ],
)
def test_malformed_counts_are_refused(counts: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Observations.from_counts([0, 1], counts, "AB")
