"""Text → outcome and status: what a response to a multiple-choice question answers.

Reading goes in steps, each of which takes linear time:

1. thoughts are taken out (:mod:`fpa.thoughts`);
2. the text is cut where the model goes on to another question;
3. what is left becomes tokens of a few kinds (:mod:`fpa.answer_tokens`), in which the choices' letters and full
   texts are found;
4. declarations are found: a cue ("the answer is", "I choose", ``\\boxed``, a sentence that holds nothing else)
   followed by a *slot* of options, or options followed by a verdict ("(B) is correct");
5. they are judged in order: the last one stands; a denial of the option that stands takes it back. Hedged
   ("might be") and bare declarations count only where there is no firm one; and where there is none at all, the
   full text of a choice counts, if it is the only one named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fpa.answer_cases import Aside, Cases
from fpa.answer_tokens import Token, fold, tokens
from fpa.other_questions import turns
from fpa.records import LETTERS, OTHER, Answer
from fpa.thoughts import closing_tag, split_thoughts

_ENDS = ".?\n¶"
_FILLERS = "fdcnNpvmies:,-(=~"
_SENTENCE_FILLERS = "skfdcnNipv,:-(=~✓"
_NEGATIONS = "xq"


def extract_answer(
    text: str, choices: Sequence[str], finish_reason: str | None = None, *, thinking: bool = False
) -> Answer:
    """Read the answer from a whole response.

    Args:
        text: the response from its first token on (base prefix and continuation together), special tokens left
            out.
        choices: the 2 to 10 choices, in the order of their letters.
        finish_reason: ``"length"`` where the response was cut off by a token limit.
        thinking: whether the prompt had opened a thought, so that the response begins inside it.

    Returns:
        The outcome (a letter, or ``Other``) and the status: ``parsed``, ``ambiguous`` (the last declaration
        names several options), ``none``, ``truncated`` (cut off without an answer, or a thought unclosed), or
        ``empty``.

    Raises:
        ValueError: if there are fewer than 2 or more than 10 choices.
    """
    key = _key(tuple(choices))
    if not text.strip():
        return Answer(OTHER, "empty")
    own = _own_part(text, key, thinking)
    if own.open_thought:
        return Answer(OTHER, "truncated")
    options = _Reader(own.text, key).read(cut_off=finish_reason == "length", weak_cuts=own.weak_cuts)
    if options is not None and len(options) == 1:
        return Answer(LETTERS[min(options)], "parsed")
    if options:
        return Answer(OTHER, "ambiguous")
    return Answer(OTHER, "truncated" if finish_reason == "length" else "none")


def readout_candidates(choices: Sequence[str]) -> tuple[str, ...]:
    """The letters whose next-token probabilities are read after :func:`closing_phrase`."""
    return tuple(LETTERS[: len(choices)])


_PHRASE = "The answer is ("
_BEGUN = re.compile(
    r"(?:answer\s+is|answer\s*:|答案是|答案为|答案[:：])[*_\s:：]*(?P<bracket>[(（])?[*_\s]*$", re.I
)


def closing_phrase(text: str, *, thinking: bool = False) -> str:
    """What to append to a response so that the model's next token is the letter of its answer.

    An open thought is closed first. A phrase that the response has already begun is completed, not repeated.

    Args:
        text: the response so far.
        thinking: whether the prompt had opened a thought.
    """
    thoughts = split_thoughts(text, thinking=thinking)
    if thoughts.open_tag is not None:
        return ("" if text.endswith("\n") else "\n") + closing_tag(thoughts.open_tag) + "\n\n" + _PHRASE
    tail = text[-60:]
    if begun := _BEGUN.search(tail):
        if begun["bracket"]:
            return ""
        return "(" if tail[-1].isspace() else " ("
    if not text.strip() or text.endswith("\n\n"):
        return _PHRASE
    return ("\n" if text.endswith("\n") else "\n\n") + _PHRASE


# ---------------------------------------------------------------------------------------------- the choices


@dataclass(frozen=True)
class _Wording:
    """One way to write the text of a choice: its words, and whether they are telling enough without a cue."""

    words: tuple[str, ...]
    exact: str
    option: int
    telling: bool


@dataclass(frozen=True)
class _Key:
    """The choices of a question, prepared once."""

    texts: tuple[str, ...]
    wordings: tuple[_Wording, ...]

    @property
    def letters(self) -> str:
        return LETTERS[: len(self.texts)]


@lru_cache(maxsize=256)
def _key(choices: tuple[str, ...]) -> _Key:
    if not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(f"a question has 2 to {len(LETTERS)} choices, got {len(choices)}")
    wordings = []
    for option, choice in enumerate(choices):
        found = [token for token in tokens(fold(choice)) if token.kind not in "\n¶"]
        while found and found[-1].kind in ".,;":
            found.pop()
        for start in (0, 1):
            part = found[start:]
            if part and (start == 0 or found[0].word in ("the", "a", "an", "A")):
                wordings.append(_wording(part, option))
    return _Key(choices, tuple(wordings))


def _wording(part: list[Token], option: int) -> _Wording:
    words = tuple(token.word.lower() for token in part)
    letters = [character for word in words for character in word if character.isalpha()]
    telling = len(letters) >= 4 or len(words) >= 3 or any(ord(letter) > 0x2E80 for letter in letters[1:])
    return _Wording(words, " ".join(token.exact for token in part), option, telling)


# ----------------------------------------------------------------------------------------- another question

_TURN_END = re.compile(
    r"<\|(?:im_end|eot_id|endoftext|end_of_text|user|im_start|start_header_id)\|>|</s>|<eos>|"
    r"<(?:end|start)_of_turn>|<\|(?:User|end▁of▁sentence)\|>|\[INST\]"
)


@dataclass(frozen=True)
class _Own:
    """The part of a response that answers this question.

    ``weak_cuts`` are offsets at which another question seems to begin, if an answer has been given by then.
    """

    text: str
    open_thought: bool
    weak_cuts: tuple[int, ...]


def _own_part(text: str, key: _Key, thinking: bool) -> _Own:
    folded = fold(text)
    for end in _TURN_END.finditer(folded):
        if folded[: end.start()].strip():
            folded = folded[: end.start()]
            break
    thoughts = split_thoughts(folded, thinking=thinking)
    answer = re.sub(r"~~[^~\n]{1,200}~~", " ", thoughts.answer)
    cut, weak_cuts = turns(answer, key.texts)
    if cut is not None:
        answer = answer[:cut]
    return _Own(answer, thoughts.open_tag is not None and cut is None, weak_cuts)


# ------------------------------------------------------------------------------------------------ the grammar


@dataclass(frozen=True)
class _Options:
    """Options that stand together: ``(B)``, ``B) 4 metres``, ``A or C``.

    ``listed`` is true for a row of labels with their texts, which quotes the question.
    """

    options: frozenset[int]
    start: int
    end: int
    labels: bool
    marked: bool
    listed: bool
    own_text: bool


@dataclass(frozen=True)
class _Event:
    """A declaration (or the denial) of options at a token; no options at all for one outside the choices."""

    at: int
    options: frozenset[int]
    denied: bool = False
    weak: bool = False
    hedged: bool = False
    aside: Aside = Aside.NONE


_NOTHING: frozenset[int] = frozenset()
_AFTER_A = {"as", "for", "with", "in", "by", "given", "here", "instead", "on", "after", "from", "is", "was"}
_AFTER_LOWER = {"because", "since", "as", "and", "or", "but", "so", "is", "which", "where", "given", "due to"}
_MODALS = {"would", "could", "might", "may"}
_CLAUSE_END = re.compile("[.?\n¶;]")
_SENTENCE_END = re.compile(f"[{_ENDS}]")
_LONGEST_LIST = 20
_PLURAL = {"are", "were", "aren't", "weren't", "have", "must", "should", "can't", "cannot", "都"}
_REPORTED = {"think", "say", "believe", "argue", "guess", "assume", "expect", "conclude", "answer", "suppose"}
_LONGEST_REMARK = 60
_TRUTHS = {"true": 1, "yes": 1, "no": -1}
_CLASS_NOUNS = {"选项", "選項", "選択肢", "项", "項", "番", "号", "號"}  # behind the letter: "C选项"
_BRIDGES = {
    "case",
    "true",
    "think",
    "believe",
    "say",
    "mean",
    "clear",
    "certain",
    "sure",
    "necessarily",
    "to",
}


class _Reader:
    """The tokens of one text, with the options found in them, and the rules of the grammar as methods."""

    def __init__(self, text: str, key: _Key) -> None:
        self.key = key
        self.tokens = tokens(text)
        self.texts, self.telling = self._find_texts()
        self.labels: dict[int, int] = {}
        self.foreign: set[int] = set()
        kinds = []
        for i, token in enumerate(self.tokens):
            kind = token.kind
            if kind == "L":
                kind = self._letter(i)
            elif kind == "Z":
                self.foreign.add(i)
            kinds.append(kind)
        self.kinds = "".join(kinds)
        self.cases = Cases(self.tokens, self.kinds)

    def kind(self, i: int) -> str:
        return self.kinds[i] if 0 <= i < len(self.kinds) else "¶"

    def _word(self, i: int) -> str:
        return self.tokens[i].word if 0 <= i < len(self.tokens) else ""

    def _raw_kind(self, i: int) -> str:
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else "¶"

    # -- options

    def _find_texts(self) -> tuple[dict[int, tuple[int, frozenset[int]]], dict[int, bool]]:
        """The choices' full texts: first token → (token after the last, options), the longest at each token."""
        kept = [i for i, token in enumerate(self.tokens) if token.kind not in "\n¶"]
        offsets = {}
        parts = ["\0"]
        length = 1
        for place, i in enumerate(kept):
            offsets[length] = place
            parts.append(self.tokens[i].word.lower() + "\0")
            length += len(parts[-1])
        joined = "".join(parts)
        spans: dict[int, list[tuple[int, _Wording]]] = {}
        for wording in self.key.wordings:
            pattern = "\0" + "\0".join(wording.words) + "\0"
            at = joined.find(pattern)
            while at >= 0:
                place = offsets[at + 1]
                first, last = kept[place], kept[place + len(wording.words) - 1]
                if self._whole(first, last):
                    spans.setdefault(first, []).append((last + 1, wording))
                at = joined.find(pattern, at + 1)
        texts, telling = {}, {}
        for first, found in spans.items():
            end = max(end for end, _ in found)
            same = [wording for stop, wording in found if stop == end]
            exact = " ".join(t.exact for t in self.tokens[first:end] if t.kind not in "\n¶")
            cased = [wording for wording in same if wording.exact == exact]
            texts[first] = (end, frozenset(wording.option for wording in cased or same))
            telling[first] = any(wording.telling for wording in same)
        return texts, telling

    def _whole(self, first: int, last: int) -> bool:
        """Whether a text stands for itself: its numbers are no part of a longer one or of a formula."""
        if self._raw_kind(first) == "0" and self._raw_kind(first - 1) in "-+/=":
            sign = self.tokens[first - 1] if first else None
            glued = sign is not None and sign.end == self.tokens[first].start
            operand = first > 1 and sign is not None and self.tokens[first - 2].end == sign.start
            if sign is not None and sign.kind in "+/" and sign.exact not in "≈<>±":
                return False
            if sign is not None and sign.kind == "-" and glued and not operand:
                return False
        following = self._raw_kind(last + 1)
        if self._raw_kind(last) == "0" and following in "+/=" and self.tokens[last + 1].exact != "%":
            return False
        return not (len(self.tokens[first].word) == 1 and first == last and following in "+=")

    def _letter(self, i: int) -> str:
        """The kind of a letter that may name a choice, by what follows it."""
        token = self.tokens[i]
        names = token.word in self.key.letters
        if not (token.marked or self._bare(i)):
            if token.word == "A":
                return "d"
            return "i" if token.word == "I" else "u"
        if names:
            self.labels[i] = LETTERS.index(token.word)
        else:
            if not token.marked and (token.exact.islower() or token.word == "I"):
                return "i" if token.word == "I" else "u"
            self.foreign.add(i)
        return "L"

    def _bare(self, i: int) -> bool:
        token, upper = self.tokens[i], self.tokens[i].exact.isupper()
        following = self._raw_kind(i + 1)
        after = self.tokens[i + 1] if i + 1 < len(self.tokens) else None
        if self._own_text(i, LETTERS.find(token.word)) > i + 1:
            return True
        if after is None or following in ".?,;:)¶~✓✗Z":
            return True
        if following == "\n":
            wrapped = self.tokens[i + 2].exact[:1].islower() if i + 2 < len(self.tokens) else False
            return not (wrapped and token.word in "AI" and (not upper or self._raw_kind(i + 2) == "u"))
        if following == "-":
            return after.start > token.end or after.exact != "-"
        if following == "/":
            return self._raw_kind(i + 2) == "L"
        if following == "(":
            return upper
        if following in "=+0":
            return False
        if following == "L":
            return after.marked and upper
        if not after.exact.isascii() and not after.exact.isspace() and ord(after.exact[0]) > 0x2E80:
            return True
        if not upper:
            return after.word in _AFTER_LOWER or following == "j"
        if token.word == "I":
            return following in "jas"
        if token.word == "A":
            return following in "ajtspvmxhig" or after.word in _AFTER_A
        return following not in "un" or after.word.endswith(("ing", "ly"))

    def _own_text(self, i: int, option: int) -> int:
        """The token after label ``i`` and, where it follows, the text of that option; ``i + 1`` without it."""
        at = i + 1
        while at < i + 4 and self._raw_kind(at) in ".):,-=(\n":
            at += 1
        if at in self.texts and option in self.texts[at][1]:
            end = self.texts[at][0]
            return end + 1 if self._raw_kind(end) == ")" else end
        return i + 1

    def _option(self, i: int) -> _Options | None:
        """One option at token ``i``: a label with or without its text, or a text with or without its label."""
        label = i in self.labels or i in self.foreign
        end, options = self.texts.get(i, (i, _NOTHING))
        if label and end <= i + 1:
            if i in self.foreign and end == i + 1 and i not in self.labels:
                return _Options(options, i, end, False, False, False, False)
            option = self.labels.get(i, -1)
            end = self._own_text(i, option)
            named = frozenset({option}) if option >= 0 else _NOTHING
            own_text = end > i + 1
            end += self._word(end) in _CLASS_NOUNS
            return _Options(named, i, end, True, self.tokens[i].marked, False, own_text)
        if end > i:
            at = end
            while at < end + 2 and self._raw_kind(at) in ",-:":
                at += 1
            if at in self.labels and self.tokens[at].marked:
                return _Options(frozenset({self.labels[at]}), i, at + 1, True, True, False, True)
            return _Options(options, i, end, False, False, False, True)
        return None

    def options_at(self, i: int, *, subject: bool = False) -> _Options | None:
        """The options that stand together from token ``i`` on; as the ``subject``, before a plural verb too."""
        first = self._option(i)
        if first is None:
            return None
        options, end, labels, texts = first.options, first.end, [first.labels], int(first.own_text)
        listed, marked = False, first.marked
        commas_at: tuple[frozenset[int], int] | None = None
        while len(labels) < _LONGEST_LIST:
            at, joiner = self._joiner(end)
            following = self._option(at) if joiner is not None else None
            if following is None or joiner is None:
                break
            if joiner != "or" and not self._belongs(following.end, joiner, subject):
                break
            if joiner == "," and commas_at is None:
                commas_at = (options, end)
            elif joiner in ("or", "and"):
                commas_at = None
            if joiner == "":
                if not (first.labels and following.labels):
                    break
                listed = listed or (texts > 0 and following.own_text)
            options, end = options | following.options, following.end
            labels.append(following.labels)
            texts += int(following.own_text)
            marked = marked and following.marked
        if commas_at is not None and len(labels) < _LONGEST_LIST and self.kind(end) not in ".;¶\n)":
            options, end = commas_at
        if texts >= 2 and len(options) >= 3:
            listed = True
        return _Options(options, i, end, all(labels), marked, listed, texts > 0)

    def _joiner(self, i: int) -> tuple[int, str | None]:
        """The token after a joiner at ``i``, and which: "or", "and", a comma, or none but the labels' own row."""
        at, joiner = i, ""
        while at < i + 4 and self.kind(at) in ",;/j(":
            word = self.tokens[at].word
            if self.kind(at) in "j/":
                joiner = (
                    "or" if word in ("or", "或", "或者", "oder", "ou", "または", "/", "and/or") else "and"
                )
            elif self.kind(at) in ",;" and not joiner:
                joiner = ","
            at += 1
        if self.kind(at) == "k":
            return at, None
        if joiner in ("or", "and"):
            while at < i + 8 and self.kind(at) in "fdNm":
                at += 1
            return at, joiner
        if joiner == ",":
            while at < i + 4 and self.kind(at) in "N":
                at += 1
            return at, joiner
        while at < i + 2 and self.kind(at) in ".\n,;":
            at += 1
        if at in self.labels and (self.tokens[at].marked or self._raw_kind(at + 1) in ").:"):
            return at, "" if at == i or self._own_text(at, self.labels[at]) > at + 1 else None
        return at, None

    def _belongs(self, end: int, joiner: str, subject: bool) -> bool:
        """Whether an option that ends before ``end`` belongs to the list, and does not begin a new clause."""
        kind = self.kind(end)
        if joiner == "":
            return True
        if kind in "vmwqx":
            return subject and self.tokens[end].word in _PLURAL
        return kind != "u" or self.tokens[end].word.endswith(("ing", "ly"))

    # -- slots

    def slot(self, i: int, fillers: str) -> tuple[_Options, bool] | None:
        """The options that a cue before token ``i`` declares, and whether they are denied."""
        negated, at, limit = False, i, i + 18
        while at < min(limit, len(self.kinds)):
            options = self.options_at(at)
            if options is not None:
                at, denied = options.end, negated
                if self.kind(at) == "X":
                    at, negated, denied = at + 1, False, True
                    if self._continues(at) is None:
                        return options, True
                elif negated:
                    again = self._continues(at)
                    if again is None:
                        return options, True
                    at, negated = again, False
                if denied:
                    continue
                return self._corrected(options), self.predicate(options.end) == -1
            kind = self.kind(at)
            if kind in _NEGATIONS:
                # "不，" answers a question that came before; it does not deny what follows
                negated = self.tokens[at].exact.isascii() or self.kind(at + 1) != ","
            elif kind in "tks" and kind in fillers + "tk":
                negated = False
            elif kind in "\n¶":
                if self.kind(at - 1) not in ":v=-nN\n" and at != i:
                    return None
            elif kind not in fillers:
                return None
            at += 1
        return None

    def _continues(self, i: int) -> int | None:
        """After a denied option, the token at which what is affirmed instead may begin."""
        at = i
        while at < i + 3 and self.kind(at) in ",;-~)":
            at += 1
        if self.kind(at) in "tk":
            return at + 1
        if self.kind(at) == "p" and self.kind(at + 1) == "v":
            return at + 2
        if self.kind(at) == "v":
            return at + 1
        return at if self._option(at) is not None else None

    def _corrected(self, options: _Options) -> _Options:
        """The options that a correction right behind these puts in their place, or these."""
        while True:
            at = options.end
            while at < options.end + 4 and self.kind(at) in ",-~(;j":
                at += 1
            if self.kind(at) != "k":
                return options
            while self.kind(at) in "k,fpvi-~:d" and at < options.end + 10:
                at += 1
            better = self.options_at(at)
            if better is None:
                return options
            options = better

    def predicate(self, i: int) -> int | None:
        """A verdict on the options before token ``i``: 1 (they are the answer), −1 (they are not), or None."""
        at = i
        while at < i + 2 and self.kind(at) in ",:-()":
            at += 1
        if self.kind(at) == "✓":
            return 1
        if self.kind(at) == "✗":
            return -1
        if self.kind(at) == "X":
            return -1
        if self._word(i) == "を" and self.kind(i + 1) == "e":
            return 1
        negated = verb = modal = False
        while at < i + 12:
            kind = self.kind(at)
            if kind in "vm":
                verb = True
                modal = modal or self.tokens[at].word in _MODALS
            elif kind in _NEGATIONS:
                negated = True
            elif kind not in "fdN" or (kind == "N" and not verb):
                break
            at += 1
        if self.kind(at) == "w":
            return 1 if negated else -1
        word = self.tokens[i].word if i < len(self.tokens) else ""
        bare = self.kind(i) in ":-(d" or (self.kind(i) == "c" and (" " in word or not word.isascii()))
        if not self._names_answer(at) or not (verb or bare):
            return None
        if modal and not negated:
            return None
        return -1 if negated else 1

    def _names_answer(self, i: int) -> bool:
        """Whether "correct", "the answer", "the best choice" or the like stands around token ``i``."""
        at = i
        kinds = ""
        while at < i + 4 and self.kind(at) in "cdnN":
            kinds += self.kind(at)
            at += 1
        if not kinds:
            best = self.tokens[i - 1].word == "best" and self.kind(i) in ".,;\n¶"
            return best or (self.kind(i - 1) == "N" and self.kind(i - 2) in "dc")
        if self.kind(at) in "t" or (self.kind(at) == "," and self.kind(at + 1) == "t"):
            return False
        if "n" in kinds or ("c" in kinds and "N" in kinds):
            return True
        if kinds[-1] == "N":
            return self.kind(i - 1) in "d" and self.tokens[i - 1].word not in ("single", "one")
        return "c" in kinds and self.kind(at) not in "u0L"

    # -- cues

    def events(self) -> Iterator[_Event]:
        """Every declaration and denial, cue by cue."""
        for match in re.finditer("n|N|B|e|r|p(?=[vm])", self.kinds):
            yield from self._cued(match.start(), match[0])
        yield from self._verdicts()
        yield from self._rows()
        yield from self._sentences()

    def _cued(self, i: int, kind: str) -> Iterator[_Event]:
        if kind in "nN":
            yield from self._noun(i, kind)
        elif kind == "B":
            yield from self._declare(i + 1, "fdcnN(:", denied=self.kind(i - 1) in _NEGATIONS)
        elif self._unreal(i):
            return
        elif kind == "p":
            yield from self._declare(i + 1, "fdcnNpvme:,-(=~", closed=True)
        elif kind == "r":
            yield from self._declare(i + 1, "fdcnN:(", closed=True)
        elif self._chooses(i) and self.tokens[min(i + 2, len(self.tokens) - 1)].word != "of":
            yield from self._declare(i + 1, "fdcnNpv:-(", denied=self._refused(i))

    def _noun(self, i: int, kind: str) -> Iterator[_Event]:
        """ "The answer (to this question) is …", "answer: …", "### Answer" above a line of its own."""
        start = self._phrase_start(i)
        if self._unreal(start) or self._raw_kind(i + 1) == "L":
            return
        denied = self._negated_before(start)
        hedged = "m" in (self.kind(start - 1), self.kind(start - 2))
        for at in range(i + 1, min(i + (14 if kind == "n" else 4), len(self.kinds))):
            here = self.kind(at)
            if here in "\n¶":
                if at == i + 1:
                    yield from self._declare(at, "(:-", closed=True)
                return
            if here in ".?nBLZhbg" or (kind == "N" and here not in "fdcpravm:=-sxq"):
                return
            if here in "vm:=-sxq":
                if self.slot(at, _FILLERS) is not None:
                    yield from self._declare(at, _FILLERS, denied=denied, hedged=hedged)
                    return
                tail = self._tail(at) if kind == "n" else None
                if tail is not None:
                    yield tail
                if tail is not None or here == ":":
                    return

    def _declare(
        self, i: int, fillers: str, *, denied: bool = False, closed: bool = False, hedged: bool = False
    ) -> Iterator[_Event]:
        """The event of the slot at token ``i``; ``closed`` asks for labels that end their clause."""
        found = self.slot(i, fillers)
        if found is None:
            return
        options, negated = found
        if options.listed or self._asked(options.end):
            return
        if closed and not (options.labels and self._clause_ends(options)):
            return
        between = range(i, options.start)
        if any(self.tokens[t].word in _MODALS for t in between) and self._conditioned(options.end):
            return
        hedged = hedged or any(self.kind(t) == "m" for t in between)
        yield _Event(options.start, options.options, denied != negated, weak=hedged, hedged=hedged)

    def _tail(self, i: int) -> _Event | None:
        """An answer in other words that ends with its label ("the law of inertia (C)") or names one text."""
        stop = _CLAUSE_END.search(self.kinds, i, i + 60)
        end = stop.start() if stop else min(i + 60, len(self.kinds))
        span = self.kinds[i:end]
        if set(span) & set("xqXgwhbB") or self.kind(end) == "?":
            return None
        labels = [t for t in range(i, end) if t in self.labels]
        if len(labels) == 1 and labels[0] == end - 1 and self.tokens[end - 1].marked:
            return _Event(end - 1, frozenset({self.labels[end - 1]}))
        named = [t for t in self._mentions(i, end) if self.telling[t] or self.kind(t - 1) == "="]
        options = _NOTHING.union(*(self.texts[t][1] for t in named))
        return _Event(named[-1], options) if not labels and len(options) == 1 else None

    def _verdicts(self) -> Iterator[_Event]:
        """ "(B) is correct", "only D is the answer", "A and B are wrong"."""
        starts = sorted(set(self.labels) | set(self.texts))
        past, refuted = 0, False
        for i in starts:
            if i < past:
                continue
            options = self.options_at(i, subject=True)
            if options is None:
                continue
            past = options.end
            if not options.options or options.listed or self._compounded(options):
                continue
            verdict = self.predicate(options.end)
            if (
                verdict is None
                and refuted
                and self.kind(options.end) == "v"
                and self.kind(options.end + 1) in _ENDS
            ):
                verdict = 1  # "neither is correct; (C) is."
            if verdict is None or self._unreal(self._phrase_start(i)) or self._asked(options.end):
                continue
            denied = refuted = verdict == -1 or self._negated_before(self._phrase_start(i))
            yield _Event(i, options.options, denied=denied)

    def _rows(self) -> Iterator[_Event]:
        """ "(A) wrong (B) right (C) wrong": rows of options in order, only one of them right; "only C is true"."""
        row: list[tuple[int, int]] = []  # labels and their marks
        for i in sorted(self.labels):
            mark = self._mark(i)
            if mark is None:
                continue
            if row and not (
                self.labels[i] == self.labels[row[-1][0]] + 1 and i - row[-1][0] <= _LONGEST_REMARK
            ):
                yield from self._only_right(row)
                row = []
            row.append((i, mark))
        yield from self._only_right(row)

    def _only_right(self, row: list[tuple[int, int]]) -> Iterator[_Event]:
        right = [i for i, mark in row if mark > 0]
        if len(right) == 1 and (len(row) > 1 or self._word(right[0] - 1) in ("only", "只有")):
            firm = all(mark != 1 for _, mark in row)
            yield _Event(right[0], frozenset({self.labels[right[0]]}), weak=not firm)

    def _mark(self, i: int) -> int | None:
        """What the clause that label ``i`` begins says of it in a word: 2 correct, 1 true, −1 neither; or None."""
        begins = self.kind(i - 1) in ".,;:\n¶-jtN(fs" or self._word(i - 1) in ("statement", "claim")
        if not begins or self._unreal(self._phrase_start(i)):
            return None
        at, sign = self._own_text(i, self.labels[i]), 1
        while at < i + 20 and self.kind(at) in ".):,-=(vxfd" and self._word(at) not in _TRUTHS:
            sign = -sign if self.kind(at) == "x" else sign
            at += 1
        value = {"c": 2, "✓": 2, "w": -2, "✗": -2}.get(self.kind(at), _TRUTHS.get(self._word(at), 0)) * sign
        if not value or self.kind(at + 1) not in ".,;)\n¶-tjas" or self._asked(at + 1):
            return None
        return value

    def _compounded(self, options: _Options) -> bool:
        """Whether a bare letter is the second half of a name, as in "vitamin C"."""
        if options.marked or not options.labels or self.kind(options.start - 1) != "u":
            return False
        word = self.tokens[options.start - 1].word
        verb = word.endswith(("s", "ing", "ly")) or self.kind(options.start - 2) == "i"
        return word.isascii() and word.isalpha() and not verb

    def _sentences(self) -> Iterator[_Event]:
        """Sentences and lines that hold nothing but options and words of conclusion: "So (B).", "**C**"."""
        headings: list[tuple[_Event, tuple[bool, bool, bool]]] = []
        past = 0
        clauses = re.finditer(r"(?<=[.?¶\n])|^|(?=s)", self.kinds)
        for start in (match.start() for match in clauses):
            fresh = start >= past and self.kind(start) not in _ENDS
            slot = self.slot(start, _SENTENCE_FILLERS) if fresh else None
            if slot is None:
                continue
            options, denied = slot
            past = options.end
            before = self.kinds[start : options.start]
            if "\n" in before or "¶" in before:
                continue
            firm = bool(set(before) & set("skNn")) or "x" in before
            first = start == 0 and not firm
            if not (self._sentence_ends(options) or (first and self._leads(options))):
                continue
            if options.listed or (
                not options.marked and self.tokens[options.start].exact.islower() and start
            ):
                if not options.own_text and not firm and not self._line_ends(options.end):
                    continue
                if options.listed:
                    continue
            if self._asked(options.end):
                continue
            style = ("N" in before, options.own_text and options.labels, options.marked)
            event = _Event(options.start, options.options, denied, weak=not firm or not options.labels)
            if set(before) <= set("dNf:-("):
                headings.append((event, style))
            else:
                yield event
        yield from _without_headings(headings)

    # -- conditions on a declaration

    def _phrase_start(self, i: int) -> int:
        """The first token of the noun phrase that ends at token ``i``."""
        start = i
        while start > 0 and start > i - 6 and self.kind(start - 1) in "dcnN":
            start -= 1
        return start

    def _unreal(self, start: int) -> bool:
        """Whether what begins at token ``start`` is supposed, asked about or reported, not declared."""
        inverted = self.kind(start - 1) in "vm" and self._word(start - 1).isascii()
        if inverted and self.kind(start - 2) in ".?\n¶,;ts":
            return True  # an inverted clause: had the answer been
        at = start - 1
        while at > start - 4 and self.kind(at) in "pfvi,":
            at -= 1
        if self.kind(at) == "h" and at >= 0:
            return not any(self.kind(t) == "," for t in range(at, start))
        for t in range(start - 1, max(start - 9, -1), -1):
            if self.kind(t) in ".?\n¶;ts,":
                return False
            if self.kind(t) == "b" or (self.kind(t) == "m" and self.tokens[t + 1].word in _REPORTED):
                return True
        return False

    def _negated_before(self, start: int) -> bool:
        """Whether a clause like "I don't think that" stands before token ``start``."""
        for t in range(start - 1, max(start - 7, -1), -1):
            if self.kind(t) in "xqw":
                return True
            if self.kind(t) not in "pfdi" and self.tokens[t].word not in _BRIDGES:
                return False
        return False

    def _asked(self, i: int) -> bool:
        """Whether the sentence around token ``i`` is a question (", right?" and the like ask nothing)."""
        end = _SENTENCE_END.search(self.kinds, i, i + 60)
        at = end.start() if end else i + 60
        return self.kind(at) == "?" and "," not in self.kinds[max(i, at - 4) : at]

    def _conditioned(self, i: int) -> bool:
        at = i
        while at < len(self.kinds) and at < i + 30 and self.kind(at) not in ".?\n¶;":
            if self.kind(at) == "h":
                return True
            at += 1
        return False

    def _clause_ends(self, options: _Options) -> bool:
        if not options.marked and self.tokens[options.start].exact.islower():
            return False
        at = options.end
        while at < options.end + 3 and self.kind(at) == "f":
            at += 1
        return self.kind(at) in ".?,;\n¶)-~:atsk"

    def _line_ends(self, i: int) -> bool:
        while self.kind(i) in ".)-~":
            i += 1
        return self.kind(i) in "\n¶"

    def _sentence_ends(self, options: _Options) -> bool:
        at = options.end
        if self.kind(at) == "p" and self.kind(at + 1) == "v":
            at += 2
        while at < options.end + 5 and self.kind(at) in ")f~":
            at += 1
        return self.kind(at) in ".\n¶"

    def _leads(self, options: _Options) -> bool:
        """Whether the text opens with its answer, and the reasons follow."""
        kind, after = self.kind(options.end), self.kind(options.end + 1)
        if len(options.options) != 1:
            return False
        if not options.labels:
            return kind == "a" or (kind == "," and after == "a")
        if any(m.end() - 1 in self.labels for m in re.finditer(r"(?<=[.\n¶])L(?=[.):])", self.kinds)):
            return False  # a row of remarks on each option
        if kind in "vm":
            return False
        if not options.marked and self.tokens[options.start].exact.islower():
            return kind in ").:,"
        return kind in ").:,-~;as" or self.tokens[min(options.end, len(self.tokens) - 1)].word == "as"

    def _chooses(self, i: int) -> bool:
        """Whether the verb at token ``i`` says what the writer chooses."""
        if self._unreal(i):
            return False
        if not self.tokens[i].exact.isascii():
            return True
        at = i - 1
        while at > i - 6 and self.kind(at) in "vfmxq":
            at -= 1
        return self.kind(at) in "is.,;:\n¶t?k"

    def _refused(self, i: int) -> bool:
        for t in range(i - 1, i - 6, -1):
            if self.kind(t) in _NEGATIONS:
                return True
            if self.kind(t) not in "vmfi":
                return False
        return False

    # -- full texts without a cue

    def _mentions(self, start: int, end: int) -> list[int]:
        """First tokens of the choices' texts within a span, leftmost and longest, none inside another."""
        found, past = [], start
        for t in range(start, end):
            if t >= past and t in self.texts:
                found.append(t)
                past = self.texts[t][0]
        return found

    def _named(self) -> frozenset[int]:
        """The only option named by its full text; or by the last sentence, if it concludes.

        A text too short to be telling ("12") counts where a sentence ends with it as a value: "the sum is 12".
        Texts behind their own labels do not count where several are: they only restate the options.
        """
        everywhere: set[frozenset[int]] = set()
        values: set[frozenset[int]] = set()
        concluded: set[frozenset[int]] = set()
        statements = list(self._statements())
        restated = {self.texts[t][1] for t in self.texts if self._restates(t)}
        for start, end in statements:
            last = (start, end) == statements[-1]
            named = set()
            for t in self._mentions(start, end):
                options, past = self.texts[t][1], self.texts[t][0]
                if self._in_denial(t, start, end) or (len(restated) > 1 and self._restates(t)):
                    continue
                if self.telling[t]:
                    named.add(options)
                final = last and self.kind(t) == "0"
                if past >= end - 1 and (final or self.kind(t - 1) in "v="):
                    values.add(options)
            everywhere |= named
            concluded = named if "s" in self.kinds[start:end] else set()
        for candidates in (everywhere, concluded, values):
            if len(candidates) == 1:
                return next(iter(candidates))
        return _NOTHING

    def _restates(self, t: int) -> bool:
        """Whether the text at ``t`` tells what its own label stands for: "A is Mercury", "A) Mercury"."""
        at = t - 1
        while at > t - 3 and self.kind(at) in "v=).:-":
            at -= 1
        return self.labels.get(at, -1) in self.texts[t][1]

    def _statements(self) -> Iterator[tuple[int, int]]:
        """The token spans of sentences that ask and suppose nothing."""
        start = 0
        for match in re.finditer(r"[.?¶\n]+|$", self.kinds):
            end = match.start()
            if end > start and not match[0].startswith("?") and "h" not in self.kinds[start:end]:
                yield start, end
            start = match.end()

    def _in_denial(self, t: int, start: int, end: int) -> bool:
        before = re.split("[,;t]", self.kinds[max(start, t - 40) : t])[-1]
        after = re.split("[,;t]|j(?=x)", self.kinds[self.texts[t][0] : min(end, t + 40)])[0]
        return bool(set(before + after) & set("xqXwg"))

    # -- judgement

    def read(self, *, cut_off: bool, weak_cuts: Sequence[int]) -> frozenset[int] | None:
        """The options that stand at the end; several where the last declaration is ambiguous; none or None."""
        events = sorted(map(self._placed, self.events()), key=lambda event: event.at)
        answered = min((self.tokens[e.at].start for e in events if not (e.denied or e.hedged)), default=None)
        cut = next((cut for cut in weak_cuts if answered is not None and cut > answered), None)
        if cut is not None:
            events = [event for event in events if self.tokens[event.at].start < cut]
        events = list(self._without_asides(events))
        standing: frozenset[int] | None = None
        for weak in (False, True):
            for event in events:
                if event.denied:
                    if standing is not None and event.options == standing:
                        standing = None
                elif event.weak == weak:
                    standing = event.options
            if standing is not None:
                return standing
        if cut_off or any(not event.denied for event in events):
            return None
        return self._named() if len(self._named()) == 1 else None

    def _placed(self, event: _Event) -> _Event:
        """The event, with how far it lies from the case in question."""
        options = None if event.denied else self.options_at(event.at)
        return replace(event, aside=self.cases.aside(event.at, options.end)) if options is not None else event

    def _without_asides(self, events: Sequence[_Event]) -> Iterator[_Event]:
        """Leave out what is said of other cases ("otherwise it is A") where an answer to this one stands."""
        last: _Event | None = None
        nearest = Aside.CONTRARY
        for event in events:
            if event.denied:
                last = None if last is not None and event.options == last.options else last
            elif last is not None and event.aside > nearest and not self._revises(event, last):
                continue
            if not event.denied and not event.hedged:
                nearest = event.aside if last is None else min(nearest, event.aside)
                last = event
            yield event

    def _revises(self, event: _Event, last: _Event) -> bool:
        return event.aside < Aside.CONTRARY and self.cases.revised(last.at, event.at)


def _without_headings(found: list[tuple[_Event, tuple[bool, bool, bool]]]) -> Iterator[_Event]:
    """Leave out rows of lines or sentences that only name the options in order: A …, B …, C …."""
    row: list[tuple[_Event, tuple[bool, bool, bool]]] = []
    for item in found:
        if row and not _follows(row[-1], item):
            if len(row) == 1:
                yield row[0][0]
            row = []
        row.append(item)
    if len(row) == 1:
        yield row[0][0]


def _follows(
    one: tuple[_Event, tuple[bool, bool, bool]], other: tuple[_Event, tuple[bool, bool, bool]]
) -> bool:
    if one[1] != other[1] or len(one[0].options) != 1 or len(other[0].options) != 1:
        return False
    return min(other[0].options) == min(one[0].options) + 1
