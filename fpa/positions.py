"""Which positions of a base path to resample from: every N-th token, or the start of every N-th sentence.

A position ``t`` is an index into the base path's token ids: what is sampled there replaces token ``t`` and
all that follow. Position 0, the plain answer distribution, is always in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from fpa.sentences import split_sentences


def every_tokens(n_tokens: int, every: int) -> tuple[int, ...]:
    """Positions ``0, every, 2·every, …`` below ``n_tokens``; ``(0,)`` for an empty path.

    Raises:
        ValueError: if ``every`` is below 1 or ``n_tokens`` below 0.
    """
    _check_every(every)
    if n_tokens < 0:
        raise ValueError(f"n_tokens must not be negative, got {n_tokens}")
    return tuple(range(0, max(n_tokens, 1), every))


def sentence_of_tokens(pieces: Sequence[str]) -> tuple[int, ...]:
    """The index of the sentence that each token begins or is in.

    The text is the tokens' pieces joined, so sentence boundaries are found in it and mapped back through
    the pieces' lengths: nothing is tokenised again. A token belongs to the sentence of its first character
    that is not white space, so " The" after a full stop opens the next sentence. A token of white space only
    stays with the sentence that it ends. A token without text (the first bytes of a character that a later
    token completes) belongs to the sentence of that character.

    Args:
        pieces: what each token adds to the text; joined they are the whole text.

    Returns:
        (len(pieces),) sentence indices, never decreasing. An index is missing where no token begins in the
        sentence.
    """
    text = "".join(pieces)
    starts = [0, *accumulate(len(sentence) for sentence in split_sentences(text))][:-1] or [0]
    indices = []
    offset = 0
    for piece in pieces:
        ink = len(piece) - len(piece.lstrip())
        first = offset + (ink if ink < len(piece) else 0)
        indices.append(bisect_right(starts, min(first, max(len(text) - 1, 0))) - 1)
        offset += len(piece)
    return tuple(indices)


def every_sentences(sentences: Sequence[int], every: int) -> tuple[int, ...]:
    """The first token of every N-th sentence, from the first on.

    Args:
        sentences: (T,) sentence index of each token, never decreasing (see :func:`sentence_of_tokens`).
        every: take every N-th of the sentences in which a token begins.

    Returns:
        Strictly increasing token positions that start with 0.

    Raises:
        ValueError: if ``every`` is below 1 or the indices decrease.
    """
    _check_every(every)
    if any(later < earlier for earlier, later in pairwise(sentences)):
        raise ValueError("sentence indices must not decrease along the tokens")
    starts = [0, *(t for t in range(1, len(sentences)) if sentences[t] != sentences[t - 1])]
    return tuple(starts[::every])


def _check_every(every: int) -> None:
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
