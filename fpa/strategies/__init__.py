"""Collection strategies by name: where to resample from, and how."""

from __future__ import annotations

from fpa.errors import UsageError
from fpa.strategies.base import Strategy
from fpa.strategies.branches import Branches
from fpa.strategies.grid import Grid

STRATEGIES: dict[str, type[Strategy]] = {
    "grid": Grid,
    "branches": Branches,
}


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UsageError: if there is none.
    """
    if name not in STRATEGIES:
        raise UsageError(f"no strategy named {name!r}: choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]()
