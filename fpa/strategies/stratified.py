"""Divergence-stratified sampling: every draw leaves the base path, where leaving tells most.

How likely a continuation is to leave the base path at ``u`` is known exactly; only where it then ends up needs
sampling. So the base token is excluded at the first step, ``n_u`` follows the allocation formula, and the first
tokens are taken in proportion to their probabilities (docs/method.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fpa.records import BasePath
from fpa.settings import Settings
from fpa.strategies.base import SEEDS, SPREAD, Group, Unit, sampled_positions
from smoothing.allocation import stratified_shares, token_choice, whole_numbers

LEAST_TOKENS = 4.0  # of a continuation: an answer takes at least a few


class Stratified:
    """As many draws as ``grid`` would make, each off the base path, placed by the allocation formula."""

    def units(self, index: int, base: BasePath, settings: Settings) -> Iterator[Unit]:
        """One unit a position that gets draws, one group a first token."""
        draws = settings.samples * len(sampled_positions(base, settings))
        allowed = leavable(base)
        if not allowed.any():
            return  # the model is certain of every token: the curve is the base answer throughout
        shares = stratified_shares(np.where(allowed, base.p, 1.0), expected_tokens(base, settings))
        offset, phases = phases_of(index, base, settings)
        made = 0
        for position, count in enumerate(whole_numbers(draws * shares, offset)):
            if count:
                # A question has at most ``samples`` draws a position: the blocks of seeds never meet.
                block = index * (settings.base_tokens + 1) * settings.samples
                seed = settings.seed * SPREAD % SEEDS + block + made
                groups = forced_groups(base, position, 0, int(count), float(phases[position]), seed)
                yield Unit(base.question_id, position, groups)
                made += int(count)


def leavable(base: BasePath) -> NDArray[np.bool_]:
    """(T,) where the stored distribution lists another token than the base path's own."""
    return np.array(
        [(d.ids != token).any() for token, d in zip(base.token_ids, base.distributions, strict=True)]
    )


def expected_tokens(base: BasePath, settings: Settings) -> NDArray[np.float64]:
    """(T,) tokens that a continuation is expected to take: what is left of the base path, at least a few."""
    left = len(base.token_ids) - np.arange(len(base.token_ids), dtype=np.float64)
    return np.clip(left, LEAST_TOKENS, settings.rollout_tokens)


def phases_of(index: int, base: BasePath, settings: Settings) -> tuple[float, NDArray[np.float64]]:
    """The question's random offsets: one for rounding the allocation, one a position for choosing tokens."""
    rng = np.random.default_rng([settings.seed, index])
    return float(rng.random()), rng.random(len(base.token_ids))


def forced_groups(
    base: BasePath, position: int, first: int, count: int, phase: float, seed: int
) -> tuple[Group, ...]:
    """Draws ``first, first + 1, …`` of one position, grouped by the token that each is forced to begin with.

    ``first_token_p`` is the token's probability in the full distribution. ``seed`` is the first draw's stream.
    """
    distribution = base.distributions[position]
    other = np.flatnonzero(distribution.ids != base.token_ids[position])
    p = distribution.p[other]
    earlier = np.bincount(token_choice(p, 0, first, phase), minlength=len(other))
    chosen = np.bincount(token_choice(p, first, count, phase), minlength=len(other))
    groups = []
    for which in np.flatnonzero(chosen):
        n = int(chosen[which])
        token, probability = int(distribution.ids[other[which]]), float(p[which])
        groups.append(Group(n, seed, token, probability, int(earlier[which])))
        seed += n
    return tuple(groups)
