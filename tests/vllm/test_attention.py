"""Attention signals of the ``transformers`` engine against the last layer worked out by hand from its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import fpa
from fpa.collect import collect
from fpa.engines import load_engine
from fpa.engines.base import Request
from fpa.entropix import LETTERS, Seen
from fpa.guided import RuleSampler
from fpa.records import AttentionSignals
from fpa.settings import Settings
from fpa.strategies.entropix import Entropix

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 32, 96


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory, tiny_hub: str) -> str:
    """A random Llama of three layers whose four heads share two heads' keys."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_hub)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=SIZE, max_position_embeddings=512,
        initializer_range=0.3, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "grouped"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def by_hand(folder: str, ids: list[int]) -> AttentionSignals:
    """The signals at the last of some tokens: norm, projections, rotation, products, softmax, all in numpy."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-2][0].double().numpy()
    layer = model.model.layers[-1]
    weight = {name: p.detach().double().numpy() for name, p in layer.named_parameters()}
    x = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + model.config.rms_norm_eps)
    x = x * weight["input_layernorm.weight"]
    q = (x @ weight["self_attn.q_proj.weight"].T).reshape(len(ids), HEADS, SIZE)
    k = (x @ weight["self_attn.k_proj.weight"].T).reshape(len(ids), GROUPS, SIZE)

    def turned(v: np.ndarray) -> np.ndarray:
        angle = np.arange(len(ids))[:, None] / 10000 ** (np.arange(0, SIZE, 2) / SIZE)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = v[..., : SIZE // 2], v[..., SIZE // 2 :]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    q, k = turned(q), turned(k)
    scores = np.array([[q[-1, h] @ k[t, h // 2] / SIZE**0.5 for t in range(len(ids))] for h in range(HEADS)])
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    entropies = -(weights * np.log(weights)).sum(1)
    return AttentionSignals(
        sum(entropies) / HEADS,
        sum((entropies - sum(entropies) / HEADS) ** 2) / HEADS,
        np.abs(weights - weights.sum(0) / HEADS).sum() / (HEADS * len(ids)),
        np.abs(scores).sum() / (HEADS * len(ids)),
    )


def assert_near(found: AttentionSignals | None, expected: AttentionSignals, rtol: float = 1e-4) -> None:
    """Within what 32-bit sums in another order differ by."""
    assert found is not None
    np.testing.assert_allclose(
        dataclasses.astuple(found), dataclasses.astuple(expected), rtol=rtol, atol=1e-6
    )


def assert_same(found: list[AttentionSignals] | None, expected: list[AttentionSignals]) -> None:
    assert found is not None
    for a, b in zip(found, expected, strict=True):
        assert_near(a, b, 1e-12)


def test_signals_step_by_step_are_those_worked_out_by_hand(grouped: str) -> None:
    prompt = tuple(range(300, 312))
    with load_engine("transformers", grouped) as engine:
        assert engine.attends
        first = engine.next_distributions([prompt] * 3, attention=True)
        longer = [(*prompt, 5), (*prompt, 77), (*prompt, 5)]
        second = engine.next_distributions(longer, attention=True)
        third = engine.next_distributions([(*longer[1], 9), (*longer[0], 8)], attention=True)
        apart = engine.next_distributions(
            [prompt[:4], prompt[:7]], attention=True
        )  # nothing of the cache fits
        assert engine.next_distributions([prompt])[0].attention is None
        path = engine.greedy(prompt, 5, 1.0)
        eager = engine.attention(prompt)[-1, :, -1]
        assert engine.next_distributions([prompt], attention=True)[0].attention == first[0].attention
    assert_near(first[2].attention, by_hand(grouped, list(prompt)))
    for ids, found in zip(longer, second, strict=True):
        assert_near(found.attention, by_hand(grouped, list(ids)))
    for ids, found in zip([(*longer[1], 9), (*longer[0], 8)], third, strict=True):
        assert_near(found.attention, by_hand(grouped, list(ids)))
    assert_near(apart[0].attention, by_hand(grouped, list(prompt[:4])))
    assert_near(apart[1].attention, by_hand(grouped, list(prompt[:7])))
    for t, found in enumerate(path.distributions):
        assert_near(found.attention, by_hand(grouped, [*prompt, *path.token_ids[:t]]))
    # The model's own weights, from the kernel that forms them.
    entropies = -(eager * np.log(eager)).sum(1)
    assert found_entropy(first[0].attention) == pytest.approx(entropies.mean(), rel=1e-4)


def found_entropy(signals: AttentionSignals | None) -> float:
    assert signals is not None
    return signals.entropy


def test_empty_positions_of_a_cache_do_not_count() -> None:
    import torch

    from fpa.engines.attention import LastAttention

    torch.manual_seed(0)
    query, key = torch.randn(2, HEADS, 1, SIZE), torch.randn(2, GROUPS, 6, SIZE)
    seen = LastAttention()
    seen.remember(query, key, None, None, False)
    full = seen.signals()
    assert full is not None
    room = torch.full((2, GROUPS, 4, SIZE), torch.inf)  # whatever lies in an unused part of a cache
    mask = torch.arange(10).expand(2, 1, 1, 10) < 6
    for given in (mask, torch.where(mask, 0.0, torch.finfo(torch.float32).min)):
        seen.remember(query, torch.cat([key, room], 2), given, None, False)
        assert_same(seen.signals(), full)
    # Padding on the left of one of two sequences.
    padded = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    padded[1, ..., :3] = False
    seen.remember(query, key, padded, None, False)
    found = seen.signals()
    seen.remember(query[1:], key[1:, :, 3:], None, None, False)
    assert_same(found, [full[0], *(seen.signals() or ())])


def test_scores_that_a_kernel_changes_are_not_guessed() -> None:
    import torch

    from fpa.engines.attention import LastAttention

    seen = LastAttention()
    seen.remember(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2), None, None, True)
    assert seen.signals() is None


def test_the_attention_terms_steer(grouped: str) -> None:
    """Adaptive draws with attention are those of the rules with the signals put in by hand."""
    prompt = tuple(range(300, 312))
    with load_engine("transformers", grouped) as engine:
        sampler = Entropix(high_varentropy=1e6, high_entropy=1e6).sampler(engine, Settings())
        assert isinstance(sampler, RuleSampler)
        assert sampler.notices == ()
        [done] = sampler.sample([Request("r", prompt, 3, 11, 1.0, 4)])
        assert done.error is None
        for i, continuation in enumerate(done.continuations):
            stream = np.random.default_rng(11 + i)
            for t, token in enumerate(continuation.token_ids):
                ids = (*prompt, *continuation.token_ids[:t])
                [read] = engine.next_distributions([ids])
                seen = Seen(read.p, read.entropy, read.varentropy, 1.0, 0, by_hand(grouped, list(ids)))
                choice = sampler.rules.choose(seen)
                assert continuation.trace is not None
                assert continuation.trace.states[t] == LETTERS[choice.state] == "v"
                assert choice.p is not None
                assert read.ids[np.searchsorted(np.cumsum(choice.p), stream.random(), side="right")] == token


def test_base_paths_carry_the_signals(grouped: str, tmp_path: Path) -> None:
    with load_engine("transformers", grouped) as engine:
        given = Settings(strategy="entropix", samples=2, every=3, base_tokens=6, rollout_tokens=4)
        summary = collect(given, engine, fpa.load_questions("demo", limit=1), tmp_path / "run")
    assert not summary.failures
    run = fpa.open_run(tmp_path / "run")
    base = run.base(run.question_ids[0])
    for distribution in base.distributions:
        assert distribution.attention is not None
        assert distribution.attention.entropy > 0
