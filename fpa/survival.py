"""The survival view of a run: how long the outcome stays as it is, had other tokens been drawn on the way."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fpa.curves import Smoothed
from fpa.errors import UsageError
from fpa.run import Run
from smoothing.forks import Alternates, survival

WORTH = 2.0
"""Draws that the curve itself is worth in the outcome after leaving the base path: few draws are no change yet."""


def survival_table(
    run: Run, smoothed: Smoothed, threshold: float = 0.6, distance: str = "l2"
) -> pd.DataFrame:
    """Chance that no alternate token has changed the outcome yet, by position (Bigelow et al. 2024).

    Args:
        run: the run.
        smoothed: one of its questions' curves.
        threshold: distance between outcome distributions that counts as a change.
        distance: ``l2`` or ``tv``.

    Returns:
        Columns ``question_id``, ``t``, ``survival``: in branch form at the sampled positions, each kept next
        token judged by its own draws; otherwise on the curve's grid, all draws that leave the base path in a
        place of the grid judged together.

    Raises:
        UsageError: the run tells neither the outcomes of next tokens nor where its draws leave the base path.
        ValueError: a distance of another name.
    """
    places, alternates = branch_alternates(run, smoothed.question_id)
    if not alternates:
        places, alternates = smoothed.observations.grid, leaving_alternates(smoothed)
    return pd.DataFrame(
        {
            "question_id": smoothed.question_id,
            "t": places.astype(np.int32),
            "survival": survival(len(places), alternates, threshold, distance),
        }
    )


def branch_alternates(run: Run, question_id: str) -> tuple[np.ndarray, list[Alternates]]:
    """The sampled positions of a run in branch form, and their kept next tokens; no alternates otherwise."""
    tokens = run.base_table(question_id)["token_id"].to_pylist()
    positions: list[int] = []
    found: list[Alternates] = []
    for start, kept, p, outcomes in run.branches(question_id):
        own = kept == tokens[start]
        found.append(Alternates(len(positions), p[~own], outcomes[~own], outcomes[own][0]))
        positions.append(start)
    return np.array(positions, np.int64), found


def leaving_alternates(smoothed: Smoothed) -> list[Alternates]:
    """All tokens but the base path's as one alternate per place, from the draws that leave it there."""
    observed, curve = smoothed.observations, smoothed.curve
    if observed.divergence is None or observed.step_p is None:
        raise UsageError(
            f"{smoothed.question_id}: the run does not tell where its draws leave the base path, or how likely "
            "that is; collect it with an engine of this project"
        )
    known_end = observed.base_outcome is not None
    end = np.eye(curve.shape[1])[observed.base_outcome] if known_end else curve[-1]
    after = np.vstack([curve[1:], end])
    counts = observed.divergence
    outcomes = (counts + WORTH * curve) / (counts.sum(axis=1, keepdims=True) + WORTH)
    return [
        Alternates(i, 1.0 - observed.step_p[i : i + 1], outcomes[i : i + 1], after[i])
        for i in np.flatnonzero(counts.sum(axis=1)).tolist()
    ]
