"""docs/results.md: every experiment's sentence, table and figure, with the command that made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments import figures
from experiments.files import write_file
from experiments.result import Context, Result, markdown

HEADER = """# Results

What the published results on forking paths ("Forking Fast"; Bigelow et al. 2024, arXiv 2412.07961) look like on
the data at hand, and what this project's estimators (`martingale`, `bayes`, `auto`) do beside them. This page is
written by `make paper`; every figure and every "holds" or "does not hold" in it is computed from the runs. S is
the number of continuations per position, N the stride. Intervals are 95 % bootstrap intervals over questions
(1,000 resamples); with fewer than ten questions they say little, and claims are not judged by them.
"""


def write_page(docs: Path, results: Mapping[str, Result], context: Context) -> Path:
    """Write ``results.md`` and its images under ``docs``; returns the page's path."""
    lines = [HEADER, "| data | questions | model | positions |", "|---|---|---|---|"]
    for dataset in context.datasets:
        config, engine = dataset.run.config, dataset.run.manifest["engine"] or {}
        model = config.get("model") or engine.get("model", "unknown")
        lines.append(
            f"| `{dataset.name}` | {len(dataset.questions)} | {model} | "
            f"every {'sentence end' if dataset.by_sentence else 'token'}, S={config.get('samples')} |"
        )
    for name, result in results.items():
        stem = docs / "images" / f"results-{name}"
        figures.save(result.figure, stem)
        lines += ["", f"## `{name}`: {result.title}", ""]
        lines += [f"- {verdict}" for verdict in result.verdicts]
        lines += ["", result.how, "", markdown(result.shown), ""]
        for line, table in result.also:
            lines += [line, "", markdown(table), ""]
        lines += [f"![{result.title}](images/{stem.name}.svg)", "", f"*{result.caption}*", ""]
        lines += [f"{note}\n" for note in result.notes]
        lines += [f"    python -m experiments {name}", ""]
    page = docs / "results.md"
    write_file(page, ("\n".join(lines).rstrip() + "\n").encode())
    return page
