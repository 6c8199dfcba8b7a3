"""``martingale``: the linear-Gaussian walk with one step size.

The outcome curve is a random walk with known, token-wise step lengths, ``o_t = o_{t+1} + (1 - p_t) x_t`` with
``Var(x) = scale * V``. Draws at ``t`` observe ``o_t`` with variance ``V / n``, divergence draws at ``u``
observe ``o_{u+1} + x_u`` with variance ``V / n_u``, and the base path's own answer is ``o_T``. ``V``
cancels in the mean, so
one set of weights serves all categories and the curve stays on the simplex: a Kalman smoother in O(T). It is
the walk of ``smoothing.walk`` with one class of step; its one parameter maximises the marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from smoothing.observations import Observations
from smoothing.walk import Nodes, StepPrior, WalkFit, evidence, given_floats

SMALLEST, LARGEST = 1e-5, 4.0
"""Range of the step size: below, the curve is constant; above, neighbours say nothing about each other."""
CONCENTRATION = 0.3


def fit_martingale(observations: Observations, hyperparameters: Mapping[str, Any] | None = None) -> WalkFit:
    """Fit the linear-Gaussian walk.

    Args:
        observations: grid draws, divergence draws or both; with or without ``step_p``.
        hyperparameters: ``scale`` (variance of a divergence relative to ``o(1 - o)``), else by marginal
            likelihood.

    Raises:
        ValueError: for a hyper-parameter that is unknown, not positive or not finite.
    """
    given = given_floats("martingale", hyperparameters, ("scale",))
    nodes = Nodes.of(observations)
    base = nodes.stationary(CONCENTRATION)
    scale = given.get("scale")
    if scale is None:

        def loss(log_scale: float) -> float:
            return -evidence(nodes, StepPrior((float(np.exp(log_scale)),), (1.0,)), base, 1)

        found = minimize_scalar(
            loss, bounds=(np.log(SMALLEST), np.log(LARGEST)), method="bounded", options={"xatol": 0.05}
        )
        scale = float(np.exp(found.x))
    prior = StepPrior((scale,), (1.0,))
    return WalkFit("martingale", {"scale": scale}, observations, nodes, [prior], [1.0], base, 1)
