"""Outcome curves and forking points from sampled outcomes: arrays in, curves out."""

from smoothing.observations import Observations

__all__ = ["Observations"]
