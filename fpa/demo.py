"""``fpa demo``: the whole pipeline on the embedded model, from questions to a figure and a report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from fpa.collect import Progress, Silent, Summary, collect
from fpa.curves import Smoothed, collected, curve_table, fork_table, smooth_question
from fpa.data import data_path
from fpa.engines.base import Engine
from fpa.labels import draws_text, reference_text
from fpa.plot import Panel, Reference, draw, marks, save
from fpa.questions import load_questions
from fpa.report import QuestionReport, write_report
from fpa.run import Run, open_run
from fpa.score import score
from fpa.settings import Settings

METHODS = ("full", "auto")  # the published Full Model, and this project's own
QUESTIONS = 3
SETTINGS = Settings(
    every=4, samples=20, temperature=0.8, base_tokens=48, rollout_tokens=48, prompt="demo", keep_text=True
)

_SCORED = (
    "Against the shipped reference: 200 continuations from every token, other seeds. TV is the mean total variation "
    "(lower is better); S_eff is the number of independent draws per position that would be as accurate."
)


@dataclass(frozen=True)
class Demo:
    """What the demo made; ``not_scored`` says of questions without scores why they have none."""

    summary: Summary
    run: Path
    figure: Path
    report: Path
    scores: pd.DataFrame | None
    not_scored: dict[str, str]


def reference_settings() -> Settings:
    """How the shipped reference was collected: every token, S=200, other seeds than the demo's."""
    return replace(SETTINGS, every=1, samples=200, seed=1, keep_text=False)


def demo(
    engine_of: Callable[[], Engine],
    out: Path,
    watch: AbstractContextManager[Progress] | None = None,
    questions: int = QUESTIONS,
) -> Demo:
    """Collect the demo questions, smooth, score against the shipped S=200 reference, draw, report.

    Args:
        engine_of: loads the engine.
        out: folder for the run, the figure and the report; an interrupted demo resumes there.
        watch: entered while continuations are collected; who is told how far it is.
        questions: how many of the shipped questions.
    """
    question_set = load_questions("demo", limit=questions)
    with engine_of() as engine, watch or nullcontext(Silent()) as progress:
        summary = collect(SETTINGS, engine, question_set, out / "run", progress)
    run = open_run(out / "run")
    reference = open_run(data_path("reference"))
    smoothed = {(q, m): smooth_question(run, q, m) for q in collected(run) for m in METHODS}
    forks = {key: fork_table(run, s) for key, s in smoothed.items()}
    for method in METHODS:
        ours = [key for key in smoothed if key[1] == method]
        run.save_curves(method, pd.concat([curve_table(smoothed[k]) for k in ours], ignore_index=True))
        run.save_forks(method, pd.concat([forks[k] for k in ours], ignore_index=True))

    not_scored = {q: why for q in run.collected_ids if (why := _incomparable(run, reference, q))}
    comparable = [q for q in run.collected_ids if q not in not_scored]
    scores = None
    if comparable:
        scores = score(
            run, reference, samples=[SETTINGS.samples], methods=("raw", *METHODS), questions=comparable
        )
    figure = out / "demo.png"
    panels = [
        [_panel(run, smoothed[q, m], forks[q, m], reference if q in comparable else None) for m in METHODS]
        for q in run.collected_ids
    ]
    save(draw(panels), figure)
    report = out / "report.html"
    write_report(
        report,
        "Forking paths of a small model",
        f"{run.manifest['engine']['model']}, {len(panels)} questions, {SETTINGS.samples} continuations from every "
        f"{SETTINGS.every}th token; smoothed with the published Full Model (full) and with this project's own "
        "estimator (auto), whose forks are marked below.",
        figure,
        [_question_report(run, q, forks[q, METHODS[-1]]) for q in run.collected_ids],
        None if scores is None else score_view(scores),
        " ".join(
            [_SCORED] * (scores is not None) + [f"{q} is not scored: {why}." for q, why in not_scored.items()]
        ),
    )
    return Demo(summary, run.path, figure, report, scores, not_scored)


def score_view(scores: pd.DataFrame) -> pd.DataFrame:
    """The few columns of a score table that a reader wants first, as text."""
    return pd.DataFrame(
        {
            "method": scores["method"],
            "TV": scores["tv"].map("{:.3f}".format),
            "S_eff": scores["s_eff"].map("{:.1f}".format),
            "log-likelihood": scores["heldout_loglik"].map("{:.3f}".format),
            "band covers": scores["coverage_predictive"].map("{:.0%}".format),
            "continuations": scores["continuations"].map("{:.0f}".format),
            "tokens": scores["generated_tokens"].map("{:.0f}".format),
        }
    )


def _incomparable(run: Run, reference: Run, question_id: str) -> str | None:
    """Why a question cannot be scored; None where it can."""
    if question_id not in reference.collected_ids:
        return "the shipped reference does not hold it"
    ours, theirs = (r.base(question_id).token_ids for r in (run, reference))
    if ours == theirs:
        return None
    at = next(
        (t for t, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(map(len, (ours, theirs))),
    )
    return f"its base path leaves the reference's at token {at}, as sums that round otherwise can make it do"


def _panel(run: Run, smoothed: Smoothed, forks: pd.DataFrame, reference: Run | None) -> Panel:
    question = run.question(smoothed.question_id)
    dense = None
    if reference is not None:
        positions, curve, _ = reference.curve(smoothed.question_id)
        dense = Reference(positions, curve, reference_text(reference, smoothed.question_id))
    return Panel(
        smoothed,
        draws_text(run, smoothed.question_id),
        marks(forks),
        dense,
        smoothed.question_id,
        question.answer,
    )


def _question_report(run: Run, question_id: str, forks: pd.DataFrame) -> QuestionReport:
    question, base = run.question(question_id), run.base(question_id)
    at = {t - 1 for t in forks["t"]}  # the tokens that changed the outcome
    return QuestionReport(
        title=question_id,
        text=question.question,
        choices=[f"{c}) {text}" for c, text in zip(question.categories, question.choices, strict=False)],
        answer=question.answer,
        outcome=base.answer.outcome,
        tokens=[(text, t in at) for t, text in enumerate(base.token_texts)],
        forks=[{str(k): v for k, v in fork.items()} for fork in forks.to_dict("records")],
    )
