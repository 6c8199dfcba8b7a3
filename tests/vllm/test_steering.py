"""Entropix' rules in vLLM's own sampler: frequencies of draws against the transform that the rules give."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

import fpa
from fpa.collect import collect
from fpa.engines import load_engine
from fpa.engines.base import Engine, Request
from fpa.entropix import FourStateRules, Seen, ThresholdRules
from fpa.errors import UsageError
from fpa.settings import Settings
from fpa.signals import entropy, varentropy
from fpa.strategies.entropix import Entropix

DRAWS = 3000
PROMPT = tuple(range(300, 312))
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def engine(tiny_hub: str) -> Iterator[Engine]:
    with load_engine("vllm", tiny_hub, context=256, parallel=128, dtype="float32", steerable=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def next_p(tiny_hub: str) -> np.ndarray:
    """The model's own next-token probabilities after the prompt, from the reference engine."""
    with load_engine("transformers", tiny_hub) as reference:
        return np.exp(reference.next_logprobs(PROMPT))  # type: ignore[attr-defined]


def first_tokens(
    engine: Engine, strategy: Entropix, prefix: tuple[int, ...], draws: int = DRAWS
) -> Counter[int]:
    """What the first tokens of many draws are."""
    sampler = strategy.sampler(engine, Settings())
    requests = [Request(f"r{i}", prefix, 100, 1000 * i, TEMPERATURE, 1) for i in range(draws // 100)]
    seen: Counter[int] = Counter()
    for completion in sampler.sample(requests):
        assert completion.error is None
        seen.update(c.token_ids[0] for c in completion.continuations)
    assert seen.total() == draws
    return seen


def assert_drawn_from(seen: Counter[int], p: np.ndarray) -> None:
    """No token of probability 0; the others by a chi-square at 1e-6, rare ones together."""
    impossible = [token for token in seen if p[token] == 0]
    assert not impossible
    counts, expected = np.array([seen[t] for t in range(len(p))]), p * seen.total()
    common = expected >= 10
    assert common.any()
    counts = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    if expected[-1] < 5:  # too rare for a cell of its own
        assert counts[-1] <= 25  # a Poisson count of mean 5 exceeds it once in 10^10
        counts, expected = counts[:-1], expected[:-1]
    if len(counts) > 1:
        assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-6


# Thresholds moved so that this model's token meets each state in turn.
CASES = {
    "adaptive, published": (
        Entropix(faithful=True, high_varentropy=1e6),
        ThresholdRules(faithful=True, high_varentropy=1e6),
        "adaptive",
    ),
    "adaptive, meant": (Entropix(high_varentropy=1e6), ThresholdRules(high_varentropy=1e6), "adaptive"),
    "explore": (
        Entropix(high_varentropy=0.2, high_entropy=1e6),
        ThresholdRules(high_varentropy=0.2, high_entropy=1e6),
        "explore",
    ),
    "argmax": (
        Entropix(low_entropy=1e5, high_entropy=1e6, low_varentropy=1e5, high_varentropy=1e6),
        ThresholdRules(low_entropy=1e5, high_entropy=1e6, low_varentropy=1e5, high_varentropy=1e6),
        "argmax",
    ),
    "resample": (
        Entropix(rules="four-state", resample_entropy=0.0, branch_entropy=0.0, low_varentropy=0.0,
                 high_varentropy=0.1),
        FourStateRules(resample_entropy=0.0, branch_entropy=0.0, low_varentropy=0.0, high_varentropy=0.1),
        "resample",
    ),
    "default": (
        Entropix(rules="four-state", low_varentropy=0.0, high_varentropy=1e6),
        FourStateRules(low_varentropy=0.0, high_varentropy=1e6),
        "default",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_transform(engine: Engine, next_p: np.ndarray, case: str) -> None:
    strategy, rules, state = CASES[case]
    choice = rules.choose(Seen(next_p, entropy(next_p), varentropy(next_p), TEMPERATURE))
    assert choice.state == state
    assert choice.p is not None
    assert_drawn_from(first_tokens(engine, strategy, PROMPT), choice.p)


def test_unsteered_requests_in_the_same_engine_are_left_alone(engine: Engine, next_p: np.ndarray) -> None:
    requests = [Request(f"r{i}", PROMPT, 100, 1000 * i, 1.0, 1) for i in range(DRAWS // 100)]
    seen = Counter(c.token_ids[0] for done in engine.sample(requests) for c in done.continuations)
    assert_drawn_from(seen, next_p)


def test_the_clarifying_token_is_inserted_and_not_twice(engine: Engine) -> None:
    always = Entropix(rules="four-state", keep_entropy=0.0, clarify_entropy=0.0, low_varentropy=1e5,
                      high_varentropy=1e6)  # fmt: skip
    [wait] = engine.encode(" wait")
    sampler = always.sampler(engine, Settings())
    [done] = sampler.sample([Request("r", PROMPT, 4, 5, 1.0, 8)])
    for continuation in done.continuations:
        ids = continuation.token_ids
        assert ids[0] == wait
        assert all(token == wait for token in ids[::2])
        assert any(token != wait for token in ids[1::2])


def test_many_steered_sequences_keep_their_own_rules(engine: Engine, next_p: np.ndarray) -> None:
    """Requests under different rules in one batch, of different lengths, so that rows move."""
    argmax = CASES["argmax"][0].sampler(engine, Settings())
    requests = [Request(f"r{i}", PROMPT, 8, 100 * i, 1.0, 1 + i % 7) for i in range(24)]
    greedy = engine.greedy(PROMPT, 7, 1.0).token_ids
    for done in argmax.sample(requests):
        assert done.error is None
        for continuation in done.continuations:
            length = len(continuation.token_ids)
            assert continuation.token_ids == greedy[:length]


def test_a_run_on_vllm_says_what_it_lacks(engine: Engine, tmp_path: Path) -> None:
    lines: list[str] = []

    class Notes:
        def begin(self, questions: int) -> None: ...
        def question(self, question_id: str, continuations: int, stored: int) -> None: ...
        def advance(self, continuations: int, tokens: int) -> None: ...
        def note(self, line: str) -> None:
            lines.append(line)

    for number, rules in enumerate(("threshold", "four-state")):
        given = Settings(
            strategy="entropix", samples=4, every=4, base_tokens=8, rollout_tokens=8, prompt="plain",
            options={"rules": rules},
        )  # fmt: skip
        summary = collect(given, engine, fpa.load_questions("demo", limit=1), tmp_path / str(number), Notes())
        assert not summary.failures
        assert summary.spent.continuations == 8
    assert lines == [
        "engine vllm gives no attention: the rules' attention terms are zero (engine transformers has them)",
        "engine vllm cannot split a sequence: no alternatives of branching tokens are kept",
    ]


def test_without_the_processor_it_is_refused(engine: Engine) -> None:
    engine._steerable = False  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="steerable=True"):
        Entropix().sampler(engine, Settings())
    engine._steerable = True  # type: ignore[attr-defined]


def test_rules_that_are_none_are_refused(engine: Engine) -> None:
    wrong = {"rules": "six", "numbers": {}, "clarify": 1}
    with pytest.raises(importlib.import_module("vllm.exceptions").VLLMValidationError, match="'six'"):
        list(engine.sample([Request("r", PROMPT, 1, 0, 1.0, 1)], wrong))  # type: ignore[call-arg]
