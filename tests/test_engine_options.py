"""Engine options of the wrong type or out of range: one clear line, before anything is loaded or connected to."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from fpa.engines import load_engine
from fpa.engines.fake import FakeEngine
from fpa.engines.openai import OpenAIEngine
from fpa.errors import UsageError

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("openai", {"in_flight": 0}, "in_flight must be a whole number of at least 1, got 0"),
    ("openai", {"in_flight": True}, "in_flight must be a whole number"),
    ("openai", {"in_flight": 10**400}, "in_flight must be a whole number"),
    ("openai", {"chunk": 0}, "chunk must be"),
    ("openai", {"retries": -1}, "retries must be a whole number of at least 0, got -1"),
    ("openai", {"retries": "x"}, "retries must be a whole number of at least 0, got 'x'"),
    ("openai", {"timeout": -1}, "timeout must be a number above 0 and at most 1,000,000, got -1"),
    ("openai", {"timeout": float("nan")}, "timeout must be a number"),
    ("openai", {"timeout": float("inf")}, "timeout must be a number"),
    ("openai", {"context": 0}, "context must be a whole number"),
    ("openai", {"tokenizer": 7}, "tokenizer must be text"),
    ("openai", {"url": 8000}, "url must be text"),
    ("llamacpp", {"parallel": "abc"}, "parallel must be a whole number of at least 1 and at most 256, got 'abc'"),
    ("llamacpp", {"parallel": 257}, "parallel must be"),
    ("llamacpp", {"threads": 10**6}, "threads must be"),
    ("llamacpp", {"gpu_layers": 1.5}, "gpu_layers must be a whole number of at least 0, got 1.5"),
    ("llamacpp", {"context": []}, "context must be a whole number of at least 1, got []"),
    ("llamacpp", {"context": 10**9}, "context must be at most"),
    ("llamacpp", {"exact": "yes"}, "exact must be true or false, got 'yes'"),
    ("llamacpp", {"chat_template": 5}, "chat_template must be text, got 5"),
    ("fake", {"thought": "abc"}, "thought must be a whole number of at least 1, got 'abc'"),
    ("fake", {"thought": 0}, "thought must be"),
    ("fake", {"delay": -1.0}, "delay must be"),
    ("fake", {"colour": "red"}, "has no option 'colour': it takes thought, delay, fail, context"),
    ("transformers", {"parallel": 0}, "parallel must be"),
    ("transformers", {"revision": 1234567}, "revision='\"1234567\"' makes it text"),
    ("transformers", {"trust_remote_code": "yes"}, "trust_remote_code must be true or false"),
    ("vllm", {"gpu_memory": 90}, "gpu_memory must be a number above 0 and at most 1, got 90"),
    ("vllm", {"tensor_parallel": 0}, "tensor_parallel must be"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "options", "says"), WRONG)
def test_wrong_options_are_one_line(engine: str, options: dict[str, Any], says: str) -> None:
    if engine == "llamacpp" and find_spec("xllamacpp") is None:
        pytest.skip("the embedded engine is not installed (extra: local)")
    with pytest.raises(UsageError) as raised:
        load_engine(engine, "demo", **options)
    assert says in str(raised.value)
    assert f"engine {engine}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_right_options_are_taken() -> None:
    assert load_engine("fake", "x", thought=3, delay=0, fail="", context=64).info.context_length == 64
    assert FakeEngine("x", thought=3).info.fingerprint.endswith("-3")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://[::1",
        "http://",
        "http://:8000",
        "localhost:8000",
        "ftp://host",
        "http://a..b",
        "http://two words",
        "http://host/v1?key=1",
        "http://host/päth",
        "http://host:8000,http://127.0.0.1:port",
        "",
        ",",
    ],
)
def test_urls_that_no_server_can_have_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--url takes base URLs such as"):
        OpenAIEngine(url=url)


def test_a_key_that_no_header_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "se\ncret")
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIEngine(url="http://127.0.0.1:9")
