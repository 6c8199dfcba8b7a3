"""``auto``: the walk with heavy-tailed steps, the default model.

One model with drift and jumps: most divergences hardly move the answer, a few move it completely, and where
the base token was certain nothing can move. Its constants are round numbers read off the distribution of
such moves (half of them below 0.4 % of ``o(1 - o)``, 1 % of them holding most of the squared movement);
results change by up to 4 % when one is doubled or halved. What differs between questions and models is the
overall size of the moves, so three sizes are tried, each weighed by its marginal likelihood and a
log-normal prior, and averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from smoothing.observations import Observations
from smoothing.walk import Nodes, StepPrior, WalkFit, evidence, given_floats

SCALES = (0.002, 0.02, 0.15, 0.8)
WEIGHTS = (0.70, 0.20, 0.07, 0.03)
MULTIPLIERS = (0.25, 1.0, 4.0)
MULTIPLIER_SD = 1.0
"""Standard deviation of the log multiplier's prior."""
CONCENTRATION = 0.3
SLOTS = 28
"""Vectors in a message: totals up to 2^14 draws, two to an octave."""


def fit_auto(observations: Observations, hyperparameters: Mapping[str, Any] | None = None) -> WalkFit:
    """Fit the default model.

    Args:
        observations: grid draws, divergence draws or both; with or without ``step_p``.
        hyperparameters: ``multiplier`` (of the step sizes) to fix it instead of averaging over it;
            ``concentration`` of the curve's stationary law, in draws.

    Raises:
        ValueError: for a hyper-parameter that is unknown, not positive or not finite.
    """
    given = given_floats("auto", hyperparameters, ("multiplier", "concentration"))
    nodes = Nodes.of(observations)
    concentration = given.get("concentration", CONCENTRATION)
    base = nodes.stationary(concentration)
    sizes = np.array([given["multiplier"]] if "multiplier" in given else MULTIPLIERS)
    priors = [StepPrior(tuple(size * s for s in SCALES), WEIGHTS) for size in sizes]
    shares = np.ones(len(sizes))
    if len(sizes) > 1:
        score = np.array([evidence(nodes, prior, base, SLOTS) for prior in priors])
        score -= 0.5 * (np.log(sizes) / MULTIPLIER_SD) ** 2
        shares = np.exp(score - score.max())
        shares /= shares.sum()
    kept = np.flatnonzero(shares > 0.01)
    chosen = float(np.exp(np.average(np.log(sizes[kept]), weights=shares[kept])))
    return WalkFit(
        "auto",
        {"multiplier": chosen, "concentration": concentration},
        observations, nodes, [priors[i] for i in kept], shares[kept], base, SLOTS,
    )  # fmt: skip
