"""Prompts: what the model is shown."""

from __future__ import annotations

import pytest

from fpa.answers import extract_answer
from fpa.errors import UsageError
from fpa.prompts import STYLES, ask, messages, prompt_style
from fpa.records import LETTERS, Question

RED = Question("q", "Which is red?", ("sky", "rust", "grass", "snow"), "B")


def test_published_is_zero_shot_and_asks_for_steps_and_the_form_of_the_answer() -> None:
    (turn,) = messages(RED, prompt_style("published"))
    assert turn["role"] == "user"
    lines = turn["content"].split("\n")
    assert lines[:5] == ["Which is red?", "A) sky", "B) rust", "C) grass", "D) snow"]
    assert "step by step" in lines[5]
    assert "The answer is (X)" in lines[5]


def test_plain_is_the_question_and_its_options() -> None:
    assert messages(RED, prompt_style("plain")) == [
        {"role": "user", "content": "Which is red?\nA) sky\nB) rust\nC) grass\nD) snow"}
    ]


def test_demo_has_a_system_line_and_worked_examples_that_answer_rightly() -> None:
    style = prompt_style("demo")
    turns = messages(RED, style)
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 2, "user"]
    assert turns[-1]["content"] == ask(RED, style)
    for example, response in style.examples:
        answer = extract_answer(response, example.choices)
        assert (answer.outcome, answer.status) == (example.answer, "parsed")


@pytest.mark.parametrize("count", range(2, 11))
@pytest.mark.parametrize("name", STYLES)
def test_every_choice_gets_its_letter(name: str, count: int) -> None:
    question = Question("q", "Which?", tuple(f"thing {i}" for i in range(count)))
    content = messages(question, prompt_style(name))[-1]["content"]
    for letter, choice in zip(LETTERS, question.choices, strict=False):
        assert f"\n{letter}) {choice}" in content


def test_an_unknown_style_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="published, demo, plain"):
        prompt_style("shouting")
