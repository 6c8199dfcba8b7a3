"""Thoughts: the part of a reasoning model's response that is not its answer.

A prompt may open the thought itself, so that the response holds the closing tag only; a response may hold
several thoughts, or be cut off inside one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMES = r"(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad|begin_of_thought|seed:think)"
_TAG = re.compile(
    rf"(?P<open>< ?{_NAMES} ?>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|channel\|>analysis<\|message\|>)"
    rf"|(?P<close>< ?/ ?{_NAMES} ?>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>"
    r"|<\|channel\|>final<\|message\|>)",
    re.IGNORECASE,
)
_CLOSE_OF = {"[think]": "[/THINK]", "◁think▷": "◁/think▷", "<|begin_of_thought|>": "<|end_of_thought|>"}


@dataclass(frozen=True)
class Thoughts:
    """A response taken apart.

    Attributes:
        answer: the text outside every thought; thoughts are replaced by blank lines.
        open_tag: the tag of a thought that was never closed (``"<think>"`` where the prompt opened it), or None.
    """

    answer: str
    open_tag: str | None


def split_thoughts(text: str, *, thinking: bool = False) -> Thoughts:
    """Take the thoughts out of a response.

    What precedes a closing tag is thought even where nothing in the text opens it.

    Args:
        text: the response, from its first token on.
        thinking: whether the prompt had opened a thought.
    """
    opener: str | None = "<think>" if thinking else None
    visible = []
    start = 0
    for tag in _TAG.finditer(text):
        if opener is None and tag["open"]:
            visible.append(text[start : tag.start()])
        opener = tag["open"]
        start = tag.end()
    if opener is None:
        visible.append(text[start:])
    return Thoughts("\n\n".join(visible), opener)


def closing_tag(open_tag: str) -> str:
    """The tag that closes a thought opened by ``open_tag``."""
    if open_tag.startswith("<|channel|>"):
        return "<|end|><|start|>assistant<|channel|>final<|message|>"
    return _CLOSE_OF.get(open_tag.lower(), f"</{open_tag.strip('<> ')}>")
