"""Outcome curves and forking points from sampled outcomes: arrays in, curves out."""

from smoothing.costs import COSTS, L2Cost, LogitLinearCost, MultinomialCost
from smoothing.models import FULL_DEFAULTS, MODELS, Fit, fit
from smoothing.observations import Observations
from smoothing.pelt import segment

__all__ = [
    "COSTS",
    "FULL_DEFAULTS",
    "MODELS",
    "Fit",
    "L2Cost",
    "LogitLinearCost",
    "MultinomialCost",
    "Observations",
    "fit",
    "segment",
]
