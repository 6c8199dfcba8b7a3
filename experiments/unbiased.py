"""Do all strategies estimate the same curve on a real model? Four strategies against a dense reference.

    python -m experiments.unbiased collect --out DIR    # about 4 minutes a strategy and seed on two cores
    python -m experiments.unbiased report --out DIR

``collect`` puts the reference's questions to the demo model again, with ``grid``, ``branches``, ``stratified`` and
``adaptive`` at about equal cost; ``report`` tests every pair of runs, the reference among them, cell by cell:

- *by divergence*: draws that leave the base path at token ``u`` are draws of ``d_u``, however they came there;
- *by start*: free draws from ``t``, and the mixture of the branches of ``t`` by probability, are draws of ``o_t``.

Cells are disjoint sets of independent draws, so their p-values are independent and, if the runs estimate the same
curve, uniform: that is tested by Kolmogorov-Smirnov.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fpa.check import LEAST, compare
from fpa.collect import collect
from fpa.data import data_path
from fpa.demo import SETTINGS
from fpa.engines.llamacpp import LlamaCppEngine
from fpa.questions import load_questions
from fpa.run import Run, open_run

REFERENCE = data_path("reference")
COST = 25_000
"""Tokens that ``adaptive`` may spend; the others are set to about as many."""
RUNS = {
    "grid": {"every": 2, "samples": 60},
    "branches": {"every": 2, "samples": 20, "min_p": 0.01},
    "stratified": {"every": 2, "samples": 60},
    "adaptive": {"every": 2, "samples": 60, "budget": COST},
}
BY_START = {"reference", "grid", "branches"}

IntArray = NDArray[np.int64]


def collect_all(out: Path, seeds: list[int]) -> None:
    """Collect what is missing."""
    questions = load_questions("demo", limit=len(open_run(REFERENCE).question_ids))
    for seed in seeds:
        for strategy, options in RUNS.items():
            settings = replace(SETTINGS, strategy=strategy, seed=seed, **options)  # type: ignore[arg-type]
            with LlamaCppEngine("demo") as engine:
                spent = collect(settings, engine, questions, out / f"{strategy}-{seed}").spent
            print(f"{strategy}, seed {seed}: {spent.generated_tokens} tokens", flush=True)


def cells(run: Run, question_id: str, by_start: bool) -> dict[int, IntArray]:
    """(K,) outcome counts by the token where draws start, or where they leave the base path."""
    if by_start:
        draws = run.draws(question_id)
        return dict(zip(draws.positions.tolist(), draws.counts(), strict=True))
    observations = run.observations(question_id)
    if observations.divergence is None:
        raise ValueError(f"{run.path}: no divergence recorded for {question_id}")
    return dict(zip(observations.grid.tolist(), observations.divergence, strict=True))


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two base paths share: greedy decoding of a quantised model may flip where two tokens tie."""
    pairs = zip(first, second, strict=False)
    return next((t for t, (x, y) in enumerate(pairs) if x != y), min(len(first), len(second)))


def comparisons(runs: dict[str, Run]) -> Iterator[dict[str, object]]:
    """A row for every cell that two runs share with at least ``LEAST`` draws each."""
    rng = np.random.default_rng(0)
    for (first, a), (second, b) in combinations(runs.items(), 2):
        for by_start in (False, True):
            if by_start and not {first.split("-")[0], second.split("-")[0]} <= BY_START:
                continue
            for question_id in a.question_ids:
                one, other = (cells(run, question_id, by_start) for run in (a, b))
                common = shared(a.base(question_id).token_ids, b.base(question_id).token_ids)
                for t in sorted(one.keys() & other.keys()):
                    if t < common and min(one[t].sum(), other[t].sum()) >= LEAST:
                        tv, expected, p_value = compare(one[t], other[t], rng)
                        yield {
                            "first": first, "second": second, "by": "start" if by_start else "divergence",
                            "question_id": question_id, "t": t, "tv": tv, "tv_expected": expected, "p_value": p_value,
                        }  # fmt: skip


def report(out: Path) -> pd.DataFrame:
    """A row for each pair of runs: cells, mean total variation, what noise alone gives, and the p-value."""
    runs = {"reference": open_run(REFERENCE)}
    runs |= {path.name: open_run(path) for path in sorted(out.iterdir()) if (path / "manifest.json").exists()}
    rows = []
    for (first, second, by), cell in pd.DataFrame(comparisons(runs)).groupby(["first", "second", "by"]):
        p = cell["p_value"].dropna()
        uniform = stats.kstest(p, "uniform").pvalue if len(p) else np.nan
        rows.append((first, second, by, len(cell), cell["tv"].mean(), cell["tv_expected"].mean(), uniform))
    return pd.DataFrame(rows, columns=["first", "second", "by", "cells", "TV", "TV by noise", "p"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("collect", "report"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    given = parser.parse_args()
    if given.part == "collect":
        collect_all(given.out, given.seeds)
    else:
        print(report(given.out).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
