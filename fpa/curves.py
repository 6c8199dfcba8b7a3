"""Curves and forks of a run: each question's observations through a smoother, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fpa.errors import UsageError
from fpa.run import Run
from smoothing import Fit, Observations, fit
from smoothing.forks import find_forks

FloatArray = NDArray[np.float64]
LEVEL = 0.9
CONTEXT = 6  # tokens shown on either side of a fork


@dataclass(frozen=True, eq=False)
class Smoothed:
    """One question's curve by one method: ``curve``, ``lo`` and ``hi`` are (T, K) on ``observations.grid``."""

    question_id: str
    method: str
    observations: Observations
    fit: Fit
    curve: FloatArray
    lo: FloatArray
    hi: FloatArray


def smooth_question(
    run: Run,
    question_id: str,
    method: str,
    samples: int | None = None,
    every: int = 1,
    replicate: int = 0,
    hyperparameters: Mapping[str, Any] | None = None,
) -> Smoothed:
    """Fit one method to one question of a run, on every token of its base path.

    Raises:
        UsageError: the draws asked for are not there, or the method refuses them or its hyper-parameters.
    """
    observations = run.observations(question_id, samples, every, replicate)
    try:
        fitted = fit(observations, method=method, hyperparameters=hyperparameters)
    except ValueError as error:
        raise UsageError(f"{question_id}: {error}") from error
    lo, hi = fitted.band(observations.grid, LEVEL)
    return Smoothed(question_id, method, observations, fitted, fitted.predict(observations.grid), lo, hi)


def smooth_run(
    run: Run,
    method: str,
    samples: int | None = None,
    every: int = 1,
    replicate: int = 0,
    hyperparameters: Mapping[str, Any] | None = None,
    on_question: Callable[[Smoothed], None] | None = None,
) -> str:
    """Smooth every collected question and write ``curves/<name>.parquet``; returns the name.

    Raises:
        UsageError: nothing is collected, or as in ``smooth_question``.
    """
    frames = []
    for question_id in collected(run):
        smoothed = smooth_question(run, question_id, method, samples, every, replicate, hyperparameters)
        frames.append(curve_table(smoothed))
        if on_question is not None:
            on_question(smoothed)
    name = curve_name(method, samples, every, replicate)
    run.save_curves(name, pd.concat(frames, ignore_index=True))
    return name


def collected(run: Run) -> Sequence[str]:
    """Ids of the questions with rollouts.

    Raises:
        UsageError: there are none.
    """
    if not run.collected_ids:
        raise UsageError(f"{run.path} holds no rollouts yet: resume its collection")
    return run.collected_ids


def curve_name(method: str, samples: int | None = None, every: int = 1, replicate: int = 0) -> str:
    """File name of a curve table: the method, and what part of the draws it saw."""
    parts = [method]
    if samples is not None:
        parts.append(f"s{samples}")
    if every != 1:
        parts.append(f"n{every}")
    if replicate:
        parts.append(f"r{replicate}")
    return "-".join(parts)


def curve_table(smoothed: Smoothed) -> pd.DataFrame:
    """A curve as rows of ``curves/*.parquet``, position by position."""
    grid, categories = smoothed.observations.grid, smoothed.observations.categories
    return pd.DataFrame(
        {
            "question_id": smoothed.question_id,
            "method": smoothed.method,
            "t": np.repeat(grid, len(categories)).astype(np.int32),
            "category": np.tile(np.asarray(categories, dtype=object), len(grid)),
            "p": smoothed.curve.ravel(),
            "lo": smoothed.lo.ravel(),
            "hi": smoothed.hi.ravel(),
        }
    )


def fork_table(run: Run, smoothed: Smoothed, threshold: float = 0.15) -> pd.DataFrame:
    """The forks of a smoothed curve with their text in context, a row each.

    A fork at position ``t`` is a change from ``o_{t-1}`` to ``o_t``: what changed the outcome is the token at
    ``t - 1``, and that is the token shown.

    Columns: those of ``forks/*.parquet``, then ``context`` (the token in brackets), the leading outcome
    ``before`` and ``after`` with their probabilities, ``segment_start`` and ``segment_end`` (the stretches that
    end and begin there), and ``alternatives`` (the likeliest other next tokens with their probabilities).
    """
    base = run.base(smoothed.question_id)
    categories = smoothed.observations.categories
    p_change = change_probability(smoothed.fit, smoothed.observations, threshold)
    rows = []
    for fork in find_forks(smoothed.curve, smoothed.observations.grid, threshold, p_change):
        at = fork.position - 1
        left = "".join(base.token_texts[max(0, at - CONTEXT) : at])
        right = "".join(base.token_texts[at + 1 : at + 1 + CONTEXT])
        distribution = base.distributions[at]
        texts = dict(zip(distribution.ids.tolist(), distribution.texts, strict=False))
        others = [
            (texts.get(token, f"#{token}"), p)
            for token, p in zip(distribution.ids.tolist(), distribution.p.tolist(), strict=True)
            if token != base.token_ids[at]
        ][:3]
        rows.append(
            {
                "question_id": smoothed.question_id,
                "t": fork.position,
                "token_text": base.token_texts[at],
                "p_change": fork.p_change,
                "tv": fork.tv,
                "context": f"{left}[{base.token_texts[at]}]{right}",
                "before": categories[int(fork.before.argmax())],
                "p_before": float(fork.before.max()),
                "after": categories[int(fork.after.argmax())],
                "p_after": float(fork.after.max()),
                "segment_start": fork.segment_start,
                "segment_end": fork.segment_end,
                "alternatives": others,
            }
        )
    columns = ["question_id", "t", "token_text", "p_change", "tv", "context", "before", "p_before", "after"]
    columns += ["p_after", "segment_start", "segment_end", "alternatives"]
    return pd.DataFrame(rows, columns=columns)


def change_probability(fitted: Fit, observations: Observations, threshold: float) -> FloatArray | None:
    """(T,) posterior probability of a change beyond ``threshold`` at each place; None where a model has none."""
    tell = getattr(fitted, "change_probability", None)
    if tell is None:
        return None
    p_change: FloatArray = tell(threshold)
    return p_change if len(p_change) == len(observations.grid) else None
