"""Sentences: counted cases, exact reassembly of any text, linear time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from growth import growth_is_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from fpa.sentences import split_sentences

CASES = Path(__file__).parent / "data" / "sentences.jsonl"


def check_counts(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    split = {row["text"]: split_sentences(row["text"]) for row in rows}
    wrong = {row["text"]: split[row["text"]] for row in rows if len(split[row["text"]]) != row["sentences"]}
    assert rows
    assert wrong == {}
    assert all("".join(pieces) == text for text, pieces in split.items())


def test_own_cases() -> None:
    check_counts(CASES)


@pytest.mark.shared
def test_given_cases(shared: Path) -> None:
    check_counts(shared / "cases" / "sentences.jsonl")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("He left. She stayed.", ["He left. ", "She stayed."]),
        ("  One.\n\nTwo.\n", ["  One.\n\n", "Two.\n"]),
        ("1. First. 2. Second.", ["1. First. ", "2. Second."]),
        ("**Done.** Next (it works.) Then", ["**Done.** ", "Next (it works.) ", "Then"]),
        ("花了1.5元。好。", ["花了1.5元。", "好。"]),
        ("It is B. The rest fails.", ["It is B. ", "The rest fails."]),
        ("Wait... I see $a. b$. Good", ["Wait... ", "I see $a. b$. ", "Good"]),
    ],
)
def test_where_the_boundaries_are(text: str, pieces: list[str]) -> None:
    assert split_sentences(text) == pieces


BEHIND_A_LETTER = [
    "The mass is 5 g.| It falls.", "It moves 3 m.| Then it stops.", "It runs 5 h.| Water boils.",
    "The speed is 3 m/s.| Light is faster.", "The density is 2 g/L.| Water is denser.", "It takes 5 min.| Water boils.",
    "It takes **5 s**.| Water boils.", "(It has 5 g.)| Gravity pulls.", "**The mass is 5 g.**| It falls.",
    "It is 25 °C.| Water is liquid.", "The current is 3 A.| Voltage drops.", "The work is 5 J.| Energy is kept.",
    "We solve for x.| The value is 3.", "So x = y.| Hence it holds.", "Thus a < b.| Consequently, it holds.",
    "The speed is v.| Then it falls.", "We take *n*.| Each counts.", 'It ends at t.| "Good," he said.',
    "z = x + y.| Now substitute.", "Plants need vitamin D.| Sunlight helps.", "He got plan B.| Nobody knew.",
    "It belongs to group A.| Sodium is there.", "His blood type is O.| Hers is A.", "We take the set S.| Each counts.",
    "<think>The mass is 5 g.| It falls.</think>", "Hepatitis B.| Another one is C.",
    "The force is 10 N.| The mass is 2.",
    "Roe v. Wade was decided.", "By W. Smith and his son.", "J. K. Rowling wrote it.", "George W. Bush left.",
    "Many metals, e.g. Iron, rust.", "a. First item", "x. The item", "The physicist J. Thomson found it.",
    "At 5 p.m. Monday he left.", "The U.S. Virgin Islands.", "The D. H. Lawrence novel.",
    "Marbury v. Madison was decided.",
    "Wasser ist z. B. Eis oder Dampf.", "A car of 5 g. and more.", "It is 5 m. long.", "Here $x. Y$ is one.",
]  # fmt: skip


@pytest.mark.parametrize("marked", BEHIND_A_LETTER)
def test_a_stop_behind_a_unit_or_a_variable_ends_a_sentence_one_behind_an_initial_does_not(
    marked: str,
) -> None:
    assert [piece.rstrip() for piece in split_sentences(marked.replace("|", ""))] == [
        piece.strip() for piece in marked.split("|")
    ]


def test_no_sentences_in_no_text() -> None:
    assert split_sentences("") == []


WORDS = ["Dr.", "3.14", "e.g.", "B.", "so", "Wait...", "…", "。", "！", "?", "\n", "\n\n", " ", "$", "\\(", "\\)", "`",
         "```", "**", "1.", "(a)", '"', "“", "”", "</think>", "<|im_end|>", "https://a.b/c.", "😀", "۔", "।", "The",
         "x = 1.", "\r\n", "\\begin{align}", "\\end{align}", "\u3000", "\x0b", "\x85"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(WORDS)).map("".join),
        st.lists(st.sampled_from(WORDS)).map(" ".join),
    )
)
def test_any_text_is_put_together_again(text: str) -> None:
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert pieces == split_sentences(text)
    if text.strip():
        assert all(piece.strip() for piece in pieces)


# Each repeats something on which a backtracking pattern, or the library, could take quadratic time.
REPEATED = ["The answer is 3.5. Then we go on.\n", "好。", "今天天气怎么样，", "`", "$a ", "\\[", "\n", "x\n", " ",
            ". ", "(", "**", "\"'", "5 g. ", "x. A", "vitamin D. ", "a C. ", "m/s. *", "=",
            "\\begin{align} ", "1. ", "\r\n"]  # fmt: skip


@pytest.mark.parametrize("unit", REPEATED)
def test_time_grows_no_faster_than_the_text(unit: str) -> None:
    short, long = unit * (5_000 // len(unit)), unit * (100_000 // len(unit))
    assert growth_is_linear(lambda: split_sentences(short), lambda: split_sentences(long), 20)
