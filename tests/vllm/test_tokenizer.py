"""Tokenizers in SentencePiece's manner: text is encoded as it stands within a text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import transformers

from fpa.engines.hub import HubTokenizer

WORDS = [
    "The",
    "▁The",
    "▁answer",
    "▁is",
    "▁(",
    "(",
    ")",
    *"ABCDab",
    *(f"▁{letter}" for letter in "ABCDab"),
    "\n",
    "▁",
]


@pytest.fixture(params=["first", "always"])
def spaced(request: pytest.FixtureRequest, tmp_path: Path) -> HubTokenizer:
    """A tokenizer that puts a space before a text and takes one away in decoding."""
    pieces = [("<unk>", -20.0), ("</s>", 0.0), *((word, -1.0 - 0.01 * i) for i, word in enumerate(WORDS))]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=request.param)
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme=request.param)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return HubTokenizer(str(tmp_path))


def test_a_readout_looks_for_the_letter_that_follows_the_bracket(spaced: HubTokenizer) -> None:
    phrase = "\n\nThe answer is ("
    for letter in "ABCD":
        [token] = spaced.encode(letter)
        assert spaced.pieces((token,)) == (letter,)
        assert spaced.decode((*spaced.encode(phrase), token)) == phrase + letter
    assert spaced.pieces(spaced.encode(phrase)) == ("\n", "\n", "The", " answer", " is", " (")


def test_texts_come_back_as_they_were(spaced: HubTokenizer) -> None:
    for text in ("A", " A", "(", "The answer is (", "\n\nThe answer", "a b\nA"):
        assert spaced.decode(spaced.encode(text)) == text
