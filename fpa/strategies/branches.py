"""Branch sampling, the published form: every likely next token forced in turn.

At each position the ``top_k`` likeliest next tokens of probability at least ``min_p``, and the greedy one, get
``samples`` continuations each (Bigelow et al. 2024, arXiv 2412.07961, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator

from fpa.records import BasePath
from fpa.settings import Settings
from fpa.strategies.base import Group, Unit, sampled_positions, seed_of


class Branches:
    """``samples`` continuations from each kept next token at each position."""

    def units(self, index: int, base: BasePath, settings: Settings) -> Iterator[Unit]:
        """One unit a position, one group a kept token, likeliest first."""
        for position in sampled_positions(base, settings):
            groups = tuple(
                Group(
                    settings.samples,
                    seed_of(index, position, number, settings.top_k + 1, settings),
                    token,
                    probability,
                )
                for number, (token, probability) in enumerate(kept_tokens(base, position, settings))
            )
            yield Unit(base.question_id, position, groups)


def kept_tokens(base: BasePath, position: int, settings: Settings) -> list[tuple[int, float]]:
    """``(token, probability)`` of the next tokens that get branches, likeliest first."""
    distribution, greedy = base.distributions[position], base.token_ids[position]
    likeliest = list(zip(distribution.ids.tolist(), distribution.p.tolist(), strict=True))
    return [
        (token, p)
        for rank, (token, p) in enumerate(likeliest)
        if token == greedy or (rank < settings.top_k and p >= settings.min_p)
    ]
