"""The command line: every command, thin, no logic."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fpa.errors import FpaError, UsageError

if TYPE_CHECKING:
    from fpa.progress import CollectProgress
    from fpa.strategies.base import GuidedStrategy

app = typer.Typer(
    name="fpa",
    help="Forking Paths Analysis: how a language model's answer settles along its greedy response.\n\n"
    "Start with `fpa demo`. Then `fpa collect` your own questions, `fpa smooth` and `fpa forks` the run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

RunPath = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Samples = Annotated[int | None, typer.Option(help="Use the first S draws of each position; all by default.")]
Every = Annotated[int, typer.Option(min=1, help="Use every N-th of the sampled positions.")]
Method = Annotated[str, typer.Option(help="raw, kernel, segment, full, martingale, bayes or auto.")]


def below(most: float) -> Callable[[float], float]:
    """Takes distances that something can exceed: none is above ``most``."""

    def check(value: float) -> float:
        if not 0 <= value < most:
            raise typer.BadParameter(f"{value} is not at least 0 and below {most:.4g}")
        return value

    return check


Threshold = Annotated[float, typer.Option(callback=below(1), help="Least total variation of a fork.")]


def version(show: bool) -> None:
    """Print the version and stop."""
    if show:
        from importlib.metadata import version as of

        typer.echo(f"fpa {of('fpa')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command (``--debug`` is read by ``main``, wherever it stands)."""


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for the run, the figure and the report.")
    ] = Path("demo"),
    questions: Annotated[int, typer.Option(min=1, help="How many of the shipped questions.")] = 3,
    as_json: Json = False,
) -> None:
    """The whole pipeline on the embedded model, in minutes: collect, smooth, score, draw, report."""
    from fpa.demo import demo as run_demo
    from fpa.demo import score_view
    from fpa.engines import load_engine

    made = run_demo(
        lambda: load_engine("llamacpp", "demo"), folder, Collecting(folder, leave=True), questions
    )
    if as_json:
        emit(
            {
                "run": made.run,
                "figure": made.figure,
                "report": made.report,
                "scores": records(made.scores),
                "not_scored": made.not_scored,
            }
        )
    else:
        if made.scores is not None:
            show(score_view(made.scores), "against the shipped reference (S=200, every token)")
        for question_id, why in made.not_scored.items():
            say(f"{question_id} is not scored: {why}")
        say(f"run     {made.run}\nfigure  {made.figure}\nreport  {made.report}")
    stop_on_failures(made.summary.failures)


@app.command()
def collect(
    context_: typer.Context,
    folder: Annotated[
        Path | None, typer.Option("--out", help="The run directory; an unfinished one is resumed.")
    ] = None,
    questions: Annotated[str, typer.Option(help="demo, tinymmlu, or a JSONL, CSV or Parquet file.")] = "demo",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    model: Annotated[
        str, typer.Option(help="demo, or the model as the engine names it (a GGUF file).")
    ] = "demo",
    engine: Annotated[str, typer.Option(help="llamacpp (embedded), or another engine.")] = "llamacpp",
    strategy: Annotated[
        str,
        typer.Option(
            help="grid: free continuations. branches: each likely next token. stratified: divergences, placed "
            "by formula. adaptive: divergences in rounds, placed where they tell most. entropix: steered by "
            "entropy and varentropy. eager: from the prompt, splitting where the model is unsure (docs/entropy.md)."
        ),
    ] = "grid",
    every: Annotated[int, typer.Option(help="N: resample at every N-th token or sentence.")] = 1,
    unit: Annotated[str, typer.Option(help="token or sentence.")] = "token",
    samples: Annotated[int, typer.Option(help="S: continuations per position.")] = 20,
    budget: Annotated[
        int | None, typer.Option(help="adaptive: tokens to generate over all questions.")
    ] = None,
    target_error: Annotated[
        float | None, typer.Option(help="adaptive: stop at this mean half-width of the 90 % bands.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    base_tokens: Annotated[int, typer.Option(help="Most tokens of a base path.")] = 400,
    rollout_tokens: Annotated[int, typer.Option(help="Most new tokens of a continuation.")] = 400,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends a continuation; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other draws.")] = 0,
    top_k: Annotated[int, typer.Option(help="branches: likeliest next tokens to consider.")] = 10,
    min_p: Annotated[float, typer.Option(help="branches: least probability of a next token.")] = 0.05,
    readout: Annotated[
        bool, typer.Option(help="Read the answer from the model where a response names none.")
    ] = True,
    prompt: Annotated[
        str | None,
        typer.Option(help="Style of the prompt: published, plain, demo (default for the demo model)."),
    ] = None,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Store each continuation's text.")] = False,
    keep_ids: Annotated[
        bool, typer.Option("--keep-ids", help="Store each continuation's token ids.")
    ] = False,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of context per sequence.")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Continuations generated at once.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="llamacpp, transformers: CPU threads.")] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="A Jinja file in place of the model's own template; or r1-open, r1-plain: the R1 distillates', "
            "with <think> opened for the model or left to it."
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="llamacpp, vllm: the same seeds give the same ids, at lower speed."
        ),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="A collection of record: llama3-8b-tinymmlu or r1-distill-8b-tinymmlu. Options given beside it win."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="openai: base URLs of the servers, separated by commas.")
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE for the engine (docs/engines.md); repeatable. Values are JSON or text."),
    ] = None,
    strategy_option: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=VALUE for the strategy (docs/entropy.md); repeatable. Values are JSON or text."
        ),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Spread over Ray: local, auto, or the address of a cluster.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="--ray: engines; as many as fit.")] = None,
    gpus: Annotated[float, typer.Option(min=0, help="--ray: GPUs of one engine.")] = 0.0,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Say what it would cost, after a short probe, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Collect rollouts into a run directory; the same command again resumes it.

    Example: `fpa collect --questions mine.jsonl --every 4 --samples 30 --out runs/mine`
    """
    from fpa.collect import collect as run_collect
    from fpa.engines import check_engine, load_engine
    from fpa.plan import plan
    from fpa.prompts import prompt_style
    from fpa.questions import load_questions
    from fpa.settings import Settings
    from fpa.strategies import steers
    from fpa.strategies import strategy as check_strategy
    from fpa.strategies.base import GuidedStrategy
    from fpa.streams import check_streams

    if folder is None and not plan_only:
        raise UsageError("--out is missing: name the folder for the run (or ask for --plan)")
    chosen = None
    if preset is not None:
        from fpa.presets import preset as find_preset

        chosen = find_preset(preset)
    if engine == "openai" and model == "demo":
        model = "served"
    settings = Settings(
        strategy=strategy, every=every, unit=unit, samples=samples, temperature=temperature,
        base_tokens=base_tokens, rollout_tokens=rollout_tokens, stop=tuple(stop or ()), seed=seed,
        top_k=top_k, min_p=min_p, budget=budget, target_error=target_error, readout=readout,
        prompt=prompt or ("demo" if model == "demo" else "published"),
        keep_text=keep_text, keep_ids=keep_ids,
        options=parse_options(strategy_option or (), "--strategy-option"),
    )  # fmt: skip
    default = partial(is_default, context_)
    if chosen is not None:
        held = {name: getattr(chosen.settings, name) for name in PRESET_SETTINGS if default(name)}
        settings = replace(settings, **held)
        questions = chosen.questions if default("questions") else questions
        model = chosen.model if default("model") else model
        if default("engine"):
            engine = "transformers" if settings.strategy == "eager" else "vllm"
    published = {k: v for k, v in PUBLISHED.get(settings.strategy, {}).items() if default(k)}
    settings = replace(settings, **published)
    refuse_strangers(context_, settings.strategy, ray is not None)
    guided = check_strategy(settings.strategy, settings.options)
    prompt_style(settings.prompt)
    given = {"context": context, "parallel": parallel, "threads": threads}
    engine_options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if chat_template is not None:
        engine_options["chat_template"] = read_template(chat_template)
    if deterministic:
        engine_options["deterministic"] = True
    if url is not None:
        engine_options["url"] = url
    if chosen is not None:
        engine_options = {**chosen.engine_options(), **engine_options}
    if engine == "vllm" and steers(settings.strategy):
        engine_options["steerable"] = True
    engine_options.update(parse_options(engine_option or ()))
    check_engine(engine, engine_options)
    if isinstance(guided, GuidedStrategy):
        refuse_unsteerable(guided, engine, ray is not None)
    # What the release took says nothing of another model: that one is probed.
    if chosen is not None and model == chosen.model:
        if plan_only:
            count = chosen.count(questions, limit)
            check_streams(settings, count, engine)
            show_cost(chosen.cost(count, settings), as_json)
            return
        if engine in ("vllm", "transformers"):
            chosen.check_access()
    question_set = load_questions(questions, limit=limit)
    check_streams(settings, len(question_set.questions), engine)
    if ray is None:
        opened = load_engine(engine, model, **engine_options)
    else:
        from fpa.cluster import RayEngine

        opened = RayEngine(
            engine, model, engine_options, address=None if ray == "local" else ray, workers=workers, gpus=gpus
        )
    with opened as loaded:
        leave = engine == "llamacpp" and ray is None
        if plan_only:
            with Stopping("stopped; nothing was stored", leave):
                planned = plan(settings, loaded, question_set)
            show_plan(planned, as_json)
            return
        assert folder is not None
        with Collecting(folder, leave) as progress:
            summary = run_collect(settings, loaded, question_set, folder, progress)
    spent = summary.spent
    if as_json:
        emit({"run": summary.path, "spent": vars(spent), "failures": summary.failures})
    else:
        say(
            f"{summary.path}: {spent.continuations} continuations, {spent.generated_tokens:,} tokens "
            f"in {spent.seconds:.0f} s"
        )
    stop_on_failures(summary.failures)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="Folder with released rollouts (*.json.gz).")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs, one per track and S.")],
    as_json: Json = False,
) -> None:
    """Import the published rollout stores into run directories."""
    from fpa.published import import_published

    report = import_published(source, folder)
    if as_json:
        emit(report)
    else:
        for path, imported in report.runs.items():
            say(f"{path}: {len(imported)} questions")
    for file, reason in report.skipped.items():
        err.print(f"skipped {file}: {reason}", markup=False, soft_wrap=True)
    if report.skipped:
        raise typer.Exit(1)


@app.command()
def smooth(
    run: RunPath,
    method: Method = "auto",
    samples: Samples = None,
    every: Every = 1,
    replicate: Annotated[int, typer.Option(min=0, help="Which set of S draws.")] = 0,
    cost: Annotated[
        str | None, typer.Option(help="full: multinomial, logit_linear or l2; tuned if absent.")
    ] = None,
    penalty: Annotated[float | None, typer.Option(help="full, segment: penalty per segment.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="full, kernel: width of the kernel in tokens.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Spread over Ray: local, auto, or the address of a cluster.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Smooth every question's curve and write RUN/curves/METHOD.parquet (p, and a 90 % band)."""
    from fpa.curves import Smoothed, smooth_run
    from fpa.run import open_run

    given = {"cost": cost, "penalty": penalty, "bandwidth": bandwidth}
    rows: list[dict[str, Any]] = []

    def keep(smoothed: Smoothed) -> None:
        rows.append(
            {
                "question": smoothed.question_id,
                "tokens": len(smoothed.observations.grid),
                "sampled": len(smoothed.observations.positions),
                "segments": len(smoothed.fit.breakpoints),
                "hyperparameters": smoothed.fit.hyperparameters,
                "half_width": float((smoothed.hi - smoothed.lo).mean() / 2),
            }
        )

    opened = open_run(run)
    fixed = {k: v for k, v in given.items() if v is not None} or None
    if ray is None:
        name = smooth_run(opened, method, samples, every, replicate, fixed, keep)
    else:
        from fpa.cluster import smooth_run as smooth_on_ray

        address = None if ray == "local" else ray
        name = smooth_on_ray(opened, method, samples, every, replicate, fixed, keep, address=address)
    written = opened.path / "curves" / f"{name}.parquet"
    if as_json:
        emit({"curves": written, "questions": rows})
        return
    table = Table(*("question", "tokens", "sampled", "segments", "hyper-parameters", "±band"), box=None)
    for row in rows:
        chosen = ", ".join(f"{k} {_short(v)}" for k, v in row["hyperparameters"].items())
        table.add_row(
            row["question"], str(row["tokens"]), str(row["sampled"]), str(row["segments"]), chosen,
            f"{row['half_width']:.3f}",
        )  # fmt: skip
    put(table)
    say(f"curves  {written}")


@app.command()
def forks(
    context_: typer.Context,
    run: RunPath,
    method: Method = "auto",
    threshold: Threshold = 0.15,
    samples: Samples = None,
    every: Every = 1,
    survival: Annotated[
        bool,
        typer.Option(
            "--survival",
            help="Also write RUN/survival/METHOD.parquet: the chance, by position, that no alternate token has "
            "changed the outcome yet.",
        ),
    ] = False,
    survival_threshold: Annotated[
        float,
        typer.Option(
            callback=below(math.sqrt(2)),
            help="Euclidean distance between outcome distributions that counts as changed.",
        ),
    ] = 0.6,
    as_json: Json = False,
) -> None:
    """The forking tokens of every question, in context; writes RUN/forks/METHOD.parquet."""
    import pandas as pd

    from fpa.curves import collected, curve_name, fork_table, smooth_question
    from fpa.run import open_run
    from fpa.survival import survival_table

    if not survival and not is_default(context_, "survival_threshold"):
        raise UsageError("--survival-threshold belongs to --survival: give that too, or leave it out")
    opened = open_run(run)
    curves = [smooth_question(opened, q, method, samples, every) for q in collected(opened)]
    found = pd.concat([fork_table(opened, curve, threshold) for curve in curves], ignore_index=True)
    name = curve_name(method, samples, every)
    made = {"forks": opened.save_forks(name, found)}
    if survival:
        surviving = [survival_table(opened, curve, survival_threshold) for curve in curves]
        made["survival"] = opened.save_survival(name, pd.concat(surviving, ignore_index=True))
    if as_json:
        emit({**made, "found": records(found)})
        return
    table = Table("question", "t", "token in context", "change", "outcome", "instead", box=None)
    for row in found.to_dict("records"):
        instead = ", ".join(f"{token_text!r} {p:.0%}" for token_text, p in row["alternatives"])
        table.add_row(
            row["question_id"],
            str(row["t"]),
            _plain(row["context"]),
            f"{row['tv']:.2f}",
            f"{row['before']} {row['p_before']:.0%} → {row['after']} {row['p_after']:.0%}",
            _plain(instead),
        )
    if len(found):
        put(table)
    else:
        say(f"no change of {threshold} or more")
    for what, written in made.items():
        say(f"{what}  {written}")


@app.command()
def score(
    run: RunPath,
    reference: Annotated[
        Path | None, typer.Option(help="A densely sampled run; by default the same run's other draws.")
    ] = None,
    samples: Annotated[list[int] | None, typer.Option(help="S, repeatable.")] = None,
    every: Annotated[list[int] | None, typer.Option(help="N, repeatable.")] = None,
    replicates: Annotated[int, typer.Option(min=1, help="Disjoint sets of draws per question.")] = 4,
    method: Annotated[list[str] | None, typer.Option(help="Smoothers, repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Also write the table to this Parquet file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score smoothers against a reference: error, likelihood, coverage, forks, and the price of each cell."""
    from fpa.run import open_run
    from fpa.score import score as run_score

    table = run_score(
        open_run(run),
        None if reference is None else open_run(reference),
        samples=samples or None,
        every=tuple(every or (1,)),
        replicates=replicates,
        methods=tuple(method or ("raw", "full", "auto")),
        workers=workers,
    )
    if folder is not None:
        write_parquet(table, folder)
    if as_json:
        emit(records(table))
        return
    columns = {
        "method": "method", "samples": "S", "every": "N", "tv": "TV", "tv_jump@0.15": "TV at forks",
        "heldout_loglik": "log-lik.", "coverage": "covers", "coverage_predictive": "covers (pred.)",
        "multiplier": "multiplier", "s_eff": "S_eff", "s_eff_se": "±", "fork_f1@0.15": "fork F1",
        "continuations": "continuations", "generated_tokens": "tokens",
    }  # fmt: skip
    show(table[[c for c in columns if c in table]].rename(columns=columns))


@app.command()
def check(run: RunPath, as_json: Json = False) -> None:
    """Test the martingale identity on a run: draws that stay on the base path against the next position's."""
    from fpa.check import check as run_check
    from fpa.run import open_run

    found, _ = run_check(open_run(run))
    if as_json:
        emit(found)
        return
    say(
        f"pairs of positions      {found.pairs}\n"
        f"outcomes                TV {found.tv:.3f} where noise alone gives {found.tv_expected:.3f}; "
        f"p-values uniform: p = {found.p_outcomes:.2g}\n"
        f"stayed on the path      {found.stayed:,} where the probabilities say {found.stayed_expected:,.0f} "
        f"(p = {found.p_stay:.2g}, mean difference {found.bias:+.3f})"
    )


@app.command("pass")
def pass_(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)],
    k: Annotated[
        int | None, typer.Option(min=1, help="Sequences of Pass@k; all of a question's by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How often the sequences from the prompt are right: Pass@k, Cons@k, pass rate, and what they cost.

    Compares runs of strategy eager with each other, and with a run of as many free continuations.
    """
    from fpa.passes import passes, summary
    from fpa.run import open_run

    found = summary([(str(path), passes(open_run(path), k)) for path in runs])
    if as_json:
        emit(records(found))
        return
    table = Table("run", "questions", "Pass@k", "Cons@k", "pass rate", "sequences", "tokens", box=None)
    for row in records(found):
        shares = (
            f"{row[m]:.2f} [{row[m + '_lo']:.2f}, {row[m + '_hi']:.2f}]"
            for m in ("pass", "consensus", "pass_rate")
        )
        table.add_row(
            row["run"],
            str(row["questions"]),
            *shares,
            f"{row['sequences']:.1f}",
            f"{row['tokens']:,.0f}",
        )
    put(table)
    say("means over questions, 95 % intervals over questions")


@app.command()
def plot(
    run: RunPath,
    question: Annotated[str, typer.Argument(help="A question id.")],
    method: Method = "auto",
    reference: Annotated[Path | None, typer.Option(help="A densely sampled run to show beside it.")] = None,
    threshold: Threshold = 0.15,
    samples: Samples = None,
    every: Every = 1,
    folder: Annotated[
        Path | None, typer.Option("--out", help="A .pdf, .svg or .png file; QUESTION.pdf by default.")
    ] = None,
) -> None:
    """Draw one question: outcome curves with bands, raw shares, forks and a reference."""
    from fpa.curves import fork_table, smooth_question
    from fpa.labels import draws_text, reference_text
    from fpa.plot import Panel, Reference, draw, marks, save
    from fpa.run import open_run

    opened = open_run(run)
    smoothed = smooth_question(opened, question, method, samples, every)
    found = fork_table(opened, smoothed, threshold)
    dense = None
    if reference is not None:
        other = open_run(reference)
        positions, curve, _ = other.curve(question)
        dense = Reference(positions, curve, reference_text(other, question))
    target = folder or Path(f"{question.replace('/', '_')}.pdf")
    if target.suffix not in (".pdf", ".svg", ".png"):
        raise UsageError(f"--out must end in .pdf, .svg or .png, got {target}")
    drawn = draws_text(opened, question, samples, every)
    panel = Panel(smoothed, drawn, marks(found), dense, question, opened.question(question).answer)
    save(draw([[panel]]), target)
    say(str(target))


@app.command()
def explore(
    run: RunPath,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the pages.")] = Path("site"),
    reference: Annotated[Path | None, typer.Option(help="A densely sampled run to show beside it.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Smoothers, repeatable; the first in front.")
    ] = None,
    samples: Annotated[
        list[int] | None, typer.Option(min=1, help="S that the slider offers besides all draws, repeatable.")
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option(min=1, help="N that the slider offers besides 1, repeatable.")
    ] = None,
    threshold: Threshold = 0.15,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve the pages on this machine.")] = False,
    port: Annotated[int, typer.Option(help="Port for --serve.")] = 8000,
) -> None:
    """Write the run as static pages that open in a browser from disk, without a server or a network."""
    from fpa.explore import explore as build
    from fpa.explore import serve as serve_pages
    from fpa.progress import CountProgress

    with CountProgress(err, "building pages", "questions") as progress:
        page = build(
            run, folder, reference, method or None,
            samples=samples or None, every=every or None, threshold=threshold, progress=progress,
        )  # fmt: skip
    say(str(page))
    if serve:
        serve_pages(folder, port)


@app.command("convert-demo")
def convert_demo(
    folder: Annotated[Path, typer.Argument(help="Folder for the model; must not exist yet.")],
    gguf: Annotated[
        Path | None, typer.Option(help="Another GGUF file than the demo model's.", show_default=False)
    ] = None,
) -> None:
    """Write the demo model (or a GGUF file) in Hugging Face's form, in float32, for vllm and transformers."""
    from fpa.engines.convert import gguf_to_hub
    from fpa.engines.llamacpp import demo_model

    say(str(gguf_to_hub(gguf or demo_model(), folder)))


# --- printing and errors


def say(text: str) -> None:
    """Plain text on standard output, never wrapped or styled."""
    out.print(text, markup=False, soft_wrap=True)


def emit(value: Any) -> None:
    """One JSON document on standard output; NaN and infinities become null."""
    from fpa.store import plain

    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def records(table: Any) -> Any:
    """A data frame as plain rows; None stays None."""
    return None if table is None else table.to_dict("records")


def show(frame: Any, title: str | None = None) -> None:
    """A data frame as a table."""
    table = Table(*frame.columns, box=None, title=title, title_justify="left")
    for row in frame.itertuples(index=False):
        table.add_row(*(_plain(_short(value)) for value in row))
    put(table)


def put(table: Table) -> None:
    """A table as wide as it needs: cut-off numbers help nobody, and terminals can wrap or scroll."""
    Console(highlight=False, width=max(out.width, 240)).print(table)


PRESET_SETTINGS = (
    "strategy", "every", "unit", "samples", "temperature", "base_tokens", "rollout_tokens", "top_k", "min_p", "prompt",
)  # fmt: skip


STRATEGY_OPTIONS = {
    "budget": ("adaptive",),
    "target_error": ("adaptive",),
    "top_k": ("branches",),
    "min_p": ("branches",),
}
UNUSED = {"adaptive": ("every", "unit", "samples"), "eager": ("every", "unit")}
PUBLISHED: dict[str, dict[str, Any]] = {"eager": {"samples": 32, "temperature": 0.6}}
"""Options that a strategy's authors set otherwise than is usual here; options given win."""
RAY_OPTIONS = ("workers", "gpus")


def refuse_strangers(context: typer.Context, strategy: str, ray: bool) -> None:
    """An option that would have no effect is a mistake: say what it belongs to.

    Options that an engine lacks are refused by ``fpa.engines.load_engine``.
    """
    for name, strategies in STRATEGY_OPTIONS.items():
        if strategy not in strategies and not is_default(context, name):
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to --strategy {', '.join(strategies)}; "
                f"with {strategy} it has no effect"
            )
    for name in UNUSED.get(strategy, ()):
        if not is_default(context, name):
            raise UsageError(
                f"--{name} has no effect with --strategy {strategy}, which places its draws itself: leave it out"
            )
    for name in RAY_OPTIONS:
        if not ray and not is_default(context, name):
            raise UsageError(f"--{name} belongs to --ray: give that too, or leave it out")


def refuse_unsteerable(strategy: GuidedStrategy, engine: str, ray: bool) -> None:
    """Say before a model is loaded that the engine cannot do what the strategy needs.

    Where the engine's package is missing nothing is known of it: loading it says so.
    """
    from fpa.engines import engine_class
    from fpa.engines.base import EngineError

    if ray:
        from fpa.cluster import RayEngine

        strategy.check_engine(RayEngine, f"{engine} over Ray")
    with suppress(EngineError):
        strategy.check_engine(engine_class(engine), engine)


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option of the command was left out."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def parse_options(given: Sequence[str], name: str = "--engine-option") -> dict[str, Any]:
    """``KEY=VALUE`` pairs, values as JSON where they are."""
    options: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{name} takes KEY=VALUE, got {pair!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def show_cost(cost: Any, as_json: bool) -> None:
    """A preset's cost as lines or JSON."""
    if as_json:
        emit(cost)
        return
    say(
        f"questions       {cost.questions}\n"
        f"positions       {cost.positions:,}\n"
        f"continuations   {cost.continuations:,}\n"
        f"tokens          {cost.generated_tokens:,}\n"
        f"GPU time        about {cost.gpu_hours:,.1f} GPU-hours at {cost.tokens_per_second:,.0f} tokens/s, "
        "the speed of the published collection"
    )


def show_plan(planned: Any, as_json: bool) -> None:
    """The plan as lines or JSON."""
    from fpa.plan import lasts

    if as_json:
        emit(planned)
        return
    say(
        f"questions       {planned.questions} (probed {planned.probed})\n"
        f"base path       {planned.mean_base_tokens:.0f} tokens on average\n"
        f"positions       {planned.positions:,}\n"
        f"continuations   {planned.continuations:,} of {planned.mean_continuation_tokens:.0f} tokens on average\n"
        f"tokens          {planned.generated_tokens:,}\n"
        f"time            about {lasts(planned.seconds)} at {planned.tokens_per_second:,.0f} tokens/s"
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        if value != value:
            return "–"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text.replace("\n", "⏎"))


def read_template(name: str) -> str:
    """A chat template of ours, or the file that the user named."""
    from fpa.engines.templates import check_template
    from fpa.presets import TEMPLATES

    if name in TEMPLATES:
        return TEMPLATES[name]
    try:
        template = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--chat-template {name} cannot be read ({error}): give a file, or one of {', '.join(TEMPLATES)}"
        ) from error
    check_template(template)
    return template


def write_parquet(table: Any, path: Path) -> None:
    """Write a table whole or not at all."""
    from fpa.parts import replacing

    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False)


def stop_on_failures(failures: dict[str, str]) -> None:
    """Exit with 1 when some questions failed; each was named when it did."""
    if failures:
        err.print(
            f"{len(failures)} question{'s' * (len(failures) > 1)} failed: {', '.join(list(failures)[:5])}; "
            "mend what is named above, then run the same command again to retry only these",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)


class Stopping:
    """Work with an engine, which Ctrl-C and SIGTERM end with a line.

    With ``leave`` the process ends there and then: freeing an embedded llama.cpp waits without end for requests
    that nobody will read.
    """

    def __init__(self, line: str, leave: bool) -> None:
        self.line, self.leave = line, leave

    def __enter__(self) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            err.print(self.line, markup=False, soft_wrap=True)
            if self.leave:
                os._exit(130)


class Collecting:
    """Progress of a collection, which Ctrl-C and SIGTERM end as ``Stopping`` does, saying how to go on."""

    def __init__(self, folder: Path, leave: bool) -> None:
        line = f"stopped; what was finished is in {folder}: run the same command again to resume"
        self.stopping = Stopping(line, leave)

    def __enter__(self) -> CollectProgress:
        from fpa.progress import CollectProgress

        self.stopping.__enter__()
        self.progress = CollectProgress(err)
        return self.progress.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)
        self.stopping.__exit__(kind, error, trace)


REDO = "; run the command that made it again, which sets the file aside and redoes it"


def main() -> None:
    """Run the command line; errors become one line on standard error and an exit code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        arguments = [a for a in arguments if a != "--debug"]
    try:
        code = app(args=arguments, prog_name="fpa", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except UsageError as error:
        code = _fail(str(error), 2, debug)
    except FpaError as error:
        told = "" if type(error).__name__ != "DamagedPart" else REDO
        code = _fail(f"{error}{told}", 1, debug)
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong usage, by whichever click typer is built on
            code = _usage(error)
        elif type(error).__name__ == "Abort":
            code = 130
        elif debug:
            raise
        else:
            code = _fail(
                f"unexpected {type(error).__name__}: {error}; run again with --debug for the details", 1
            )
    sys.stdout.flush()
    # Threads that still wait for the engine must not hold the process back.
    if code == 130:
        os._exit(code)
    sys.exit(code)


def _usage(error: Any) -> int:
    """One line for a mistake on the command line; the help itself where no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2  # typer has shown the help
    command = error.ctx.command_path if getattr(error, "ctx", None) else "fpa"
    return _fail(f"{command}: {error.format_message()} (see {command} --help)", 2)


def _fail(message: str, code: int, debug: bool = False) -> int:
    if debug:
        err.print_exception()
    err.print(f"error: {message}", markup=False, soft_wrap=True)
    return code
