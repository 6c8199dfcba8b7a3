"""The published results, looked at again on data at hand.

    python -m experiments noise --data RUN --out results     # one experiment on the runs given
    python -m experiments all --docs docs                    # all of them, and docs/results.md (make paper)

Each prints a table and a sentence per run, and writes CSV tables and a figure (SVG and PDF) under --out. Without --data
the runs are this project's reference run and, where the environment variable FPA_SHARED names the folder that
holds them, the released "Forking Fast" rollouts.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import figures
from experiments.datasets import find
from experiments.files import write_file
from experiments.report import write_page
from experiments.result import Context, Result, markdown
from fpa.errors import FpaError, UsageError

EXPERIMENTS = {
    "noise": "experiments.noise",
    "multiplier": "experiments.multiplier",
    "interval": "experiments.interval",
    "budget": "experiments.budget",
    "forks": "experiments.forks",
    "ablation": "experiments.ablation",
    "signals": "experiments.signals",
}
"""Name -> module with a function ``run(context: Context) -> Result``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run experiments; the exit status: 0 done, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=(*EXPERIMENTS, "all"))
    parser.add_argument("--data", nargs="+", type=Path, default=[], metavar="RUN", help="run directories")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for tables and figures")
    parser.add_argument(
        "--cache", type=Path, default=Path(".cache/experiments"), help="folder for finished pieces"
    )
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores when left out")
    parser.add_argument(
        "--docs", type=Path, help="with `all`: also write results.md and its images to this folder"
    )
    given = parser.parse_args(arguments)
    try:
        if given.docs is not None and given.name != "all":
            raise UsageError("--docs goes with `all`: the page reports every experiment")
        context = Context(find(given.data), given.cache, given.workers)
        results = {}
        for name in EXPERIMENTS if given.name == "all" else (given.name,):
            began = time.monotonic()
            results[name] = result = importlib.import_module(EXPERIMENTS[name]).run(context)
            report(name, result, given.out)
            print(
                f"{name}: {time.monotonic() - began:.0f} s; tables and figure in {given.out}\n",
                file=sys.stderr,
            )
        if given.docs is not None:
            page = write_page(given.docs, results, context)
            print(f"wrote {page}", file=sys.stderr)
    except FpaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def report(name: str, result: Result, out: Path) -> None:
    """Print the table and the sentences, and write tables and figure."""
    console = Console()
    console.print(f"{name}: {result.title}", style="bold", highlight=False)
    console.print(markdown(result.shown), soft_wrap=True, highlight=False, markup=False)
    for line, table in result.also:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        console.print(markdown(table), soft_wrap=True, highlight=False, markup=False)
    for verdict in result.verdicts:
        console.print(verdict, soft_wrap=True, highlight=False, markup=False)
    for title, table in {f"{name}-shown": result.shown, **result.tables}.items():
        write_file(out / f"{title}.csv", table.to_csv(index=False).encode())
    figures.save(result.figure, out / name, ("svg", "pdf"))


if __name__ == "__main__":
    sys.exit(main())
