"""The released rollouts as runs, imported once per test process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fpa.published import ImportReport, import_published


@cache
def imported(shared: Path) -> tuple[Path, ImportReport]:
    """The folder of runs of all released records under ``shared``, and what the import said."""
    folder = Path(tempfile.mkdtemp(prefix="fpa-stores-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder, import_published(shared / "data" / "forking-fast", folder)
