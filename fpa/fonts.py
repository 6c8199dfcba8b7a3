"""Fonts of figures: those at hand for scripts that matplotlib's own font lacks, and escapes for the rest."""

from __future__ import annotations

from functools import cache

import matplotlib as mpl
from matplotlib import font_manager

# Of usual systems, most complete first. Fonts of bitmaps (colour emoji) are none: matplotlib cannot draw them.
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "PingFang SC",
    "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
    "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Symbols2", "Arial Unicode MS", "Segoe UI Symbol",
)  # fmt: skip


def families() -> list[str]:
    """The families that matplotlib is set to use, then the fallbacks at hand: it warns of any that is not."""
    there = {font.name for font in font_manager.fontManager.ttflist}
    return [*mpl.rcParams["font.family"], *(name for name in FALLBACKS if name in there)]


def drawable(text: str) -> str:
    """The text with every character that no font at hand can draw as its escape, such as ``\\u4f60``."""
    covered = _characters(tuple(families()))
    return "".join(c if ord(c) in covered else c.encode("unicode_escape").decode() for c in text)


@cache
def _characters(names: tuple[str, ...]) -> frozenset[int]:
    """Code points that one of the families has a glyph for."""
    paths = {font_manager.findfont(font_manager.FontProperties(family=[name])) for name in names}
    return frozenset(code for path in paths for code in font_manager.get_font(path).get_charmap())
