"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Speed is for benchmarks: no example fails for having been slow on a busy machine.
settings.register_profile("fpa", deadline=None)
settings.load_profile("fpa")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the released rollouts and reference cases; tests that need it skip without it."""
    folder = Path(os.environ.get("FPA_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no released rollouts at {folder}: set FPA_SHARED to the folder that holds them")
    return folder
