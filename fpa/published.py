"""Import of the released "Forking Fast" rollouts: gzipped JSON records into run directories, in branch form.

A record is one question: its base path, the next tokens kept at each position with their probabilities, each
branch's answers and lengths, and the outcome curve they give. A folder of records becomes one run per track
and number of draws.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fpa.answers import extract_answer
from fpa.errors import FpaError, UsageError
from fpa.positions import sentence_of_tokens
from fpa.records import OTHER, Answer, BasePath, Distribution, Question
from fpa.schemas import ROLLOUTS
from fpa.store import RunWriter, unit_name

# Base seeds of the published mixture draws, by track.
MIXTURE_SEEDS = {"llama": 43_000_000, "deepseek": 43_500_000}
_SETTINGS = (
    "top_k",
    "p_thresh",
    "base_max_tokens",
    "cont_max_tokens",
    "base_temperature",
    "cont_temperature",
)
_ROUNDING = 2e-6  # the recorded curves have six decimals


class DamagedRecord(FpaError):
    """A file is not a record of a released store, or contradicts itself."""


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        runs: run directory -> ids of the questions it got.
        skipped: file -> why it was left out.
        notices: what the stores had to say on opening.
    """

    runs: dict[Path, list[str]] = field(default_factory=dict)
    skipped: dict[Path, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def import_published(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> ImportReport:
    """Import every record under ``folder`` into one run per track and S, such as ``OUT/s200-llama``.

    A file that is no record, is damaged, or whose own curve does not follow from its draws is skipped and
    named in the report. Questions already imported are left as they are.

    Raises:
        UsageError: there is no file under ``folder``.
        FpaError: ``out`` cannot be written.
    """
    folder, out = Path(folder), Path(out)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    if not files:
        raise UsageError(f"no files under {folder}: name the folder that holds the released records")
    report = ImportReport()
    writers: dict[str, RunWriter] = {}
    with ExitStack() as stack:
        for file in files:
            try:
                record = _Record(read_record(file))
                writer = writers.get(record.run)
                if writer is None:
                    writer = stack.enter_context(_open(out / record.run, record))
                    writers[record.run] = writer
                    report.runs[writer.path] = []
                    report.notices.extend(writer.notices)
                if record.question_id in report.runs[writer.path]:
                    raise DamagedRecord(
                        f"{record.question_id} of {record.run} was in an earlier file already"
                    )
                if record.config() != writer.manifest["config"]:
                    raise DamagedRecord(f"its settings are not those of the other records of {record.run}")
            except DamagedRecord as problem:
                report.skipped[file] = str(problem)
                continue
            unit = unit_name(record.question_id, 0, "all")
            writer.put_question(record.question(), None)
            if not writer.has(unit):
                writer.put_base(record.base())
                writer.put_table(unit, record.rollouts())
            report.runs[writer.path].append(record.question_id)
        for writer in writers.values():
            writer.finish({})
    return report


def read_record(file: Path) -> dict[str, Any]:
    """One released record as it is.

    Raises:
        DamagedRecord: the file is truncated, not gzipped JSON, or something else.
    """
    if not file.name.endswith(".json.gz"):
        raise DamagedRecord("not a gzipped JSON record (*.json.gz)")
    try:
        with gzip.open(file, "rt", encoding="utf-8") as text:
            record = json.load(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DamagedRecord(f"cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise DamagedRecord("not a record: its JSON is no object")
    return record


def curve_of(record: dict[str, Any]) -> np.ndarray:
    """(n, K) outcome curve of a record, ``Σ_w p(w)·o_{t,w}`` with p renormalised over the kept tokens."""
    categories = record["categories"]
    curve = []
    for branches in _by_position(record):
        p = np.array([b["tok_p"] for b in branches])
        shares = [[b["answers"].count(c) / len(b["answers"]) for c in categories] for b in branches]
        curve.append(p / p.sum() @ np.array(shares))
    return np.array(curve)


class _Record:
    """One checked record, and the rows that it becomes."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.data = record
        try:
            self._check()
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise DamagedRecord(f"not a whole record: {type(error).__name__} {error}") from error

    @property
    def run(self) -> str:
        """Name of the run directory that it belongs to."""
        return f"s{self.data['s']}-{self.data['meta']['track']}"

    @property
    def question_id(self) -> str:
        return f"row{self.data['meta']['row_id']:03d}"

    def config(self) -> dict[str, Any]:
        meta, settings = self.data["meta"], self.data["config"]
        return {
            "strategy": "branches",
            "samples": self.data["s"],
            "track": meta["track"],
            "model": meta["model"],
            "unit": "sentence" if self.data["selector"].startswith("sentence") else "token",
            **{name: settings[name] for name in _SETTINGS},
            "mixture_seed": MIXTURE_SEEDS.get(meta["track"], 0),
            "divergence_recorded": False,
        }

    def question(self) -> Question:
        meta = self.data["meta"]
        return Question(self.question_id, meta["question"], tuple(meta["choices"]), meta["answer_letter"])

    def base(self) -> BasePath:
        base, meta = self.data["base"], self.data["meta"]
        texts = decode_pieces(base["token_texts"])
        unknown = Distribution(np.zeros(0, np.int32), np.zeros(0), math.nan, math.nan, math.nan)
        distributions = [unknown] * len(base["gen_ids"])
        for t, branches in zip(self.data["idxs"], _by_position(self.data), strict=True):
            ranked = sorted(branches, key=lambda b: -b["tok_p"])
            p = np.array([b["tok_p"] for b in ranked])
            ids = np.array([b["tok_id"] for b in ranked], np.int32)
            distributions[t] = Distribution(ids, p, max(0.0, 1.0 - float(p.sum())), math.nan, math.nan)
        said = extract_answer(
            "".join(texts), meta["choices"], base["finish_reason"], thinking=bool(meta.get("reasoning"))
        )
        if said.status != "parsed":
            said = Answer(OTHER, said.status)
        return BasePath(
            self.question_id,
            tuple(base["gen_ids"]),
            texts,
            tuple(distributions),
            sentence_of_tokens(texts),
            base["finish_reason"],
            said,
        )

    def rollouts(self) -> pa.Table:
        branches = self.data["branches"]
        sizes = [len(b["answers"]) for b in branches]
        rows = sum(sizes)

        def spread(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
            return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(sizes)), sizes)))

        columns = {
            "question_id": pa.array([self.question_id] * rows, pa.string()),
            "start": spread([b["t"] for b in branches], pa.int32()),
            "draw": pa.array(np.concatenate([np.arange(n) for n in sizes]), pa.int32()),
            "first_token": spread([b["tok_id"] for b in branches], pa.int32()),
            "first_token_p": spread([b["tok_p"] for b in branches], pa.float64()),
            "outcome": pa.array([a for b in branches for a in b["answers"]], pa.string()),
            "diverge_at": spread([None if b["is_base"] else b["t"] for b in branches], pa.int32()),
            "n_tokens": pa.array([n for b in branches for n in b["cont_lens"]], pa.int32()),
        }
        missing = {f.name: pa.nulls(rows, f.type) for f in ROLLOUTS if f.name not in columns}
        return pa.table({**columns, **missing}).select(ROLLOUTS.names).cast(ROLLOUTS)

    def _check(self) -> None:
        """Raise a DamagedRecord, or the error of the first look-up that fails, unless all is there."""
        data, base, meta = self.data, self.data["base"], self.data["meta"]
        self.config(), self.question()
        if not re.fullmatch(r"[\w.-]+", self.run) or not isinstance(meta["row_id"], int):
            raise DamagedRecord("its track, number of draws or row is no name")
        length = len(base["gen_ids"])
        if len(base["token_texts"]) != length or base["finish_reason"] not in ("stop", "length"):
            raise DamagedRecord("its base path has unequal parts")
        if data["idxs"] != sorted(set(data["idxs"])) or not 0 <= data["idxs"][0] <= data["idxs"][-1] < length:
            raise DamagedRecord("its positions are not increasing positions of the base path")
        if list(data["categories"]) != [*self.question().categories]:
            raise DamagedRecord(f"its outcomes {data['categories']} are not those of its choices")
        for t, branches in zip(data["idxs"], _by_position(data), strict=True):
            if sum(b["is_base"] for b in branches) != 1:
                raise DamagedRecord(f"position {t} has not exactly one base branch")
            for b in branches:
                if not (len(b["answers"]) == len(b["cont_lens"]) == data["s"]):
                    raise DamagedRecord(f"a branch at position {t} has not its {data['s']} draws")
                if not set(b["answers"]) <= set(data["categories"]) or not 0 < b["tok_p"] <= 1:
                    raise DamagedRecord(
                        f"a branch at position {t} has an outcome or probability out of range"
                    )
                if b["is_base"] != (b["tok_id"] == base["gen_ids"][t]):
                    raise DamagedRecord(f"the base branch at position {t} is not the base path's token")
        off = np.abs(curve_of(data) - np.array(data["o_t_full"])).max()
        if not off < _ROUNDING:
            raise DamagedRecord(f"its recorded curve is off by {off:.2g} from its own draws")


def decode_pieces(texts: Sequence[str]) -> tuple[str, ...]:
    """Real text of byte-level BPE pieces (``Ġ`` for a space, and so on); real text is returned as it is.

    A piece that ends within a character adds nothing, and the piece that completes it adds the character.
    """
    alphabet = _byte_alphabet()
    if all(set(text) <= alphabet.keys() for text in texts):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(bytes(alphabet[c] for c in text)) for text in texts)
    return tuple(texts)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE vocabularies (as in GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _by_position(record: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The branches of each position in turn, in stored order."""
    grouped: dict[int, list[dict[str, Any]]] = {t: [] for t in record["idxs"]}
    for branch in record["branches"]:
        grouped[branch["t"]].append(branch)
    return iter(grouped.values())


def _open(path: Path, record: _Record) -> RunWriter:
    return RunWriter.open(path, record.config(), engine=None, questions_fingerprint="released store")
