"""Scoring smoothers on a run: how far their curves are from a reference, at which price.

The protocol is that of "Forking Fast", with this project's own measures beside it (``smoothing.metrics``).
The reference is another run of the same base paths, or the same run's other draws; no draw is ever on both
sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fpa.draws import Draws
from fpa.errors import UsageError
from fpa.run import Run
from smoothing import Fit, fit
from smoothing.forks import THRESHOLDS, ForkScore, match_forks
from smoothing.metrics import (
    ErrorShare,
    average_precision,
    coverage,
    effective_samples,
    error_share,
    heldout_loglik,
    jump_region,
    jumps,
    merge_rare,
    merged,
    multiplier,
    predictive_coverage,
    total_variation,
)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SAMPLES = (5, 10, 15, 20, 30, 50, 75, 100)
"""Draws per position at which the published work scores."""
CELL = ["method", "samples", "every"]
LEVEL = 0.9
"""Of the bands whose coverage is scored."""
_DECIMALS = 6  # of the recorded reference curves: ties at a threshold must not hang on the last bit


def score(
    run: Run,
    reference: Run | None = None,
    samples: Sequence[int] | None = None,
    every: Sequence[int] = (1,),
    replicates: int = 4,
    methods: Sequence[str] = ("raw", "full"),
    questions: Sequence[str] | None = None,
    workers: int = 1,
) -> pd.DataFrame:
    """Score methods in every cell of draws per position × stride: one row each, means over questions.

    Questions with draws from which the base token was excluded are scored as they were collected, in a cell
    of their own (``samples`` NaN).

    Args:
        run: what to smooth.
        reference: a run of the same base paths, densely sampled; the same run's other draws when left out.
        samples: draws per position; when left out, those of ``SAMPLES`` that leave draws to refer to.
        every: use every so many-th of the sampled positions.
        replicates: disjoint sets of draws per question, as many as there are.
        methods: names of models.
        questions: ids; all that both runs have when left out.
        workers: processes to spread the questions over.

    Returns:
        A table with the columns of ``summary``.

    Raises:
        UsageError: the runs share no question or differ in a base path, or no replicate fits.
    """
    rows = score_questions(run, reference, samples, every, replicates, methods, questions, workers)
    return summary(rows)


def score_questions(
    run: Run,
    reference: Run | None = None,
    samples: Sequence[int] | None = None,
    every: Sequence[int] = (1,),
    replicates: int = 4,
    methods: Sequence[str] = ("raw", "full"),
    questions: Sequence[str] | None = None,
    workers: int = 1,
) -> pd.DataFrame:
    """What ``score`` averages: a row per method, cell, question and replicate; arguments and errors as there.

    The raw curve is always scored too, over all numbers of draws that there are: multipliers need it.
    """
    if reference is not None and reference.path.resolve() == run.path.resolve():
        reference = None
    ids = _common(run, reference, questions)
    work = partial(
        _question, run, reference, samples, tuple(every), replicates, tuple(dict.fromkeys(methods))
    )
    with ExitStack() as stack:
        spread = stack.enter_context(ProcessPoolExecutor(workers)).map if workers > 1 else map
        rows = [row for part in spread(work, ids) for row in part]
    scored = {row["samples"] for row in rows if row["asked"]}
    missing = [size for size in samples or () if size not in scored and not any(map(np.isnan, scored))]
    if missing or not scored:
        wanted = f"{missing[0]} draws" if missing else "draws"
        raise UsageError(
            f"{run.path}: no question has {wanted} at every position and others to refer to; ask for fewer "
            "samples, or give a reference"
        )
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Means of ``score_questions`` by cell: over a question's replicates first, then over questions.

    Columns: ``method``, ``samples``, ``every``; ``questions``, ``replicates``; ``tv`` and its standard error
    over questions; ``tv_jump@θ`` and ``tv_flat@θ`` near and off the reference's jumps,
    ``questions_with_jumps@θ``; ``heldout_loglik``; ``coverage`` and ``coverage_predictive`` of the 90 % band;
    ``multiplier``; ``s_eff`` and its standard error; ``fork_precision@θ``, ``fork_recall@θ``, ``fork_f1@θ``,
    ``fork_ap@θ``; and the price per question, ``continuations`` and ``generated_tokens`` (the base path not
    counted).
    """
    thresholds = [c.removeprefix("tv_flat@") for c in rows.columns if c.startswith("tv_flat@")]
    cells = []
    for key, group in rows.groupby(CELL, sort=False, dropna=False):
        cell: dict[str, Any] = dict(zip(CELL, key, strict=True))
        by_question = group.groupby("question_id", sort=False)
        mean = by_question.mean(numeric_only=True)
        cell["asked"] = bool(group["asked"].any())
        cell["questions"] = len(mean)
        cell["replicates"] = int(by_question.size().max())
        cell["tv"], cell["tv_se"] = mean["tv"].mean(), mean["tv"].sem()
        for name in thresholds:
            cell[f"tv_jump@{name}"] = mean[f"tv_jump@{name}"].mean()
            cell[f"tv_flat@{name}"] = mean[f"tv_flat@{name}"].mean()
            cell[f"questions_with_jumps@{name}"] = int((mean[f"jumps@{name}"] > 0).sum())
        for name in ("heldout_loglik", "coverage"):
            cell[name] = mean[name].mean()
        cell["coverage_predictive"] = group["predicted_inside"].sum() / max(1, group["predicted_of"].sum())
        cell["multiplier"] = float("nan")
        shares = [ErrorShare(s, e) for s, e in zip(mean["spread"], mean["error"], strict=True)]
        cell["s_eff"], cell["s_eff_se"] = effective_samples(shares)
        for name in thresholds:
            parts = ("found", "right", "reference", "recalled")
            forks = ForkScore(*(int(group[f"forks_{part}@{name}"].sum()) for part in parts))
            cell[f"fork_precision@{name}"] = forks.precision
            cell[f"fork_recall@{name}"] = forks.recall
            cell[f"fork_f1@{name}"] = forks.f1
            cell[f"fork_ap@{name}"] = mean[f"fork_ap@{name}"].mean()
        for name in ("continuations", "generated_tokens"):
            cell[name] = mean[name].mean()
        cells.append(cell)
    table = pd.DataFrame(cells)
    for i, row in table.iterrows():
        raw = table[(table["method"] == "raw") & (table["every"] == row["every"])]
        table.loc[i, "multiplier"] = multiplier(row["tv"], row["samples"], raw["samples"], raw["tv"])
    return table[table.pop("asked")].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class _Jumps:
    """The reference's jumps at one threshold: how many, (T,) where, and (T,) their region."""

    count: int
    at: NDArray[np.bool_]
    near: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Target:
    """What one question's curves are compared with, at the reference's sampled positions."""

    positions: IntArray
    jumps: dict[float, _Jumps]
    draws: Draws
    own: bool
    shared: bool

    @classmethod
    def of(cls, run: Run, reference: Run | None, question_id: str) -> tuple[_Target, Draws]:
        """The target, and the run's draws with the same categories merged."""
        source = reference or run
        positions, curve, names = source.curve(question_id)
        curve = np.round(curve, _DECIMALS)
        kept, column = merge_rare(curve)
        categories = tuple(names[k] for k in kept)
        draws = run.draws(question_id).merged(column, categories)
        others = draws if reference is None else reference.draws(question_id).merged(column, categories)
        shared = reference is not None and run.same_streams(reference)
        curve, found = merged(curve, column), {}
        for threshold in THRESHOLDS:
            at = jumps(curve, threshold)
            here = np.isin(np.arange(len(positions)), at)
            found[threshold] = _Jumps(len(at), here, jump_region(positions, at))
        return cls(positions, found, others, reference is None, shared), draws

    def counts(self, used: Draws) -> IntArray:
        """(T, K) outcomes of the draws to refer to, those used (at any stride) left out."""
        if self.own:
            return self.draws.counts() - used.counts()
        return (self.draws.without(used) if self.shared else self.draws).counts()


def _question(
    run: Run,
    reference: Run | None,
    samples: Sequence[int] | None,
    every: tuple[int, ...],
    replicates: int,
    methods: tuple[str, ...],
    question_id: str,
) -> list[dict[str, Any]]:
    """Every row of one question."""
    target, draws = _Target.of(run, reference, question_id)
    asked, extra = _sizes(draws, samples, target.own)
    grid = np.union1d(draws.default_grid(), target.positions)
    rows = []
    for size in (*asked, *extra):
        wanted = methods if size in asked else ()
        for replicate in range(replicates if size else 1):
            if size and (replicate + 1) * size > draws.available:
                break
            used = draws.select(size or None, 1, replicate)
            counts = target.counts(used)
            if counts.sum(axis=1).min() < 2:
                break
            for stride in every if size else (1,):
                chosen = draws.select(size or None, stride, replicate)
                observed = chosen.observations(grid)
                for method in wanted if not size or "raw" in wanted else (*wanted, "raw"):
                    try:
                        fitted = fit(observed, method)
                    except ValueError as error:
                        raise UsageError(f"{question_id}, {method}: {error}") from error
                    row: dict[str, Any] = {
                        "method": method,
                        "samples": size or float("nan"),
                        "every": stride,
                        "question_id": question_id,
                        "replicate": replicate,
                        "asked": method in wanted,
                        "continuations": chosen.continuations,
                        "generated_tokens": chosen.generated_tokens,
                    }
                    rows.append(row | _measures(fitted, observed.grid, target, counts))
    return rows


def _measures(fitted: Fit, grid: IntArray, target: _Target, counts: IntArray) -> dict[str, float]:
    """All measures of one fit against the counts of the reference's draws."""
    places, n = target.positions, counts.sum(axis=1)
    curve, (lower, upper) = fitted.predict(places), fitted.band(places, LEVEL)
    frequency = counts / n[:, None]
    distance = total_variation(curve, frequency)
    share = error_share(curve, counts)
    inside, of = predictive_coverage(curve, lower, upper, frequency, n, LEVEL)
    out = {
        "tv": distance.mean(),
        "heldout_loglik": heldout_loglik(curve, counts),
        "coverage": coverage(lower, upper, frequency),
        "predicted_inside": inside,
        "predicted_of": of,
        "spread": share.spread,
        "error": share.error,
    }
    step = np.concatenate([[0.0], total_variation(curve[1:], curve[:-1])])
    for threshold, true in target.jumps.items():
        name, near = f"{threshold:.2f}", true.near
        forks = match_forks(np.flatnonzero(step > threshold), np.flatnonzero(true.at))
        speaks = change_scores(fitted, grid, places, threshold) if true.count else None
        out |= {
            f"jumps@{name}": true.count,
            f"tv_jump@{name}": distance[near].mean() if true.count else np.nan,
            f"tv_flat@{name}": distance[~near].mean() if not near.all() else np.nan,
            f"forks_found@{name}": forks.found,
            f"forks_right@{name}": forks.right,
            f"forks_reference@{name}": forks.reference,
            f"forks_recalled@{name}": forks.recalled,
            f"fork_ap@{name}": average_precision(step if speaks is None else speaks, true.at)
            if true.count
            else np.nan,
        }
    return out


def change_scores(fitted: Fit, grid: IntArray, places: IntArray, threshold: float) -> FloatArray | None:
    """(T,) probability of a change between each place and the one before, 0 for the first.

    ``grid`` is the fit's own, and holds the places; None where the model gives no such probability.
    """
    tell = getattr(fitted, "change_probability", None)
    if tell is None:
        return None
    calm = np.log1p(-np.minimum(tell(threshold), 1 - 1e-12)).cumsum()[np.searchsorted(grid, places)]
    return np.concatenate([[0.0], -np.expm1(np.diff(calm))])


def _sizes(
    draws: Draws, samples: Sequence[int] | None, leave: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draws per position asked for, and those that only the raw curve is scored at, for multipliers.

    A question with draws from which the base token was excluded is scored as it is: one size, 0.
    """
    if len(draws.forced) or not len(draws.positions):
        return (0,), ()
    most = draws.available - 2 if leave else draws.available
    fitting = tuple(s for s in SAMPLES if s <= most)
    asked = tuple(dict.fromkeys(samples or fitting or (most,)))
    return asked, tuple(s for s in fitting if s not in asked)


def _common(run: Run, reference: Run | None, questions: Sequence[str] | None) -> list[str]:
    """The questions to score: those asked for, or all that are there on both sides, with equal base paths."""
    there = [q for q in run.collected_ids if reference is None or q in set(reference.collected_ids)]
    missing = [q for q in questions or () if q not in there]
    if missing or not there:
        where = f"{run.path}" if reference is None else f"{run.path} and {reference.path} both"
        raise UsageError(
            f"{where} must have rollouts of {missing[0] if missing else 'one question at least'}"
        )
    ids = list(questions or there)
    if reference is not None:
        for question_id in ids:
            mine, other = (r.base_table(question_id)["token_id"].to_pylist() for r in (run, reference))
            if mine != other:
                raise UsageError(
                    f"{question_id}: the base paths of {run.path} and {reference.path} differ; a reference "
                    "must continue the same tokens"
                )
    return ids
