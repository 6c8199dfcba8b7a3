"""Texts of the tokens that end a turn in common model families; each engine uses those that its model has."""

from __future__ import annotations

END_TEXTS = (
    "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<end_of_turn>",
    "<|end|>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
