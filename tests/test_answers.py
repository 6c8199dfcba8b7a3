"""Answers: worked cases of every kind, rules that hold for any wording, linear time, the closing phrase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from growth import growth_is_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from fpa.answers import closing_phrase, extract_answer, readout_candidates
from fpa.records import LETTERS, STATUSES
from fpa.thoughts import split_thoughts

CASES = Path(__file__).parent / "data" / "answers.jsonl"
METRES = ("2 metres", "4 metres", "8 metres", "16 metres")
PLANETS = ("Mercury", "Venus", "Earth", "Mars")


def read_cases(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(cases: list[dict[str, Any]]) -> None:
    wrong = []
    for case in cases:
        answer = extract_answer(
            case["text"], case["choices"], case["finish_reason"], thinking=case.get("thinking", False)
        )
        if (answer.outcome, answer.status) != (case["outcome"], case["status"]):
            wrong.append((case["text"], f"wanted {case['outcome']} {case['status']}", answer))
    assert cases
    assert wrong == []


@pytest.mark.shared
def test_given_cases(shared: Path) -> None:
    given_cases = read_cases(shared / "cases" / "answers.jsonl")
    check(given_cases)
    assert len(read_cases(CASES)) >= 2 * len(given_cases)


@pytest.mark.parametrize("kind", sorted({case["kind"] for case in read_cases(CASES)}))
def test_own_cases(kind: str) -> None:
    check([case for case in read_cases(CASES) if case["kind"] == kind])


# ---------------------------------------------------------------------------------- rules for any wording

DECLARED = [
    "The answer is {}.", "the correct answer is {}", "So the answer must be {}.", "Answer: {}", "Final answer: {}",
    "I choose {}.", "I would go with {}.", "Therefore, {}.", "It is {}.", "{} is correct.", "{} is the right answer.",
    "答案是{}。", "正解は{}です。", "La réponse est {}.", "Among these, the best choice is {}.", "{}",
]  # fmt: skip
MARKED = [
    "({})",
    "**{}**",
    "[{}]",
    "$\\boxed{{{}}}$",
    "（{}）",
    "\\textbf{{{}}}",
    '"{}"',
    "**({})**",
    "$\\text{{{}}}$",
]  # noqa: RUF100


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("marked", MARKED)
def test_every_declaration_takes_every_way_to_write_a_letter(declared: str, marked: str) -> None:
    for count in (2, 4, 10):
        choices = [f"thing number {i}" for i in range(count)]
        for letter in LETTERS[:count]:
            text = "Some thought comes first.\n\n" + declared.format(marked.format(letter))
            answer = extract_answer(text, choices)
            assert (answer.outcome, answer.status) == (letter, "parsed"), text


@pytest.mark.parametrize("declared", [d for d in DECLARED if d.endswith("{}.") or d.startswith("{} is")])
def test_bare_letters_are_read_where_words_are_not(declared: str) -> None:
    for letter in "ABCD":
        assert extract_answer(declared.format(letter), PLANETS).outcome == letter
    for word in (
        "Bananas",
        "A banana",
        "a banana",
        "Clouds and rain",
        "Dust",
        "C4",
        "B-cells",
        "d/dx",
        "vitamin C",
    ):
        assert extract_answer(declared.format(word), PLANETS).outcome == "Other", declared.format(word)


@pytest.mark.parametrize("declared", DECLARED)
def test_a_declaration_in_a_thought_never_counts(declared: str) -> None:
    inside = declared.format("(B)")
    for text in (
        f"<think>{inside}</think>",
        f"{inside}</think>",
        f"<think>x</think> <think>{inside}</think>",
    ):
        assert extract_answer(text, PLANETS).outcome == "Other"
        assert extract_answer(f"{text}\n\nThe answer is (C).", PLANETS).outcome == "C"
    assert extract_answer(f"<think>{inside}", PLANETS).status == "truncated"
    assert extract_answer(inside, PLANETS, thinking=True).status == "truncated"
    assert extract_answer(f"{inside}</think>\nThe answer is (D).", PLANETS, thinking=True).outcome == "D"


@pytest.mark.parametrize("first", DECLARED[:8])
@pytest.mark.parametrize("second", DECLARED[:8])
def test_the_last_declaration_wins(first: str, second: str) -> None:
    text = f"{first.format('(A)')}\n\nOn reflection this was wrong.\n\n{second.format('(D)')}"
    assert extract_answer(text, PLANETS).outcome == "D"


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize(
    "following",
    [
        "\n\nQuestion: Which is blue?\nA) sky B) rust\nAnswer: A",
        "\n\nQ: Which is blue?\nThe answer is (A).",
        "\n\nUser: And now?\nAssistant: The answer is (A).",
        "\n\nWhich of these is blue?\nA) sky\nB) rust\nC) grass\nThe answer is (A).",
        "<|im_end|>\n<|im_start|>assistant\nThe answer is (A).",
        "\n\n问题：哪个？\n答案：A",
    ],
)
def test_text_after_another_question_does_not_count(declared: str, following: str) -> None:
    assert extract_answer(declared.format("(C)") + following, PLANETS).outcome == "C"


@pytest.mark.parametrize(
    "joined", ["(A) or (B)", "A or B", "(A) and (B)", "A/B", "either A or B", "(A), (B)"]
)
@pytest.mark.parametrize("declared", DECLARED[:6])
def test_two_letters_in_one_declaration_are_ambiguous(declared: str, joined: str) -> None:
    assert extract_answer(declared.format(joined), PLANETS).status == "ambiguous"


@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_beyond_the_choices_is_no_answer(letter: str) -> None:
    for count in range(2, 11):
        choices = [f"thing number {i}" for i in range(count)]
        named = extract_answer(f"The answer is ({letter}).", choices)
        assert named.outcome == (letter if letter in LETTERS[:count] else "Other")


def test_a_retracted_answer_leaves_none() -> None:
    assert extract_answer("The answer is (A). No, the answer is not (A).", PLANETS).status == "none"


def test_the_longest_text_is_meant_where_one_holds_another() -> None:
    choices = ("metre", "square metre", "square metre per second", "metre per second")
    for letter, choice in zip("ABCD", choices, strict=True):
        assert extract_answer(f"The answer is {choice}.", choices).outcome == letter
        assert extract_answer(f"The unit, we see, is {choice}", choices).outcome == letter


def test_a_truncated_response_needs_an_explicit_declaration() -> None:
    assert extract_answer("Clearly it is all about Venus", PLANETS, "stop").outcome == "B"
    assert extract_answer("Clearly it is all about Venus", PLANETS, "length").status == "truncated"
    assert extract_answer("The answer is Venus, since it", PLANETS, "length").outcome == "B"


@pytest.mark.parametrize("count", [0, 1, 11])
def test_a_wrong_number_of_choices_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="2 to 10"):
        extract_answer("B", ["x"] * count)


PARTS = [
    "The answer is", "(A)", "B", "**", "not", "</think>", "<think>", "\\boxed{", "}", "C)", "or", ",", ".", "\n", "?",
    "if", "答案", "是", "4 metres", "Question:", "metres", "$", "I choose", "it is", "is wrong", "wait", "a",
    "~~", "½", "Ａ",
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=30).map(" ".join)),
    st.sampled_from(
        [METRES, ("A", "B"), ("", "x"), ("is", "answer", "not"), tuple("dcba"), ("I", "II", "both I and II")]
    ),
    st.sampled_from([None, "stop", "length"]),
    st.booleans(),
)
def test_any_text_gets_one_of_the_statuses(
    text: str, choices: tuple[str, ...], finish_reason: str | None, thinking: bool
) -> None:
    answer = extract_answer(text, choices, finish_reason, thinking=thinking)
    assert answer.status in STATUSES
    assert answer.status != "readout"
    assert (answer.status == "parsed") == (answer.outcome in LETTERS[: len(choices)])
    assert answer.status == "parsed" or answer.outcome == "Other"
    assert answer == extract_answer(text, choices, finish_reason, thinking=thinking)


# ---------------------------------------------------------------------------------------------------- time

NORMAL = "Let us think. The car moves 4 metres, so (A) is not right and the answer is (B). "
REPEATED = [
    NORMAL, "the answer is ", "A,B,", "A or ", "(", "**", "\\boxed{", "\\", "<think>", "</think>", "Question: ", "Q ",
    "A) ", "4 metres ", "metres ", "答案是", "so ", "it is not ", "wait, ", "if the answer is A ", "? A) x B) y ", "\n",
    " ", "~~", "1,000", "a-", "$", "</s>",
]  # fmt: skip


def read(text: str) -> None:
    extract_answer(text, METRES)
    closing_phrase(text)


@pytest.mark.parametrize("unit", REPEATED)
def test_time_grows_no_faster_than_the_text(unit: str) -> None:
    short, long = unit * (3_000 // len(unit)), unit * (60_000 // len(unit))
    assert growth_is_linear(lambda: read(short), lambda: read(long), 20)


@pytest.mark.parametrize(("before", "gap", "after"), [("Question", " ", ""), ("A)", " ", "B) x"),
                                                      ("The answer is", "\n", "B")])  # fmt: skip
def test_long_gaps_after_a_cue_take_no_longer(before: str, gap: str, after: str) -> None:
    short, long = before + gap * 5_000 + after, before + gap * 100_000 + after
    assert growth_is_linear(lambda: read(short), lambda: read(long), 20)


# ------------------------------------------------------------------------------------------ closing phrase


@pytest.mark.parametrize(
    ("text", "thinking", "phrase"),
    [
        ("", False, "The answer is ("),
        ("It is red.", False, "\n\nThe answer is ("),
        ("It is red.\n", False, "\nThe answer is ("),
        ("It is red.\n\n", False, "The answer is ("),
        ("So the answer is", False, " ("),
        ("So the answer is ", False, "("),
        ("So the answer is (", False, ""),
        ("So the answer is **(", False, ""),
        ("**Answer:**", False, " ("),
        ("答案是", False, " ("),
        ("The answer is red.", False, "\n\nThe answer is ("),
        ("Hm, it", True, "\n</think>\n\nThe answer is ("),
        ("<think>Hm, it\n", False, "</think>\n\nThe answer is ("),
        ("<think>Hm. The answer is (", False, "\n</think>\n\nThe answer is ("),
        ("Hm.</think>\n\nIt is", True, "\n\nThe answer is ("),
        ("Hm.</think>\n\nThe answer is (", True, ""),
        ("[THINK]Hm", False, "\n[/THINK]\n\nThe answer is ("),
        ("<reasoning>Hm", False, "\n</reasoning>\n\nThe answer is ("),
    ],
)
def test_closing_phrase(text: str, thinking: bool, phrase: str) -> None:
    assert closing_phrase(text, thinking=thinking) == phrase


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*PARTS, "Answer:", "The answer is", "["]), max_size=12).map(" ".join),
    st.booleans(),
)
def test_after_the_closing_phrase_a_letter_is_an_answer(text: str, thinking: bool) -> None:
    closed = text + closing_phrase(text, thinking=thinking)
    assert closed.rstrip("*_ \n\t").endswith(("(", "（"))
    assert split_thoughts(closed, thinking=thinking).open_tag is None


def test_readout_candidates_are_the_letters_of_the_choices() -> None:
    assert readout_candidates(PLANETS) == ("A", "B", "C", "D")
    assert readout_candidates(["x"] * 10) == tuple("ABCDEFGHIJ")


# ------------------------------------------------------------------------------------------------ thoughts


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "open_tag"),
    [
        ("plain", False, "plain", None),
        ("<think>a</think>b", False, "\n\nb", None),
        ("a</think>b", False, "b", None),
        ("a</think>b", True, "b", None),
        ("a", True, "", "<think>"),
        ("a<think>b</think>c<think>d", False, "a\n\nc", "<think>"),
        ("<think>a<think>b</think>c</think>d", False, "\n\nd", None),
        ("<Thinking>a</Thinking>b", False, "\n\nb", None),
    ],
)
def test_split_thoughts(text: str, thinking: bool, answer: str, open_tag: str | None) -> None:
    thoughts = split_thoughts(text, thinking=thinking)
    assert (thoughts.answer, thoughts.open_tag) == (answer, open_tag)
