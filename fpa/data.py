"""Where the shipped files are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from fpa.errors import FpaError

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """The path of a shipped data file or folder, such as ``demo_questions.jsonl``.

    Raises:
        FpaError: if it is in neither place, because the installation is damaged.
    """
    for folder in (_PACKAGE / "_data", _PACKAGE.parent / "data"):
        if (folder / name).exists():
            return folder / name
    raise FpaError(f"the shipped file {name} is missing: install fpa again")
