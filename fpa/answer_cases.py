"""Which words of a text speak of another case: under a condition, contrary to fact, of another rank than the best.

"If friction were present, the answer would be (A)" and "the second best answer is (C)" answer the question only where
nothing else does. Such clauses are found in one pass over the tokens of :mod:`fpa.answer_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag

from fpa.answer_tokens import Token


class Aside(IntEnum):
    """How far what is said lies from the case in question."""

    NONE = 0
    OTHER_CASE = 1
    CONTRARY = 2


class _Said(IntFlag):
    """What a sentence has said so far."""

    CONDITION = 1
    CONCLUDED = 2  # a conclusion was drawn from the condition
    RANK = 4  # another rank than the best
    WOULD = 8
    BEEN = 16
    DRAWN = 32  # a conclusion or a correction was announced
    SUPPOSED = 64  # the sentence before supposed something


_OPENS_CLAUSE = "fskt,:-(+~"
_CASE_WORDS = {"when", "whenever", "once", "where", "wherever"}
_INVERTED = {"had", "were", "should"}
_PREPOSITIONS = {"for", "in", "on", "at", "with", "under", "given"}
_OPENERS = {"without"} | _CASE_WORDS | _INVERTED | _PREPOSITIONS
_ANOTHER = {
    "a", "an", "any", "other", "another", "different", "more", "less", "such", "that", "those", "no",
}  # fmt: skip
_NO_COMPARATIVE = {"either", "order", "number", "answer", "further", "never", "whether", "after"}
_PARTS_OF_A_CASE = {"presence", "absence", "event", "opposite", "limit"}
# "in a nutshell", "for a number of reasons", "in other words", "with no doubt": no other case
_IDIOMS = {
    "nutshell", "word", "words", "sense", "way", "glance", "sentence", "moment", "doubt", "time", "reason",
    "reasons", "hand", "question", "ado", "loss", "exception", "regard", "respect",
}  # fmt: skip
_NOTHING_NEW = {
    "the", "our", "my", "all", "everything", "regard", "respect", "reference", "both", "its", "your",
}  # fmt: skip
_THINKING = {
    "considering", "comparing", "checking", "computing", "calculating", "solving", "looking", "evaluating",
}  # fmt: skip
_SUPPOSING = ("suppos", "assum", "imagin", "pretend", "let", "假", "如", "若", "もし")
_OTHER_RANKS = {
    "second", "third", "next", "other", "another", "alternative", "previous", "earlier", "original",
    "initial", "second-best", "next-best", "former", "naive", "possible", "wrong", "incorrect",
}  # fmt: skip
_RECHECKING = {
    "recheck", "re-check", "double-check", "reconsider", "reconsidering", "recalculate", "recalculating",
    "reflection", "re-examine", "misread", "reread", "re-read",
}  # fmt: skip
_THIS = {"こ", "此", "这", "這", "种", "種"}
_CORRECTION_REACHES = 120


class Cases:
    """The sentences of one text, word by word.

    Args:
        tokens: the text's tokens.
        kinds: their kinds, as the grammar reads them.
    """

    def __init__(self, tokens: Sequence[Token], kinds: str) -> None:
        self._tokens, self._kinds = tokens, kinds
        self._words = [token.word.lower() for token in tokens]
        self._said: list[_Said] = []  # before each token
        self._corrected: list[int] = []  # the last correction before each token
        said, opens, corrected = _Said(0), True, -_CORRECTION_REACHES
        for i, kind in enumerate(kinds):
            self._said.append(said)
            self._corrected.append(corrected)
            if kind in ".?\n¶;" and not self._wrapped(i):
                supposed = said & _Said.CONDITION and self._supposes(i)
                said, opens = (_Said.SUPPOSED if supposed else _Said(0)), True
                continue
            if (kind == "k" and opens) or self._words[i] in _RECHECKING:
                corrected = i
            said = self._heard(said, i, opens)
            opens = (opens and kind in _OPENS_CLAUSE) or kind in "nNt"

    def aside(self, at: int, end: int) -> Aside:
        """How far a declaration at token ``at``, whose options end before ``end``, lies from the case in question."""
        said = self._said[at] if at < len(self._said) else _Said(0)
        follows = self._follows(end)
        conditioned = follows or bool(said & _Said.CONDITION)
        if said & _Said.WOULD and (conditioned or said & _Said.BEEN):
            return Aside.CONTRARY
        if follows or said & _Said.RANK or (conditioned and not said & _Said.CONCLUDED):
            return Aside.OTHER_CASE
        return Aside.OTHER_CASE if said & _Said.WOULD and not said & _Said.DRAWN else Aside.NONE

    def revised(self, since: int, at: int) -> bool:
        """Whether a correction ("wait", "actually") that opens a sentence stands between two tokens."""
        return self._corrected[at] > max(since, at - _CORRECTION_REACHES)

    def _heard(self, said: _Said, i: int, opens: bool) -> _Said:
        """What the sentence has said with token ``i``."""
        kind, word = self._kinds[i], self._words[i]
        if kind in ",stja":
            said &= ~(_Said.RANK | _Said.WOULD | _Said.BEEN)
        if kind == "t":
            said &= ~(_Said.CONDITION | _Said.CONCLUDED | _Said.SUPPOSED)
        if kind in "sk":
            said |= _Said.DRAWN
        if kind == "s" and said & _Said.CONDITION:
            said |= _Said.CONCLUDED
        if (kind == "l" or word in _OTHER_RANKS) and self._other_rank(i):
            said |= _Said.RANK
        if word == "would" and self._kind(i - 1) != "i":
            said |= _Said.WOULD
        if word == "been":
            said |= _Said.BEEN
        then = bool(said & _Said.SUPPOSED) and word in ("then", "那么")
        if then or (kind in "hz" and self._conditions(i)) or (opens and self._opens_case(i)):
            said = (said | _Said.CONDITION) & ~_Said.CONCLUDED
        return said

    def _kind(self, i: int) -> str:
        return self._kinds[i] if 0 <= i < len(self._kinds) else "¶"

    def _word(self, i: int) -> str:
        return self._words[i] if 0 <= i < len(self._words) else ""

    def _wrapped(self, i: int) -> bool:
        """Whether the line feed at token ``i`` only wraps a line."""
        after = self._tokens[i + 1] if i + 1 < len(self._tokens) else None
        return (
            self._kinds[i] == "\n"
            and self._kind(i - 1) not in ".?:;\n¶L"
            and after is not None
            and after.exact[:1].islower()
            and len(after.exact) > 1
        )

    def _supposes(self, end: int) -> bool:
        """Whether the sentence that ends at token ``end`` is all supposition: "suppose there were friction"."""
        for i in range(end - 1, max(end - 40, -1), -1):
            if self._kinds[i] == "h":
                return self._word(i).startswith(_SUPPOSING)
            if self._kinds[i] in ".?\n¶;":
                return False
        return False

    def _conditions(self, i: int) -> bool:
        """Whether token ``i`` sets a condition, wherever it stands."""
        if self._kinds[i] == "h":
            return self._kind(i + 1) != "i" or not self._word(i).isascii()
        return self._kinds[i] == "z" and not {self._word(i - 1), self._word(i - 2)} & _THIS

    def _opens_case(self, i: int) -> bool:
        """Whether a clause of another case opens at token ``i``: "without friction", "for a heavier car"."""
        word, after, third = self._word(i), self._word(i + 1), self._word(i + 2)
        if word not in _OPENERS:
            return False
        idiom = {self._word(t) for t in range(i + 1, i + 5)} & _IDIOMS
        if word == "without":
            return not idiom
        if word in _CASE_WORDS:
            return self._kind(i + 1) != "i" and after not in _THINKING
        if word in _INVERTED:
            return self._kind(i + 1) not in "nN" and self._kind(i + 2) not in "nN"
        if after == "any" and third == "case":
            return False
        if after in _ANOTHER:
            return not idiom
        if after == "the":
            return third in _PARTS_OF_A_CASE or (third == "case" and self._word(i + 3) == "of")
        if after.endswith("er") and after not in _NO_COMPARATIVE:
            return True
        return word == "with" and not idiom and self._kind(i + 1) not in "pi0" and after not in _NOTHING_NEW

    def _other_rank(self, i: int) -> bool:
        """Whether token ``i`` ranks an answer: "the worst", "the second best answer"."""
        if self._kinds[i] == "l":
            return self._word(i - 1) not in ("at", "not")
        if self._word(i - 1) in ("best", "only"):
            return False
        at = i + 1
        while at < i + 3 and (self._kind(at) in "dcl" or self._word(at) in _OTHER_RANKS):
            at += 1
        return self._kind(at) in "nN"

    def _follows(self, end: int) -> bool:
        """Whether a condition follows the options that end before token ``end``: "(A) if friction is present"."""
        at = end
        while at < end + 3 and self._kind(at) in "f),":
            at += 1
        if at < len(self._kinds) and self._conditions(at):
            return True
        case = self._word(at) in {"without", "for", *_CASE_WORDS}
        return at < len(self._kinds) and self._kind(at - 1) != "," and case and self._opens_case(at)
