"""Sentence splitting (first version: the library's own boundaries)."""

from __future__ import annotations

from sentencex import segment


def split_sentences(text: str) -> list[str]:
    """The sentences of ``text``; joined they are the text, exactly."""
    return list(segment("en", text)) if text else []
