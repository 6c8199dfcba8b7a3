"""Collection strategies by name: where to resample from, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fpa.errors import UsageError
from fpa.strategies.adaptive import Adaptive
from fpa.strategies.base import GuidedStrategy, RoundStrategy, Strategy
from fpa.strategies.branches import Branches
from fpa.strategies.eager import Eager
from fpa.strategies.entropix import Entropix
from fpa.strategies.grid import Grid
from fpa.strategies.stratified import Stratified

STRATEGIES: dict[str, type[Strategy] | type[RoundStrategy]] = {
    "grid": Grid,
    "branches": Branches,
    "stratified": Stratified,
    "adaptive": Adaptive,
    "entropix": Entropix,
    "eager": Eager,
}
WITHOUT_CURVE = ("eager",)
"""Strategies whose rollouts all begin at the prompt: what they hold is no curve over positions."""


def steers(name: str) -> bool:
    """Whether the continuations of that strategy follow other probabilities than the model's own."""
    return issubclass(STRATEGIES[name], GuidedStrategy) if name in STRATEGIES else False


def strategy(name: str, options: Mapping[str, Any] | None = None) -> Strategy | RoundStrategy:
    """The strategy of that name, with options of its own (the fields of its class).

    Raises:
        UsageError: there is none, or it does not take these options.
    """
    if name not in STRATEGIES:
        raise UsageError(f"no strategy named {name!r}: choose one of {', '.join(STRATEGIES)}")
    kind, given = STRATEGIES[name], dict(options or {})
    known: list[str] = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    for option in given:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UsageError(f"strategy {name} has no option {option!r}: {takes}")
    return kind(**given)
