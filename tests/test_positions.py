"""Positions: strides over tokens and sentences, and which sentence a token belongs to."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpa.positions import every_sentences, every_tokens, sentence_of_tokens
from fpa.sentences import split_sentences


def test_every_tokens() -> None:
    assert every_tokens(10, 4) == (0, 4, 8)
    assert every_tokens(8, 4) == (0, 4)
    assert every_tokens(3, 1) == (0, 1, 2)
    assert every_tokens(3, 99) == (0,)
    assert every_tokens(0, 4) == (0,)


def test_every_sentences() -> None:
    assert every_sentences([0, 0, 1, 1, 1, 2, 3], 1) == (0, 2, 5, 6)
    assert every_sentences([0, 0, 1, 1, 1, 2, 3], 2) == (0, 5)
    assert every_sentences([0, 0, 2, 2], 1) == (0, 2)
    assert every_sentences([], 3) == (0,)


@pytest.mark.parametrize("every", [0, -1])
def test_a_stride_below_one_is_refused(every: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        every_tokens(5, every)
    with pytest.raises(ValueError, match="at least 1"):
        every_sentences([0], every)


def test_decreasing_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="decrease"):
        every_sentences([0, 1, 0], 1)


def test_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        every_tokens(-1, 1)


@pytest.mark.parametrize(
    ("pieces", "sentences"),
    [
        (["He", " left", ".", " She", " stayed", "."], [0, 0, 0, 1, 1, 1]),
        # A token over a boundary belongs to the sentence of its first character that is no space.
        (["Yes", ". ", "No", ".\n\n", "Ok"], [0, 0, 1, 1, 2]),
        (["Yes", ".", " ", "No", "."], [0, 0, 0, 1, 1]),
        (["Yes.", "\n", "\n", "No."], [0, 0, 0, 1]),
        # Tokens without text begin the character that a later one completes.
        (["好", "", "", "。", "", "人", "。"], [0, 0, 0, 0, 1, 1, 1]),
        (["好", "。", "", ""], [0, 0, 0, 0]),
        (["A", ".", "\ufffd", "\ufffd"], [0, 0, 0, 0]),
        ([], []),
        (["", ""], [0, 0]),
        ([" ", "\n"], [0, 0]),
        (["The answer is (B).", "<|im_end|>"], [0, 0]),
        # One token may hold a whole sentence: no token begins in the second of these.
        (["One. Two. ", "Three."], [0, 2]),
    ],
)
def test_sentence_of_tokens(pieces: list[str], sentences: list[int]) -> None:
    assert sentence_of_tokens(pieces) == tuple(sentences)


TEXTS = st.lists(
    st.sampled_from(["Yes", ".", " ", "No!", "\n", "3.5", "。", "好", "B", "é", "a"]), max_size=40
).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=30)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@settings(max_examples=300, deadline=None)
@given(cut_texts())
def test_sentences_follow_the_text_however_it_is_cut(pieces: list[str]) -> None:
    found = sentence_of_tokens(pieces)
    text = "".join(pieces)
    starts = [0, *accumulate(map(len, split_sentences(text)))][:-1]
    assert len(found) == len(pieces)
    assert all(a <= b for a, b in pairwise(found))
    offsets = [0, *accumulate(map(len, pieces))]
    for piece, offset, sentence in zip(pieces, offsets, found, strict=False):
        if piece.strip():
            ink = offset + len(piece) - len(piece.lstrip())
            assert sentence == bisect_right(starts, ink) - 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=50), st.integers(1, 9))
def test_positions_rise_from_zero(steps: list[int], every: int) -> None:
    sentences = list(accumulate(steps))
    positions = every_sentences(sentences, every)
    assert positions[0] == 0
    assert all(a < b for a, b in pairwise(positions))
    assert all(sentences[t] != sentences[t - 1] for t in positions[1:])
    assert every_sentences(sentences, 1)[::every] == positions
