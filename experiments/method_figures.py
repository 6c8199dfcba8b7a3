"""The figures of docs/method.md, from the shipped reference run: identity, estimator, allocation, bands.

python -m experiments.method_figures --out docs/images
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from experiments.figures import STYLES, legend, line, panels, save
from fpa.data import data_path
from fpa.run import Run, open_run
from smoothing import fit
from smoothing.allocation import curve_weights, stratified_shares
from smoothing.metrics import predictive_coverage

REFERENCE = data_path("reference")
LEVELS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SAMPLES, EVERY = 20, 4

FloatArray = NDArray[np.float64]


def _outcome(run: Run, question_id: str) -> int:
    """Category of the base path's own answer: the one curve that is drawn."""
    own = run.draws(question_id).base_outcome
    if own is None:
        raise ValueError(f"{question_id}: the base path names no answer")
    return own


def _by_question(run: Run, stem: Path, what: str) -> Iterator[tuple[Axes, str]]:
    """Axes over token positions for each question, to be drawn in; after the last the figure is saved."""
    figure, axes = panels(len(run.question_ids))
    for ax, question_id in zip(axes.flat, run.question_ids, strict=True):
        ax.set_title(question_id, fontsize=8)
        yield ax, question_id
        ax.set_xlabel("token position $t$")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(0, 1.02)
    axes.flat[0].set_ylabel(what)
    legend(figure)
    save(figure, stem)


def through_divergences(run: Run, question_id: str) -> FloatArray:
    """(T, K) the curve by equation (2): outcomes of divergences, weighted by stored probabilities alone.

    A token without a divergence among all draws counts as one that changes nothing.
    """
    observations = run.observations(question_id)
    counts, p = observations.divergence, observations.step_p
    if counts is None or p is None:
        raise ValueError(f"{question_id}: needs recorded divergence and token probabilities")
    curve = np.zeros((len(p) + 1, counts.shape[1]))
    curve[-1, _outcome(run, question_id)] = 1.0
    for t in reversed(range(len(p))):
        d = counts[t] / counts[t].sum() if counts[t].any() else curve[t + 1]
        curve[t] = p[t] * curve[t + 1] + (1 - p[t]) * d
    return curve[:-1]


def identity(run: Run, out: Path) -> None:
    """Raw frequencies of the draws from each position, against the curve rebuilt from divergences."""
    for ax, question_id in _by_question(run, out / "method-identity", "share of the base path's answer"):
        k = _outcome(run, question_id)
        counts = run.draws(question_id).counts()
        n = counts.sum(axis=1)
        raw = counts[:, k] / n
        error = 1.96 * np.sqrt(raw * (1 - raw) / n)
        t = np.arange(len(raw))
        ax.errorbar(
            t,
            raw,
            error,
            fmt="o",
            ms=3,
            lw=0.8,
            color=STYLES["raw"][0],
            label=f"draws from t (S={n[0]}), 95 %",
        )
        rebuilt = through_divergences(run, question_id)[:, k]
        ax.plot(t, rebuilt, color=STYLES["auto"][0], lw=1.4, label="rebuilt from divergences, equation (2)")


def estimator(run: Run, out: Path) -> None:
    """A cheap part of the run, smoothed, against all of it."""
    for ax, question_id in _by_question(run, out / "method-estimator", "share of the base path's answer"):
        k = _outcome(run, question_id)
        dense = run.draws(question_id).counts()
        t = np.arange(len(dense))
        ax.plot(t, dense[:, k] / dense.sum(axis=1), "k--", lw=0.9, label="reference, S=200, N=1")
        cheap = run.observations(question_id, samples=SAMPLES, every=EVERY)
        label = f"S={SAMPLES}, N={EVERY}"
        ax.plot(
            cheap.positions, cheap.counts[:, k] / cheap.counts.sum(axis=1), "o", ms=4,
            color=STYLES["raw"][0], label=f"raw, {label}",
        )  # fmt: skip
        full = fit(cheap, method="full").predict(t)
        ax.plot(t, full[:, k], color=STYLES["full"][0], lw=1.2, label=f"Full Model, {label}")
        ours = fit(cheap, method="auto")
        low, high = ours.band(t, level=0.9)
        ax.plot(
            t,
            ours.predict(t)[:, k],
            color=STYLES["auto"][0],
            lw=1.4,
            label=f"auto and its 90 % band, {label}",
        )
        ax.fill_between(t, low[:, k], high[:, k], color=STYLES["auto"][0], alpha=0.15, lw=0)


def allocation(run: Run, out: Path) -> None:
    """Shares of the draws by formula, and the summed variance of the curve they give beside equal shares."""
    for ax, question_id in _by_question(run, out / "method-allocation", "share"):
        p = run.base(question_id).p
        shares = stratified_shares(p)
        weights = curve_weights(p)
        used = shares > 0
        ours = float((weights[used] / shares[used]).sum())
        equal = float(weights.sum() * used.sum())
        t = np.arange(len(p))
        ax.bar(t, shares, color=STYLES["auto"][0], width=0.8, label="share of draws that leave at t, $n_t$")
        ax.plot(t, 1 - np.asarray(p), "o", ms=3, color=STYLES["full"][0], label="chance to leave, $1-p_t$")
        ax.set_title(f"{question_id}: variance {ours / equal:.2f} of that of equal shares", fontsize=8)


def covered(run: Run, model: str) -> FloatArray:
    """(len(LEVELS),) share of held-out frequencies inside the band, widened by their own noise.

    The band of a fit to each disjoint set of ``SAMPLES`` draws is judged against the draws left out.
    """
    inside, judged = np.zeros(len(LEVELS)), np.zeros(len(LEVELS))
    for question_id in run.question_ids:
        draws = run.draws(question_id)
        grid = draws.positions
        for replicate in range(draws.available // SAMPLES):
            sample = draws.select(SAMPLES, EVERY, replicate)
            others = draws.without(sample).counts()
            n = others.sum(axis=1)
            fitted = fit(sample.observations(grid), method=model)
            curve = fitted.predict(grid)
            for i, level in enumerate(LEVELS):
                low, high = fitted.band(grid, level=level)
                hit, cells = predictive_coverage(curve, low, high, others / n[:, None], n, level)
                inside[i] += hit
                judged[i] += cells
    return inside / judged


def bands(run: Run, out: Path) -> None:
    """Nominal level against the share of held-out frequencies inside."""
    figure, axes = panels(1)
    ax = axes.flat[0]
    ax.plot([0, 1], [0, 1], "k--", lw=0.8, label="as promised")
    for model in ("full", "auto"):
        line(ax, model, LEVELS, covered(run, model), label=f"{model}, S={SAMPLES}, N={EVERY}")
    ax.set_xlabel("level of the band")
    ax.set_ylabel("held-out frequencies inside")
    legend(figure, columns=3)
    save(figure, out / "method-bands")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    run = open_run(REFERENCE)
    for draw in (identity, estimator, allocation, bands):
        draw(run, out)


if __name__ == "__main__":
    main()
