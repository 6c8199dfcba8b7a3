"""Entropix: every branch of both rule sets by hand, the transforms against enumeration, the sampler step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import END, Scripted
from typer.testing import CliRunner

import fpa
from fpa.cli import app
from fpa.collect import collect
from fpa.engines import load_engine
from fpa.engines.base import Request
from fpa.engines.fake import FakeEngine
from fpa.entropix import (
    BITS,
    LETTERS,
    FourStateRules,
    Rules,
    Seen,
    ThresholdRules,
    best_of,
    drawn_again,
    filtered,
    filtered_as_published,
    four_state,
    tempered,
    threshold_state,
)
from fpa.errors import UsageError
from fpa.guided import RuleSampler
from fpa.plan import plan
from fpa.records import AttentionSignals
from fpa.settings import Settings
from fpa.signals import entropy, varentropy
from fpa.strategies import strategy
from fpa.strategies.entropix import Entropix

PUBLISHED, MEANT, FOUR = ThresholdRules(faithful=True), ThresholdRules(), FourStateRules()


def spread(head: Sequence[float], others: int) -> np.ndarray:
    """Some tokens of given probabilities, the rest of the mass spread evenly over others."""
    return np.array([*head, *[(1 - sum(head)) / others] * others])


def seen(p: np.ndarray, **more: object) -> Seen:
    return Seen(p, entropy(p), varentropy(p), **more)  # type: ignore[arg-type]


def attention(
    bits: float = 0.0, bits2: float = 0.0, agreement: float = 0.0, interaction: float = 0.0
) -> AttentionSignals:
    return AttentionSignals(bits / BITS, bits2 / BITS**2, agreement, interaction)


distributions = st.lists(st.floats(-14, 0), min_size=1, max_size=60).map(
    lambda logs: np.exp(np.array(logs)) / np.exp(logs).sum()
)


# --- transforms


def test_best_of_five_against_every_possible_five() -> None:
    p, score = np.array([0.5, 0.3, 0.15, 0.05]), np.array([1.0, 3.0, 1.0, 2.0])
    expected = np.zeros(4)
    for five in product(range(4), repeat=5):
        expected[max(five, key=lambda token: score[token])] += p[
            list(five)
        ].prod()  # max: the first of equals
    np.testing.assert_allclose(best_of(p, score, 5), expected, atol=1e-14)


def test_drawn_again_against_every_pair() -> None:
    p = np.array([0.6, 0.3, 0.1])
    expected = [
        0.3 * 0.6 / 0.7 + 0.1 * 0.6 / 0.9,
        0.6 * 0.3 / 0.4 + 0.1 * 0.3 / 0.9,
        0.6 * 0.1 / 0.4 + 0.3 * 0.1 / 0.7,
    ]
    np.testing.assert_allclose(drawn_again(p), expected)


def test_drawn_again_where_one_token_is_certain_or_nearly() -> None:
    assert drawn_again(np.array([0.0, 1.0, 0.0])).tolist() == [0.0, 1.0, 0.0]
    # All but surely the first is drawn and banned; the second draw is then among the others, 3 to 1.
    np.testing.assert_allclose(drawn_again(np.array([1 - 4e-18, 3e-18, 1e-18])), [0, 0.75, 0.25], atol=1e-15)


def test_filters_by_hand() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    np.testing.assert_allclose(filtered(p, 3, 1.0, 0.0), [4 / 9, 3 / 9, 2 / 9, 0, 0])
    np.testing.assert_allclose(filtered(p, 5, 0.65, 0.0), [4 / 7, 3 / 7, 0, 0, 0])
    np.testing.assert_allclose(
        filtered(p, 5, 1.0, 0.15), [0.4 / 0.96, 0.3 / 0.96, 0.2 / 0.96, 0.06 / 0.96, 0]
    )
    # As published the likeliest goes where the others hold more than top_p.
    np.testing.assert_allclose(
        filtered_as_published(p, 5, 0.55), [0, 0.3 / 0.6, 0.2 / 0.6, 0.06 / 0.6, 0.04 / 0.6]
    )
    np.testing.assert_allclose(filtered_as_published(p, 2, 0.55), [4 / 7, 3 / 7, 0, 0, 0])


def test_temperature_counts_unlisted_tokens_in_the_sum() -> None:
    whole = tempered(spread([0.5], 100), 2.0)
    listed = tempered(spread([0.5], 100)[:11], 2.0, 0.45, 90)
    np.testing.assert_allclose(listed, whole[:11])


@given(
    distributions,
    st.floats(0.05, 5),
    st.integers(1, 100),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 9),
)
def test_transforms_are_distributions(
    p: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, draws: int
) -> None:
    q = tempered(p, temperature)
    score = np.random.default_rng(len(p)).integers(0, 5, len(p)).astype(float)
    for found in (q, filtered(q, top_k, top_p, min_p), filtered_as_published(q, top_k, top_p),
                  best_of(q, score, draws), drawn_again(q)):  # fmt: skip
        assert (found >= 0).all()
        assert found.sum() == pytest.approx(1, abs=1e-9)
    assert best_of(q, score, 1) == pytest.approx(q, abs=1e-12)


attentions = st.none() | st.builds(
    AttentionSignals, st.floats(0, 9), st.floats(0, 9), st.floats(0, 1), st.floats(0, 20)
)


@given(distributions, attentions, st.booleans(), st.sampled_from([PUBLISHED, MEANT, FOUR]), st.floats(0.1, 2))
def test_whatever_the_rules_see_they_give_a_distribution(
    p: np.ndarray, signals: AttentionSignals | None, asked: bool, rules: Rules, temperature: float
) -> None:
    choice = rules.choose(seen(p, attention=signals, asked=asked, temperature=temperature))
    assert choice.state in LETTERS
    assert choice.p is not None or (choice.state == "clarify" and not asked)
    if choice.p is not None:
        assert (choice.p >= 0).all()
        assert choice.p.sum() == pytest.approx(1, abs=1e-9)


# --- the threshold rules, in bits


def test_argmax_below_a_tenth_of_a_bit() -> None:
    for rules in (PUBLISHED, MEANT):
        choice = rules.choose(seen(np.array([0.0005, 0.9995])))
        assert choice.state == "argmax"
        assert choice.p is not None
        assert choice.p.tolist() == [0.0, 1.0]


def test_clarify_at_64_equal_tokens_then_sample_warmer() -> None:
    even = np.full(64, 1 / 64)  # 6 bits, no varentropy
    for rules in (PUBLISHED, MEANT):
        assert rules.choose(seen(even)).state == "clarify"
        assert rules.choose(seen(even)).p is None
    # Asked already: 27 equal tokens, of which those with at most 0.9 before them are 25.
    meant, published = (r.choose(seen(even, asked=True)).p for r in (MEANT, PUBLISHED))
    np.testing.assert_allclose(meant, [1 / 25] * 25 + [0] * 39)
    np.testing.assert_allclose(published, [1 / 27] * 27 + [0] * 37)


def test_clarify_warms_by_attention_entropy_up_to_one_and_a_half() -> None:
    uneven = tempered(spread([1 / 60], 63), 1.0)
    asked = seen(uneven, asked=True, attention=attention(bits=1.0))
    assert MEANT.choose(asked).state == "clarify"
    np.testing.assert_allclose(MEANT.choose(asked).p, filtered(tempered(uneven, 0.666 * 1.5), 27, 0.9, 0.03))
    hot = seen(uneven, asked=True, attention=attention(bits=9.0))
    np.testing.assert_allclose(MEANT.choose(hot).p, filtered(tempered(uneven, 1.5), 27, 0.9, 0.03))


def test_explore_at_half_the_mass_on_64_tokens() -> None:
    forked = spread([0.5], 64)  # 4 bits, 9 bits²
    ratio = 64 ** (-1 / (0.666 * 1.2))  # of another token to the first
    published = PUBLISHED.choose(seen(forked))
    assert published.state == "explore"
    assert published.p is not None
    # top_k = ⌊27 · 1.5⌋ = 40; min_p does not act.
    np.testing.assert_allclose(published.p[[0, 1, 39, 40]], np.array([1, ratio, ratio, 0]) / (1 + 39 * ratio))
    # It does where it is meant to: 0.0055 is below 0.03.
    assert ratio < 0.03
    meant = MEANT.choose(seen(forked)).p
    assert meant is not None
    assert meant[0] == 1.0


def test_explore_warms_by_interaction_and_narrows_by_agreement() -> None:
    signals = attention(agreement=0.5, interaction=1.0)
    p = PUBLISHED.choose(seen(spread([0.5], 64), attention=signals)).p
    ratio, kept = 64 ** (-1 / (0.666 * 1.5)), int(27 * 1.25)
    assert p is not None
    assert (p > 0).sum() == kept == 33
    assert p[0] == pytest.approx(1 / (1 + 32 * ratio))
    never_below_five = PUBLISHED.choose(seen(spread([0.5], 64), attention=attention(agreement=3.0))).p
    assert never_below_five is not None
    assert (never_below_five > 0).sum() == 5


def test_resample_in_the_mist() -> None:
    mist = spread(
        [0.25, 0.25], 512
    )  # 6 bits, 16 bits²; at temperature 2 sixteen others weigh as one of the two
    meant = MEANT.choose(seen(mist))
    assert meant.state == "resample"
    assert meant.p is not None
    # 25 others are in top_k; 0.5614 + 0.01754 j is at most 0.9 up to j = 19.
    np.testing.assert_allclose(meant.p[[0, 1, 2, 21, 22]], np.array([16, 16, 1, 1, 0]) / 52)
    published = PUBLISHED.choose(seen(mist)).p
    assert published is not None
    np.testing.assert_allclose(published[[0, 2, 26, 27]], np.array([16, 1, 1, 0]) / (32 + 25))
    # Attention: hotter by its varentropy, top_p lower by its entropy, down to a half.
    hot = MEANT.choose(seen(mist, attention=attention(bits=1.5, bits2=4.0))).p
    np.testing.assert_allclose(hot, filtered(tempered(mist, 0.666 * 4.0), 27, 0.6, 0.03))
    cold = MEANT.choose(seen(mist, attention=attention(bits=5.0))).p
    np.testing.assert_allclose(cold, filtered(tempered(mist, 2.0), 27, 0.5, 0.03))


def test_adaptive_takes_the_likeliest_of_five_as_published() -> None:
    p = np.array([0.5, 0.25, 0.25])  # 1.5 bits, 0.25 bits²
    choice = PUBLISHED.choose(seen(p))
    assert choice.state == "adaptive"
    assert choice.p is not None
    q = tempered(p, 0.666 * (1 + 0.3 * 1.75))
    assert choice.p[0] == pytest.approx(1 - (1 - q[0]) ** 5)
    assert choice.p[1] == choice.p[2]


def test_adaptive_takes_the_most_typical_of_five_as_meant() -> None:
    p = np.array([0.6, 0.3, 0.1])  # surprisals 0.74, 1.74, 3.32 bits around an entropy of 1.30
    choice = MEANT.choose(seen(p))
    assert choice.state == "adaptive"
    h, v = entropy(p) * BITS, varentropy(p) * BITS**2
    q = tempered(p, 0.666 * (1 + 0.3 * (h + v)))
    expected = [(q[0] + q[2]) ** 5 - q[2] ** 5, 1 - (1 - q[1]) ** 5, q[2] ** 5]
    np.testing.assert_allclose(choice.p, expected)


def test_adaptive_is_moved_by_attention() -> None:
    """aH = 1 bit, aV = 0.5 bits², A = 0.1, I = 0.2 move 1 + 0.3 (H + V) by 0.28, top_k to 28, top_p to 0.945."""
    p = np.array([0.5, 0.25, 0.125, 0.125])  # 1.75 bits, 0.6875 bits²
    signals = attention(bits=1.0, bits2=0.5, agreement=0.1, interaction=0.2)
    t = 0.666 * (1 + 0.3 * 2.4375 + 0.28)
    q = p ** (1 / t) / (p ** (1 / t)).sum()
    # Of five draws the likeliest: as published nothing is dropped, since the others hold less than 0.945.
    choice = PUBLISHED.choose(seen(p, attention=signals))
    assert choice.state == "adaptive"
    two = 1 - (1 - q[0] - q[1]) ** 5
    np.testing.assert_allclose(
        choice.p, [1 - (1 - q[0]) ** 5, two - (1 - (1 - q[0]) ** 5), (1 - two) / 2, (1 - two) / 2]
    )


WIDE = {
    "high_entropy": 9.0,
    "high_varentropy": 50.0,
    "draws": 1,
    "top_p": 1.0,
}  # everything uneven is adaptive, drawn once


def test_the_adaptive_min_p_falls_where_the_model_is_unsure() -> None:
    # H + V = 1.25 bits: min_p = 0.03 · (1 − 0.625) = 0.01125, where 0.03 · (1 + 0.625) = 0.049.
    rules, at = ThresholdRules(**WIDE), 0.666 * (1 + 0.3 * 1.25)  # type: ignore[arg-type]
    logs = at * np.log([1.0, 0.02, 0.0105])  # to be these shares of the first, once tempered
    p = np.exp(logs) / np.exp(logs).sum()
    choice = rules.choose(Seen(p, 1.0 / BITS, 0.25 / BITS**2))
    np.testing.assert_allclose(choice.p, [1 / 1.02, 0.02 / 1.02, 0])


def test_the_adaptive_min_p_never_falls_below_a_hundredth() -> None:
    rules, at = ThresholdRules(**WIDE), 0.666 * (1 + 0.3 * 3.0)  # type: ignore[arg-type]
    logs = at * np.log([1.0, 0.0105, 0.0095])
    p = np.exp(logs) / np.exp(logs).sum()
    choice = rules.choose(Seen(p, 2.0 / BITS, 1.0 / BITS**2))
    np.testing.assert_allclose(choice.p, [1 / 1.0105, 0.0105 / 1.0105, 0])


def test_the_adaptive_top_k_stops_at_a_hundred_and_top_p_at_all() -> None:
    rules = ThresholdRules(**WIDE, faithful=True)  # type: ignore[arg-type]
    p = spread([0.05], 200)
    assert threshold_state([entropy(p)], [varentropy(p)], rules) == ["adaptive"]
    # I = 4: 27 · 2.2 = 59; I = 20: 27 · 7 = 189. aV = 9 would take top_p to 1.9: it stops at 1, and keeps all.
    for interaction, kept in ((4.0, 59), (20.0, 100)):
        found = rules.choose(seen(p, attention=attention(bits2=9.0, interaction=interaction))).p
        assert found is not None
        assert (found > 0).sum() == kept


def test_explore_is_never_hotter_than_one_and_a_half() -> None:
    ratio = 64 ** (-1 / 1.5)  # at I = 9 the temperature would be 2.6
    p = PUBLISHED.choose(seen(spread([0.5], 64), attention=attention(interaction=9.0))).p
    assert p is not None
    np.testing.assert_allclose(p[[0, 1, 39, 40]], np.array([1, ratio, ratio, 0]) / (1 + 39 * ratio))


@pytest.mark.parametrize(
    ("bits", "bits2", "state"),
    [
        (0.099, 0.099, "argmax"), (0.101, 0.099, "adaptive"), (0.099, 0.101, "adaptive"),
        (5.01, 0.099, "clarify"), (4.99, 0.099, "adaptive"), (5.01, 0.101, "adaptive"),
        (4.99, 5.01, "explore"), (4.99, 4.99, "adaptive"),
        (5.01, 5.01, "resample"), (5.01, 4.99, "adaptive"),
    ],
)  # fmt: skip
def test_either_side_of_every_threshold(bits: float, bits2: float, state: str) -> None:
    assert threshold_state([bits / BITS], [bits2 / BITS**2]) == [state]


def test_thresholds_can_be_moved() -> None:
    nats = np.array([0.05, 6, 3, 6, 3]) / BITS, np.array([0.05, 0.05, 6, 6, 1]) / BITS**2
    assert threshold_state(*nats) == ["argmax", "clarify", "explore", "resample", "adaptive"]
    assert threshold_state(*nats, ThresholdRules(high_entropy=7.0)) == [
        "argmax", "adaptive", "explore", "explore", "adaptive"
    ]  # fmt: skip


# --- the four states, in nats


def test_keep_takes_the_likeliest() -> None:
    choice = FOUR.choose(seen(np.array([0.03, 0.97])))
    assert choice.state == "keep"
    assert choice.p is not None
    assert choice.p.tolist() == [0.0, 1.0]


def test_clarify_unless_just_asked() -> None:
    even = np.full(16, 1 / 16)  # 2.77 nats
    assert FOUR.choose(seen(even)).state == "clarify"
    assert FOUR.choose(seen(even)).p is None
    np.testing.assert_allclose(FOUR.choose(seen(even, asked=True)).p, even)


@pytest.mark.parametrize(("p", "h"), [(spread([0.9], 256), 0.88), (spread([0.5], 32), 2.43)])
def test_branch_draws_at_the_runs_temperature(p: np.ndarray, h: float) -> None:
    """The second lies between 1.2 and 2.5 nats, where resample would fit too."""
    assert entropy(p) == pytest.approx(h, abs=0.01)
    assert varentropy(p) > 2.5
    choice = FOUR.choose(seen(p, temperature=0.7))
    assert choice.state == "branch"
    np.testing.assert_allclose(choice.p, tempered(p, 0.7))


def test_resample_bans_the_drawn_token() -> None:
    p = spread([0.5], 64)  # 2.77 nats, 4.3 nats²
    choice = FOUR.choose(seen(p, temperature=0.9))
    assert choice.state == "resample"
    np.testing.assert_allclose(choice.p, drawn_again(tempered(p, 0.9)))


def test_default_is_reachable_and_samples_as_usual() -> None:
    p = np.array([0.6, 0.4])
    choice = FOUR.choose(seen(p, temperature=0.5))
    assert choice.state == "default"
    np.testing.assert_allclose(choice.p, [0.36 / 0.52, 0.16 / 0.52])


def test_where_branch_ends_resample_begins() -> None:
    assert four_state([2.4, 2.5, 2.6], [3, 3, 3]) == ["branch", "resample", "resample"]
    narrow = FourStateRules(branch_entropy=1.0)
    assert four_state([0.9, 1.1, 1.3], [3, 3, 3], narrow) == ["branch", "default", "resample"]


@pytest.mark.parametrize(
    ("nats", "nats2", "state"),
    [
        (0.29, 1.19, "keep"), (0.31, 1.19, "default"), (0.29, 1.21, "default"),
        (2.51, 1.19, "clarify"), (2.49, 1.19, "default"), (2.51, 1.21, "default"),
        (2.49, 2.51, "branch"), (2.49, 2.49, "default"),
        (2.51, 2.51, "resample"), (2.51, 2.49, "default"),
    ],
)  # fmt: skip
def test_either_side_of_every_edge_of_the_four_states(nats: float, nats2: float, state: str) -> None:
    assert four_state([nats], [nats2]) == [state]


# --- the sampler

WAIT = 7


def draw(engine: Scripted, rules: Rules, n: int = 4, length: int = 6, **more: object):  # type: ignore[no-untyped-def]
    options = {k: more.pop(k) for k in ("branch_limit", "branch_min_p") if k in more}
    sampler = RuleSampler(engine, rules, WAIT, **options)  # type: ignore[arg-type]
    request = Request("r", (0,), n, 100, 1.0, length, **more)  # type: ignore[arg-type]
    [completion] = sampler.sample([request])
    return completion


def test_one_uniform_a_token_from_each_draws_own_stream() -> None:
    p = np.array([0.5, 0.2, 0.3])
    done = draw(Scripted(lambda ids: p), FOUR, n=5, length=7)
    assert done.error is None
    for i, continuation in enumerate(done.continuations):
        at = np.random.default_rng(100 + i).random(7)
        # Likeliest first, as the distribution lists them.
        assert continuation.token_ids == tuple(
            np.array([0, 2, 1])[np.searchsorted([0.5, 0.8], at, side="right")]
        )
        assert continuation.finish_reason == "length"
        assert continuation.trace.states == "d" * 7
        assert continuation.trace.peak_entropy == pytest.approx(entropy(p))
        assert continuation.trace.parent is None


def test_draws_do_not_depend_on_how_many_run_at_once() -> None:
    def p(ids: tuple[int, ...]) -> np.ndarray:
        return spread([0.9], 256) if len(ids) == 2 else np.array([0.4, 0.35, 0.25])

    together, apart = (
        draw(Scripted(p, at_once), FOUR, n=6, branch_limit=2, branch_min_p=0.0) for at_once in (64, 1)
    )
    assert together == apart
    assert len(together.continuations) == 6 + 12


def test_the_clarifying_token_is_not_inserted_twice_in_a_row() -> None:
    even = np.full(64, 1 / 64)
    done = draw(Scripted(lambda ids: even), FOUR, n=3, length=5)
    for continuation in done.continuations:
        ids = continuation.token_ids
        assert ids[0] == WAIT
        assert continuation.trace.states == "c" * 5
        for before, after in pairwise(ids):
            assert before == WAIT or after == WAIT


def test_nor_after_a_prefix_that_ends_in_it() -> None:
    even = np.full(64, 1 / 64)
    [done] = RuleSampler(Scripted(lambda ids: even), FOUR, WAIT).sample(
        [Request("r", (0, WAIT), 8, 100, 1.0, 1)]
    )
    # Drawn, then, of 64 alike: eight times the same one has a chance of 64 ** -7.
    assert len({c.token_ids for c in done.continuations}) > 1


def branching(ids: tuple[int, ...]) -> np.ndarray:
    """A branching token third, then the end."""
    if len(ids) == 2:
        p = np.zeros(300)
        p[[1, 2, 3]] = 0.45, 0.3, 0.15
        p[10:266] = 0.1 / 256
        return p
    return np.eye(300)[END if len(ids) > 2 else 4]


def test_branching_keeps_the_alternatives_as_rollouts_of_their_own() -> None:
    engine = Scripted(branching)
    done = draw(engine, FOUR, n=2, branch_limit=2)
    assert len(done.continuations) == 6
    for i, drawn in enumerate(done.continuations[:2]):
        assert drawn.trace.parent is None
        assert drawn.trace.states == "kkbk"
        likeliest = [t for t in (1, 2, 3) if t != drawn.token_ids[2]][:2]
        kept = done.continuations[2 + 2 * i : 4 + 2 * i]
        assert [k.token_ids for k in kept] == [(4, 4, token, END) for token in likeliest]
        for k in kept:
            assert (k.trace.parent, k.trace.shared, k.trace.states) == (i, 2, "kkbk")
            assert k.finish_reason == "stop"
    assert engine.steps == 4  # the alternatives run along; what is shared is not read again


def test_only_likely_alternatives_are_kept_and_none_beyond_the_limit() -> None:
    likely = draw(Scripted(branching), FOUR, n=1, branch_limit=9, branch_min_p=0.25)
    tokens = [c.token_ids[2] for c in likely.continuations]
    assert set(tokens[1:]) == {1, 2} - {tokens[0]}
    assert len(draw(Scripted(branching), FOUR, n=3).continuations) == 3  # a limit of none
    # Alternatives branch too, up to their draw's limit, and say from whom.
    again = draw(
        Scripted(lambda ids: branching((0, 0))), FOUR, n=1, length=5, branch_limit=7, branch_min_p=0.1
    )
    parents = [c.trace.parent for c in again.continuations]
    assert len(parents) == 8
    assert parents[0] is None
    assert any(parent for parent in parents)
    for child in again.continuations[1:]:
        parent = again.continuations[child.trace.parent]
        assert child.token_ids[: child.trace.shared] == parent.token_ids[: child.trace.shared]
        assert child.token_ids[child.trace.shared] != parent.token_ids[child.trace.shared]


def test_ends_stop_strings_and_limits() -> None:
    cycle = Scripted(lambda ids: np.eye(10)[[1, 2, 3, 9][len(ids) % 4]])
    [done] = draw(cycle, FOUR, n=1).continuations
    assert (done.token_ids, done.finish_reason) == ((1, 2, 3, END), "stop")
    [done] = draw(cycle, FOUR, n=1, stop=("23",)).continuations
    assert (done.token_ids, done.finish_reason) == ((1, 2, 3), "stop")
    [done] = draw(cycle, FOUR, n=1, length=2).continuations
    assert (done.token_ids, done.finish_reason) == ((1, 2), "length")


def test_a_request_that_fails_fails_alone() -> None:
    sampler = RuleSampler(Scripted(lambda ids: np.eye(10)[END]), FOUR, WAIT)  # type: ignore[arg-type]
    requests = [Request(k, p, 1, 0, 1.0, n) for k, p, n in (("a", (5,), 4), ("b", (0,), 4), ("c", (0,), 64))]
    broken, fine, long = sampler.sample(requests)
    assert broken.error == "no fives"
    assert fine.error is None
    assert long.error is not None
    assert "do not fit the context of 64 tokens" in long.error


def test_draws_follow_the_transform() -> None:
    """Frequencies of 4,000 first tokens against the distribution, by a chi-square at 1e-6."""
    from scipy.stats import chisquare

    p = np.array([0.6, 0.3, 0.1])
    done = draw(Scripted(lambda ids: p, at_once=4000), MEANT, n=4000, length=1)
    counts = np.bincount([c.token_ids[0] for c in done.continuations], minlength=3)
    expected = MEANT.choose(seen(p)).p
    assert expected is not None
    assert chisquare(counts, expected / expected.sum() * 4000).pvalue > 1e-6


# --- the strategy


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rules": "five-state"}, "rules"),
        ({"low_entropy": -1}, "low_entropy"),
        ({"low_entropy": 6.0}, "low_entropy"),
        ({"high_entropy": "much"}, "high_entropy"),
        ({"high_varentropy": math.nan}, "high_varentropy"),
        ({"rules": "four-state", "keep_entropy": 3.0}, "keep_entropy"),
        ({"rules": "four-state", "low_varentropy": 2.6}, "low_varentropy"),
        ({"rules": "four-state", "top_p": 0.5}, "top_p"),
        ({"rules": "four-state", "faithful": True}, "faithful"),
        ({"keep_entropy": 0.2}, "keep_entropy"),
        ({"temperature": 0}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_k": 101}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"draws": 0}, "draws"),
        ({"rules": "four-state", "branch_limit": -1}, "branch_limit"),
        ({"rules": "four-state", "branch_min_p": 0}, "branch_min_p"),
        ({"branch_limit": 9}, "branch_limit"),
        ({"branch_min_p": 0.1}, "branch_min_p"),
        ({"clarify": ""}, "clarify"),
        ({"faithful": "yes"}, "faithful"),
        ({"faithful": 1}, "faithful"),
        ({"temperature": 1e6}, "temperature"),
        ({"speed": 1}, "speed"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        strategy("entropix", options)


def test_given_numbers_reach_the_rules() -> None:
    rules = Entropix(faithful=True, top_k=5, low_entropy=0.2).rule_set
    assert rules == ThresholdRules(faithful=True, top_k=5, low_entropy=0.2)
    assert Entropix(rules="four-state", keep_entropy=0.1).rule_set == FourStateRules(keep_entropy=0.1)


def test_engines_that_cannot_be_steered_and_texts_that_are_no_token_are_refused(tmp_path: Path) -> None:
    plain = type("Plain", (), {"info": FakeEngine().info})()
    with pytest.raises(UsageError, match="cannot"):
        Entropix().sampler(plain, Settings())  # type: ignore[arg-type]
    with load_engine("fake", "x") as engine:
        given = Settings(strategy="entropix", options={"clarify": " wait wait"})
        with pytest.raises(UsageError, match="not one token"):
            collect(given, engine, fpa.load_questions("demo", limit=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # refused before anything is made


class Notes:
    """Keeps what the user would be told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, questions: int) -> None: ...
    def question(self, question_id: str, continuations: int, stored: int) -> None: ...
    def advance(self, continuations: int, tokens: int) -> None: ...
    def note(self, line: str) -> None:
        self.lines.append(line)


def test_a_run_says_that_there_is_no_attention_and_keeps_its_states(tmp_path: Path) -> None:
    notes = Notes()
    given = Settings(strategy="entropix", samples=5, every=6, options={"faithful": True})
    with load_engine("fake", "x") as engine:
        summary = collect(given, engine, fpa.load_questions("demo", limit=2), tmp_path / "run", notes)
        assert plan(given, engine, fpa.load_questions("demo", limit=2)).continuations > 0
    assert not summary.failures
    assert notes.lines == [
        "engine fake gives no attention: the rules' attention terms are zero (engine transformers has them)"
    ]
    run = fpa.open_run(tmp_path / "run")
    assert run.config["options"] == {"faithful": True}
    for question_id in run.question_ids:
        rollouts = run.rollouts(question_id)
        assert (rollouts["states"].str.len() == rollouts["n_tokens"]).all()
        assert set("".join(rollouts["states"])) <= set(LETTERS.values())
        # The draws do not leave the base path by the model's own odds: smoothers are not told these.
        observed = run.observations(question_id)
        assert observed.step_p is None
        assert observed.divergence is None


def test_alternatives_are_stored_and_not_counted(tmp_path: Path) -> None:
    given = Settings(
        strategy="entropix", samples=8, every=50, keep_ids=True,
        options={"rules": "four-state", "high_varentropy": 1.3, "branch_entropy": 9.0, "clarify_entropy": 9.0},
    )  # fmt: skip
    with load_engine("fake", "x") as engine:
        collect(given, engine, fpa.load_questions("demo", limit=3), tmp_path / "run")
    run = fpa.open_run(tmp_path / "run")
    children = 0
    for question_id in run.question_ids:
        rollouts = run.rollouts(question_id)
        roots = rollouts[rollouts["parent"].isna()]
        assert len(roots) == 8
        assert run.counts(question_id)[1].sum() == 8
        assert roots["seed"].nunique() == 8
        for _, child in rollouts[rollouts["parent"].notna()].iterrows():
            children += 1
            parent = rollouts[rollouts["draw"] == child["parent"]].iloc[0]
            assert child["seed"] == parent["seed"]
            assert child["n_tokens"] == len(child["token_ids"]) - child["shared"]
            assert list(child["token_ids"][: child["shared"]]) == list(parent["token_ids"][: child["shared"]])
    assert children > 0


def test_a_run_resumed_is_the_run(tmp_path: Path) -> None:
    given = Settings(strategy="entropix", samples=3, every=5)
    questions = fpa.load_questions("demo", limit=2)
    for name in ("whole", "resumed"):
        with load_engine("fake", "x") as engine:
            collect(given, engine, questions, tmp_path / name)
    removed = sorted((tmp_path / "resumed" / "rollouts").glob("*.parquet"))[1]
    before = removed.read_bytes()
    removed.unlink()
    with load_engine("fake", "x") as engine:
        collect(given, engine, questions, tmp_path / "resumed")
        changed = Settings(strategy="entropix", samples=3, every=5, options={"top_k": 5})
        with pytest.raises(UsageError, match="options"):
            collect(changed, engine, questions, tmp_path / "resumed")
    assert removed.read_bytes() == before
    for part in (tmp_path / "whole" / "rollouts").glob("*.parquet"):
        assert part.read_bytes() == (tmp_path / "resumed" / "rollouts" / part.name).read_bytes()


def test_the_command_takes_strategy_options(tmp_path: Path) -> None:
    arguments = ["collect", "--engine", "fake", "--model", "x", "--questions", "demo", "--limit", "1", "--strategy",
                 "entropix", "--samples", "2", "--every", "9", "--out", str(tmp_path / "run")]  # fmt: skip
    result = CliRunner().invoke(
        app, [*arguments, "--strategy-option", "rules=four-state", "--strategy-option", "keep_entropy=0.2"]
    )
    assert result.exit_code == 0, result.output
    assert fpa.open_run(tmp_path / "run").config["options"] == {"rules": "four-state", "keep_entropy": 0.2}
    planned = CliRunner().invoke(app, [*arguments, "--plan", "--strategy-option", "rules=four-state"])
    assert planned.exit_code == 0, planned.output


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_the_fake_engine_is_steered_the_same_way_twice(seed: int) -> None:
    with load_engine("fake", "x") as engine:
        sampler = Entropix().sampler(engine, Settings())
        request = Request("r", engine.encode_chat([{"role": "user", "content": "why"}]), 2, seed, 1.0, 20)
        assert list(sampler.sample([request])) == list(sampler.sample([request]))
