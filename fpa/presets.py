"""Collections of record: the published settings under one name, and what they cost.

Models, prompts, temperatures, token limits and branches are those of the rollouts released with "Forking Fast"
(collected as in Bigelow et al. 2024, arXiv 2412.07961). What a collection costs is scaled from the same release: its
50 questions a model took the tokens and the GPU time that ``Expected`` states.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from fpa.engines.base import EngineError
from fpa.engines.hub import gated
from fpa.errors import UsageError
from fpa.questions import load_questions
from fpa.settings import Settings
from fpa.strategies.adaptive import PILOT_DRAWS

# The hub's template of the R1 distillates, without tools; ``<think>`` is opened for the model, which then begins
# its thought with a line break, as the released base paths do.
R1_OPEN = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% else %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>' }}{% endif %}"
)
R1_PLAIN = R1_OPEN.replace("<｜Assistant｜><think>", "<｜Assistant｜>")
TEMPLATES = {"r1-open": R1_OPEN, "r1-plain": R1_PLAIN}
"""Chat templates that can be given by name: whether the thought is opened for the model, or by it."""


@dataclass(frozen=True)
class Expected:
    """What the released collection took, as means over its 50 questions.

    Attributes:
        base_tokens: length of a base path.
        sentences: sentences in one; None where positions are tokens.
        branches: kept next tokens at a position.
        continuation_tokens: new tokens of a continuation, over all positions.
        tokens_per_second: generated, on one GPU.
    """

    base_tokens: float
    sentences: float | None
    branches: float
    continuation_tokens: float
    tokens_per_second: float


@dataclass(frozen=True)
class Preset:
    """One collection of record.

    Attributes:
        name: what the user selects it by.
        model: on the Hugging Face hub.
        gated: the model's licence has to be accepted before it can be fetched.
        questions, question_count: the question set, and how many there are in it.
        settings: everything about the collection that decides which rollouts a run holds.
        context: tokens that prompt, base path and continuation need together.
        chat_template: in place of the model's own, where that has changed over time; None for the model's own.
        expected: what it took.
    """

    name: str
    model: str
    gated: bool
    questions: str
    question_count: int
    settings: Settings
    context: int
    chat_template: str | None
    expected: Expected

    def engine_options(self) -> dict[str, object]:
        """Options for the engine that loads the model."""
        options: dict[str, object] = {"context": self.context}
        if self.chat_template is not None:
            options["chat_template"] = self.chat_template
        return options

    def check_access(self) -> None:
        """Say at once what a gated model needs, rather than after minutes of loading.

        Raises:
            EngineError: the model is gated, not on this machine, and there is no access token.
        """
        if self.gated and not _token() and not _cached(self.model):
            raise EngineError(gated(self.model))

    def count(self, questions: str, limit: int | None = None) -> int:
        """How many questions a set has, as ``fpa.questions.load_questions`` takes it; its own is not fetched.

        Raises:
            UsageError: there is no such set, or something is wrong in it.
        """
        if questions != self.questions:
            return len(load_questions(questions, limit).questions)
        return min(limit or self.question_count, self.question_count)

    def cost(
        self, questions: int, settings: Settings | None = None, tokens_per_second: float | None = None
    ) -> Cost:
        """What collecting so many questions takes.

        Args:
            questions: how many.
            settings: the preset's own by default; other strides, units, numbers of samples, strategies, budgets
                and token limits scale. ``eager`` is taken for all of its sequences, none sharing a beginning;
                ``adaptive`` for its budget, or without one for its pilot.
            tokens_per_second: of all GPUs together; the released collection's on one GPU by default.
        """
        settings = settings or self.settings
        expected = self.expected
        base = min(expected.base_tokens, settings.base_tokens)
        length = min(expected.continuation_tokens, settings.rollout_tokens)
        units = base
        if settings.unit == "sentence":
            sentences = expected.sentences or expected.base_tokens / TOKENS_PER_SENTENCE
            units = sentences * base / expected.base_tokens
        positions = questions * max(1.0, units / settings.every)
        branches = expected.branches if settings.strategy == "branches" else 1.0
        continuations = positions * branches * settings.samples
        if settings.strategy == "eager":
            # Whole responses, from the prompt.
            positions, continuations = float(questions), float(questions * settings.samples)
            length = min(expected.base_tokens, settings.rollout_tokens)
        if settings.strategy == "adaptive":
            continuations = (
                PILOT_DRAWS * questions * base if settings.budget is None else settings.budget / length
            )
            positions = min(questions * base, continuations)
        tokens = continuations * length + questions * base
        speed = tokens_per_second or expected.tokens_per_second
        return Cost(
            questions=questions,
            positions=round(positions),
            continuations=round(continuations),
            generated_tokens=round(tokens),
            tokens_per_second=speed,
            gpu_hours=tokens / speed / 3600,
        )


@dataclass(frozen=True)
class Cost:
    """An estimate. ``gpu_hours`` at ``tokens_per_second``, on as many GPUs as that speed is of."""

    questions: int
    positions: int
    continuations: int
    generated_tokens: int
    tokens_per_second: float
    gpu_hours: float


TOKENS_PER_SENTENCE = 20.0  # of the released reasoning paths: 751 tokens in 37 sentences

_PUBLISHED = Settings(strategy="branches", every=1, samples=200, top_k=10, min_p=0.05, prompt="published")

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="llama3-8b-tinymmlu",
            model="meta-llama/Meta-Llama-3-8B-Instruct",
            gated=True,
            questions="tinymmlu",
            question_count=100,
            settings=replace(_PUBLISHED, unit="token", temperature=1.0, base_tokens=400, rollout_tokens=400),
            context=2048,
            chat_template=None,
            expected=Expected(
                base_tokens=208.8,
                sentences=None,
                branches=1.66,
                continuation_tokens=133.2,
                tokens_per_second=3321.0,
            ),
        ),
        Preset(
            name="r1-distill-8b-tinymmlu",
            model="deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            gated=False,
            questions="tinymmlu",
            question_count=100,
            settings=replace(
                _PUBLISHED, unit="sentence", temperature=0.6, base_tokens=1024, rollout_tokens=1536
            ),
            context=4096,
            chat_template=R1_OPEN,
            expected=Expected(
                base_tokens=751.3,
                sentences=37.1,
                branches=1.90,
                continuation_tokens=572.5,
                tokens_per_second=1651.0,
            ),
        ),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageError: if there is none.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset named {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def _token() -> bool:
    """Whether an access token for the hub is set, in the environment or by a login."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    kept = Path(os.environ.get("HF_TOKEN_PATH", home / "token"))
    return any(os.environ.get(v) for v in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")) or kept.is_file()


def _cached(model: str) -> bool:
    """Whether the hub's cache on this machine holds the model."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return any((cache / f"models--{model.replace('/', '--')}" / "snapshots").glob("*/config.json"))
