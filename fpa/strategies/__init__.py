"""Collection strategies by name: where to resample from, and how."""

from __future__ import annotations

from fpa.errors import UsageError
from fpa.strategies.adaptive import Adaptive
from fpa.strategies.base import RoundStrategy, Strategy
from fpa.strategies.branches import Branches
from fpa.strategies.grid import Grid
from fpa.strategies.stratified import Stratified

STRATEGIES: dict[str, type[Strategy] | type[RoundStrategy]] = {
    "grid": Grid,
    "branches": Branches,
    "stratified": Stratified,
    "adaptive": Adaptive,
}


def strategy(name: str) -> Strategy | RoundStrategy:
    """The strategy of that name.

    Raises:
        UsageError: if there is none.
    """
    if name not in STRATEGIES:
        raise UsageError(f"no strategy named {name!r}: choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]()
