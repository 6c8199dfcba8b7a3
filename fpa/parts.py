"""Parquet files that know their own digest, and are written whole or not at all.

Every file of a run carries, in its footer, a SHA-256 over all of its bytes (the digest's own 64 characters
taken as zeros). One pass of hashing therefore catches any flipped bit, truncation or stranger, in data
and footer alike, without decoding anything; to every other reader the file is plain Parquet.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fpa.errors import FpaError

_BLANK = b"0" * 64
_MARK = b"fpa.sha256"
_CHUNK = 1 << 20
GATHERED = 4096  # rows of a row group of a merged file, at least, but for the last
_WHY = {
    errno.ENOSPC: "no space left on the device: free some and run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "permission denied: make the folder writable or choose another",
    errno.EPERM: "permission denied: make the folder writable or choose another",
    errno.ENOTDIR: "a part of this path is a file, not a folder: choose another",
    errno.EEXIST: "a file of that name is in the way: choose another folder",
}


class DamagedPart(FpaError):
    """A file of the run is not what was written: truncated, altered, or not one of the run's files."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system error while writing ``path`` into one line that says what to do."""
    try:
        yield
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or str(error))
        raise FpaError(f"cannot write {path}: {why}; all that was finished before is kept") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which takes its place where all went well and is gone otherwise.

    Raises:
        FpaError: the disk is full, read-only, or the like; ``path`` is then as it was before.
    """
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            temporary.replace(path)
        finally:
            # On a read-only file system this fails too, which must not hide why the writing did.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an operating system error while reading ``path`` into one line.

    Raises:
        DamagedPart: it is a folder.
        FpaError: it cannot be read, for now or for this user.
    """
    try:
        yield
    except IsADirectoryError as error:
        raise DamagedPart(f"{path}: a folder is in its place") from error
    except OSError as error:
        raise FpaError(f"cannot read {path}: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable, where the platform can."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes, scratch: Path) -> None:
    """Write a whole file: under ``scratch`` (same file system) first, flushed, then renamed to ``path``.

    Raises:
        FpaError: the disk is full, read-only, or the like; ``path`` is then as it was before.
    """
    temporary = scratch / path.name
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_part(path: Path, table: pa.Table, scratch: Path, metadata: Mapping[str, str]) -> None:
    """Write one table as one part file; the same table and metadata give the same bytes."""
    buffer = io.BytesIO()
    _write_groups(buffer, table.schema, [table], metadata)
    content = bytearray(buffer.getvalue())
    at = _digest_offset(content)
    content[at : at + 64] = hashlib.sha256(content).hexdigest().encode()
    write_bytes(path, bytes(content), scratch)


def write_merged(
    path: Path, schema: pa.Schema, tables: Iterable[pa.Table], scratch: Path, metadata: Mapping[str, str]
) -> None:
    """Write many tables into one file, holding a few at a time in memory."""
    temporary = scratch / path.name
    with writing(path):
        try:
            with open(temporary, "w+b") as file:
                _write_groups(file, schema, _gathered(tables), metadata)
                file.flush()
                size = file.tell()
                file.seek(max(0, size - 8))
                footer = int.from_bytes(file.read(4), "little") + 8
                file.seek(size - footer)
                at = size - footer + _digest_offset(file.read(footer))
                file.seek(0)
                digest = hashlib.sha256()
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                file.seek(at)
                file.write(digest.hexdigest().encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a part file, or those of some columns that it has, after checking its digest.

    Raises:
        DamagedPart: the bytes are not those that were written, or not under this name.
    """
    with pq.ParquetFile(pa.BufferReader(_checked_bytes(path))) as file:
        _check_name(path, file.metadata.metadata)
        there = file.schema_arrow.names
        return file.read(columns if columns is None else [c for c in columns if c in there])


def part_metadata(path: Path) -> dict[str, str]:
    """Check a part's digest and return the metadata it was written with.

    Raises:
        DamagedPart: the bytes are not those that were written.
    """
    metadata = pq.read_metadata(pa.BufferReader(_checked_bytes(path))).metadata or {}
    return {k.decode(): v.decode() for k, v in metadata.items() if k != _MARK}


def check_part(path: Path) -> None:
    """Check the digest of a file of any size, in bounded memory.

    Raises:
        DamagedPart: the bytes are not those that were written, or not under this name.
    """
    size = path.stat().st_size
    with reading(path), open(path, "rb") as file:
        file.seek(max(0, size - 8))
        tail = file.read(8)
        footer = int.from_bytes(tail[:4], "little") + 8
        if size < 12 or tail[4:] != b"PAR1" or footer > size:
            raise DamagedPart(f"{path}: truncated, or not a Parquet file")
        file.seek(size - footer)
        block = file.read(footer)
        at = _digest_offset(block, path) + size - footer
        digest, position = hashlib.sha256(), 0
        file.seek(0)
        while chunk := file.read(_CHUNK):
            if position < at + 64 and at < position + len(chunk):
                low, high = max(at - position, 0), min(at + 64 - position, len(chunk))
                chunk = chunk[:low] + _BLANK[: high - low] + chunk[high:]
            digest.update(chunk)
            position += len(chunk)
    stored = block[at - (size - footer) :][:64]
    if stored != digest.hexdigest().encode():
        raise DamagedPart(f"{path}: its content does not match its digest")
    _check_name(path, pq.read_metadata(path).metadata)


def _check_name(path: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    if (metadata or {}).get(b"fpa.unit", path.stem.encode()) != path.stem.encode():
        raise DamagedPart(f"{path}: not the part that its name says")


def _write_groups(
    sink: io.IOBase, schema: pa.Schema, tables: Iterable[pa.Table], metadata: Mapping[str, str]
) -> None:
    # Without the Arrow schema: it doubles the size of small parts and says nothing that Parquet's does not.
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({**metadata, _MARK.decode(): _BLANK.decode()})


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables of some thousand rows: a writer remembers each row group until it has written the last."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(t.num_rows for t in held) >= GATHERED:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


class Merged:
    """A file of many questions, to be read one question at a time; one that is not there holds none.

    Attributes:
        ids: ids of its questions, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: dict[str, int] = {}
        self._last: tuple[int, pa.Table] | None = None
        if path.exists():
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    here = file.read_row_group(group, columns=["question_id"])["question_id"]
                    self._group.update(dict.fromkeys(here.unique().to_pylist(), group))

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of its questions, in the order of the file."""
        return tuple(self._group)

    def __contains__(self, question_id: str) -> bool:
        return question_id in self._group

    def read(self, question_id: str) -> pa.Table:
        """The rows of one question; neighbours are read together, and kept until another row group is."""
        group = self._group[question_id]
        if self._last is None or self._last[0] != group:
            with pq.ParquetFile(self._path) as file:
                self._last = group, file.read_row_group(group)
        table = self._last[1]
        return table.filter(pc.equal(table["question_id"], question_id))


def _checked_bytes(path: Path) -> bytes:
    with reading(path):
        content = bytearray(path.read_bytes())
    at = _digest_offset(content, path)
    stored = bytes(content[at : at + 64])
    content[at : at + 64] = _BLANK
    if stored != hashlib.sha256(content).hexdigest().encode():
        raise DamagedPart(f"{path}: its content does not match its digest")
    content[at : at + 64] = stored
    return bytes(content)


def _digest_offset(content: bytes | bytearray, path: Path | None = None) -> int:
    """Offset of the digest's 64 characters: after the last mark and the two bytes of type and length."""
    mark = content.rfind(_MARK)
    at = mark + len(_MARK) + 2
    if mark < 0 or at + 64 > len(content):
        raise DamagedPart(f"{path}: empty, truncated, or not a file of a run")
    return at
