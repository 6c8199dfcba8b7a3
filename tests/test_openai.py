"""The openai engine against servers that are slow, cut off, lying, busy, dead, or lack something."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import FakeServer, Handler

import fpa
from fpa.collect import collect
from fpa.engines import servers
from fpa.engines.base import Completion, EngineError, EngineStopped, Request
from fpa.engines.fake import FakeEngine
from fpa.engines.openai import OpenAIEngine
from fpa.errors import UsageError
from fpa.run import open_run
from fpa.settings import Settings

PROMPT = FakeEngine().encode_chat([{"role": "user", "content": "Which one is it?"}])
REQUESTS = [Request(f"r{i}", PROMPT, 4, 100 * i, 1.0, 40) for i in range(24)]
SETTINGS = Settings(every=4, samples=5, base_tokens=40, rollout_tokens=40, keep_ids=True)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "FIRST_PAUSE", 0.01)


def connect(*running: FakeServer, **options: Any) -> OpenAIEngine:
    url = ",".join(server.url for server in running)
    given: dict[str, Any] = {"tokenizer": running[0].model, "timeout": 5.0, **options}
    return OpenAIEngine("fake", url=url, **given)


def undisturbed() -> dict[str, Completion]:
    return {c.key: c for c in FakeEngine().sample(REQUESTS)}


def every_other(break_it: Any) -> Any:
    """A fault that befalls every completion request the first time it is made."""
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def fault(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        key = json.dumps(body, sort_keys=True)
        with lock:
            seen[key] += 1
            first = seen[key] == 1
        return bool(first and break_it(handler, body))

    return fault


def half(handler: Handler, body: dict[str, Any]) -> bool:
    handler.cut(b'{"choices": [{"index": 0, "token_ids": [1')
    return True


def hang_up(handler: Handler, body: dict[str, Any]) -> bool:
    handler.cut()
    return True


def garbage(handler: Handler, body: dict[str, Any]) -> bool:
    handler.send(200, b"<html>bad gateway</html>")
    return True


def not_a_completion(handler: Handler, body: dict[str, Any]) -> bool:
    handler.send(200, ["nothing", "of", "the", "kind"])
    return True


def busy(handler: Handler, body: dict[str, Any]) -> bool:
    handler.send(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.02"})
    return True


def broken(handler: Handler, body: dict[str, Any]) -> bool:
    handler.send(503, {"error": {"message": "loading"}})
    return True


def wrong_n(handler: Handler, body: dict[str, Any]) -> bool:
    handler.vllm_completion({**body, "n": body["n"] + 1})
    return True


def no_ids(handler: Handler, body: dict[str, Any]) -> bool:
    handler.send(
        200, {"choices": [{"index": i, "text": "x", "finish_reason": "stop"} for i in range(body["n"])]}
    )
    return True


def aborted(handler: Handler, body: dict[str, Any]) -> bool:
    choice = {"token_ids": [2], "finish_reason": "abort"}
    handler.send(200, {"choices": [{"index": i, **choice} for i in range(body["n"])]})
    return True


def too_slow(handler: Handler, body: dict[str, Any]) -> bool:
    time.sleep(0.6)
    return False


FAULTS = [half, hang_up, garbage, not_a_completion, busy, broken, wrong_n, no_ids, aborted]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_request_failing_once_loses_and_doubles_nothing(fault: Any) -> None:
    with FakeServer() as server, connect(server) as engine:
        server.fault = every_other(fault)
        completions = list(engine.sample(REQUESTS))
    assert Counter(c.key for c in completions) == Counter(r.key for r in REQUESTS)
    assert {c.key: c for c in completions} == undisturbed()


def test_answers_that_come_too_late_are_asked_again() -> None:
    with FakeServer() as server, connect(server, timeout=0.3) as engine:
        server.fault = every_other(too_slow)
        completions = list(engine.sample(REQUESTS[:8]))
    expected = undisturbed()
    assert {c.key: c for c in completions} == {r.key: expected[r.key] for r in REQUESTS[:8]}


def test_a_run_through_a_faulty_server_is_the_run_without(tmp_path: Path) -> None:
    questions = fpa.load_questions("demo", limit=2)
    rng = np.random.default_rng(5)
    lock = threading.Lock()

    def now_and_then(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        with lock:
            sick, kind = rng.random() < 0.3, rng.integers(len(FAULTS))
        return bool(sick and FAULTS[kind](handler, body))

    with FakeServer() as server, connect(server, retries=20) as engine:
        server.fault = now_and_then
        summary = collect(SETTINGS, engine, questions, tmp_path / "faulty")
    assert not summary.failures
    collect(SETTINGS, FakeEngine(), questions, tmp_path / "sound")
    faulty, sound = open_run(tmp_path / "faulty"), open_run(tmp_path / "sound")
    for question_id in sound.question_ids:
        columns = ["start", "draw", "seed", "outcome", "status", "diverge_at", "token_ids"]
        rows = [
            run.rollouts(question_id)[columns].sort_values(["start", "draw"]).reset_index(drop=True)
            for run in (faulty, sound)
        ]
        assert rows[0].equals(rows[1])


def test_a_request_that_never_succeeds_fails_alone() -> None:
    doomed = REQUESTS[3]

    def fault(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        return body["seed"] == doomed.seed and body["n"] == doomed.n and garbage(handler, body)

    with FakeServer() as server, connect(server, retries=2) as engine:
        server.fault = fault
        completions = {c.key: c for c in engine.sample(REQUESTS)}
        tries = sum(body["seed"] == doomed.seed and body["n"] == doomed.n for body in server.asked)
    assert "no usable answer in 3 tries" in (completions[doomed.key].error or "")
    assert "no JSON" in (completions[doomed.key].error or "")
    assert tries == 3
    expected = undisturbed()
    del completions[doomed.key], expected[doomed.key]
    assert completions == expected


def test_a_refused_request_is_not_asked_again() -> None:
    def fault(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.send(400, {"error": {"message": "prompt too long"}})
        return True

    with FakeServer() as server, connect(server) as engine:
        asked = len(server.asked)
        server.fault = fault
        [completion] = engine.sample(REQUESTS[:1])
        assert "prompt too long" in (completion.error or "")
        assert len(server.asked) == asked + 1


def test_load_is_spread_and_limited() -> None:
    def slowly(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        time.sleep(0.02)
        return False

    with FakeServer() as one, FakeServer() as two, connect(one, two, in_flight=3, chunk=2) as engine:
        before = len(one.asked), len(two.asked)
        one.most_at_once = two.most_at_once = 0
        one.fault = two.fault = slowly
        completions = {c.key: c for c in engine.sample(REQUESTS)}
        shares = len(one.asked) - before[0], len(two.asked) - before[1]
    assert completions == undisturbed()
    assert sum(shares) == 2 * len(REQUESTS)  # four draws each, two in a request
    assert min(shares) >= 0.3 * sum(shares)
    assert 1 < one.most_at_once <= 3
    assert 1 < two.most_at_once <= 3


def test_a_server_that_dies_leaves_its_work_to_the_others() -> None:
    with FakeServer() as sound:
        dying = FakeServer()
        dying.__enter__()
        with connect(dying, sound, in_flight=2) as engine:
            answers = {}
            for number, completion in enumerate(engine.sample(REQUESTS)):
                answers[completion.key] = completion
                if number == 3:
                    dying.__exit__()
    assert answers == undisturbed()


def test_without_any_server_left_collecting_stops() -> None:
    server = FakeServer()
    server.__enter__()
    with connect(server, retries=2) as engine:
        answers = engine.sample(REQUESTS)
        next(iter(answers))
        server.fault = lambda handler, number, body: hang_up(handler, body)
        server.__exit__()
        with pytest.raises(EngineStopped, match="no server answers"):
            list(answers)


def test_nobody_there_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineStopped, match="no server answers") as raised:
        OpenAIEngine(url=f"http://127.0.0.1:{port}/v1", retries=1)
    assert str(port) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("ids", "returns no token ids"),
        ("prompt", "prompts of token ids"),
        ("listed", "--max-logprobs -1"),
        ("raw", "raw log-probabilities, before temperature"),
        ("n", "1 continuations for n=2"),
    ],
)
def test_what_a_server_lacks_is_named(lacks: str, said: str) -> None:
    with FakeServer(lacks=lacks) as server, pytest.raises(EngineError, match="it lacks") as raised:
        connect(server, retries=1)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_several_lacks_are_named_together() -> None:
    with FakeServer(lacks="listed n") as server, pytest.raises(EngineError) as raised:
        connect(server, retries=0)
    assert "--max-logprobs -1" in str(raised.value)
    assert "continuations for n=2" in str(raised.value)


def test_servers_of_different_models_are_refused() -> None:
    with FakeServer() as one, FakeServer(name="other") as two:
        with pytest.raises(EngineError, match="does not serve fake, but other"):
            connect(one, two)
        two.model.info = one.model.info  # the same name for other weights
        with pytest.raises(EngineError, match="next-token distributions differ"):
            connect(one, two)


def test_another_model_name_is_refused() -> None:
    with FakeServer() as server, pytest.raises(EngineError, match="choose one of fake"):
        OpenAIEngine("gpt", url=server.url, tokenizer=server.model)


def test_a_key_is_sent_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def locked(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        keys.append(handler.headers.get("Authorization"))
        if keys[-1] != "Bearer sesame":
            handler.send(401, {"error": {"message": "invalid key"}})
            return True
        return False

    with FakeServer(locked) as server:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(EngineStopped, match="set OPENAI_API_KEY"):
            connect(server)
        monkeypatch.setenv("OPENAI_API_KEY", "sesame")
        with connect(server) as engine:
            assert engine.greedy(PROMPT, 3, 1.0).token_ids
    assert keys[0] is None
    assert keys[-1] == "Bearer sesame"


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="--url takes base URLs"):
        OpenAIEngine(url="localhost:8000")
