"""The words of an answer: text to tokens, each of one kind, on which the grammar of ``fpa.answers`` works.

The kinds, one character each so that a text's kinds are a string:

====  ==================================================================================================
 L o  a letter that names a choice of this question; a letter standing for something else
 n N  a noun for the answer (answer, 答案); a noun for one of the options (option, choice, 选项)
 c w  correct; wrong
 d f  determiners and adjectives of a noun phrase; words that may stand between a cue and the option
 v m  linking verbs (is, should be); hedging ones (might, could)
 x X  negation before what it negates (not, 不是); after it (ではない)
 p i  it, this, which; I, we
 e r  verbs of choosing (choose, go with, 选); of correspondence (matches, corresponds to)
 s k  conclusion words (therefore, 所以); correction words (wait, actually, 而是)
 t j  but; and, or
 h b  conditions (if, suppose, 如果); words that report a belief or a form of words (thought, students, format)
 z l  words for another case (otherwise, 否则); for another rank than the best (worst, least)
 g    words that make a later mention no answer (than, unlike, options)
 a    words that begin a reason or a further clause (because, which, given)
 B    ``\\boxed``
 0 u  numbers; anything else
====  ==================================================================================================

Punctuation stands for itself: ``. ? , ; : - ( ) = /``, ``~`` for an ellipsis, ``+`` for any other operator, a
line feed for a line's end (``¶`` for a blank line), ``✓`` and ``✗`` for check marks and crosses. Markdown, LaTeX
wrappers, quotation marks and braces are dropped once they have told whether they enclose a letter.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

_WORDS = {
    "n": "answer answers ans solution antwort lösung réponse reponse respuesta resposta risposta ответ "
    "答案 正解 正答 答え 解答 答 정답 답 답안",
    "N": "option choice selection alternative letter conclusion verdict result key response "
    "opción opcion opção wahl choix scelta вариант 选项 選項 選択肢 선택지",
    "c": "correct right richtig richtige correcte correcta correcto correta corretta corretto certa "
    "правильный 正确 正確 对 對 正しい 맞는 맞",
    "w": "wrong incorrect false invalid inaccurate impossible eliminated excluded implausible unlikely falsch "
    "incorrecte incorrecta incorrecto 错误 錯誤 错 錯 不正确 不正確 不对 不對 間違い 誤り 틀린 틀",
    "d": "the an my our your its his her their single most very first final best better appropriate accurate "
    "suitable likely plausible logical valid true reasonable closest fitting proper ideal intended expected "
    "die der das le la el il bonne beste 最 最终 最終 最佳 的 项 項 番 の",
    "v": "is are was were be been being equals equal should must will would has have had to lautet é è become becomes "
    "remains stands reads est sont ist sind es son sera será sarà "
    "是 为 為 应 應 应为 應為 应是 应该 應該 应当 應當 應 必须 必須 只能 即 は が を 은 는 이 가",
    "m": "looks might may could can seems seem appears appear",
    "x": "doubt doubtful not never n't neither nor cannot without except excluding hardly rarely isn't wasn't "
    "aren't weren't can't couldn't wouldn't won't shouldn't mustn't doesn't don't didn't ain't nicht kein pas 不 非 没 "
    "不是 并非 並非 不为 不為 不选 不選 不应 不應 不应该 不應該 不应当 不應當 不该 不能 不要",
    "X": "ではない ではなく ではありません じゃない じゃなく でなく 가아니라 이아니라 아니라 아니다 아닙니다",
    "p": "it that this which these those there",
    "i": "i we i'd i'll i'm i've we'd we'll let's me us let ich je 我 我们 我們",
    "e": "choose pick guess bet vote select choosing picking selecting chose picked selected chosen mark circle tick "
    "wähle choisis elijo 选 選 选择 選擇 选定 選ぶ 選びます 選択 고르",
    "r": "match matches matching leaves leaving 对应 對應 对应于",
    "s": "so therefore thus hence finally consequently accordingly ergo conclude ultimately overall donc "
    "daher deshalb portanto quindi 所以 因此 因而 故 综上 综上所述 由此可知 可知 可见 よって したがって "
    "従って ゆえに つまり 따라서 그러므로",
    "k": "actually wait rather sorry correction oops no nope scratch hmm instead mean meant 而 而是 实际上 "
    "sondern sino いや",
    "t": "but however although though yet aber mais pero 但 但是",
    "j": "and or und oder et ou y e o 或 或者 和 及 以及 与 與 と または や 또는 와 과",
    "h": "if whether unless suppose supposing supposed assume assuming imagine pretend wenn falls si "
    "provided providing 如果 假如 假设 假設 若 要是 倘若 もし 만약",
    "z": "otherwise 否则 否則 不然 要不然 情况下 情況下 場合 そうでなければ さもなければ sonst sinon",
    "l": "worst least opposite poorest weakest lowest 最差 最不 次优 次優 次佳 相反",
    "b": "thought guessed believed assumed tempted student students people someone somebody others many some "
    "claim claims claimed mistakenly wrongly incorrectly erroneously format form phrase sentence example "
    "initially originally mistake misconception trap tempting",
    "g": "than unlike options choices alternatives eliminate eliminating eliminates ruling rule exclude between over",
    "f": "clearly obviously probably possibly maybe perhaps definitely certainly surely indeed simply just then "
    "now basically essentially apparently presumably undoubtedly again still here only both either of course "
    "for in as at given by with labelled labeled marked denoted represented namely specifically number think "
    "believe feel say also found listed shown stated described called one turned out "
    "logically confidently strongly really exactly yes ok okay well alright done thereby more "
    "等 了 呢 吧 吗 对于 對於 です だ でしょう 입니다 이다 예요 이에요 选择题 显然 肯定 たぶん おそらく 번",
    "a": "because since due thanks where when while he they according "
    "considering based on after before from though although whereas too alone itself does per via such "
    "weil parce porque 因为 因為",
}
_PHRASES = {
    "x": (
        "rather than",
        "instead of",
        "other than",
        "as opposed to",
        "anything but",
        "far from",
        "no longer",
        "no way",
    ),
    "none": (
        r"none of (?:the )?(?:above|these|those|them|options|choices|listed|others)(?: (?:options|choices|answers))?",
        r"(?:以上|上述)(?:都|皆|均)(?:不是|不对|不對|不正确|非)",
    ),
    "e": (
        r"(?:go|going|went|stick|sticking|answer|respond|reply) with",
        r"(?:opt|opting|vote|voting|go|going) for",
        r"(?:settle|settling|decide|deciding) on",
        r"lean(?:ing)? towards?",
    ),
    "r": (
        r"correspond(?:s|ing)? (?:to|with)",
        r"leav(?:es|ing) (?:only|us with|just|us only)",
        r"point(?:s|ing)? to",
        r"agrees? with",
        r"consistent with",
        r"closest to",
        r"left with",
    ),
    "j": ("as well as", "along with", "and/or", "or else"),
    "v": ("turns? out to be", "comes? out (?:to be|as)", "has to be", "have to be", "ought to be"),
    "b": ("at first", "first thought", "first guess", "first instinct"),
    "h": (r"let(?:'s| us) say",),
    "g": (r"e\.g\.", r"such as"),
    "n": (r"ans\.",),
    "c": (r"makes? (?:the )?(?:most |best )?sense", r"(?:fits?|works?) (?:the )?best"),
    "f": (r"i\.e\.", r"of course", r"in fact", r"for sure", r"without (?:a )?doubt", r"no doubt"),
    "s": (r"in conclusion", r"in summary", r"as a result", r"to conclude", r"to sum up", r"for this reason"),
    "a": (r"due to", r"so that"),
    "k": (r"on second thoughts?", r"make that", r"i mean", r"scratch that", r"or rather", r"let me correct"),
}

# Words that are a noun for an option behind a word of these kinds: "my guess is B", "the correct one is B".
_GUESSES = ("pick", "guess", "bet", "vote")
_NOUN_AFTER = {"d": _GUESSES, "c": (*_GUESSES, "one", "ones", "options", "choices", "alternatives")}


@dataclass(frozen=True, slots=True)
class Token:
    """One word, number, letter or sign of a text.

    Attributes:
        kind: see the module's table.
        word: the text in lower case (letters that name a choice: in upper case).
        exact: the text as it stands.
        start, end: offsets into the text.
        marked: for a letter: enclosed in brackets, quotation marks, or emphasis.
    """

    kind: str
    word: str
    exact: str
    start: int
    end: int
    marked: bool = False


def fold(text: str) -> str:
    """Full-width, circled and styled characters as plain ones, one for one, so that offsets stay."""
    if text.isascii():
        return text
    table = dict(_SAME)
    for character in set(text):
        folded = unicodedata.normalize("NFKC", character)
        if len(folded) == 1 and ord(character) not in table:
            table[ord(character)] = folded
    return text.translate(table)


_SAME = {ord(c): "'" for c in "’‘ʼ"} | {ord(c): '"' for c in "“”„«»"} | {ord("−"): "-", ord("。"): "。"}
_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_LETTERS = "A-Za-z\u00c0-\u024f\u0370-\u04ff"
_WRAPPER = (
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|sf|it|bb|cal|tt|normal)|mbox|hbox|operatorname|bm|"
    r"boldsymbol|bf|rm|it|left|right|big|Big|displaystyle|quad|qquad|underline|emph|color\{\w+\}|;|,|!|:| )\*?"
)
_MARKUP = (
    rf"(?:{_WRAPPER}(?![A-Za-z])|\\[()\[\]]|[{{}}$*_`\"'«»「」『』【】《》〈〉\u200b-\u200f\ufeff]|~~|&nbsp;)"
)
_OPEN = rf"(?:{_WRAPPER}(?![A-Za-z])|\\[(\[]|<(?=[A-Z]>)|[(\[{{$*_`\"'「『【《〈])"
_CLOSE = r"(?:\\[)\]]|[>)\]}$*_`\"'」』】》〉])"
_HTML = (
    r"(?-i:</?(?:b|i|u|em|strong|p|br|span|div|a|code|h\d|li|ul|ol|center|sub|sup)(?:\s[^<>\n]{0,80})?/?>)"
)


def _alternatives(words: list[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_KIND_OF = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_UNSPACED = _alternatives([word for word in _KIND_OF if re.search(f"[{_CJK}]", word)])
_PHRASE_KINDS = [
    (kind, "|".join(pattern.replace(" ", r"[ \n]{1,3}") for pattern in patterns))
    for kind, patterns in _PHRASES.items()
]
_SCANNER = re.compile(
    rf"""
    (?P<gap>\n[ \t\r]*\n\s*)
  | (?P<line>\r?\n)
  | (?P<space>[^\S\n]+)
  | (?P<html>{_HTML})
  | (?P<tag><(?P<end_tag>/?)(?:final_?answer|answer|final|choice|option)>)
  | (?P<boxed>\\(?:boxed|fbox)(?![A-Za-z])\*?)
  | (?P<marked>(?:{_OPEN}\s{{0,2}}){{1,6}}(?P<letter>[A-Za-z])(?:\s{{0,2}}{_CLOSE}){{1,6}})
  | (?P<markup>{_MARKUP})
  | (?P<command>\\[A-Za-z]+)
  | (?P<phrase>(?<![{_LETTERS}])(?:{"|".join(f"(?P<p_{kind}>{p})" for kind, p in _PHRASE_KINDS)})(?![{_LETTERS}]))
  | (?P<compound>[{_LETTERS}]+(?:-[{_LETTERS}0-9]+)+|[{_LETTERS}]+[0-9][{_LETTERS}0-9]*)
  | (?P<word>[{_LETTERS}]+(?:'[{_LETTERS}]+)*)
  | (?P<number>\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)
  | (?P<unspaced>{_UNSPACED})
  | (?P<ellipsis>\.{{2,}}|…+)
  | (?P<arrow>→|⇒|⟹|=+>|-+>|∴)
  | (?P<other>.)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SIGNS = (
    dict.fromkeys(".!。｡", ".")
    | dict.fromkeys("?؟", "?")
    | dict.fromkeys(",、،", ",")
    | dict.fromkeys("-–—―‐‑", "-")
    | dict.fromkeys("([", "(")
    | dict.fromkeys(")]", ")")
    | dict.fromkeys("=≡", "=")
    | dict.fromkeys("/&", "/")
    | dict.fromkeys("✓✔✅☑", "✓")
    | dict.fromkeys("✗✘✖❌", "✗")
    | dict.fromkeys("+^<>×÷%|±≈", "+")
    | {";": ";", ":": ":"}
)


def tokens(text: str) -> list[Token]:
    """The tokens of a (folded) text, in order. Time is linear in the text's length."""
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _SCANNER.match(text, position)
        assert match is not None  # the last alternative takes any character
        found.extend(_tokens_of(match, found))
        position = match.end()
    return found


def _tokens_of(match: re.Match[str], before: list[Token]) -> list[Token]:
    group, exact, start, end = match.lastgroup or "", match[0], match.start(), match.end()
    if group == "phrase" or group.startswith("p_"):
        group = "phrase"
        kind = next(kind for kind, _ in _PHRASE_KINDS if match[f"p_{kind}"] is not None)
        return [Token("Z" if kind == "none" else kind, exact.lower(), exact, start, end)]
    if group in ("space", "markup"):
        return []
    if group == "gap":
        return [Token("¶", "", exact, start, end)]
    if group == "line" or (group == "html" and re.match(r"</?(?:br|p|div|li)\b", exact, re.IGNORECASE)):
        return [Token("\n", "", exact, start, end)]
    if group == "html":
        return []
    if match["tag"]:
        noun = [Token("n", "answer", exact, start, end), Token(":", ":", exact, start, end)]
        return [Token(".", ".", exact, start, end)] if match["end_tag"] else noun
    if group == "boxed":
        return [Token("B", exact, exact, start, end)]
    if match["letter"]:
        return [_marked_letter(match, before)]
    if group == "compound":
        head, _, letter = exact.rpartition("-")
        if _KIND_OF.get(head.lower()) in ("n", "N") and len(letter) == 1 and letter.isalpha():
            return [_word(head, start), Token("L", letter.upper(), letter, end - 1, end)]
        return [Token("u", exact.lower(), exact, start, end)]
    if group == "word":
        return _words(match, before)
    if group == "number":
        return [Token("0", exact.replace(",", ""), exact, start, end)]
    if group == "unspaced":
        return [_word(exact, start)]
    if group == "ellipsis":
        return [Token("~", "...", exact, start, end)]
    if group == "arrow":
        return [Token("s", exact, exact, start, end)]
    if exact.isalnum() or exact == "\\":
        return [Token("u", exact.lower(), exact, start, end)]
    sign = _SIGNS.get(exact)
    if exact == "|" and not (
        match.string[end : end + 1].isalnum() and match.string[start - 1 : start].isalnum()
    ):
        return []
    return [Token(sign, exact, exact, start, end)] if sign else []


def _word(exact: str, start: int) -> Token:
    word = exact.lower()
    return Token(_KIND_OF.get(word, "u"), word, exact, start, start + len(exact))


def _words(match: re.Match[str], before: list[Token]) -> list[Token]:
    exact, start = match[0], match.start()
    if len(exact) == 1 and exact.isascii():
        letter = _stands_alone(match.string, start, before)
        return [Token("L" if letter else "u", exact.upper() if letter else exact, exact, start, start + 1)]
    word = _word(exact, start)
    if before and word.word in _NOUN_AFTER.get(before[-1].kind, ()):
        return [replace(word, kind="N")]
    if word.kind == "u" and word.word.endswith("'s"):
        base = _word(exact[:-2], start)
        if base.kind in "nNp":
            return [base, Token("v", "'s", exact[-2:], base.end, word.end)]
    return [word]


def _marked_letter(match: re.Match[str], before: list[Token]) -> Token:
    """An enclosed letter, unless the bracket belongs to what stands before it, as in P(A) or F_{B}."""
    text, start, letter = match.string, match.start(), match["letter"]
    glued = start > 0 and (
        (text[start - 1].isascii() and text[start - 1].isalnum()) or text[start - 1] in "_^}\\"
    )
    known = bool(before) and before[-1].end == start and before[-1].kind not in "u0L"
    kind = "u" if glued and not known else "L"
    return Token(kind, letter.upper(), letter, start, match.end(), marked=True)


_ABBREVIATED = re.compile(r"\.[A-Za-z]{1,2}(?![A-Za-z])")
_APPLIED = re.compile(r"\([^\s()]{0,12}\)|\(.{0,2}\)")
_BESIDE = re.compile(r"[/&][A-Za-z](?![A-Za-z0-9])")


def _stands_alone(text: str, at: int, before: list[Token]) -> bool:
    """Whether a single letter may name a choice: no part of a formula, an abbreviation or a compound."""
    previous, following = text[at - 1 : at], text[at + 1 : at + 2]
    second, after = text[at - 2 : at - 1] if at > 1 else "", text[at + 2 : at + 3]
    if previous and ((previous.isascii() and previous.isalnum()) or previous in "_^\\°%|#@"):
        return False
    if previous in ("-", "'") and second.isalnum():
        return False
    if previous in ("/", "&") and previous and not (len(before) > 1 and before[-2].kind == "L"):
        return False
    if previous == "." and second.isalpha() and not text[max(at - 3, 0) : at - 2].isalpha():
        return False
    if not following:
        return True
    if (following.isascii() and following.isalnum()) or following in "_^°%#+":
        return False
    if following in "'*|" and after.isascii() and after.isalnum():
        return False
    if following in "/&" and after.isalnum() and not _BESIDE.match(text, at + 1):
        return False
    if following == ":" and after.isalpha() and not text[at + 3 : at + 4].isalnum():
        return False
    return not (_ABBREVIATED.match(text, at + 1) or _APPLIED.match(text, at + 1))
