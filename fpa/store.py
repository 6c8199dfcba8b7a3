"""Writing a run directory: one writer, whole files only, safe to kill at any moment.

While a run is being collected its questions and base paths are single files under ``questions/`` and
``base/``; ``RunWriter.finish`` merges them into ``questions.parquet`` and ``base.parquet``. A part under
``rollouts/`` is one finished unit of work, and holds complete rows from the moment it is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from fpa.engines.base import EngineInfo
from fpa.errors import FpaError, UsageError
from fpa.parts import (
    DamagedPart,
    Merged,
    check_part,
    part_metadata,
    read_part,
    write_bytes,
    write_merged,
    write_part,
    writing,
)
from fpa.records import BasePath, Question, Rollout
from fpa.schemas import (
    BASE,
    QUESTIONS,
    ROLLOUTS,
    SCHEMA_VERSION,
    base_from_table,
    base_table,
    conform,
    question_table,
    rollout_table,
)

_MANIFEST = {
    "config": dict, "engine": dict | None, "questions_fingerprint": str, "finished": bool,
    "collected": dict, "spent": dict, "sessions": list,
}  # fmt: skip
_PACKAGES = ("fpa", "numpy", "scipy", "pyarrow", "numba")


def question_key(question_id: str) -> str:
    """A file name for a question id of any length and script: readable, unique, stable."""
    readable = re.sub(r"[^a-z0-9._]+", "_", question_id.lower()).strip("._")[:40]
    return f"{readable or 'q'}-{hashlib.sha256(question_id.encode()).hexdigest()[:12]}"


def unit_name(question_id: str, start: int, suffix: str = "") -> str:
    """Name of the unit of work that is the continuations of one question from one position.

    Names sort by question, then position, then suffix (a round of an adaptive strategy, say).
    """
    name = f"{question_key(question_id)}-t{start:07d}"
    if not suffix:
        return name
    readable = re.sub(r"[^a-z0-9._]+", "_", suffix.lower())[:40]
    if readable != suffix:
        readable += f"-{hashlib.sha256(suffix.encode()).hexdigest()[:12]}"
    return f"{name}-{readable}"


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts ``q2`` before ``q10``."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces)


class RunWriter:
    """The one writer of a run directory; made by ``RunWriter.open``, used as a context manager.

    Attributes:
        path: the run directory.
        notices: what was found and done on opening that the user should know, one line each.
        manifest: the content of ``manifest.json``.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self.notices: list[str] = []
        self.manifest: dict[str, Any] = {}
        self._lock = lock
        self._scratch = path / ".tmp"
        self._units: dict[str, str] = {}  # unit -> fingerprint of the base path it continues
        self._finished: frozenset[str] | None = None
        self._fingerprints: dict[str, str] = {}  # question key -> fingerprint of its base path
        self._questions: set[str] = set()
        self._merged_base: Merged  # once the files have been looked at

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        engine: EngineInfo | Mapping[str, Any] | None,
        questions_fingerprint: str,
    ) -> RunWriter:
        """Begin a run in an absent or empty folder, or resume the one there.

        Files found damaged are moved to ``quarantine/`` and told in ``notices``; the units they held are not
        among ``finished``.

        Raises:
            UsageError: the run there has another configuration, model or question set (the keys that differ
                are named), or the folder holds something else.
            FpaError: another process is writing this run, or the folder cannot be written.
        """
        path = Path(path)
        wanted = {
            "schema_version": SCHEMA_VERSION,
            "config": plain(config),
            "engine": plain(engine),
            "questions_fingerprint": questions_fingerprint,
        }
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            _refuse_strangers(path)  # before anything is written there
            lock = _lock(path)
        writer = cls(path, lock)
        try:
            writer._begin(wanted)
            writer._clean()
            writer._survey()
        except BaseException:
            writer.close()
            raise
        return writer

    @property
    def finished(self) -> frozenset[str]:
        """Names of the units whose part files are there and whole."""
        if self._finished is None:
            self._finished = frozenset(self._units)
        return self._finished

    def has(self, unit: str) -> bool:
        """Whether this unit is finished."""
        return unit in self._units

    def put_question(self, question: Question, prompt_ids: Sequence[int] | None) -> None:
        """Store a question and its prompt's token ids (None where unknown), unless it is stored already."""
        if question.question_id in self._questions:
            return
        key = question_key(question.question_id)
        path = self.path / "questions" / f"{key}.parquet"
        write_part(path, question_table(question, prompt_ids), self._scratch, {"fpa.unit": key})
        self._questions.add(question.question_id)

    def put_base(self, base: BasePath) -> None:
        """Store a base path.

        Rollouts that continue another base path of the same question (of an engine that cannot repeat itself,
        whose first base path was lost) are moved to ``quarantine/`` and told in ``notices``.

        Raises:
            FpaError: another base path of this question is stored.
        """
        key = question_key(base.question_id)
        table, fingerprint = base_table(base), _fingerprint(base.token_ids)
        stored = self._fingerprints.get(key)
        if stored == fingerprint:
            return
        if stored is not None:
            raise FpaError(
                f"{self.path} already has another base path of {base.question_id}, which rollouts continue"
            )
        write_part(self.path / "base" / f"{key}.parquet", table, self._scratch, {"fpa.unit": key})
        self._fingerprints[key] = fingerprint
        stale = [
            unit
            for unit, of in self._units.items()
            if unit.startswith(f"{key}-t") and of not in ("", fingerprint)
        ]
        for unit in stale:
            self._set_aside(self.path / "rollouts" / f"{unit}.parquet", "continues a base path that was lost")
            del self._units[unit]
        self._finished = None if stale else self._finished

    def base(self, question_id: str) -> BasePath | None:
        """The stored base path of a question, None where there is none yet."""
        if question_id in self._merged_base:
            return base_from_table(self._merged_base.read(question_id))
        key = question_key(question_id)
        if key not in self._fingerprints:
            return None
        return base_from_table(read_part(self.path / "base" / f"{key}.parquet"))

    def put_rollouts(self, unit: str, rows: Sequence[Rollout]) -> None:
        """Store the rollouts of one unit: after this the unit is finished, whatever happens.

        Raises:
            ValueError: no rows, or rows of several questions, or a unit not named by ``unit_name``.
            FpaError: the disk is full or the like; the unit is then not finished.
        """
        self.put_table(unit, rollout_table(rows))

    def put_table(self, unit: str, rows: pa.Table) -> None:
        """``put_rollouts`` for rows that are a table already, with the schema ``fpa.schemas.ROLLOUTS``."""
        of = rows["question_id"].unique().to_pylist()
        key = question_key(of[0]) if of else ""
        if len(of) != 1 or not unit.startswith(f"{key}-t"):
            raise ValueError(f"unit {unit}: its rows must be of the one question that it is named after")
        fingerprint = self._fingerprints.get(key, "")
        write_part(
            self.path / "rollouts" / f"{unit}.parquet",
            rows.cast(ROLLOUTS),
            self._scratch,
            {"fpa.unit": unit, "fpa.question": key, "fpa.base": fingerprint},
        )
        self._units[unit] = fingerprint
        self._finished = None

    def rollouts(self, unit: str, columns: Sequence[str]) -> pa.Table:
        """Columns of a finished unit, in row order."""
        return read_part(self.path / "rollouts" / f"{unit}.parquet", columns=list(columns))

    def put_failure(self, question_id: str, message: str) -> None:
        """Record that a question failed, in ``failures.jsonl``; the next resume tries it again."""
        line = json.dumps({"question_id": question_id, "message": message}, ensure_ascii=False)
        path = self.path / "failures.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def spend(self, spent: Mapping[str, Any]) -> None:
        """Add one session's account (numbers by name, seconds say) to the manifest."""
        versions = {"packages": _packages(), "engine_version": (self.manifest["engine"] or {}).get("version")}
        if spent:
            self.manifest["sessions"].append({"spent": plain(spent), **versions})
        total = self.manifest["spent"]
        for name, amount in plain(spent).items():
            if isinstance(amount, int | float) and not isinstance(amount, bool):
                total[name] = total.get(name, 0) + amount
        self._write_manifest()

    def finish(self, spent: Mapping[str, Any]) -> None:
        """Merge questions and base paths into their single files and close the account.

        ``manifest["collected"]`` is counted from the files themselves, and so is exact however often the run
        was killed; ``manifest["spent"]`` is the sum of the sessions that ended in order.
        """
        self._merge("questions", QUESTIONS)
        self._merge("base", BASE)
        self._merged_base = Merged(self.path / "base.parquet")
        continuations = tokens = 0
        for unit in self._units:
            counted = read_part(self.path / "rollouts" / f"{unit}.parquet", columns=["n_tokens"])["n_tokens"]
            continuations += len(counted)
            tokens += sum(n or 0 for n in counted.to_pylist())
        self.manifest["collected"] = {
            "questions": len(self._questions),
            "base_paths": len(self._fingerprints),
            "units": len(self._units),
            "continuations": continuations,
            "generated_tokens": tokens,
        }
        self.manifest["finished"] = True
        self.spend(spent)

    def close(self) -> None:
        """Let go of the lock; the run stays as it is and can be resumed."""
        self._lock.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, wanted: dict[str, Any]) -> None:
        """Read and compare the manifest, or write the first one."""
        path = self.path / "manifest.json"
        if path.exists():
            self.manifest = read_manifest(self.path)
            _refuse_other(self.path, self.manifest, wanted)
            there, here = (m["engine"] or {} for m in (self.manifest, wanted))
            if there.get("version") != here.get("version"):
                self.notices.append(
                    f"begun with version {there.get('version')} of the engine, resumed with "
                    f"{here.get('version')}: its draws may differ from an undisturbed run"
                )
            self.manifest["finished"] = False
        else:
            _refuse_strangers(self.path)
            self.manifest = {
                **wanted,
                "packages": _packages(),
                "finished": False,
                "collected": {},
                "spent": {},
                "sessions": [],
            }
        # The manifest comes before any other file: a folder without one is not taken for a run.
        with writing(self.path):
            self._scratch.mkdir(exist_ok=True)
        self._write_manifest()
        with writing(self.path):
            for folder in ("questions", "base", "rollouts"):
                (self.path / folder).mkdir(exist_ok=True)

    def _clean(self) -> None:
        """Drop what a killed writer left half-written, and the failures that will now be tried again."""
        with writing(self.path):
            for leftover in self._scratch.iterdir():
                leftover.unlink()
            (self.path / "failures.jsonl").unlink(missing_ok=True)

    def _survey(self) -> None:
        """Check every file; set the damaged ones aside; note what is there."""
        for name in ("questions", "base"):
            merged = self.path / f"{name}.parquet"
            if merged.exists():
                try:
                    check_part(merged)
                except DamagedPart as damage:
                    self._set_aside(merged, _reason(damage))
        self._merged_base = Merged(self.path / "base.parquet")
        for question_id in self._merged_base.ids:
            tokens = self._merged_base.read(question_id)["token_id"].to_pylist()
            self._fingerprints[question_key(question_id)] = _fingerprint(tokens)
        self._questions = set(Merged(self.path / "questions.parquet").ids)
        for path in self._whole_parts("questions"):
            self._questions.update(read_part(path, columns=["question_id"])["question_id"].to_pylist())
        for path in self._whole_parts("base"):
            if path.stem in self._fingerprints:  # already merged when the writer was killed
                path.unlink()
            else:
                tokens = read_part(path, columns=["token_id"])["token_id"].to_pylist()
                self._fingerprints[path.stem] = _fingerprint(tokens)
        for path, metadata in self._whole_parts("rollouts").items():
            unit, fingerprint = path.stem, metadata.get("fpa.base", "")
            known = self._fingerprints.get(metadata.get("fpa.question", ""), fingerprint)
            if fingerprint not in ("", known):
                self._set_aside(path, "continues another base path than the stored one")
                continue
            self._units[unit] = fingerprint

    def _whole_parts(self, name: str) -> dict[Path, dict[str, str]]:
        """The undamaged parts of one folder with their metadata; the others are set aside."""
        whole = {}
        for path in sorted((self.path / name).iterdir()):
            try:
                metadata = part_metadata(path)
                if metadata.get("fpa.unit") != path.stem or path.suffix != ".parquet":
                    raise DamagedPart(f"{path}: not the part that its name says")
            except DamagedPart as damage:
                self._set_aside(path, _reason(damage))
            else:
                whole[path] = metadata
        return whole

    def _set_aside(self, path: Path, reason: str) -> None:
        """Move a file to ``quarantine/``, under a name not yet used there."""
        folder = self.path / "quarantine"
        with writing(folder):
            folder.mkdir(exist_ok=True)
            where = path.relative_to(self.path)
            name = "-".join(where.parts)
            target, copies = folder / name, 1
            while target.exists():
                target, copies = folder / f"{name}.{copies}", copies + 1
            os.replace(path, target)
        self.notices.append(f"{where} is damaged ({reason}): moved to quarantine/{target.name}, to be redone")

    def _merge(self, name: str, schema: pa.Schema) -> None:
        """Merge the parts of a folder into its single file, in natural order of ids, then drop them."""
        parts = sorted((self.path / name).iterdir())
        merged = self.path / f"{name}.parquet"
        if not parts and merged.exists():
            return
        old = Merged(merged)
        sources: dict[str, Path | None] = dict.fromkeys(old.ids)
        for path in parts:
            sources[read_part(path, columns=["question_id"])["question_id"][0].as_py()] = path

        def tables() -> Iterator[pa.Table]:
            for question_id in sorted(sources, key=natural_order):
                path = sources[question_id]
                yield conform(old.read(question_id) if path is None else read_part(path), schema)

        write_merged(merged, schema, tables(), self._scratch, {"fpa.unit": name})
        for path in parts:
            path.unlink()

    def _write_manifest(self) -> None:
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False, allow_nan=False)
        write_bytes(self.path / "manifest.json", (text + "\n").encode(), self._scratch)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        UsageError: there is none, it cannot be read, or it is of a later version of this project.
    """
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        schema = int(manifest["schema_version"])
        wrong = [k for k, kind in _MANIFEST.items() if not isinstance(manifest[k], kind)]
        if wrong:
            raise ValueError(f"{wrong[0]} is not what it should be")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path} is not a run: it has no manifest.json") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (
            f"{error} is missing"
            if isinstance(error, KeyError)
            else getattr(error, "strerror", None) or error
        )
        raise UsageError(
            f"{file} cannot be read ({why}): restore it, or collect into a new folder"
        ) from error
    if schema != SCHEMA_VERSION:
        raise UsageError(f"{path} has schema version {schema}, this fpa reads {SCHEMA_VERSION}: update fpa")
    return manifest


def plain(value: Any) -> Any:
    """A value as plain JSON types: data classes as dictionaries, NaN and infinities as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} has no plain JSON form")


def _refuse_other(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise a UsageError naming every key in which two configurations differ."""
    parts = []
    for manifest in (there, here):
        engine = manifest["engine"] or {}
        known = {f"engine.{k}": engine.get(k) for k in ("name", "model", "fingerprint")}
        questions = {"question set": manifest["questions_fingerprint"]}
        parts.append({**dict(_flat(manifest["config"])), **known, **questions})
    old, new = parts
    differ = [k for k in sorted({*old, *new}) if old.get(k, "absent") != new.get(k, "absent")]
    if differ:
        shown = "; ".join(f"{k} ({_short(old, k)} there, {_short(new, k)} now)" for k in differ)
        raise UsageError(
            f"{path} was begun with another configuration: {shown}. Use the same options, or another --out"
        )


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "absent"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _reason(damage: Exception) -> str:
    return str(damage).rpartition(": ")[2]


def _fingerprint(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps([int(i) for i in token_ids]).encode()).hexdigest()[:16]


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _refuse_strangers(path: Path) -> None:
    """Refuse a folder that holds something, but no run.

    Raises:
        UsageError: naming what is there.
    """
    strangers = sorted(p.name for p in path.iterdir() if p.name not in (".lock", ".tmp"))
    if strangers and "manifest.json" not in strangers:
        raise UsageError(
            f"{path} holds other files ({', '.join(strangers[:3])}) and no manifest.json: "
            "choose an empty or a new folder"
        )


def _lock(path: Path) -> IO[str]:
    """Take the run's lock, held until the file is closed or the process ends."""
    file = open(path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (held open as long as the writer lives)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise FpaError(
            f"{path} is being written by another process (pid {owner}): wait for it, or choose another --out"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
