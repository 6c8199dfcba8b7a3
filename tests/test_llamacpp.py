"""The embedded engine on the demo model: ids, distributions, seeds, and clear refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fpa.engines.base import ContextOverflow, EngineError, Request
from fpa.errors import UsageError
from fpa.signals import COVERAGE, next_token_distribution

pytest.importorskip("xllamacpp", reason="the embedded engine is not installed (extra: local)")

from fpa.engines.dialects import LLAMA_SAMPLING as SAMPLING
from fpa.engines.llamacpp import LlamaCppEngine, demo_model
from fpa.engines.threads import split

try:
    demo_model()
except EngineError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("llamacpp")]

MESSAGES = [
    {"role": "system", "content": "Answer in a few words."},
    {"role": "user", "content": "Which is larger: A) a cat or B) a whale?"},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCppEngine]:
    with LlamaCppEngine("demo", parallel=16, context=512, deterministic=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prompt(engine: LlamaCppEngine) -> tuple[int, ...]:
    return engine.encode_chat(MESSAGES)


def test_the_chat_template_opens_with_one_bos_and_an_open_turn(
    engine: LlamaCppEngine, prompt: tuple[int, ...]
) -> None:
    assert prompt[0] == 1
    assert prompt[1] != 1
    text = "".join(engine.pieces(prompt))
    assert text.startswith("<|im_start|>system\nAnswer in a few words.<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")


def test_text_survives_tokens(engine: LlamaCppEngine) -> None:
    text = "x² ≥ 0, 数学 😀 <|im_end|> é"
    ids = engine.encode(text)
    assert engine.decode(ids) == text
    assert "".join(engine.pieces(ids)) == text
    assert not set(ids) & engine.end_ids  # plain text never becomes a special token


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_distributions_are_those_of_the_whole_vocabulary(
    engine: LlamaCppEngine, prompt: tuple[int, ...], temperature: float
) -> None:
    path = engine.greedy(prompt, 3, temperature)
    for t, (token, distribution) in enumerate(zip(path.token_ids, path.distributions, strict=True)):
        everything = engine._next_logprobs((*prompt, *path.token_ids[:t]), engine.info.vocabulary)
        logprobs = np.array([e["logprob"] for e in everything])
        scaled = np.exp(logprobs / temperature)
        exact = dict(zip((e["id"] for e in everything), scaled / scaled.sum(), strict=True))
        assert distribution.ids[0] == token
        assert (np.diff(distribution.p) <= 0).all()
        assert distribution.p.sum() >= COVERAGE
        assert distribution.p.sum() + distribution.tail_mass == pytest.approx(1.0)
        # Above temperature 1 the tail is known within bounds only; and 4-bit weights round a re-read prefix anew.
        for i, p in zip(distribution.ids, distribution.p, strict=True):
            assert p == pytest.approx(exact[int(i)], rel=0.02, abs=1e-4)
        raw = np.exp(logprobs)
        assert distribution.entropy == pytest.approx(-(raw * logprobs).sum(), abs=0.02)


def test_draws_follow_the_distribution(engine: LlamaCppEngine, prompt: tuple[int, ...]) -> None:
    """All samplers but temperature are off: 400 first tokens against the stored probabilities."""
    temperature = 0.8
    distribution = engine.greedy(prompt, 1, temperature).distributions[0]
    [drawn] = engine.sample([Request("a", prompt, 400, 1, temperature, 1)])
    firsts = [c.token_ids[0] for c in drawn.continuations]
    common = [(i, p) for i, p in zip(distribution.ids, distribution.p, strict=True) if p * 400 >= 8]
    observed = [firsts.count(int(i)) for i, _ in common]
    expected = [400 * float(p) for _, p in common]
    observed.append(400 - sum(observed))
    expected.append(400 - sum(expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_requests_of_any_size_have_one_stream_a_draw(engine: LlamaCppEngine, prompt: tuple[int, ...]) -> None:
    sizes = {"a": 1, "b": 17, "c": 40}
    requests = [Request(k, prompt, n, 1000 * i, 1.0, 6) for i, (k, n) in enumerate(sizes.items())]
    forward = {c.key: c.continuations for c in engine.sample(requests)}
    backward = {c.key: c.continuations for c in engine.sample(reversed(requests))}
    assert {k: len(v) for k, v in forward.items()} == sizes
    assert forward == backward  # the deterministic mode's promise
    assert len(set(forward["c"])) > 20
    [again] = engine.sample([Request("d", prompt, 3, 2000 + 20, 1.0, 6)])
    assert again.continuations == forward["c"][20:23]


@pytest.mark.parametrize(("n", "chunk"), [(1, 16), (16, 16), (17, 16), (200, 16), (1000, 32)])
def test_split_covers_every_draw_once(n: int, chunk: int) -> None:
    parts = list(split(Request("k", (1,), n, 5, 1.0, 1), chunk))
    draws = [first + i for _, first, size in parts for i in range(size)]
    assert draws == list(range(n))
    assert max(size for _, _, size in parts) <= chunk


def test_a_request_that_does_not_fit_fails_alone(engine: LlamaCppEngine, prompt: tuple[int, ...]) -> None:
    done = {
        c.key: c
        for c in engine.sample(
            [Request("fits", prompt, 2, 1, 1.0, 4), Request("large", prompt, 2, 9, 1.0, 5000)]
        )
    }
    assert len(done["fits"].continuations) == 2
    assert done["large"].continuations == ()
    assert "--context" in (done["large"].error or "")
    with pytest.raises(ContextOverflow, match="--context"):
        engine.greedy(prompt, 5000, 1.0)


def test_choose_reads_next_token_probabilities(engine: LlamaCppEngine, prompt: tuple[int, ...]) -> None:
    prefix = (*prompt, *engine.encode("The answer is ("))
    letters = [engine.encode(letter)[0] for letter in "AB"]
    table = engine.choose([prefix, prefix], letters)
    everything = {e["id"]: e["logprob"] for e in engine._next_logprobs(prefix, engine.info.vocabulary)}
    assert table.shape == (2, 2)
    np.testing.assert_allclose(table[0], [np.exp(everything[i]) for i in letters], rtol=1e-6)


def test_only_temperature_samples() -> None:
    assert SAMPLING["samplers"] == ["temperature"]
    assert (SAMPLING["top_k"], SAMPLING["top_p"], SAMPLING["min_p"]) == (0, 1.0, 0.0)


def test_models_that_do_not_load_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such model file"):
        LlamaCppEngine(str(tmp_path / "none.gguf"))
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"hello")
    with pytest.raises(EngineError, match="not a GGUF file"):
        LlamaCppEngine(str(garbage))
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(demo_model().read_bytes()[:4_000_000])
    with pytest.raises(EngineError, match="cannot load"):
        LlamaCppEngine(str(truncated))


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare.gguf"
    content = demo_model().read_bytes()
    bare.write_bytes(content.replace(b"tokenizer.chat_template", b"tokenizer.chat_templat_"))
    with pytest.raises(EngineError, match="no chat template"):
        LlamaCppEngine(str(bare))


def test_a_killed_collection_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL in the middle of a real collection; resumed, it equals an undisturbed one."""
    command = [
        sys.executable, "-m", "fpa", "collect", "--limit", "1", "--every", "6", "--samples", "6",
        "--rollout-tokens", "16", "--base-tokens", "24", "--parallel", "8", "--context", "512",
        "--deterministic", "--json",
    ]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True)
    expected = {p.name: p.read_bytes() for p in (whole / "rollouts").glob("*.parquet")}
    assert len(expected) >= 3
    process = subprocess.Popen(
        [*command, "--out", str(broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list((broken / "rollouts").glob("*.parquet")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = subprocess.run([*command, "--out", str(broken)], check=True, capture_output=True, text=True)
    assert {p.name: p.read_bytes() for p in (broken / "rollouts").glob("*.parquet")} == expected
    spent = json.loads(resumed.stdout)["spent"]
    assert spent["continuations"] < 6 * len(expected)
    assert not os.listdir(broken / ".tmp")


@pytest.mark.parametrize(
    "options", [{"context": -1}, {"parallel": 0}, {"parallel": 100_000}, {"context": 10**9}]
)
def test_impossible_sizes_are_refused_before_llama_cpp_aborts(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(options))} must be"):
        LlamaCppEngine("demo", **options)  # type: ignore[arg-type]


def test_the_next_token_distribution_needs_enough_tokens() -> None:
    flat = np.log(np.full(20, 1 / 1000))
    with pytest.raises(ValueError, match=r"cover 0\.02"):
        next_token_distribution(np.arange(20), flat, 1.0, 1000)
