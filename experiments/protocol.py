"""The published scoring protocol on the released rollouts, figure by figure.

    python -m experiments.protocol                      # import, score, compare; minutes
    python -m experiments.protocol --runs RUNS          # runs that were imported before (fpa import)
    python -m experiments.protocol --out cells.parquet  # also keep the whole table

Rows 0-49 of both tracks, replicates 0-3 as they fit in 200 draws, models raw, segment and full, every number
of draws and stride published. Each figure must agree with the published one within 1e-6; those that do not are
listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.datasets import shared_folder
from fpa.published import import_published
from fpa.run import Run, open_run
from fpa.score import SAMPLES, score

STRIDES = {"llama": (1, 4, 8, 16), "deepseek": (1, 2, 4, 8)}
METHODS = ("raw", "segment", "full")
TOLERANCE = 1e-6
_OURS = {"coverage90": "coverage"}


def published(shared: Path) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """The published figures: track, cell, method, measure."""
    path = shared / "reference" / "published_protocol_rows000-049.json"
    return json.loads(path.read_text(encoding="utf-8"))["tracks"]


def score_track(
    run: Run,
    track: str,
    samples: Sequence[int] = SAMPLES,
    every: Sequence[int] | None = None,
    methods: Sequence[str] = METHODS,
    workers: int = 1,
) -> pd.DataFrame:
    """The protocol on one track's imported store, rows 0-49."""
    ids = [q for q in run.collected_ids if int(q.removeprefix("row")) < 50]
    return score(run, None, samples, every or STRIDES[track], 4, methods, ids, workers)


def compare(table: pd.DataFrame, figures: dict[str, dict[str, dict[str, float]]]) -> pd.DataFrame:
    """Our figures beside the published ones: method, samples, every, measure, ours, published, difference."""
    rows = []
    for cell in table.to_dict("records"):
        theirs = figures[f"S={cell['samples']:.0f},N={cell['every']}"][cell["method"]]
        for measure, value in theirs.items():
            own = float(cell[_OURS.get(measure, measure)])
            rows.append(
                (cell["method"], int(cell["samples"]), cell["every"], measure, own, value, own - value)
            )
    return pd.DataFrame(
        rows, columns=["method", "samples", "every", "measure", "ours", "published", "difference"]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the protocol; 0 where every figure agrees, 1 where one does not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="folder of imported runs; imported anew when left out")
    parser.add_argument("--out", type=Path, help="Parquet file for the whole table")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    chosen = parser.parse_args(arguments)
    shared = shared_folder()
    figures = published(shared)
    with tempfile.TemporaryDirectory() as scratch:
        runs = chosen.runs or Path(scratch)
        if chosen.runs is None:
            import_published(shared / "data" / "forking-fast" / "s200", runs)
        tables, compared = [], []
        for track in STRIDES:
            began = time.process_time()
            table = score_track(open_run(runs / f"s200-{track}"), track, workers=chosen.workers)
            own = time.process_time() - began
            found = compare(table, figures[track])
            worst = found["difference"].abs().max()
            took = f"{own:.0f} s of CPU time" if chosen.workers == 1 else f"{chosen.workers} processes"
            print(f"{track}: {len(found)} figures, largest difference {worst:.1e}, {took}")
            tables.append(table.assign(track=track))
            compared.append(found.assign(track=track))
    if chosen.out is not None:
        pd.concat(tables).to_parquet(chosen.out)
    every = pd.concat(compared)
    wrong = every[~(every["difference"].abs() <= TOLERANCE)]
    if len(wrong):
        print(wrong.to_string(index=False))
    return 1 if len(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
