"""Checking the martingale identity on a run: is a rollout that stayed on the base path a draw of the next position?

If ``o_t = p_t·o_{t+1} + (1 − p_t)·d_t`` holds (docs/method.md), then continuations from ``t`` that took the base
tokens up to the next sampled position ``u`` are draws of ``o_u``, and as many of them as the stored probabilities
say. Both are tested at every pair of neighbouring positions; over a run the p-values must be uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fpa.draws import NEVER, UNKNOWN, Draws
from fpa.errors import UsageError
from fpa.run import Run

IntArray = NDArray[np.int64]
PERMUTATIONS = 2000
LEAST = 10  # draws on either side of a comparison


@dataclass(frozen=True)
class Check:
    """How well a run keeps the identity.

    Attributes:
        pairs: neighbouring positions compared.
        tv: mean total variation between draws that stayed on the base path and draws from the next position.
        tv_expected: what that would be by sampling noise alone.
        p_outcomes: probability, if the identity holds, of p-values as far from uniform (Kolmogorov-Smirnov).
        stayed, stayed_expected: draws that reached the next position on the base path, and as many as the
            stored probabilities say.
        p_stay: probability of a difference as large (normal approximation of the sum).
        bias: mean over pairs of the share that stayed, less its stored probability.
    """

    pairs: int
    tv: float
    tv_expected: float
    p_outcomes: float
    stayed: int
    stayed_expected: float
    p_stay: float
    bias: float


def check(run: Run, seed: int = 0) -> tuple[Check, pd.DataFrame]:
    """Test the identity between all neighbouring positions of a run with recorded divergence.

    Returns:
        The summary, and a row a pair: ``question_id``, ``t``, ``u``, ``draws``, ``stayed``, ``p_stay`` (stored
        probability of staying), ``tv``, ``tv_expected``, ``p_value``.

    Raises:
        UsageError: the run has no two positions with enough free draws and recorded divergence.
    """
    rng = np.random.default_rng(seed)
    rows = [row for q in run.collected_ids for row in _pairs(q, run.draws(q), rng)]
    if not rows:
        raise UsageError(
            f"{run.path} cannot be checked: it needs free continuations (strategy grid) from neighbouring "
            f"positions, at least {LEAST} of each"
        )
    table = pd.DataFrame(rows)
    tested = table["p_value"].dropna()
    expected = float((table["draws"] * table["p_stay"]).sum())
    variance = float((table["draws"] * table["p_stay"] * (1 - table["p_stay"])).sum())
    stayed = int(table["stayed"].sum())
    z = (stayed - expected) / np.sqrt(variance) if variance > 0 else 0.0
    summary = Check(
        pairs=len(table),
        tv=float(table["tv"].mean()),
        tv_expected=float(table["tv_expected"].mean()),
        p_outcomes=float(stats.kstest(tested, "uniform").pvalue) if len(tested) else float("nan"),
        stayed=stayed,
        stayed_expected=expected,
        p_stay=float(2 * stats.norm.sf(abs(z))),
        bias=float((table["stayed"] / table["draws"] - table["p_stay"]).mean()),
    )
    return summary, table


def _pairs(question_id: str, draws: Draws, rng: np.random.Generator) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for i, (t, u) in enumerate(zip(draws.positions[:-1], draws.positions[1:], strict=True)):
        here, there = draws.outcomes[i] >= 0, draws.outcomes[i + 1] >= 0
        leaves = draws.diverge_at[i]
        if (leaves[here] == UNKNOWN).any() or np.isnan(draws.step_p[t:u]).any():
            continue
        on_path = here & ((leaves == NEVER) | (leaves >= u))
        stayed, following = draws.outcomes[i][on_path], draws.outcomes[i + 1][there]
        if here.sum() < LEAST or len(following) < LEAST:
            continue
        row: dict[str, object] = {
            "question_id": question_id,
            "t": int(t),
            "u": int(u),
            "draws": int(here.sum()),
            "stayed": len(stayed),
            "p_stay": float(np.prod(draws.step_p[t:u])),
            "tv": np.nan,
            "tv_expected": np.nan,
            "p_value": np.nan,
        }
        if len(stayed) >= LEAST:
            width = len(draws.categories)
            row["tv"], row["tv_expected"], row["p_value"] = compare(
                np.bincount(stayed, minlength=width), np.bincount(following, minlength=width), rng
            )
        rows.append(row)
    return rows


def compare(first: IntArray, second: IntArray, rng: np.random.Generator) -> tuple[float, float, float]:
    """Are two samples of outcomes draws of one distribution? A permutation test on total variation.

    Args:
        first, second: (K,) outcome counts, neither all zero.
        rng: for the permutations.

    Returns:
        Total variation of the two, its mean under random splits of the pooled sample, and the p-value: uniform if
        they are draws of one distribution (ties are broken at random), NaN where all outcomes are the same.
    """
    pooled, n, m = first + second, int(first.sum()), int(second.sum())
    splits = rng.multivariate_hypergeometric(pooled, n, size=PERMUTATIONS)
    null = np.abs(splits / n - (pooled - splits) / m).sum(axis=1) / 2
    tv = float(np.abs(first / n - second / m).sum() / 2)
    above = (null > tv + 1e-12).mean()
    ties = (np.abs(null - tv) <= 1e-12).mean()
    p_value = float("nan") if (pooled > 0).sum() < 2 else float(above + ties * rng.random())
    return tv, float(null.mean()), p_value
