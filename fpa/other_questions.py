"""Where a response turns to another question: by a heading, by announcing one, by a stem with foreign options.

Headings ("Question 2:", "User:") and questions with lettered options that are not this question's are beyond doubt.
Everything else counts only once an answer stands, since a model also asks itself questions, lists this question's
choices again and numbers its steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_NUMBERED = r"(?:[ \t]{0,3}(?:no\.?|number|#)?[ \t]{0,3}\d{1,3})?"
_HEADING = re.compile(
    rf"^[ \t>#*_\-]{{0,8}}(?:(?:next|new|another|second|follow-?up)[ \t]{{1,3}})?"
    rf"(?:question|q|问题|題目|题目|问|質問|問題|문제|pregunta|frage){_NUMBERED}[ \t*_]{{0,4}}(?:[:.)]|$)"
    r"|^[ \t>#*_\-]{0,8}(?:human|user|student|### ?instruction)[ \t*_]{0,4}:"
    r"|^(?-i:user|human)$"
    rf"|(?-i:\bQuestion{_NUMBERED}[ \t]{{0,3}}:|\bQ\d{{0,3}}:(?=\s))"
    rf"|\b(?:next|another|a new) question\b[^.?\n]{{0,40}}:",
    re.IGNORECASE | re.MULTILINE,
)
_LEADS = (
    r"(?:(?:let's|let us|let me|i'll|i will|we'll|now|ok|okay|great|here's|here is|here comes|do|try|solve|consider|"
    r"look|at|take|move|moving|go|going|on|onto|to|with|and|then|so|for|is|have|tackle|see|time|we|i)[ \t,]{1,3}){0,8}"
)
_ANNOUNCED = re.compile(
    rf"(?:^[ \t>#*_\-]{{0,8}}|(?<=[.!?。]) {{0,2}}){_LEADS}"
    r"(?:another|a new|a different|a second|one more|the next|next)[ \t]{1,3}"
    r"(?:one|question|problem|exercise|puzzle|quiz|riddle|task)\b[^\n.!?:(]{0,30}[:.!?\n](?![ \t*]{0,4}\(?[A-J]\b)"
    rf"|^[ \t>#*_\-]{{0,8}}(?:problem|exercise|task|example|passage|quiz|第[ \t]{{0,3}}\d{{1,3}}[ \t]{{0,3}}题)"
    rf"{_NUMBERED}[ \t*_]{{0,4}}(?:[:.)]|$)"
    r"|(?:下一|另一|再来一|再來一|第二)[道个個]?[题題问問]|(?:次|別|つぎ)の(?:問題|質問)",
    re.IGNORECASE | re.MULTILINE,
)
# Wrappers of LaTeX and of Markdown, in whose place stand blanks.
_WRAPPERS = re.compile(r"\\(?:text|math|mbox)[a-z]{0,8}\s?\{|\\[()\[\]]|[{}$*>`]")
_LABEL = re.compile(
    r"(?:^|(?<=\s))[ \t]{0,3}(?:[-•][ \t]{0,3})?\(?(?P<label>[A-Za-z]|\d{1,2})[).:、](?=[^\d\n]|[ \t]{0,4}\d)",
    re.MULTILINE,
)
_FIRST = {"A", "a", "1"}
_HEADS_OPTIONS = re.compile(
    r"(?:options|choices|answer choices|选项|選項|選択肢)[ \t]{0,3}[:.]?\s*\Z", re.IGNORECASE
)
_BLANK_LEFT = re.compile(r"_{2,}|\([ \t]{0,4}\)")
_DANGLING = re.compile(
    r"\b(?:is|are|was|were|be|been|by|of|to|as|in|the|an?|called|from|with|for|means|that|on|than|because|into|or|"
    r"include|includes|except|when|known as|not)[ \t]{0,3}[:,]?\s*\Z|[是为為有叫][ \t]{0,2}:?\s*\Z",
    re.IGNORECASE,
)
# What speaks of this question, its options or the writer, and what points back: nobody begins another question so.
_OF_THIS = re.compile(
    r"\b(?:this|that|these|those|my|our|we|i|us|let|let's|answers?|options?|choices?|correct|right|wrong|steps?|given)\b"
    r"|\([A-J]\)|[这這那此]|答案|选项|選項|正确|正確|对吗|對嗎|こ[のれ]|そ[のれう]|答え|選択肢",
    re.IGNORECASE,
)
_POINTS_BACK = re.compile(
    r"\b(?:its?|they|them|you|your|above|then|so|here|else|now|what (?:about|if)|knows?|cares?)\b|[它他]",
    re.IGNORECASE,
)
_OF_THE_LIST = re.compile(r"\bof (?:the following|these|those)\b", re.IGNORECASE)
_ASKS = re.compile(
    r"^[ \t#_\-]{0,8}(?:\d{1,3}[.)][ \t]{0,3})?(?P<asked>(?:(?:in|at|on|to|from|by|for)[ \t])?"
    r"(?:(?-i:what|What|which|Which|who|Who|whom|Whom|whose|Whose|where|Where|when|When)|"
    r"how (?:many|much|far|long|old|fast|tall|high|big|deep|often))\b[^\n?]{8,300}\?"
    r"|[^\n?.]{0,60}(?:什么|什麼|哪|谁|誰|多少|几|どれ|どの|どこ|だれ|いつ|何)[^\n?.]{0,60}\?"
    r"|[^\n]{4,300}?_{3,}[^\n]{0,100}$)",
    re.IGNORECASE | re.MULTILINE,
)
# Sentences with which a model checks its own answer; what it asks behind them, it asks itself.
_DOUBTS = re.compile(
    r"(?:^|[.!?。\n])[ \t\"'#_-]{0,4}(?:but|and|oh|no|hmm+|hm|ah)?[ \t,.]{0,3}(?:wait|hmm+|hm|actually|hold on|however|"
    r"let me|let's (?:check|verify|see)|let us (?:check|verify|see)|checking|to (?:check|verify)|but|no,|等等|等一下|"
    r"不过|待って|いや)",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"[ \t\-:(]{0,4}(?:wrong|incorrect|correct|right|too|not|this|that|it|possible|impossible|fits?|does|doesn't|works|"
    r"is|are|was|would|can|has|because|plausible|implausible|unlikely|likely|错|對|对|不|正确|正確|错误)\b",
    re.IGNORECASE,
)
_BEHIND = 300
_BEFORE = 160
_LONGEST_STEM = 1000
_LONGEST_TEXT = 320
_LONGEST_OPTION = 60


@dataclass(frozen=True)
class _Listing:
    """Options in a row: where they begin, the first one's label, their texts."""

    start: int
    first: str
    texts: tuple[str, ...]


def turns(answer: str, choices: Sequence[str]) -> tuple[int | None, tuple[int, ...]]:
    """Where an answer turns to another question.

    Returns:
        The offset at which it does beyond doubt (None where it never does), and those at which it does if it has
        answered this question by then, in order.
    """
    begin = len(answer) - len(answer.lstrip())
    headings = (match.start() for match in _HEADING.finditer(answer))
    first = next((at for at in headings if answer[begin:at].strip(" \t\n#*_>-")), None)
    certain = [] if first is None else [first]
    likely = [match.start() for match in _ANNOUNCED.finditer(answer)]
    own = [_squeezed(choice) for choice in choices]
    plain = _WRAPPERS.sub(lambda match: " " * len(match[0]), answer)
    for listing in _listings(plain):
        if not _foreign(listing, own):
            continue
        stem = _stem(plain, listing.start)
        if stem is None:
            if (
                listing.first == "A"
                and len(listing.texts) > 2
                and all(map(_looks_like_option, listing.texts))
            ):
                likely.append(listing.start)
        elif listing.first == "A" and plain[stem[1] - 1] == "?" and stem[0] > begin:
            certain.append(stem[0])
        elif _begins_question(plain, *stem, listing.first):
            likely.append(stem[0])
    for match in _ASKS.finditer(plain):
        asked = f" {_squeezed(match['asked'])} "
        named = any(f" {text} " in asked for text in own if len(text) > 2)
        if not named and _begins_question(plain, *match.span("asked")):
            likely.append(match.start("asked"))
    return min(certain, default=None), tuple(sorted(likely))


def _listings(plain: str) -> Iterator[_Listing]:
    """The lists of options: labels that count up from A, a or 1, each with a text of its own."""
    labels = list(_LABEL.finditer(plain))
    row: list[re.Match[str]] = []
    for at, match in enumerate(labels):
        if (
            row
            and _next_label(row[-1]["label"]) == match["label"]
            and _text(plain, row[-1], match) is not None
        ):
            row.append(match)
            continue
        if len(row) > 1:
            yield _listing(plain, row, labels[at])
        row = [match] if match["label"] in _FIRST else []
    if len(row) > 1:
        yield _listing(plain, row, None)


def _next_label(label: str) -> str:
    return str(int(label) + 1) if label.isdigit() else chr(ord(label) + 1)


def _text(plain: str, label: re.Match[str], following: re.Match[str]) -> str | None:
    """The text between two labels; None where it is no option's: nothing, too long, or several lines."""
    if following.start() - label.end() > _LONGEST_TEXT:
        return None
    text = plain[label.end() : following.start()].strip()
    return text if text and "\n" not in text else None


def _listing(plain: str, row: list[re.Match[str]], following: re.Match[str] | None) -> _Listing:
    texts = [plain[one.end() : other.start()].strip() for one, other in pairwise(row)]
    end = min(len(plain), row[-1].end() + _LONGEST_TEXT)
    end = min(end, following.start()) if following is not None and following.start() > row[-1].end() else end
    texts.append(plain[row[-1].end() : end].strip().split("\n")[0])
    return _Listing(row[0].start(), row[0]["label"], tuple(texts))


def _foreign(listing: _Listing, own: Sequence[str]) -> bool:
    """Whether fewer than half of the texts are this question's choices, or remarks on them."""
    known = sum(
        bool(_REMARK.match(text)) or (i < len(own) and _squeezed(text).startswith(own[i]))
        for i, text in enumerate(listing.texts)
    )
    return 2 * known < len(listing.texts)


def _squeezed(text: str) -> str:
    return " ".join(re.findall(r"\w+", re.sub(r"\\[A-Za-z]+", " ", text).lower()))


def _looks_like_option(text: str) -> bool:
    return len(text) <= _LONGEST_OPTION and ". " not in text and text[-1:] not in ",;:" and ": " not in text


def _stem(plain: str, at: int) -> tuple[int, int] | None:
    """Start and end of the question, or of the unfinished statement, that stands before a list; None without one."""
    before = plain[max(0, at - _BEHIND) : at].rstrip(" \t\n-")
    heads = _HEADS_OPTIONS.search(before)
    before = before[: heads.start()].rstrip(" \t\n-") if heads else before
    end = max(0, at - _BEHIND) + len(before)
    last = before[max(before.rfind("\n") + 1, 0) :]
    unfinished = _DANGLING.search(last) or _BLANK_LEFT.search(last)
    if not before.endswith("?") and not unfinished:
        return None
    marks = ("\n", "!", "?", "." if before.endswith("?") else ". ")
    return max(
        end - _LONGEST_STEM, *(plain.rfind(mark, max(0, end - _LONGEST_STEM), end - 1) + 1 for mark in marks)
    ), end


def _begins_question(plain: str, start: int, end: int, label: str = "1") -> bool:
    """Whether what may begin another question, with options from ``label`` on, asks nothing about this one."""
    asked = plain[max(start, end - _BEHIND) : end]
    if label != "1":
        asked = _OF_THE_LIST.sub(" ", asked)
    own = _OF_THIS.search(asked) or (label == "1" and _POINTS_BACK.search(asked))
    return not own and not _DOUBTS.search(plain, max(0, start - _BEFORE), start + 12)
