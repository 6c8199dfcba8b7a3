"""Sentence splitting: the boundaries of the library ``sentencex``, and what model output needs beyond them.

The library knows the stops of many scripts, abbreviations, decimals, initials and quotations. Added here:
line breaks end a sentence, formulas and code are never split, list markers stay with their item, emphasis and
brackets that close after a stop stay with it, and a stop behind the letter of a choice ends its sentence.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

from sentencex import segment


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences.

    White space belongs to the sentence before it (at the start of the text, to the first).

    Returns:
        Non-empty pieces; joined they are the text, exactly. No pieces for an empty text.
    """
    bounds = [0, *_boundaries(text), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def _boundaries(text: str) -> Iterator[int]:
    """Where sentences begin, in increasing order, the first one left out."""
    candidates = {*_library_bounds(text), *(match.end() for match in _UNSEEN.finditer(text))}
    breaks = {match.end() for match in _LINE_BREAK.finditer(text) if not _wrapped(text, match)}
    starts, ends = _protected(text)
    last, begin = 0, len(text) - len(text.lstrip())
    for candidate in sorted(candidates | breaks):
        if candidate <= max(last, begin):
            continue
        line_break = candidate in breaks
        bound = candidate if line_break else _past_closers(text, candidate)
        if bound >= len(text):
            return
        span = bisect_right(starts, bound) - 1
        if span >= 0 and starts[span] < bound < ends[span]:
            continue
        if line_break or _ends_sentence(text, last, bound):
            last = bound
            yield bound


def _library_bounds(text: str) -> Iterator[int]:
    """The library's boundaries within each line.

    It takes quadratic time for long lines of Chinese and for backticks, so it is given no backticks, and long
    lines in parts, cut where there is no doubt (a Chinese stop) or no sentence ends (behind a word).
    """
    plain = text.replace("`", "_")
    limit = 4000 if text.isascii() else 400
    start = 0
    while start < len(plain):
        line_end = plain.find("\n", start, start + limit) + 1
        end, stop = line_end or min(start + limit, len(plain)), None
        if not line_end and end < len(plain):
            part = plain[start:end]
            stop = _CHINESE_STOP.match(part)
            cut = stop or _WORD.match(part)
            end = start + cut.end() if cut else end
        sizes = accumulate(map(len, segment("en", plain[start:end])))
        yield from (start + size for size in sizes if stop or start + size < end)
        start = end


# The last place in a part at which to cut it.
_CHINESE_STOP = re.compile(r"(?s).*[。！？][”’」』）]?(?![”’」』）。！？])")
_WORD = re.compile(r"(?s).*[^\W\d_]{2}\s")
# A line's end with all white space behind it.
_LINE_BREAK = re.compile(r"\n\s*")
# A soft line break: "the long\nroad".
_WRAP_BEFORE = re.compile(r"[^\W\d_]{2},?[ \t\r]?\Z")
_WRAP_AFTER = re.compile(r"(?:[a-z]{2,}|a)[ ,][^=\n]*$", re.MULTILINE)
# A unit behind its number or a bar, a variable (but "Roe v. Wade"), a capital behind the noun that it names one of.
_UNIT = r"(?:\d[ \t]?°?|[\w)²³]/|[=+<>×÷·−≈≤≥][ \t]?)(?:[A-Za-z]|min|sec|in|mol|gal|rad)"
_VARIABLE = r"(?<![\w.'’&@-])(?<![a-z]\.\s)[a-uw-z](?=\.[*_]{0,3}\s+[\"'“‘(*]{0,3}[A-Z](?!\.))"
_NAMED = (
    r"\b(?:[Vv]itamin|[Hh]epatitis|[Ii]nfluenza|[Pp]lan|[Pp]oint|[Tt]ype|[Gg]roup|[Cc]lass|[Gg]rade|[Ss]ide|[Aa]ngle|"
    r"[Pp]art|[Ss]ection|[Ff]igure|[Tt]able|[Pp]anel|[Ss]et|[Ee]vent|[Nn]ode|[Vv]ertex|[Mm]atrix|[Tt]eam|[Pp]layer|"
    r"[Cc]ompany|[Ff]irm|[Cc]ity|[Tt]own|[Cc]ountry|[Bb]ox|[Cc]ar|[Tt]rain|[Bb]lock|[Pp]lanet|[Mm]aterial|[Ll]iquid|"
    r"[Gg]as|[Ss]olution|[Ss]ample|[Ss]ubstance|[Ee]lement|[Cc]ompound|[Pp]roduct|[Ss]tage|[Ss]tep|[Ll]ayer|[Zz]one|"
    r"[Rr]egion|[Aa]rea|[Ll]ine|[Cc]olumn|[Rr]ow|[Ll]evel|[Aa]ppendix|[Dd]rug|[Gg]ene|[Aa]llele|[Pp]rotein|[Ff]actor|"
    r"[Vv]ariable|[Cc]onstant|[Mm]ethod|[Tt]heory|[Ss]tatement|[Ss]cenario|[Pp]hase|[Ss]tate)[ \t]"
    r"[\"'“‘(*$]{0,4}[A-Z][\"'”’)*$]{0,4}"
)
_NO_NAME = (
    "The|It|Its|This|That|These|Those|Then|There|They|Their|So|Hence|Thus|Therefore|However|But|We|Our|You|He|She|His|"
    "Hers?|In|If|When|While|Where|What|Which|Why|How|Since|Because|Now|Next|Here|Also|For|From|As|At|On|By|To|And|"
    "An?|One|Each|Every|Both|All|Some|Any|No|Not|Let|Although|Consequently|Finally|Moreover|Another|Other|I"
)
# Stops that the library passes over: an ellipsis before a capital, stops inside brackets, before emphasis and
# before an equation ("x = 1"), and those behind the letter of a choice ("is B. Then"), which it takes for an initial.
_UNSEEN = re.compile(
    r"(?:…|\.{3})[\"'”’)*]{0,3}\s+(?=[\"'“‘(*]{0,3}[A-Z])"
    r"|[.!?][)\]]\s+(?=[\"'“‘(*]{0,3}[A-Z])"
    r"|[.!?][\"')\]]{0,2}[ \t]+(?=\*{1,2}[^\s*])"
    r"|\.[ \t]+(?=[A-Za-z]\w?[ \t]{0,2}=)"
    r"|\b(?:is|be|[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter|pick|choose|[Cc]ase|or|and|not|than)[ \t]+"
    r"[\"'“‘(*$]{0,4}[A-J][\"'”’)*$]{0,4}[.][*_]{0,3}\s+(?=[\"'“‘(*]{0,3}[A-Z\d])"
    rf"|(?:{_UNIT}|{_VARIABLE}|{_NAMED})\.[*_]{{0,3}}\s+(?=[\"'“‘(*]{{0,3}}[A-Z])"
    r"|(?<=[a-z\d)\]*][ \t])[\"'”’)*_]{0,3}[A-Zv]\.[*_]{0,3}\s+"
    rf"(?=[\"'“‘(*]{{0,3}}(?:{_NO_NAME})\b)"
)
# A piece that only numbers or opens what follows.
_MARKER = re.compile(
    r"\s*(?:[#>*_\-+•·|]{1,9}\s*){0,4}(?:\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})[.)]|step\s+\d{1,3}[.:)])?[*_]*[:.]?\s*",
    re.IGNORECASE,
)
# Words whose stop ends no sentence where a number or a small letter follows.
_ABBREVIATED = re.compile(
    r"(?<![^\s(\[])(?:eqs?|figs?|secs?|ch|chap|approx|ca|cf|vs|nos?|vols?|pp?|al|resp|etc|ref|refs|tab|def|thm|prop|"
    r"lem|cor|ex|est|min|max|avg|temp|cm|mm|km|kg|mg|ml|ft|lbs?|oz|hrs?|mins?|[a-z])\.\s+\Z",
    re.IGNORECASE,
)
_CLOSERS = re.compile(r"[\"'”’»)\]}*_`」』】》]{1,6}(?=\s|$)\s*")
_OPENERS = re.compile(r"```|\\\[|\\\(|\$\$|\$(?=\S)|\\begin\{([A-Za-z]{1,20}\*?)\}|`(?=\S)|https?://|<\|")
_BLANK = re.compile(r"\s+")
_ADDRESS = re.compile(r"[^\s<>\"]{0,500}")
_SPAN_LIMIT = 4000


def _wrapped(text: str, match: re.Match[str]) -> bool:
    """Whether a line break only wraps a line: a word goes before it, and a small-lettered one follows."""
    return (
        match[0].count("\n") == 1
        and _WRAP_BEFORE.search(text, max(0, match.start() - 4), match.start()) is not None
        and _WRAP_AFTER.match(text, match.end()) is not None
        and _MARKER.fullmatch(text, match.end(), match.end() + 2) is None
    )


def _protected(text: str) -> tuple[list[int], list[int]]:
    """Starts and ends of formulas, code, addresses and special tokens, which hold no boundary."""
    starts: list[int] = []
    ends: list[int] = []
    found: dict[str, int] = {}
    at = 0
    while (opener := _OPENERS.search(text, at)) is not None:
        end = _span_end(text, opener, found)
        if end is None:
            at = opener.end()
            continue
        starts.append(opener.start())
        ends.append(end)
        at = end
    return starts, ends


def _span_end(text: str, opener: re.Match[str], found: dict[str, int]) -> int | None:
    """Where what ``opener`` opens ends; None where it is never closed and so opens nothing.

    ``found`` keeps the next place of each closer: the text is searched once, however many openers it has.
    """
    start, sign = opener.end(), opener[0]
    if sign in ("http://", "https://"):
        address = _ADDRESS.match(text, start)
        return start + len((address[0] if address else "").rstrip(".,;:!?)'"))
    if sign == "```":
        end = text.find("```", start)
        return len(text) if end < 0 else end + 3
    closer = {"\\[": "\\]", "\\(": "\\)", "<|": "|>"}.get(sign, sign)
    if opener[1]:
        closer = f"\\end{{{opener[1]}}}"
    limit = 300 if sign in ("$", "`", "<|") else _SPAN_LIMIT
    if found.get(closer, -1) < start:
        place = text.find(closer, start)
        found[closer] = len(text) + limit if place < 0 else place
    end = found[closer]
    if end > start + limit:
        return None
    if sign in ("$", "`", "<|") and "\n" in text[start:end]:
        return None
    if sign == "$" and (text[end - 1].isspace() or text[end + 1 : end + 2].isdigit()):
        return None  # prices, not a formula
    return end + len(closer)


def _past_closers(text: str, bound: int) -> int:
    """The boundary behind white space and behind brackets, quotation marks and emphasis that close at it."""
    closers = None if text[bound - 1].isspace() else _CLOSERS.match(text, bound)
    if closers:
        return closers.end()
    blank = _BLANK.match(text, bound)
    return blank.end() if blank else bound


def _ends_sentence(text: str, start: int, bound: int) -> bool:
    """Whether a boundary of the library really ends the sentence that began at ``start``."""
    following = text[bound]
    if bound - start < 40 and _MARKER.fullmatch(text, start, bound):
        return False
    if following == "<" and not text[bound - 1].isspace():
        return False
    before = _ABBREVIATED.search(text, max(start, bound - 12), bound)
    return before is None or not (following.isdigit() or following.islower())
