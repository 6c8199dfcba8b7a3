"""Results on disk: each file is there whole or not at all."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fpa.parts import write_bytes


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, with its folder where that is missing.

    Raises:
        FpaError: the disk is full, read-only, or the like; ``path`` is then as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
        write_bytes(path, content, Path(scratch))
