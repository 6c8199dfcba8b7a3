"""Text within a text, by tokenizers that add a space to the front, take one away, or do neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from fpa.engines.midtext import MidText

TEXTS = ["A", " A", "(", " (", "\n\nThe answer is (", "The answer is (", "a. b", "\n", "", "  two", "I"]


class Pieces:
    """A tokenizer of words: a space belongs to the word behind it.

    Args:
        adds: put a space before a text, as SentencePiece does.
        strips: take the first space away in decoding.
        flat: take line breaks for spaces, as some normalizers do.
    """

    def __init__(self, adds: bool, strips: bool, flat: bool = False) -> None:
        self.adds, self.strips, self.flat = adds, strips, flat
        self.known: list[str] = []

    def ids(self, text: str) -> list[int]:
        text = text.replace("\n", " ") if self.flat else text
        if self.adds and text:
            text = " " + text
        found = []
        for piece in re.findall(r"\n+| ?\w+| ?[^\w\s]| ", text):
            if piece not in self.known:
                self.known.append(piece)
            found.append(self.known.index(piece))
        return found

    def text(self, ids: Sequence[int]) -> str:
        whole = "".join(self.known[i] for i in ids)
        return whole[1:] if self.strips and whole.startswith(" ") else whole


@pytest.mark.parametrize("make", [
    lambda: Pieces(adds=False, strips=False),
    lambda: Pieces(adds=True, strips=True),
    lambda: Pieces(adds=True, strips=False),
    lambda: Pieces(adds=True, strips=True, flat=True),
])  # fmt: skip
def test_texts_come_back_as_they_were(make: Callable[[], Pieces]) -> None:
    tokenizer = make()
    within = MidText(tokenizer.ids, tokenizer.text)
    for text in TEXTS:
        shown = text.replace("\n", " ") if tokenizer.flat else text
        assert within.decode(within.encode(text)) == shown
    # The letter is the token that follows "(", not the one that begins a word.
    [letter] = within.encode("A")
    assert tokenizer.known[letter] == "A"
    assert tokenizer.ids("(A")[-1] == letter


def test_a_tokenizer_that_adds_nothing_is_left_alone() -> None:
    tokenizer = Pieces(adds=False, strips=False)
    within = MidText(tokenizer.ids, tokenizer.text)
    assert [within.encode(text) for text in TEXTS] == [tuple(tokenizer.ids(text)) for text in TEXTS]
