"""Grid sampling: S free continuations from every chosen position."""

from __future__ import annotations

from collections.abc import Iterator

from fpa.records import BasePath
from fpa.settings import Settings
from fpa.strategies.base import Group, Unit, sampled_positions, seed_of


class Grid:
    """``samples`` free continuations from each position that ``every`` and ``unit`` choose."""

    def units(self, index: int, base: BasePath, settings: Settings) -> Iterator[Unit]:
        """One unit a position."""
        for position in sampled_positions(base, settings):
            seed = seed_of(index, position, 0, 1, settings)
            yield Unit(base.question_id, position, (Group(settings.samples, seed),))
