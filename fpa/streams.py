"""How many random streams a collection uses, and how many there are."""

from __future__ import annotations

from fpa.errors import UsageError
from fpa.settings import Settings
from fpa.strategies.base import SEEDS

STORED = 2**63  # of the column ``seed``
DRAWS = 2**31  # of the column ``draw``
LIMITS = {"llamacpp": 2**32 - 1}
"""Seeds that an engine takes, where they are fewer than can be stored: engine -> number."""


def check_streams(settings: Settings, questions: int, engine: str) -> None:
    """Refuse a collection whose draws cannot all have seeds of their own (``fpa.strategies.base.seed_of``).

    Args:
        settings: the collection.
        questions: how many.
        engine: name of the engine that draws.

    Raises:
        UsageError: draws would share a seed, or exceed what the engine takes or a run stores; the largest
            number that fits is named.
    """
    if settings.seed >= SEEDS:
        raise UsageError(
            f"--seed must be at most {SEEDS - 1:,}, got {settings.seed:,}: the streams repeat from there"
        )
    # The run's own seed shifts all streams by less than SEEDS.
    room = LIMITS.get(engine, STORED) - SEEDS
    if settings.strategy == "adaptive":
        # Every draw generates a token at least.
        if settings.budget is not None and settings.budget > room:
            raise UsageError(
                f"--budget must be at most {room:,} with engine {engine}, got {settings.budget:,}"
            )
        return
    groups = settings.top_k + 1 if settings.strategy == "branches" else 1
    streams = questions * (settings.base_tokens + 1) * groups
    most = min(room // streams, DRAWS - 1)
    if settings.samples <= most:
        return
    counted = f"{questions:,} questions, --base-tokens {settings.base_tokens:,}"
    if groups > 1:
        counted += f", --top-k {settings.top_k:,}"
    if most < 1:
        raise UsageError(
            f"{counted}: more draws than engine {engine} has seeds ({room:,}); lower these numbers"
        )
    raise UsageError(
        f"--samples must be at most {most:,}, got {settings.samples:,}: every draw has a seed of its own "
        f"({counted}, engine {engine})"
    )
