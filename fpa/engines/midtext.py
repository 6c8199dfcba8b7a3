"""Text and tokens as they stand within a text, from tokenizers that treat a text's beginning in a way of its own.

SentencePiece, and what imitates it, put a space before a text and take one away where they decode: "A" becomes the
token of " A", which is not the one that follows "(". Something in front, taken off again, leaves such tokenizers
nothing to add or to take away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

FRONTS = (
    "\n",
    "(",
    "a",
    ".",
)  # a front that merges with what follows is of no use; some tokenizers know no "\n"
PROBE = "A"


class MidText:
    """Encodes and decodes text that continues another.

    Args:
        ids: token ids of a text of its own, no special tokens added, none parsed.
        text: the text of token ids.
    """

    def __init__(self, ids: Callable[[str], Sequence[int]], text: Callable[[Sequence[int]], str]) -> None:
        self._ids, self._text = ids, text
        spaced = list(ids(" a")[-1:])
        self._lead = spaced if text(spaced * 2) != text(spaced) * 2 else []
        adds = self.decode(ids(PROBE)) != PROBE
        self._fronts = {front: list(ids(front)) for front in FRONTS} if adds else {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of the text."""
        for front, known in self._fronts.items():
            found = list(self._ids(front + text))
            if known and found[: len(known)] == known:
                return tuple(found[len(known) :])
        return tuple(self._ids(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""
        if not self._lead:
            return self._text(token_ids)
        return self._text([*self._lead, *token_ids])[len(self._text(self._lead)) :]
