"""How often sequences from a prompt are right: Pass@k, Cons@k, pass rate, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fpa.errors import UsageError
from fpa.run import Run

RESAMPLES = 1000
SEED = 20251013


def pass_at(k: int, sequences: int, right: int) -> float:
    """Chance that at least one of ``k`` sequences, drawn without replacement from those there are, is right.

    ``1 − C(n−c, k) / C(n, k)``, the unbiased estimator of Pass@k (Chen et al. 2021, arXiv 2107.03374, section 2.1).
    Where there are fewer than ``k``, all are taken.
    """
    n, c = sequences, right
    if n - c < min(k, n):
        return 1.0 if c else 0.0
    return float(1.0 - np.prod(1.0 - min(k, n) / np.arange(n - c + 1, n + 1)))


def consensus(outcomes: Sequence[str], answer: str) -> float:
    """Whether the most frequent outcome is the answer; a tie counts as its share of the most frequent ones."""
    names, counts = np.unique(np.asarray(outcomes, dtype=str), return_counts=True)
    most = names[counts == counts.max()]
    return float((most == answer).sum() / len(most))


def passes(run: Run, k: int | None = None) -> pd.DataFrame:
    """A row per answered question, from all of its rollouts that begin at the prompt.

    Args:
        run: of strategy ``eager``, or of any other that samples at position 0.
        k: sequences of Pass@k; all of a question's when None.

    Returns:
        ``question_id``; ``pass`` (Pass@k), ``consensus`` (Cons@k over all sequences), ``pass_rate`` (share of
        right sequences), ``sequences``, ``tokens`` generated for them, ``peak_entropy`` (largest entropy of the 20
        likeliest tokens that a sequence met, in nats; NaN where it was not recorded).

    Raises:
        UsageError: no question has both a right answer and rollouts from the prompt.
    """
    rows = []
    for question_id in run.collected_ids:
        answer, drawn = run.question(question_id).answer, from_prompt(run, question_id)
        if answer is not None and len(drawn):
            rows.append({"question_id": question_id, **measures(drawn, answer, k)})
    if not rows:
        raise UsageError(f"{run.path}: no question has both a right answer and free rollouts from the prompt")
    return pd.DataFrame(rows)


def from_prompt(run: Run, question_id: str) -> pd.DataFrame:
    """The free rollouts of one question that begin at the prompt, a row each."""
    columns = ["start", "draw", "first_token", "seed", "outcome", "n_tokens", "peak_entropy"]
    drawn = run.rollouts(question_id, columns)
    return drawn[(drawn["start"] == 0) & drawn["first_token"].isna()]


def measures(drawn: pd.DataFrame, answer: str, k: int | None = None) -> dict[str, float]:
    """What ``passes`` says of one question, from its sequences (at least one)."""
    right = int((drawn["outcome"] == answer).sum())
    return {
        "pass": pass_at(len(drawn) if k is None else k, len(drawn), right),
        "consensus": consensus(drawn["outcome"].tolist(), answer),
        "pass_rate": right / len(drawn),
        "sequences": len(drawn),
        "tokens": int(drawn["n_tokens"].sum()),
        "peak_entropy": float(drawn["peak_entropy"].astype(float).max()),
    }


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over questions; NaN for fewer than two."""
    v: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    if len(v) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(SEED).multinomial(len(v), np.full(len(v), 1 / len(v)), size=RESAMPLES)
    low, high = np.quantile(drawn @ v / len(v), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summary(tables: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """A row per run: means over questions with the ends of their 95 % intervals (``_lo``, ``_hi``)."""
    rows = []
    for name, table in tables:
        row: dict[str, object] = {"run": name, "questions": len(table)}
        for measure in ("pass", "consensus", "pass_rate", "sequences", "tokens"):
            row[measure] = float(table[measure].mean())
            row[f"{measure}_lo"], row[f"{measure}_hi"] = interval(table[measure])
        rows.append(row)
    return pd.DataFrame(rows)
