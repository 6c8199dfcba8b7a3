"""An engine for tests of samplers: its next-token distributions are written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fpa.engines.base import EngineError, EngineInfo
from fpa.records import Distribution
from fpa.signals import next_token_distribution

END = 9


class Scripted:
    """An engine whose next-token distributions are a function of the tokens after the prompt."""

    def __init__(self, p: Callable[[tuple[int, ...]], np.ndarray], at_once: int = 32) -> None:
        self.info = EngineInfo("scripted", "1", "m", "f", 64, 1000, True)
        self.at_once = at_once
        self.end_ids = frozenset((END,))
        self.p = p
        self.steps = 0
        self.asked: list[tuple[int, ...]] = []

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(str, ids))

    def next_distributions(
        self,
        prefixes: Sequence[tuple[int, ...]],
        attention: bool = False,
        *,
        temperature: float = 1.0,
        entropies: bool = True,
    ) -> list[Distribution]:
        self.steps += 1
        self.asked += prefixes
        found = []
        for prefix in prefixes:
            if 5 in prefix:
                raise EngineError("no fives")
            p = self.p(prefix[1:])
            with np.errstate(divide="ignore"):
                logprobs = np.log(p)
            found.append(
                next_token_distribution(
                    np.arange(len(p)), logprobs, 1.0, len(p), least=100, drawn_at=temperature
                )
            )
        return found
