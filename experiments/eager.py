"""EAGER against as many independent sequences, on the embedded model: the published claims, one by one.

    python -m experiments.eager collect --out DIR [--questions demo|tinymmlu] [--sequences 8] [--thetas 2.0]
    python -m experiments.eager report --out DIR

``collect`` puts every question to the model by ``parallel`` (independent continuations of the prompt, as many as the
largest M) and by strategy ``eager``, modes ``adapt`` and ``full``, for every M and threshold; all at temperature 0.6.
Runs are resumed. ``report`` compares them at equal M. ``init`` is what ``adapt`` does in its first round, and
``parallel`` at a smaller M is its first M continuations, so that nothing is drawn twice.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from experiments.figures import log_ticks, nice_ticks, panels, save
from experiments.resampling import limits, multiplicities, ratio_limits
from fpa.collect import collect
from fpa.engines.llamacpp import LlamaCppEngine
from fpa.errors import UsageError
from fpa.passes import from_prompt, measures
from fpa.questions import QuestionSet, load_questions
from fpa.run import Run, open_run
from fpa.settings import Settings

TEMPERATURE = 0.6
SEQUENCES = (4, 8, 16)
THETAS = (1.5, 2.0, 2.5)
MODES = ("init", "adapt", "full")
LOOKS = {
    "init": ("#E69F00", "^"),
    "adapt": ("#0072B2", "D"),
    "full": ("#009E73", "s"),
    "parallel": ("#6b6b6b", "o"),
}

FloatArray = NDArray[np.float64]


def collect_all(out: Path, source: str, limit: int, most: list[int], thetas: list[float]) -> None:
    """Collect what is missing."""
    style = "demo" if source == "demo" else "published"
    path = source
    if source == "tinymmlu":
        path = str(Path(os.environ.get("FPA_SHARED", "../shared")) / "data" / "tinymmlu.jsonl")
    questions = load_questions(path, limit=limit)
    common = {"temperature": TEMPERATURE, "prompt": style, "base_tokens": 160, "rollout_tokens": 160}
    # Later rounds grow more than M sequences: those beyond what the engine holds would be read anew at every token.
    with LlamaCppEngine("demo", parallel=3 * max(most), context=1536) as engine:
        # Stride beyond the longest base path: position 0 alone.
        plain = Settings(every=1000, samples=max(most), **common)  # type: ignore[arg-type]
        _collect(plain, engine, questions, out / source / "parallel")
        for samples in most:
            for theta in thetas:
                for mode in ("adapt", "full"):
                    options = {"mode": mode, "theta": theta}
                    settings = Settings(strategy="eager", samples=samples, options=options, **common)  # type: ignore[arg-type]
                    _collect(settings, engine, questions, out / source / f"{mode}-{samples}-{theta}")


def _collect(settings: Settings, engine: LlamaCppEngine, questions: QuestionSet, path: Path) -> None:
    spent = collect(settings, engine, questions, path).spent
    cost = f"{spent.generated_tokens} tokens, {spent.seconds:.0f} s"
    print(f"{path}: {spent.continuations} sequences, {cost}", flush=True)


def sequences(out: Path, mode: str, samples: int, theta: float) -> pd.DataFrame:
    """A row per question: what its sequences are worth (``fpa.passes.measures``)."""
    name = "parallel" if mode == "parallel" else f"{'adapt' if mode == 'init' else mode}-{samples}-{theta}"
    run = open_run(out / name)
    rows = []
    for question_id, drawn in _drawn(run):
        if mode == "parallel":
            drawn = drawn[drawn["draw"] < samples]
        if mode == "init":  # the sequences of a tree share its seed
            drawn = drawn[drawn["seed"] == drawn.loc[drawn["draw"] == 0, "seed"].iloc[0]]
        answer = run.question(question_id).answer
        assert answer is not None
        rows.append({"question_id": question_id, **measures(drawn, answer)})
    return pd.DataFrame(rows).set_index("question_id")


def _drawn(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
    for question_id in run.collected_ids:
        yield question_id, from_prompt(run, question_id)


def finished(path: Path) -> bool:
    """Whether there is a run whose collection has ended."""
    return (path / "manifest.json").exists() and bool(open_run(path).manifest["finished"])


def grid(out: Path) -> dict[int, list[float]]:
    """The thresholds collected for each M, in both modes."""
    cells: dict[int, list[float]] = {}
    for path in out.glob("adapt-*-*"):
        _, samples, theta = path.name.split("-")
        if all(finished(out / f"{mode}-{samples}-{theta}") for mode in ("adapt", "full")):
            cells.setdefault(int(samples), []).append(float(theta))
    return {samples: sorted(cells[samples]) for samples in sorted(cells)}


def compared(out: Path) -> pd.DataFrame:
    """A row per mode, M and θ: means over questions, and how they stand to ``parallel`` with 95 % intervals."""
    rows = []
    for samples, thetas in grid(out).items():
        beside = sequences(out, "parallel", samples, 0.0)
        rows.append(_row("parallel", samples, np.nan, beside, beside))
        for theta in thetas:
            for mode in MODES:
                found = sequences(out, mode, samples, theta).loc[beside.index]
                rows.append(_row(mode, samples, theta, found, beside))
    return pd.DataFrame(rows)


def _row(
    mode: str, samples: int, theta: float, found: pd.DataFrame, beside: pd.DataFrame
) -> dict[str, object]:
    fewer = ratio_limits(found["tokens"], beside["tokens"])
    better = (found["pass"] - beside["pass"]).to_numpy(float)
    low, high = limits(multiplicities(len(better)) @ better / len(better))
    means = ("pass", "consensus", "pass_rate", "sequences", "tokens")
    return {
        "mode": mode,
        "M": samples,
        "theta": theta,
        **{name: found[name].mean() for name in means},
        **dict(zip(("tokens_ratio", "tokens_low", "tokens_high"), fewer, strict=True)),
        "gain": better.mean(),
        "gain_low": low,
        "gain_high": high,
    }


def peak_correlation(found: pd.DataFrame) -> tuple[float, float, float]:
    """Spearman's ρ between a question's peak entropy and its pass rate, with its 95 % interval over questions."""
    x, y = found["peak_entropy"].to_numpy(float), found["pass_rate"].to_numpy(float)
    drawn = np.random.default_rng(0).integers(0, len(x), size=(1000, len(x)))
    with np.errstate(invalid="ignore"):
        again = [spearmanr(x[i], y[i]).statistic if np.ptp(x[i]) and np.ptp(y[i]) else np.nan for i in drawn]
    return float(spearmanr(x, y).statistic), *limits(again)


def table(found: pd.DataFrame) -> str:
    """The comparison in Markdown."""
    head = (
        "| | M | θ | tokens, of `parallel` [95 %] | Pass@M | gain [95 %] | Cons@M | pass rate | sequences |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for r in found.to_dict("records"):
        plain = r["mode"] == "parallel"
        ratio = f"{100 * r['tokens_ratio']:.0f} % [{100 * r['tokens_low']:.0f}, {100 * r['tokens_high']:.0f}]"
        gain = f"{r['gain']:+.2f} [{r['gain_low']:+.2f}, {r['gain_high']:+.2f}]"
        cells = (
            r["mode"], r["M"], "–" if plain else r["theta"], "100 %" if plain else ratio, f"{r['pass']:.2f}",
            "–" if plain else gain, f"{r['consensus']:.2f}", f"{r['pass_rate']:.2f}", f"{r['sequences']:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def claims(
    found: pd.DataFrame, peaks: dict[tuple[int, float], tuple[float, float, float]], questions: int
) -> list[str]:
    """A sentence for each published claim, by the intervals; ``peaks`` are ρ and its interval by M and θ."""
    ours = found[found["mode"] != "parallel"]
    surely = int((ours["tokens_high"] <= 0.6).sum())
    said = [
        f"40 to 80 % fewer tokens: from {_change(ours['tokens_ratio'].max())} to "
        f"{_change(ours['tokens_ratio'].min())}; at least 40 % fewer by the whole interval in {surely} of "
        f"{len(ours)} cells"
    ]
    for mode, gain, fewer in (("adapt", 12, 64), ("full", 37, 59)):
        cells = ours[ours["mode"] == mode]
        best = cells.loc[cells["gain"].idxmax()]
        base = found[(found["mode"] == "parallel") & (found["M"] == best["M"])]["pass"].iloc[0]
        above, below = int((cells["gain_low"] > 0).sum()), int((cells["gain_high"] < 0).sum())
        cheaper = int(((cells["tokens_high"] < 1) & (cells["gain"] >= 0)).sum())
        said.append(
            f"{mode}: Pass@k up by {gain} % with {fewer} % fewer tokens: of {len(cells)} cells Pass@M is above "
            f"`parallel` at equal M in {above} and below it in {below} by the whole interval, and no lower with fewer "
            f"tokens by the whole interval in {cheaper}; the best has {100 * best['gain'] / base:+.0f} % "
            f"({best['gain']:+.2f} [{best['gain_low']:+.2f}, {best['gain_high']:+.2f}]) with "
            f"{_change(best['tokens_ratio'])} (M={best['M']}, θ={best['theta']})"
        )
    each = "; ".join(
        f"{rho:.2f} [{low:.2f}, {high:.2f}] at M={samples}, θ={theta}"
        for (samples, theta), (rho, low, high) in peaks.items()
    )
    said.append(f"peak entropy against pass rate, ρ ≈ −0.55, over {questions} questions of `init`: {each}")
    return said


def _change(ratio: float) -> str:
    return f"{100 * abs(1 - ratio):.0f} % {'fewer' if ratio <= 1 else 'more'} tokens"


def draw(named: dict[str, pd.DataFrame], stem: Path) -> None:
    """Pass@M against tokens for every M and θ."""
    figure, axes = panels(len(named))
    for ax, (name, found) in zip(axes[0], named.items(), strict=True):
        for mode in ("parallel", *MODES):
            cells, (colour, marker) = found[found["mode"] == mode], LOOKS[mode]
            if mode == "parallel":
                ax.plot(cells["tokens"], cells["pass"], color=colour, lw=1, zorder=1)
            size = 3 * cells["M"].to_numpy(float)
            ax.scatter(cells["tokens"], cells["pass"], size, colour, marker=marker, alpha=0.8, linewidths=0)
            ax.scatter([], [], 24, colour, marker=marker, label=mode, linewidths=0)
        log_ticks(ax, "x", nice_ticks(found["tokens"].min(), found["tokens"].max()))
        ax.set_xlabel("tokens generated per question")
        ax.set_ylabel(f"Pass@M, M = {', '.join(map(str, sorted(set(found['M']))))} by size")
        ax.set_ylim(0, 1.04)
        ax.set_title(name, fontsize=8)
        ax.legend(frameon=False, fontsize=7)
    save(figure, stem)


def report(out: Path) -> None:
    """Tables and claims on standard output; the figure as ``eager.svg``."""
    named = {}
    for folder in sorted(p for p in out.iterdir() if p.is_dir()):
        cells = grid(folder)
        if not cells:
            print(f"{folder} is not finished: run collect again", file=sys.stderr)
            continue
        found = compared(folder)
        most = max(cells)
        count = len(sequences(folder, "parallel", most, 0.0))
        named[f"{folder.name} ({count} questions)"] = found
        found.to_csv(out / f"{folder.name}.csv", index=False)
        peaks = {
            (samples, theta): peak_correlation(sequences(folder, "init", samples, theta))
            for samples, thetas in cells.items()
            for theta in thetas
        }
        print(f"\n### {folder.name}, {count} questions\n\n{table(found)}\n")
        for line in claims(found, peaks, count):
            print(f"- {line}.")
    if not named:
        raise UsageError(f"{out} holds nothing yet: run collect first")
    draw(named, out / "eager")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("collect", "report"))
    parser.add_argument("--out", type=Path, default=Path(".cache/eager"))
    parser.add_argument("--questions", choices=("demo", "tinymmlu"), default="demo")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    parser.add_argument("--thetas", type=float, nargs="+", default=THETAS)
    given = parser.parse_args()
    if given.what == "collect":
        collect_all(given.out, given.questions, given.limit, list(given.sequences), list(given.thetas))
    else:
        report(given.out)


if __name__ == "__main__":
    main()
