"""What the next-token distribution says at every token, and what really happens to the outcome there.

Signals: entropy and varentropy (nats), ``1 − p`` of the base token, entropy of the renormalised top 20 (EAGER's),
the states of two Entropix rule sets, and EAGER's branch points. Where a run keeps whole distributions they are
exact; released stores keep the branches alone (top 10, p ≥ 0.05), whose lost mass is counted as one token, so
that entropies are lower bounds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from experiments.cells import prepared
from experiments.datasets import opened
from fpa.eager import THETA, branch_points
from fpa.entropix import four_state, threshold_state
from fpa.records import Distribution
from fpa.score import change_scores
from fpa.signals import entropy, top_entropy, varentropy
from smoothing import fit
from smoothing.forks import THRESHOLDS
from smoothing.metrics import merge_rare, total_variation

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

FOUR_STATE_ACTS = ("clarify", "branch", "resample")
THRESHOLD_ACTS = ("clarify", "explore", "resample")
"""States in which Entropix does something else than sample as usual."""
SEEN = 30
"""Draws that the detectors from rollouts see; they are judged by the other draws."""


def resolved_variance(weight: ArrayLike, shares: ArrayLike, draws: ArrayLike) -> float:
    """Outcome variance that one token decides: ``Σ_w p_w ‖o_w − Σ_v p_v o_v‖²`` without the draws' own noise.

    Args:
        weight: (W,) probabilities of the next tokens, adding up to 1.
        shares: (W, K) outcome frequencies after each.
        draws: (W,) how many draws are behind each, at least 2.
    """
    p, o, n = (np.asarray(a, float) for a in (weight, shares, draws))
    mean = p @ o
    noise = (o * (1 - o)).sum(axis=1) / (n - 1)
    # E‖ô_w − Σ p ô‖² holds (1 − 2p_w) Var ô_w + Σ p_v² Var ô_v beyond the true value.
    bias = p @ ((1 - 2 * p) * noise) + p**2 @ noise
    return float(p @ np.square(o - mean).sum(axis=1) - bias)


def token_signals(path: Path, question_id: str) -> pd.DataFrame:
    """One row per sampled position but the last: signals of its token, and the change of the outcome after it.

    Returns:
        ``t``, ``p``, ``entropy``, ``varentropy``, ``top_entropy``, ``four_state``, ``threshold_state``, ``eager``,
        ``eager_free`` (the percentile alone); ``tv`` between the full curve here and at the next position,
        ``tv_unseen`` the same by draws that the detectors did not see, ``tv_branch`` between the position and its
        base branch (NaN where there are no branches); ``variance`` resolved by the token; ``auto@θ`` and ``full``
        scores of a change from ``SEEN`` draws per position.
    """
    run = opened(path)
    draws, positions, curve = prepared(path, question_id)
    base = run.base(question_id)
    chance = np.array(run.base_table(question_id)["p"].to_numpy(zero_copy_only=False), float)[positions]
    spread = [_moments(base.distributions[t].p, base.distributions[t].entropy, base.distributions[t].varentropy)
              for t in positions]  # fmt: skip
    h, v = np.array(spread).T
    # Released stores say nothing of it: what they keep is at temperature 1.
    temperature = float(run.config.get("temperature", 1.0))
    tops = np.array([_top_entropy(base.distributions[t], temperature) for t in positions])
    counts = draws.counts() - draws.select(SEEN, 1, 0).counts()
    unseen = counts / counts.sum(axis=1, keepdims=True)
    grid = np.union1d(draws.default_grid(), positions)
    observed = draws.select(SEEN, 1, 0).observations(grid)
    auto, full = fit(observed, "auto"), fit(observed, "full").predict(positions)
    variance, by_branch = _what_tokens_decide(path, question_id, len(positions))
    table = {
        "t": positions, "p": chance, "entropy": h, "varentropy": v, "top_entropy": tops,
        "four_state": four_state(h, v), "threshold_state": threshold_state(h, v),
        "eager": branch_points(tops, THETA), "eager_free": branch_points(tops, 0.0),
        "tv": _change(curve), "tv_unseen": _change(unseen), "tv_branch": by_branch, "variance": variance,
        "full": _change(full),
    }  # fmt: skip
    for threshold in THRESHOLDS:
        scores = change_scores(auto, grid, positions, threshold)
        assert scores is not None  # auto always tells
        table[f"auto@{threshold:.2f}"] = np.append(scores[1:], 0.0)
    return pd.DataFrame(table).iloc[:-1]


def _moments(p: FloatArray, h: float, v: float) -> tuple[float, float]:
    """Entropy and varentropy as stored; from the kept tokens, the rest as one more, where they are not."""
    if np.isfinite(h):
        return h, v
    whole = np.append(p, max(0.0, 1.0 - float(np.sum(p))))
    return entropy(whole), varentropy(whole)


def _top_entropy(distribution: Distribution, temperature: float) -> float:
    """As stored; where it is not, from what is kept at the sampling temperature, taken back to temperature 1."""
    if np.isfinite(distribution.top_entropy):
        return distribution.top_entropy
    return top_entropy(distribution.p**temperature)


def _change(curve: FloatArray) -> FloatArray:
    """(T,) total variation between each row and the next, 0 for the last."""
    return np.append(total_variation(curve[1:], curve[:-1]), 0.0)


def _what_tokens_decide(path: Path, question_id: str, length: int) -> tuple[FloatArray, FloatArray]:
    """(T,) outcome variance resolved by each token; (T,) TV between a position and its base branch, or NaN."""
    run = opened(path)
    draws, positions, _ = prepared(path, question_id)
    variance, by_branch = np.zeros(length), np.full(length, np.nan)
    branched = list(run.branches(question_id))
    tokens = run.base_table(question_id)["token_id"].to_pylist()
    if branched:
        column = merge_rare(np.round(run.curve(question_id)[1], 6))[1]
        each = run.config["samples"]
        for i, (start, ids, p, shares) in enumerate(branched):
            outcomes = np.zeros((len(ids), int(column.max()) + 1))
            np.add.at(outcomes.T, column, shares.T)
            weight = p / p.sum()
            variance[i] = resolved_variance(weight, outcomes, np.full(len(ids), each))
            by_branch[i] = total_variation(weight @ outcomes, outcomes[ids == tokens[start]][0])
        return variance, by_branch
    # Free draws: base token or any other, which is a lower bound, since the others are taken as one.
    width = len(draws.categories)
    counts = draws.counts().astype(float)
    for i, t in enumerate(positions):
        left = draws.outcomes[(draws.diverge_at == t) & (draws.outcomes >= 0)]
        p = draws.step_p[t]
        if len(left) < 2 or not np.isfinite(p):
            continue  # too rare to be met twice in all draws: it decides next to nothing
        after = np.bincount(left, minlength=width) / len(left)
        if i + 1 < length:
            stay, n = counts[i + 1] / counts[i + 1].sum(), counts[i + 1].sum()
        elif draws.base_outcome is not None:
            stay, n = np.eye(width)[draws.base_outcome], 1e9
        else:
            continue
        variance[i] = resolved_variance(
            np.array([p, 1 - p]), np.stack([stay, after]), np.array([n, len(left)])
        )
    return variance, by_branch


def weighted_scores(score: ArrayLike, truth: ArrayLike, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Average precision and AUROC under many weightings at once, equal scores taken together.

    Args:
        score: (n,) higher where a fork is expected.
        truth: (n,) whether there is one.
        weights: (B, n) how often each counts.

    Returns:
        (B,) and (B,), NaN where one kind is missing.
    """
    s, y = np.asarray(score, float), np.asarray(truth, bool)
    order = np.argsort(-s, kind="stable")
    first = np.concatenate([[0], np.flatnonzero(np.diff(s[order])) + 1])
    w = np.asarray(weights, float)[:, order]
    hits = np.add.reduceat(w * y[order], first, axis=1)
    misses = np.add.reduceat(w * ~y[order], first, axis=1)
    above, below = hits.cumsum(axis=1), misses.cumsum(axis=1)
    right, wrong = above[:, -1], below[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(above + below > 0, above / (above + below), 0.0)
        ap = (hits * precision).sum(axis=1) / right
        auroc = (hits * (wrong[:, None] - below + misses / 2)).sum(axis=1) / (right * wrong)
    return np.where(right > 0, ap, np.nan), np.where((right > 0) & (wrong > 0), auroc, np.nan)
