"""The rules of Entropix (xjdr-alt/entropix, 2024): what to do at a token, from entropy and varentropy.

Two published rule sets. The threshold rules hold their thresholds against bits, the four states against nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

BITS = 1 / np.log(2)
"""Bits in a nat."""


@dataclass(frozen=True)
class ThresholdRules:
    """The threshold rules' numbers, in bits and bits squared.

    Attributes:
        low_entropy, low_varentropy: below both: the likeliest token.
        high_entropy, high_varentropy: above one or both: clarify, explore, resample.
    """

    low_entropy: float = 0.1
    low_varentropy: float = 0.1
    high_entropy: float = 5.0
    high_varentropy: float = 5.0


@dataclass(frozen=True)
class FourStateRules:
    """The four states' numbers, in nats and nats squared.

    Attributes:
        keep_entropy: below it, and with little varentropy: keep.
        clarify_entropy: above it, and with little varentropy: clarify.
        branch_entropy: below it, and with much varentropy: branch.
        resample_entropy: above it, and with much varentropy: resample, where ``branch`` does not fit.
        low_varentropy, high_varentropy: little is below the first, much above the second.
    """

    keep_entropy: float = 0.3
    clarify_entropy: float = 2.5
    branch_entropy: float = 2.5
    resample_entropy: float = 1.2
    low_varentropy: float = 1.2
    high_varentropy: float = 2.5


def four_state(h: ArrayLike, v: ArrayLike, rules: FourStateRules = FourStateRules()) -> list[str]:
    """Entropix' four states, from (n,) entropy (nats) and varentropy (nats²): the first rule that fits.

    ``keep``, ``clarify``, ``branch``, ``resample``, and ``default`` where none fits. With the published numbers
    ``branch`` and ``resample`` both fit between 1.2 and 2.5 nats; branching, which loses nothing, has it.
    """
    entropy, varentropy = np.asarray(h, float), np.asarray(v, float)
    little, much = varentropy < rules.low_varentropy, varentropy > rules.high_varentropy
    fits = {
        "keep": little & (entropy < rules.keep_entropy),
        "clarify": little & (entropy > rules.clarify_entropy),
        "branch": much & (entropy < rules.branch_entropy),
        "resample": much & (entropy > rules.resample_entropy),
    }
    return [str(state) for state in np.select(list(fits.values()), list(fits), "default")]


def threshold_state(h: ArrayLike, v: ArrayLike, rules: ThresholdRules = ThresholdRules()) -> list[str]:
    """Entropix' threshold rules, from (n,) entropy (nats) and varentropy (nats²), which they hold against bits.

    ``argmax``, ``clarify``, ``explore``, ``resample``, and ``adaptive`` where none of them fits.
    """
    entropy, varentropy = np.asarray(h, float) * BITS, np.asarray(v, float) * BITS**2
    little, much = varentropy < rules.low_varentropy, varentropy > rules.high_varentropy
    fits = {
        "argmax": little & (entropy < rules.low_entropy),
        "clarify": little & (entropy > rules.high_entropy),
        "explore": much & (entropy < rules.high_entropy),
        "resample": much & (entropy > rules.high_entropy),
    }
    return [str(state) for state in np.select(list(fits.values()), list(fits), "adaptive")]
