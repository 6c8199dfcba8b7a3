"""How a question is put to a model: a system line, worked examples, the options and what to end with."""

from __future__ import annotations

from dataclasses import dataclass

from fpa.errors import UsageError
from fpa.records import LETTERS, Question

Message = dict[str, str]


@dataclass(frozen=True)
class PromptStyle:
    """One way of asking.

    Attributes:
        name: what the user selects it by.
        system: the system line, or None for none.
        examples: worked examples, (question, response) each, sent as earlier turns.
        instruction: the request that follows the options; empty for none.
    """

    name: str
    system: str | None = None
    examples: tuple[tuple[Question, str], ...] = ()
    instruction: str = ""


_PUBLISHED = PromptStyle(
    name="published",
    instruction=(
        'Think step by step, and end your response with "The answer is (X)", '
        "where X is the letter of the correct choice."
    ),
)

# For models of a hundred million parameters: two worked examples show them how short to think and how to end.
# The shipped reference run (data/reference) was collected with this style and with the first questions of
# data/demo_questions.jsonl: changing either means collecting it anew.
_DEMO = PromptStyle(
    name="demo",
    system='Write one short thought, then end with "The answer is (X)".',
    examples=(
        (
            Question(
                "eagle", "Which of these animals can fly?", ("A dog", "A fish", "An eagle", "A snake"), "C"
            ),
            "Only an eagle has wings to fly. The answer is (C).",
        ),
        (
            Question("sky", "What color is the sky on a clear day?", ("Red", "Blue", "Green", "Black"), "B"),
            "A clear sky looks blue. The answer is (B).",
        ),
    ),
)

# The question and its options alone, as a user would type them.
_PLAIN = PromptStyle(name="plain")

STYLES: dict[str, PromptStyle] = {style.name: style for style in (_PUBLISHED, _DEMO, _PLAIN)}


def prompt_style(name: str) -> PromptStyle:
    """The style of that name.

    Raises:
        UsageError: if there is none.
    """
    try:
        return STYLES[name]
    except KeyError:
        raise UsageError(f"no prompt style {name!r}: choose one of {', '.join(STYLES)}") from None


def ask(question: Question, style: PromptStyle) -> str:
    """The text of one user turn: the question, one line ``A) …`` for each choice, the instruction."""
    options = (f"{letter}) {choice}" for letter, choice in zip(LETTERS, question.choices, strict=False))
    return "\n".join(filter(None, (question.question, *options, style.instruction)))


def messages(question: Question, style: PromptStyle) -> list[Message]:
    """The conversation that asks ``question`` in ``style``, ready for a chat template."""
    turns: list[Message] = []
    if style.system is not None:
        turns.append({"role": "system", "content": style.system})
    for example, response in style.examples:
        turns.append({"role": "user", "content": ask(example, style)})
        turns.append({"role": "assistant", "content": response})
    turns.append({"role": "user", "content": ask(question, style)})
    return turns
