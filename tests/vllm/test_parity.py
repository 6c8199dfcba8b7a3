"""One model in float32 on every engine and server: the same paths, distributions and outcomes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency

import fpa
from fpa.answers import extract_answer
from fpa.collect import collect
from fpa.engines import load_engine
from fpa.engines.base import Engine, EngineError, GreedyPath, Request
from fpa.engines.openai import OpenAIEngine
from fpa.prompts import messages, prompt_style
from fpa.records import Distribution
from fpa.run import open_run
from fpa.settings import Settings

QUESTIONS = fpa.load_questions("demo", limit=3)
DRAWS = 64
NEAR = 1e-3  # total variation that engines of one model may be apart
STARTS = 300.0  # seconds for a server to start on a busy machine


@dataclass
class Observed:
    """What one engine makes of the questions."""

    prompts: list[tuple[int, ...]] = field(default_factory=list)
    paths: list[GreedyPath] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    choices: np.ndarray = field(default_factory=lambda: np.empty(0))


def observe(engine: Engine) -> Observed:
    """Base paths of all questions; outcomes and readout probabilities of the first."""
    seen = Observed()
    for question in QUESTIONS.questions:
        seen.prompts.append(engine.encode_chat(messages(question, prompt_style("demo"))))
        seen.paths.append(engine.greedy(seen.prompts[-1], 40, 1.0))
    question, prompt = QUESTIONS.questions[0], seen.prompts[0]
    requests = [Request(f"r{i}", prompt, DRAWS // 4, 1000 * i, 1.0, 40) for i in range(4)]
    for completion in engine.sample(requests):
        assert completion.error is None
        for continuation in completion.continuations:
            text = engine.decode(continuation.token_ids)
            answer = extract_answer(text, question.choices, continuation.finish_reason)
            seen.outcomes[answer.outcome] += 1
    letters = [engine.encode(f" {letter}")[0] for letter in "ABCD"]
    seen.choices = engine.choose([prompt, prompt[:-1]], letters)
    return seen


@contextmanager
def vllm_server(model: str, *arguments: str) -> Iterator[str]:
    """vLLM's own server in a process of its own; its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "512"),
        *("--max-num-seqs", "32", "--block-size", "32", "--enforce-eager", "--generation-config", "vllm"),
        *arguments,
    ]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    process = subprocess.Popen(command, env={**os.environ, **settings})
    try:
        deadline = time.monotonic() + STARTS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None, "vLLM's server ended while starting"
                assert time.monotonic() < deadline, "vLLM's server did not start"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def reference(demo_hub: str) -> Observed:
    with load_engine("transformers", demo_hub, context=512) as engine:
        return observe(engine)


def test_the_first_token_is_the_argmax_of_the_logits(demo_hub: str, reference: Observed) -> None:
    """The reference itself, against a plain forward pass without cache or engine."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(demo_hub, dtype=torch.float32)
    for prompt, path in zip(reference.prompts, reference.paths, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *path.token_ids]])).logits[0, len(prompt) - 1 : -1]
        p = torch.softmax(logits.double(), -1).numpy()
        assert p.argmax(-1).tolist() == list(path.token_ids)
        for t, distribution in enumerate(path.distributions):
            np.testing.assert_allclose(distribution.p, p[t][distribution.ids], atol=2e-5)


def test_attention_weights_are_causal_and_normalised(tiny_hub: str) -> None:
    with load_engine("transformers", tiny_hub) as engine:
        weights = engine.attention(range(40, 60))  # type: ignore[attr-defined]
    assert weights.shape == (2, 2, 20, 20)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert np.all(weights[..., np.triu_indices(20, 1)[0], np.triu_indices(20, 1)[1]] == 0)


def test_vllm_in_this_process(demo_hub: str, reference: Observed) -> None:
    with load_engine("vllm", demo_hub, context=512, parallel=32, dtype="float32") as engine:
        compare(reference, observe(engine))


def test_llamacpp_with_the_weights_as_floats(demo_floats: str, reference: Observed) -> None:
    with load_engine("llamacpp", demo_floats, context=512, parallel=32, exact=True) as engine:
        compare(reference, observe(engine))


def test_llamacpp_behind_its_server(demo_floats: str, reference: Observed) -> None:
    with load_engine("llamacpp", demo_floats, context=512, parallel=32, exact=True) as serving:
        url = f"http://{serving._host}:{serving._port}/v1"  # type: ignore[attr-defined]
        with OpenAIEngine(url=url, in_flight=2) as engine:
            assert engine.info.version == "llama.cpp"
            compare(reference, observe(engine))


def test_vllm_behind_its_server(demo_hub: str, reference: Observed, tmp_path: Path) -> None:
    with vllm_server(demo_hub, "--max-logprobs", "-1") as url, OpenAIEngine(url=url) as engine:
        assert engine.info.version.startswith("vllm")
        compare(reference, observe(engine))
        settings = Settings(every=8, samples=4, base_tokens=40, rollout_tokens=40, prompt="demo")
        summary = collect(settings, engine, QUESTIONS, tmp_path / "run")
    assert not summary.failures
    run = open_run(tmp_path / "run")
    for question_id, path in zip(run.question_ids, reference.paths, strict=True):
        assert len(run.rollouts(question_id)) == 4 * len(range(0, len(path.token_ids), 8))


def test_a_vllm_server_that_lists_too_little_is_refused(tiny_hub: str) -> None:
    with vllm_server(tiny_hub) as url, pytest.raises(EngineError, match="--max-logprobs -1"):
        OpenAIEngine(url=url, retries=0)


def compare(reference: Observed, seen: Observed) -> None:
    """Hold an engine to the reference."""
    assert seen.prompts == reference.prompts
    apart = []
    for there, here in zip(reference.paths, seen.paths, strict=True):
        assert here.token_ids == there.token_ids, first_difference(there, here)
        assert here.finish_reason == there.finish_reason
        apart += [variation(a, b) for a, b in zip(there.distributions, here.distributions, strict=True)]
        for a, b in zip(there.distributions, here.distributions, strict=True):
            assert b.entropy == pytest.approx(a.entropy, abs=0.02)
            assert b.varentropy == pytest.approx(a.varentropy, rel=0.05, abs=0.1)  # the tail is taken as flat
    assert max(apart) < NEAR, f"next-token distributions up to {max(apart):.1e} apart"
    np.testing.assert_allclose(seen.choices, reference.choices, atol=NEAR)
    # Two samples of one distribution: rare outcomes together, so that the test's approximation holds.
    names = sorted(seen.outcomes.keys() | reference.outcomes.keys())
    table = np.array([[o[name] for name in names] for o in (reference.outcomes, seen.outcomes)])
    assert table.sum(1).tolist() == [DRAWS, DRAWS]
    common = table.sum(0) >= 10
    table = np.column_stack([table[:, common], table[:, ~common].sum(1)])
    p = chi2_contingency(table[:, table.sum(0) > 0]).pvalue if (table.sum(0) > 0).sum() > 1 else 1.0
    assert p > 1e-4, f"outcomes differ: {reference.outcomes} and {seen.outcomes}"


def first_difference(there: GreedyPath, here: GreedyPath) -> str:
    """The first position where two base paths part, with what each engine thought of both tokens."""
    t = next(
        t
        for t in range(min(len(there.token_ids), len(here.token_ids)) + 1)
        if there.token_ids[t : t + 1] != here.token_ids[t : t + 1]
    )
    shown = []
    for path in (there, here):
        p = dict(zip(path.distributions[t].ids.tolist(), path.distributions[t].p.tolist(), strict=True))
        shown.append(", ".join(f"{w}: {p.get(w, 0.0):.4f}" for w in (there.token_ids[t], here.token_ids[t])))
    return f"first difference at position {t}: {shown[0]} in the reference, {shown[1]} here"


def variation(a: Distribution, b: Distribution) -> float:
    """Total variation that two listed distributions show.

    A token that only one lists has, in the other, at most the probability of the last one listed there.
    """
    p, q = (dict(zip(d.ids.tolist(), d.p.tolist(), strict=True)) for d in (a, b))
    both = sum(abs(p[i] - q[i]) for i in p.keys() & q.keys())
    only = sum(max(0.0, p[i] - min(q.values())) for i in p.keys() - q.keys())
    only += sum(max(0.0, q[i] - min(p.values())) for i in q.keys() - p.keys())
    return 0.5 * (both + only)
