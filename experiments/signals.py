"""Do the signals that steer entropy-guided generation find the tokens where the outcome forks?

Entropy, varentropy, 1 − p, Entropix' states and EAGER's branch points are held against forks at θ 0.10, 0.15 and
0.20, against the outcome variance that each token decides, and against ``stratified`` as a way to spend rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments import figures
from experiments.datasets import Dataset, distinct
from experiments.pieces import compute
from experiments.resampling import FEW, limits, multiplicities, ratio_limits
from experiments.result import Context, Result, number, with_limits
from experiments.spending import STRATIFIED, spending
from experiments.token_signals import FOUR_STATE_ACTS, SEEN, THRESHOLD_ACTS, token_signals, weighted_scores
from smoothing.forks import THRESHOLDS

FloatArray = NDArray[np.float64]
BUDGETS = (0.65, 2.0)
SPLITS = 2
RESAMPLES = 300
FAIR = 0.9
"""A scheme that could not spend this share of the tokens is no comparison at equal tokens."""
SHOWN_THETA = 0.15
SCORES = {
    "entropy": "entropy",
    "varentropy": "varentropy",
    "1 − p": "doubt",
    "top-20 entropy": "top_entropy",
}
"""Signals of the token alone: name -> column."""
RULES = {
    "Entropix four states: not keep": ("four_state", ("default", *FOUR_STATE_ACTS)),
    "Entropix four states: acts": ("four_state", FOUR_STATE_ACTS),
    "Entropix thresholds: not argmax": ("threshold_state", ("adaptive", *THRESHOLD_ACTS)),
    "Entropix thresholds: acts": ("threshold_state", THRESHOLD_ACTS),
    "EAGER, θ=2.5": ("eager", (True,)),
    "EAGER, percentile alone": ("eager_free", (True,)),
}
"""Rules that fire or not: name -> column and the values at which they do."""
JUDGED = {"full curve": "tv", "base branch": "tv_branch", f"other {200 - SEEN} draws": "tv_unseen"}
STYLES = dict(zip((*SCORES, f"auto, S={SEEN}", f"full, S={SEEN}"), (
    ("#0072B2", "D"), ("#CC79A7", "P"), ("#009E73", "X"), ("#E69F00", "^"), ("#000000", "o"), ("#D55E00", "s"),
), strict=True))  # fmt: skip


def run(context: Context) -> Result:
    """The experiment on every run."""
    data = distinct(context.datasets)
    found, ruled, spent, verdicts = [], [], [], []
    figure, axes = figures.panels(len(data), 3, height=2.9)
    for column, dataset in enumerate(data):
        tokens = compute(dataset, token_signals, context.cache, context.workers).assign(data=dataset.name)
        tokens["doubt"] = 1 - tokens["p"]
        paid = compute(dataset, spending, context.cache, context.workers, budgets=BUDGETS, splits=SPLITS)
        scores, rules, money = detection(tokens), rule_table(tokens), spending_table(paid)
        for table, whole in ((scores, found), (rules, ruled), (money, spent)):
            whole.append(table.assign(data=dataset.name))
        verdicts.append(verdict(dataset, tokens, scores, rules, money))
        _draw_precision(axes[0][column], dataset, tokens)
        _draw_variance(axes[1][column], dataset, tokens, rules)
        _draw_spending(axes[2][column], dataset, money, column == 0)
    axes[0][0].set_ylabel("precision")
    axes[1][0].set_ylabel("share of outcome variance")
    figures.legend(figure, 5)
    everything = pd.concat(found)
    return Result(
        "what entropy-guided signals say about forks",
        "A token is followed by a fork if the outcome curve changes by more than θ between its position and the next. "
        "AUROC and average precision (AP) over all tokens of all questions, intervals by resampling "
        "questions; chance is an "
        "AUROC of 0.5 and an AP equal to the share of forks. *Judged by*: the full curve (the published "
        "definition); the "
        "position against its base branch, which by the martingale identity is what the token itself "
        "changes, without the "
        "noise of two positions' draws (branch form alone); the draws that `auto` and `full`, fitted to "
        f"S={SEEN} draws at every "
        "position, did not see. *Outcome variance* at a token is what its choice decides, Σ p(w)‖o(w) − o‖² over next "
        "tokens, debiased. *Spending*: draws that leave the base path are placed where a rule says, at the tokens that "
        f"`stratified` spends with {BUDGETS[0]} and {BUDGETS[1]} draws per position, and `auto` is fitted to "
        f"each ({SPLITS} splits); "
        "values are S_eff over that of `stratified`.",
        verdicts,
        shown_table(everything),
        {
            "signals-detection": everything,
            "signals-rules": pd.concat(ruled),
            "signals-spending": pd.concat(spent),
        },
        figure,
        f"Above: precision against recall of forks at θ={SHOWN_THETA} (full curve), dotted: chance; `auto` "
        "and `full` by rollouts. "
        "Middle: share of the outcome variance at the tokens taken, likeliest first, and of rules that fire "
        "or not (markers "
        "as in the legend). Below: S_eff over that of `stratified` at equal expected tokens, 95 % over "
        "questions; at the right, "
        "tokens spent in per cent of its; grey: the rule fires too seldom to spend as much.",
        (
            "Entropix' attention terms are not there (zero), and EAGER's θ is taken in nats. In the released "
            "stores only the "
            "probabilities of the kept branches exist (top 10, p ≥ 0.05, and the base token): entropies "
            "there are lower bounds with the "
            "lost mass as one token, varentropies are understated where the tail is long, and EAGER's "
            "renormalised entropy "
            "cannot exceed ln 10 = 2.3, so that its default θ of 2.5 never fires. In the sentence-wise store "
            "the signals are "
            "those of the first token of each sentence alone, while the outcome may change at any later one; p is at "
            "temperature 1 there. In runs of free draws the alternatives of a token are taken as one, which makes its "
            "variance a lower bound; 1 − p is at the sampling temperature.",
        ),
        [
            (
                "Rules that fire or not, and for comparison the likeliest tenth of each question's tokens:",
                shown_rules(pd.concat(ruled)),
            ),
            ("Spending rollouts by them:", shown_spending(pd.concat(spent))),
        ],
    )


def by_question(tokens: pd.DataFrame) -> tuple[FloatArray, NDArray[np.int64]]:
    """(B, q) multiplicities whose first row is all ones, and (n,) each token's question."""
    codes, ids = pd.factorize(tokens["question_id"])
    drawn = multiplicities(len(ids), RESAMPLES).astype(float)
    return np.vstack([np.ones(len(ids)), drawn]), codes


def detection(tokens: pd.DataFrame) -> pd.DataFrame:
    """AP and AUROC with intervals of every score, at every θ, by every judge."""
    drawn, codes = by_question(tokens)
    rows = []
    for judge, column in JUDGED.items():
        if tokens[column].isna().all():
            continue
        for theta in THRESHOLDS:
            truth = (tokens[column] > theta).to_numpy()
            scores: Mapping[str, str] = SCORES
            if column == "tv_unseen":
                scores = {**SCORES, f"auto, S={SEEN}": f"auto@{theta:.2f}", f"full, S={SEEN}": "full"}
            for name, value in scores.items():
                ap, auroc = weighted_scores(tokens[value], truth, drawn[:, codes])
                rows.append(
                    (
                        judge, theta, name, int(truth.sum()), len(truth), float(ap[0]), *limits(ap[1:]),
                        float(auroc[0]), *limits(auroc[1:]),
                    )
                )  # fmt: skip
    columns = [
        "judged_by",
        "theta",
        "signal",
        "forks",
        "tokens",
        "ap",
        "ap_low",
        "ap_high",
        "auroc",
        "auroc_low",
        "auroc_high",
    ]
    return pd.DataFrame(rows, columns=columns)


def fires(tokens: pd.DataFrame, rule: str) -> NDArray[np.bool_]:
    """(n,) whether a rule fires at each token."""
    column, values = RULES[rule]
    return tokens[column].isin(values).to_numpy()


def rule_table(tokens: pd.DataFrame) -> pd.DataFrame:
    """Each rule: share of tokens at which it fires, how it tells forks at every θ, variance where it does not fire.

    ``auroc`` is that of a score of two values: the mean of the share of forks at which the rule fires and the share
    of other tokens at which it does not. For comparison, each score's likeliest tokens of a question, as many as one
    in ten. Intervals are over questions.
    """
    drawn, codes = by_question(tokens)
    weights = drawn[:, codes]
    fired = {rule: fires(tokens, rule) for rule in RULES}
    for name, column in SCORES.items():
        rank = tokens.groupby("question_id")[column].rank(ascending=False, method="first")
        size = tokens.groupby("question_id")[column].transform("size")
        fired[f"{name}, top 10 %"] = (rank <= np.ceil(0.1 * size)).to_numpy()
    rows = []
    for rule, at in fired.items():
        frame = pd.DataFrame({"q": tokens["question_id"].to_numpy(), "v": tokens["variance"].to_numpy()})
        frame["missed"] = np.where(at, 0.0, frame["v"])
        sums = frame.groupby("q")[["v", "missed"]].sum()
        row: dict[str, object] = {"rule": rule, "fires": float(at.mean())}
        row["skipped"], row["skipped_low"], row["skipped_high"] = ratio_limits(sums["missed"], sums["v"])
        for theta in THRESHOLDS:
            truth = (tokens["tv"] > theta).to_numpy()
            both = (weights * (at & truth)).sum(axis=1)
            told = {
                "precision": divided(both, (weights * at).sum(axis=1)),
                "recall": divided(both, (weights * truth).sum(axis=1)),
                "auroc": weighted_scores(at, truth, weights)[1],
            }
            for kind, values in told.items():
                row[f"{kind}@{theta:.2f}"] = float(values[0])
                row[f"{kind}_low@{theta:.2f}"], row[f"{kind}_high@{theta:.2f}"] = limits(values[1:])
        rows.append(row)
    return pd.DataFrame(rows)


def divided(part: FloatArray, whole: FloatArray) -> FloatArray:
    """(B,) shares, NaN of nothing."""
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def spending_table(paid: pd.DataFrame) -> pd.DataFrame:
    """S_eff of every scheme over that of ``stratified``, paired over questions: a ratio of errors, since spread
    is shared."""
    columns = ["budget", "scheme", "ratio", "low", "high", "tokens_over_stratified", "draws"]
    if paid.empty:
        return pd.DataFrame(columns=columns)
    rows = []
    for budget, group in paid.groupby("budget"):
        mean = group.pivot_table(index="question_id", columns="scheme", values=["error", "tokens", "draws"])
        base = mean["error"][STRATIFIED]
        for scheme in group["scheme"].unique():
            spent = float(mean["tokens"][scheme].sum() / mean["tokens"][STRATIFIED].sum())
            rows.append(
                (
                    budget,
                    scheme,
                    *ratio_limits(base, mean["error"][scheme]),
                    spent,
                    float(mean["draws"][scheme].mean()),
                )
            )
    return pd.DataFrame(rows, columns=columns)


def shown_table(found: pd.DataFrame) -> pd.DataFrame:
    """Detection for reports: every signal by the curve and by the base branch, and beside rollouts by unseen draws."""
    rows = []
    for (data, judge, signal), group in found.groupby(["data", "judged_by", "signal"], sort=False):
        if judge.startswith("other") and signal in ("varentropy", "top-20 entropy", "1 − p"):
            continue
        row = {"data": data, "signal": signal, "judged by": judge}
        for cell in group.itertuples():
            row[f"forks at {cell.theta:.2f}"] = str(cell.forks)
            row[f"AUROC {cell.theta:.2f}"] = with_limits(cell.auroc, cell.auroc_low, cell.auroc_high, 2)
            row[f"AP {cell.theta:.2f}"] = with_limits(cell.ap, cell.ap_low, cell.ap_high, 2)
        rows.append(row)
    return pd.DataFrame(rows)


def shown_rules(ruled: pd.DataFrame) -> pd.DataFrame:
    """Rules for reports."""
    rows = []
    for cell in ruled.to_dict("records"):
        row = {
            "data": cell["data"], "rule": cell["rule"], "fires at": f"{100 * cell['fires']:.1f} %",
            "outcome variance at tokens skipped": with_limits(
                cell["skipped"], cell["skipped_low"], cell["skipped_high"], 2
            ),
        }  # fmt: skip
        for kind in ("AUROC", "precision", "recall"):
            for theta in THRESHOLDS if kind == "AUROC" else (SHOWN_THETA,):
                three = (cell[f"{kind.lower()}{end}@{theta:.2f}"] for end in ("", "_low", "_high"))
                row[f"{kind} {theta:.2f}"] = with_limits(*three, 2)
        rows.append(row)
    return pd.DataFrame(rows)


def shown_spending(spent: pd.DataFrame) -> pd.DataFrame:
    """Spending for reports: a row per run and scheme."""
    rows = []
    for (data, scheme), group in spent[spent["scheme"] != STRATIFIED].groupby(["data", "scheme"], sort=False):
        row = {"data": data, "draws placed by": scheme}
        for cell in group.itertuples():
            row[f"S_eff over stratified's, {cell.budget:g} draws per position"] = with_limits(
                cell.ratio, cell.low, cell.high, 2
            )
            row[f"tokens spent, {cell.budget:g}"] = f"{100 * cell.tokens_over_stratified:.0f} %"
        rows.append(row)
    return pd.DataFrame(rows)


def verdict(
    dataset: Dataset, tokens: pd.DataFrame, scores: pd.DataFrame, rules: pd.DataFrame, money: pd.DataFrame
) -> str:
    """What the numbers say: do signals find forks, what do rules skip, does spending by them pay."""
    few = len(dataset.questions) < FEW
    part = scores[(scores["theta"] == SHOWN_THETA)]
    full = part[part["judged_by"] == "full curve"].set_index("signal")
    chance = float(full["forks"].iloc[0] / full["tokens"].iloc[0])
    best = str(full["ap"].astype(float).idxmax())
    top = full.loc[best]
    above = bool(top["auroc_low"] > 0.5)
    head = (
        f"{len(dataset.questions)} questions cannot decide; " if few
        else "signals of the token alone find forks better than chance: " if above
        else "signals of the token alone do not find forks better than chance: "
    )  # fmt: skip
    says = [
        f"{head}the best, `{best}`, has AUROC {with_limits(top['auroc'], top['auroc_low'], top['auroc_high'], 2)} "
        f"and AP {with_limits(top['ap'], top['ap_low'], top['ap_high'], 2)} at θ={SHOWN_THETA} "
        f"(chance {number(chance, 2)}; {int(top['forks'])} forks)"
    ]
    moved = tokens["tv"] > SHOWN_THETA
    if moved.any() and not dataset.by_sentence:
        noise = float((tokens["doubt"] < SHOWN_THETA)[moved].mean())
        says.append(
            f"{100 * noise:.0f} % of those forks follow a token with 1 − p below θ, which by TV ≤ 1 − p "
            "can only be sampling noise"
        )
    branch = part[part["judged_by"] == "base branch"].set_index("signal")
    if len(branch):
        name = str(branch["ap"].astype(float).idxmax()) if branch["ap"].notna().any() else "entropy"
        cell = branch.loc[name]
        says.append(
            f"against the base branch, free of that noise, `{name}` has AUROC "
            f"{with_limits(cell['auroc'], cell['auroc_low'], cell['auroc_high'], 2)} and AP "
            f"{with_limits(cell['ap'], cell['ap_low'], cell['ap_high'], 2)} ({int(cell['forks'])} forks)"
        )
    unseen = part[part["judged_by"].str.startswith("other")].set_index("signal")
    auto, alone = unseen.loc[f"auto, S={SEEN}"], unseen.loc[best]
    says.append(
        f"`auto` from S={SEEN} rollouts has AP {with_limits(auto['ap'], auto['ap_low'], auto['ap_high'], 2)} where "
        f"`{best}` has {with_limits(alone['ap'], alone['ap_low'], alone['ap_high'], 2)} (judged by draws neither saw)"
    )
    listed = rules.set_index("rule")
    parts = [
        f"{rule} {100 * listed.loc[rule, 'skipped']:.0f} % (fires at {100 * listed.loc[rule, 'fires']:.1f} % of tokens)"
        for rule in RULES
        if np.isfinite(listed.loc[rule, "skipped"])
    ]
    says.append(f"outcome variance at tokens skipped: {', '.join(parts)}")
    others = money[money["scheme"] != STRATIFIED]
    if len(others):
        fair = others[others["tokens_over_stratified"] > FAIR]
        better, worse = fair[fair["low"] > 1], fair[fair["high"] < 1]
        names = ", ".join(
            f"{r.scheme} {with_limits(r.ratio, r.low, r.high, 2)}"
            for r in fair[fair["budget"] == BUDGETS[-1]].itertuples()
        )
        idle = sorted(set(others["scheme"]) - set(fair["scheme"]))
        unspent = f" ({', '.join(idle)}: too few tokens at which they fire to spend as much)" if idle else ""
        says.append(
            f"spending where a signal says beats `stratified` in {len(better)} and loses in {len(worse)} of "
            f"{len(fair)} comparisons; S_eff over its at {BUDGETS[-1]:g} draws per position: "
            f"{names or '–'}{unspent}"
        )
    else:
        says.append("spending cannot be replayed: step probabilities between its positions are unknown")
    return f"**{dataset.title}**: {'. '.join(s[0].upper() + s[1:] if i else s for i, s in enumerate(says))}."


def _draw_precision(ax: Axes, dataset: Dataset, tokens: pd.DataFrame) -> None:
    truth = (tokens["tv"] > SHOWN_THETA).to_numpy()
    if not truth.any():
        ax.text(0.5, 0.5, "no fork", ha="center", transform=ax.transAxes)
    else:
        unseen = (tokens["tv_unseen"] > SHOWN_THETA).to_numpy()
        for name, column in (
            *SCORES.items(), (f"auto, S={SEEN}", f"auto@{SHOWN_THETA:.2f}"), (f"full, S={SEEN}", "full"),
        ):  # fmt: skip
            target = truth if name in SCORES else unseen
            if not target.any():
                continue
            recall, precision = _curve(tokens[column].to_numpy(float), target)
            ax.plot(recall, precision, color=STYLES[name][0], lw=1.2, label=name, drawstyle="steps-post")
        ax.axhline(truth.mean(), color="0.5", lw=0.8, ls=":", label="chance")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel=f"recall of forks at θ={SHOWN_THETA}")
    ax.set_title(f"{dataset.title}, {int(truth.sum())} forks", fontsize=8, loc="left")


def _curve(score: FloatArray, truth: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Recall and precision at every distinct score, likeliest first."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(truth[order])
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    return hits[last] / truth.sum(), hits[last] / (last + 1)


def _draw_variance(ax: Axes, dataset: Dataset, tokens: pd.DataFrame, rules: pd.DataFrame) -> None:
    variance = tokens["variance"].to_numpy()
    total = variance.sum()
    share = np.arange(1, len(tokens) + 1) / len(tokens)
    for name, column in SCORES.items():
        order = np.argsort(-tokens[column].to_numpy(float), kind="stable")
        some = np.unique(
            np.linspace(0, len(order) - 1, 300).astype(int)
        )  # as many points as a figure can show
        ax.plot(
            share[some], (np.cumsum(variance[order]) / total)[some], color=STYLES[name][0], lw=1.2, label=name
        )
    listed = rules.set_index("rule")
    for rule, marker in zip(RULES, "os^Dv*", strict=True):
        ax.plot(
            listed.loc[rule, "fires"], 1 - listed.loc[rule, "skipped"], marker, color="#000000", ms=5, mfc="none",
            label=rule, ls="none", clip_on=False, zorder=5,
        )  # fmt: skip
    ax.plot([0, 1], [0, 1], ":", color="0.5", lw=0.8)
    ax.set(xlim=(0, 1.0), ylim=(min(0, ax.get_ylim()[0]), 1.05), xlabel="share of tokens taken")
    ax.set_title(f"{dataset.title}", fontsize=8, loc="left")


def _draw_spending(ax: Axes, dataset: Dataset, money: pd.DataFrame, named: bool) -> None:
    ax.set_title(dataset.title, fontsize=8, loc="left")
    part = money[(money["budget"] == BUDGETS[-1]) & (money["scheme"] != STRATIFIED)] if len(money) else money
    if part.empty:
        ax.text(
            0.5, 0.5, "step probabilities unknown:\nnot to be replayed", ha="center", va="center",
            transform=ax.transAxes, fontsize=8,
        )  # fmt: skip
        ax.set_axis_off()
        return
    colours = ["#0072B2" if r.tokens_over_stratified > FAIR else "#8a8a8a" for r in part.itertuples()]
    figures.bars(ax, list(part["scheme"]), part["ratio"], part["low"], part["high"], colours)
    if not named:
        ax.set_yticklabels([])
    # What was spent of the tokens stands at the right, outside the data.
    for y, spent in zip(range(len(part))[::-1], part["tokens_over_stratified"], strict=True):
        ax.annotate(
            f"{100 * spent:.0f} %", (1.0, y), xycoords=("axes fraction", "data"), xytext=(2, 0),
            textcoords="offset points", fontsize=6, va="center", color="0.35", annotation_clip=False,
        )  # fmt: skip
    ax.axvline(1, color="0.4", lw=0.8, ls=":")
    ax.set_xlabel(f"S_eff over stratified's, {BUDGETS[-1]:g} draws per position")
