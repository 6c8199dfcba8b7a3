"""The text side of Hugging Face models: tokenizer, chat template, tokens that end a turn, fingerprint.

A model is a folder or a name on the hub. Code that a model brings along runs only where asked for by name
(``trust_remote_code``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from fpa.engines.base import ContextOverflow, EngineError, Message, pieces_by_prefix
from fpa.engines.ends import END_TEXTS
from fpa.engines.midtext import MidText
from fpa.engines.templates import check_template

# Threads that spin while they wait slow a busy machine down severalfold; read when the libraries load.
PATIENT_THREADS = {"GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def package(name: str, engine: str, extra: str) -> Any:
    """Import a heavy package only now.

    Raises:
        EngineError: it is not installed; the message names the extra that brings it.
    """
    for variable, value in PATIENT_THREADS.items():
        os.environ.setdefault(variable, value)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine {engine} needs the package {error.name}: pip install 'fpa[{extra}]'"
        ) from error


def check_room(prefix: int, new: int, context: int) -> None:
    """Refuse a request that would not fit the model's context."""
    if prefix + new > context:
        raise ContextOverflow(
            f"{prefix} prompt tokens and up to {new} new ones do not fit the context of "
            f"{context} tokens: raise --context or lower the token limits"
        )


class HubTokenizer:
    """Token ids and text of one model; what engines of Hugging Face models share.

    Args:
        model: a folder, or a name on the hub.
        engine, extra: who asks, and the extra that brings the package, for the message where it is missing.
        chat_template: Jinja text that replaces the model's own template.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run tokenizer code that the model brings along.

    Raises:
        UsageError: something is wrong with the given template.
        EngineError: no such model, a gated one without access, or one without a chat template.
    """

    def __init__(
        self,
        model: str,
        *,
        engine: str = "transformers",
        extra: str = "transformers",
        chat_template: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if chat_template is not None:
            check_template(chat_template)
        transformers = package("transformers", engine, extra)
        with loading(model):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                model, revision=revision, trust_remote_code=trust_remote_code
            )
        if chat_template is not None:
            self._tokenizer.chat_template = chat_template
        if not self._tokenizer.chat_template:
            raise EngineError(
                f"{model}: the model has no chat template; use an instruction-tuned model, or give a "
                "template with --chat-template FILE"
            )
        self._model = model
        adds_bos = self._tokenizer("")["input_ids"][:1]
        self._bos = tuple(adds_bos) if adds_bos == [self._tokenizer.bos_token_id] else ()
        self.end_ids = self._find_end_ids(model, revision)
        self._within = MidText(self._ids, self._raw)
        self._shown = MidText(self._ids, partial(self._raw, skip=True))

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation through the chat template, with one BOS if the model has one."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates raise what they like
            raise EngineError(
                f"{self._model}: its chat template refuses the conversation ({error})"
            ) from error
        ids = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        while self._bos and ids[:1] == self._bos:
            ids = ids[1:]
        return self._bos + ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text: no special tokens added, none parsed."""
        return self._within.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        kept = [int(i) for i in token_ids if i not in self.end_ids]
        return self._shown.decode(kept)

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, special tokens shown."""
        return pieces_by_prefix(lambda ids: self._within.decode([int(i) for i in ids]), token_ids)

    def _raw(self, ids: Sequence[int], *, skip: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
        return ids

    def _find_end_ids(self, model: str, revision: str | None) -> frozenset[int]:
        """The tokenizer's end token, those that the model's generation settings name, and the known ones."""
        transformers = import_module("transformers")
        ends = {self._tokenizer.eos_token_id}
        try:
            named = transformers.GenerationConfig.from_pretrained(model, revision=revision).eos_token_id
        except OSError:
            named = None  # a model need not have generation settings
        ends.update(named if isinstance(named, list) else [named])
        added = self._tokenizer.get_added_vocab()
        ends.update(added[text] for text in END_TEXTS if text in added)
        return frozenset(int(i) for i in ends if i is not None)


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Turn what goes wrong while loading a model into one line that says what to do.

    Raises:
        EngineError: no such model, no access, damaged files, code of its own, or not enough memory.
    """
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(_why(model, error)) from error


def _why(model: str, error: Exception) -> str:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    names = {type(e).__name__ for e in chain}
    text = " ".join(str(e) for e in chain)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Validation errors say how many they are, then what is wrong.
    first = lines[1 if len(lines) > 1 and "validation error" in lines[0] else 0].partition(" [type=")[0][:300]
    if "GatedRepoError" in names or "gated repo" in text:
        return gated(model)
    if "trust_remote_code" in text:
        return (
            f"{model}: the model brings its own code, which is not run: read it, then allow it with "
            "--engine-option trust_remote_code=true"
        )
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return f"{model}: not enough memory for this model: lower --parallel or --context"
    if isinstance(error, OSError) or "RepositoryNotFoundError" in names:
        local = Path(model).exists()
        if local:
            return f"{model}: not a whole Hugging Face model ({first})"
        return (
            f"{model}: no such folder, and no such model could be fetched from the Hugging Face hub "
            f"({first}): check the name and the network, or give a folder"
        )
    return f"{model}: the model does not load ({type(error).__name__}: {first})"


def gated(model: str) -> str:
    """What a user without access to a gated model has to do."""
    return (
        f"{model} is gated: accept its licence at https://huggingface.co/{model}, then set HF_TOKEN to your "
        "access token"
    )


def model_name(model: str) -> str:
    """What a manifest calls a model: its name on the hub, or its folder's own name, wherever that lies."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Where a model's files are on this machine; None where they are not."""
    if Path(model).is_dir():
        return Path(model)
    hub = import_module("huggingface_hub")
    found = hub.try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def fingerprint(model: str, revision: str | None, *how: str) -> str:
    """SHA-256 over the model's settings, the sizes of its weight files and 16 blocks of each.

    ``how`` is what else makes another model of the same files (number format, quantisation).

    Raises:
        EngineError: the model's files are nowhere to be found.
    """
    folder = model_folder(model, revision)
    if folder is None:
        raise EngineError(f"{model}: its files are not on this machine")
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Where a model lies and which library wrote it do not make it another one.
    config = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version")}
    digest.update(json.dumps(config, sort_keys=True).encode())
    block = 1 << 20
    for path in sorted(p for pattern in WEIGHTS for p in folder.glob(pattern)):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for i in range(16):
                file.seek(max(0, size - block) * i // 15)
                digest.update(file.read(block))
    return "-".join((digest.hexdigest()[:16], *how))


class Text(Protocol):
    """Turns text into token ids and back, as an engine does: a ``HubTokenizer``, or a server."""

    end_ids: frozenset[int]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, special tokens shown."""


class TextSide:
    """The part of an engine that a tokenizer beside the model does; and its use as a context manager."""

    _text: Text

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation through the model's chat template; one BOS if the model has one."""
        return self._text.encode_chat(messages)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text: no special tokens added, none parsed."""
        return self._text.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._text.decode(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, special tokens shown."""
        return self._text.pieces(token_ids)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        return self._text.end_ids

    def close(self) -> None:
        """Free the model."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
