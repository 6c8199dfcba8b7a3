"""The presets of record: their settings, templates, costs, and what a gated model asks for."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import jinja2
import numpy as np
import pytest

from fpa.engines.base import EngineError
from fpa.errors import UsageError
from fpa.presets import PRESETS, R1_OPEN, R1_PLAIN, Preset, preset

LLAMA, R1 = PRESETS["llama3-8b-tinymmlu"], PRESETS["r1-distill-8b-tinymmlu"]
TRACKS = {"llama3-8b-tinymmlu": "llama", "r1-distill-8b-tinymmlu": "deepseek"}


@pytest.fixture(scope="module", params=sorted(PRESETS))
def released(request: pytest.FixtureRequest, shared: Path) -> tuple[str, list[dict]]:  # type: ignore[type-arg]
    """A preset's name and its released stores."""
    folder = shared / "data" / "forking-fast" / "s200" / TRACKS[request.param]
    files = sorted(folder.glob("row*.json.gz"))[:12]
    if not files:
        pytest.skip(f"no released rollouts in {folder}")
    return request.param, [json.loads(gzip.decompress(f.read_bytes())) for f in files]


@pytest.mark.shared
def test_settings_are_those_of_the_release(released: tuple[str, list[dict]]) -> None:  # type: ignore[type-arg]
    name, stores = released
    settings = preset(name).settings
    for store in stores:
        config, meta = store["config"], store["meta"]
        assert meta["model"] == preset(name).model
        assert config["top_k"] == settings.top_k
        assert config["p_thresh"] == settings.min_p
        assert store["s"] == settings.samples
        assert config["base_max_tokens"] == settings.base_tokens
        assert config["cont_max_tokens"] == settings.rollout_tokens
        assert config["cont_temperature"] == settings.temperature
        assert (settings.unit == "sentence") == ("sentence" in store["selector"])


@pytest.mark.shared
def test_costs_are_near_those_of_the_release(released: tuple[str, list[dict]]) -> None:  # type: ignore[type-arg]
    name, stores = released
    tokens = np.array([store["n_generated_tokens"] for store in stores], float)
    cost = preset(name).cost(len(stores))
    # The estimate is of a mean over questions: hold it to the mean here within four standard errors.
    error = tokens.std(ddof=1) / np.sqrt(len(tokens)) * len(tokens)
    assert abs(cost.generated_tokens - tokens.sum()) < 4 * error


def test_costs_scale_with_what_is_asked_for() -> None:
    whole = LLAMA.cost(100)
    assert whole.gpu_hours == pytest.approx(whole.generated_tokens / whole.tokens_per_second / 3600)
    coarse = LLAMA.cost(100, replace(LLAMA.settings, every=4, samples=30, strategy="grid"))
    ratio = whole.continuations / coarse.continuations
    assert ratio == pytest.approx(4 * 200 / 30 * LLAMA.expected.branches, rel=1e-3)
    assert LLAMA.cost(100, tokens_per_second=1e6).gpu_hours < whole.gpu_hours
    assert LLAMA.cost(9, replace(LLAMA.settings, base_tokens=1000, rollout_tokens=1000)) == LLAMA.cost(9)
    short = LLAMA.cost(100, replace(LLAMA.settings, rollout_tokens=10))
    assert short.generated_tokens == pytest.approx(10 * whole.continuations, rel=0.01)
    stub = LLAMA.cost(100, replace(LLAMA.settings, base_tokens=20))
    assert stub.positions == 100 * 20
    by_sentence = LLAMA.cost(10, replace(LLAMA.settings, unit="sentence"))
    assert 10 <= by_sentence.positions < LLAMA.cost(10).positions


@pytest.mark.parametrize("one", [LLAMA, R1], ids=lambda one: one.name)
def test_costs_of_strategies_that_place_their_draws_themselves(one: Preset) -> None:
    eager = one.cost(50, replace(one.settings, strategy="eager", samples=32))
    assert (eager.positions, eager.continuations) == (50, 50 * 32)
    assert eager.generated_tokens == pytest.approx(50 * 33 * one.expected.base_tokens)
    budget = one.cost(100, replace(one.settings, strategy="adaptive", budget=10**6))
    assert budget.generated_tokens == pytest.approx(10**6 + 100 * one.expected.base_tokens)
    assert budget.positions <= budget.continuations
    pilot = one.cost(100, replace(one.settings, strategy="adaptive", target_error=0.05))
    assert pilot.continuations == pytest.approx(50 * one.expected.base_tokens)


@pytest.mark.parametrize(
    ("template", "end"), [(R1_OPEN, "<｜Assistant｜><think>"), (R1_PLAIN, "<｜Assistant｜>")]
)
def test_reasoning_templates_open_the_thought_or_not(template: str, end: str) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "Why else?"},
    ]
    text = jinja2.Template(template).render(messages=turns, bos_token="<s>", add_generation_prompt=True)
    middle = "<｜User｜>Why?<｜Assistant｜>Because.<｜end▁of▁sentence｜><｜User｜>Why else?"
    assert text == f"<s>Be brief.{middle}{end}"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_everything_fits_the_context(name: str) -> None:
    one = preset(name)
    prompt = 600  # tokens; the longest question of the set is below
    assert one.context >= prompt + one.settings.base_tokens + one.settings.rollout_tokens
    assert one.engine_options()["context"] == one.context


def test_a_gated_model_without_a_token_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    R1.check_access()
    with pytest.raises(EngineError) as raised:
        LLAMA.check_access()
    said = str(raised.value)
    assert "\n" not in said
    for needed in (LLAMA.model, f"https://huggingface.co/{LLAMA.model}", "HF_TOKEN"):
        assert needed in said
    snapshot = tmp_path / "hub" / "models--meta-llama--Meta-Llama-3-8B-Instruct" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    LLAMA.check_access()  # it is there already
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    LLAMA.check_access()


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of llama3-8b-tinymmlu"):
        preset("gpt")
