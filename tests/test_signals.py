"""Entropy, varentropy and next-token distributions on hand-worked cases."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpa.records import Answer, AttentionSignals, BasePath
from fpa.schemas import base_from_table, base_table
from fpa.signals import (
    NotEnoughListed,
    attention_signals,
    entropy,
    next_token_distribution,
    top_entropy,
    varentropy,
)


def test_uniform_and_one_hot() -> None:
    assert entropy(np.full(1000, 1e-3)) == pytest.approx(math.log(1000))
    assert varentropy(np.full(1000, 1e-3)) == pytest.approx(0.0, abs=1e-12)
    assert entropy([1.0, 0.0, 0.0]) == 0.0
    assert varentropy([1.0, 0.0, 0.0]) == 0.0


def test_two_tokens_by_hand() -> None:
    p, q = 0.8, 0.2
    mean = -(p * math.log(p) + q * math.log(q))
    assert entropy([p, q]) == pytest.approx(mean)
    assert varentropy([p, q]) == pytest.approx(p * (math.log(p) + mean) ** 2 + q * (math.log(q) + mean) ** 2)


def test_impossible_tokens_do_not_count() -> None:
    found = next_token_distribution([7, 8, 9], [math.log(0.5), -math.inf, math.log(0.5)], 1.0, 3)
    assert list(found.ids) == [7, 9]
    assert found.entropy == pytest.approx(math.log(2))
    assert found.tail_mass == 0.0


def test_temperature_sharpens_and_flattens() -> None:
    logprobs = np.log([0.7, 0.2, 0.1])
    cold = next_token_distribution([0, 1, 2], logprobs, 0.5, 3)
    np.testing.assert_allclose(cold.p, np.array([0.49, 0.04, 0.01]) / 0.54)
    # Entropy is of the raw distribution, whatever the temperature.
    assert cold.entropy == pytest.approx(entropy([0.7, 0.2, 0.1]))


def test_one_certain_token_and_impossible_ones() -> None:
    found = next_token_distribution(np.arange(30), [0.0, *[-math.inf] * 29], 1.0, 30)
    assert (found.entropy, found.varentropy, found.top_entropy, found.tail_mass) == (0.0, 0.0, 0.0, 0.0)
    assert found.ids.tolist() == [0]


def test_of_a_thousand_equal_tokens_the_top_twenty_see_their_own_entropy() -> None:
    found = next_token_distribution(np.arange(1000), np.full(1000, -math.log(1000)), 0.7, 1000)
    assert found.entropy == pytest.approx(math.log(1000))
    assert found.varentropy == pytest.approx(0.0, abs=1e-12)
    assert found.top_entropy == pytest.approx(math.log(20))


def test_top_entropy_is_of_the_raw_distribution_renormalised() -> None:
    p = np.array([0.5, 0.25, *[0.25 / 50] * 50])
    top = np.array([0.5, 0.25, *[0.005] * 18]) / 0.84
    by_hand = -(top * np.log(top)).sum()
    assert top_entropy(p) == pytest.approx(by_hand)
    assert next_token_distribution(np.arange(52), np.log(p), 0.3, 52).top_entropy == pytest.approx(by_hand)
    assert top_entropy([1.0]) == 0.0


def test_tail_mass_is_what_the_list_leaves_out() -> None:
    p = np.array([0.9, *[0.0999 / 9] * 9, *[0.0001 / 50] * 50])
    found = next_token_distribution(np.arange(60), np.log(p), 1.0, 60)
    assert len(found.ids) == 10
    assert found.tail_mass == pytest.approx(0.0001)
    more = next_token_distribution(np.arange(60), np.log(p), 1.0, 60, least=40)
    assert len(more.ids) == 40
    assert more.tail_mass == pytest.approx(0.0001 * 20 / 50)


def test_attention_of_equal_heads() -> None:
    found = attention_signals(np.full((3, 8), -2.0))
    assert found.entropy == pytest.approx(math.log(8))
    assert found.varentropy == pytest.approx(0.0, abs=1e-12)
    assert found.agreement == pytest.approx(0.0, abs=1e-12)
    assert found.interaction == 2.0


def test_signals_are_stored_and_read_back() -> None:
    found = next_token_distribution([4, 5], np.log([0.5, 0.5]), 1.0, 2)
    with_attention = replace(found, attention=AttentionSignals(0.1, 0.2, 0.3, 0.4))
    base = BasePath("q", (4, 5), ("a", "b"), (with_attention, found), (0, 0), "stop", Answer("Other", "none"))
    table = base_table(base)
    assert table["attention_entropy"].to_pylist() == [0.1, None]
    assert table["interaction"].to_pylist() == [0.4, None]
    assert table["top_entropy"].to_pylist() == [pytest.approx(math.log(2))] * 2
    again = base_from_table(table)
    assert [d.attention for d in again.distributions] == [with_attention.attention, None]


def test_attention_of_two_heads_by_hand() -> None:
    """One head looks at one token alone, the other at both in proportion 3 to 1; the third token is masked."""
    scores = [[0.0, -1e9, 5.0], [math.log(3), 0.0, math.inf]]
    found = attention_signals(scores, [True, True, False])
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.entropy == pytest.approx(h / 2)
    assert found.varentropy == pytest.approx((h / 2) ** 2)
    assert found.agreement == pytest.approx(0.125)  # each of four weights is 0.125 from the heads' mean
    assert found.interaction == pytest.approx((1e9 + math.log(3)) / 4)


@pytest.mark.parametrize("drawn_at", [0.5, 1.0, 1.5, 3.0])
def test_the_list_holds_the_mass_at_the_temperature_of_the_draw(drawn_at: float) -> None:
    p = 1.0 / np.arange(1, 2001)
    p /= p.sum()
    found = next_token_distribution(np.arange(2000), np.log(p), 1.0, 2000, drawn_at=drawn_at)
    np.testing.assert_allclose(found.p, p[: len(found.p)])  # still at temperature 1
    weights = p ** (1 / drawn_at)
    held = weights[: len(found.p)].sum() / weights.sum()
    assert held >= 0.999
    assert weights[: len(found.p) - 1].sum() / weights.sum() < 0.999  # and no more than that


def test_a_short_list_is_enough_for_a_cold_draw() -> None:
    p = 1.0 / np.arange(1, 2001)
    p /= p.sum()
    listed = {"ids": np.arange(100), "logprobs": np.log(p[:100]), "temperature": 1.0, "vocabulary": 2000}
    with pytest.raises(NotEnoughListed):
        next_token_distribution(**listed, coverage=0.98, entropy_gap=np.inf)
    found = next_token_distribution(**listed, coverage=0.98, entropy_gap=np.inf, drawn_at=0.5)
    assert found.top_entropy == pytest.approx(top_entropy(p))


def test_twenty_of_a_thousand_equal_tokens_are_not_enough() -> None:
    with pytest.raises(NotEnoughListed):
        next_token_distribution(np.arange(20), np.full(20, -math.log(1000)), 1.0, 1000)


@given(
    st.lists(st.floats(-12, 0), min_size=12, max_size=60),
    st.floats(0.3, 2.0),
    st.data(),
)
def test_bounds_hold_whatever_is_left_out(
    logits: list[float], temperature: float, data: st.DataObject
) -> None:
    log_p = np.sort(np.array(logits) - np.logaddexp.reduce(logits))[::-1]
    exact = np.exp(log_p / temperature) / np.exp(log_p / temperature).sum()
    kept = data.draw(st.integers(2, len(log_p)))
    try:
        found = next_token_distribution(np.arange(kept), log_p[:kept], temperature, len(log_p))
    except NotEnoughListed:
        return
    listed = len(found.p)
    assert (found.p <= exact[:listed] * (1 + 1e-9)).all()
    assert (found.p >= exact[:listed] * (1 - 1.01e-3)).all()
    assert found.tail_mass >= exact[listed:].sum() - 1e-9
    assert found.entropy == pytest.approx(entropy(np.exp(log_p)), abs=0.0101)
