"""What the pages show of one question, computed from a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.draws import Draws
from fpa.eager import THETA, branch_points
from fpa.entropix import LETTERS, FourStateRules, ThresholdRules, four_state, threshold_state
from fpa.errors import UsageError
from fpa.explore.alternatives import COLUMNS, Alternative, alternatives
from fpa.explore.pack import SCALE, columns, deltas, quantised, rounded
from fpa.records import BasePath, Question
from fpa.run import Run
from fpa.schemas import base_from_table
from fpa.score import change_scores
from fpa.signals import entropy
from fpa.store import question_key
from fpa.strategies import strategy
from fpa.strategies.eager import CALIBRATED_ON, Eager
from fpa.strategies.entropix import Entropix
from smoothing import MODELS, fit
from smoothing.metrics import jumps, total_variation

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SAMPLES = (5, 10, 30, 100)
"""Draws per position that the slider offers, where the run has more; all of them are offered besides."""
FEW_SAMPLES = (1, 2, 5)
EVERY = (1, 2, 4, 8, 16)
SPARK = 48
"""Points of a small multiple."""
EXCERPT = 180
BEGINNING = 14


@dataclass(frozen=True)
class Options:
    """What is computed for every question.

    Attributes:
        methods: names of models, the one shown first in front.
        samples, every: what the sliders offer; samples as in ``SAMPLES`` when None.
        threshold: total variation of a fork.
        level: of the bands.
        examples: rollouts to read per next token.
    """

    methods: tuple[str, ...]
    samples: tuple[int, ...] | None = None
    every: tuple[int, ...] = EVERY
    threshold: float = 0.15
    level: float = 0.9
    examples: int = 3

    def __post_init__(self) -> None:
        """Refuse what could not be computed, before anything is."""
        unknown = [name for name in self.methods if name not in MODELS]
        if unknown or not self.methods:
            raise UsageError(
                f"unknown method {unknown[0]!r}; known: {', '.join(MODELS)}" if unknown else "name a method"
            )
        if any(s < 1 for s in self.samples or ()) or any(n < 1 for n in self.every) or not self.every:
            raise UsageError("samples and every must be at least 1")
        if not 0 < self.threshold < 1 or not 0 < self.level < 1:
            raise UsageError("threshold and level must lie between 0 and 1")


@dataclass(frozen=True)
class View:
    """One question's data for the pages, each part loaded when it is needed.

    Attributes:
        key: the question's name in file names and addresses.
        row: its row in the overview.
        card: its excerpt and small multiple.
        core: its page; None where there is no base path yet.
        cells: the reduced runs behind the sliders.
        texts: rollouts to read, by position and place among the next tokens.
    """

    key: str
    row: dict[str, Any]
    card: dict[str, Any]
    core: dict[str, Any] | None = None
    cells: dict[str, Any] | None = None
    texts: dict[str, Any] | None = None


def build_view(
    run: Run, reference: Run | None, question_id: str, options: Options, vocabulary: Mapping[int, str]
) -> View:
    """Everything the pages show of one question, finished or not.

    Args:
        run: where it is.
        reference: a run of the same base paths to compare with, or None.
        question_id: which question.
        options: what to compute.
        vocabulary: texts of token ids, as far as they are known.

    Raises:
        UsageError: the reference has another base path.
    """
    question = run.question(question_id)
    key = question_key(question_id)
    card: dict[str, Any] = {"text": _excerpt(question.question), "categories": list(question.categories)}
    row: dict[str, Any] = {
        "key": key,
        "id": question_id,
        "subject": question.subject,
        "answer": question.answer,
        "failure": run.failures.get(question_id),
    }
    core: dict[str, Any] = {
        "id": question_id,
        "question": question.question,
        "choices": list(question.choices),
        "answer": question.answer,
        "subject": question.subject,
        "categories": list(question.categories),
    }
    try:
        table = run.base_table(question_id)
    except UsageError:  # not collected yet
        return View(key, row, card, core)
    base = base_from_table(table)
    core |= _path(base, table["p"].to_numpy(zero_copy_only=False))
    core |= _rules(run, base)
    row |= {"base": base.answer.outcome, "tokens": len(base.token_ids)}

    has_texts = bool(options.examples) and bool(run.config.get("keep_text", False))
    rollouts = run.rollouts(question_id, [*COLUMNS, "parent", "states", *(["text"] if has_texts else [])])
    told = bool(run.config.get("divergence_recorded", True))
    # What split from another rollout is no draw of its own; without a curve to draw it is there to be read.
    own = rollouts[rollouts["parent"].isna()] if run.has_curve else rollouts
    nexts = alternatives(own, base, question.categories, told, options.examples if has_texts else 0)
    texts = {
        f"{t}/{i}": [[e.outcome, e.status, e.text, int(e.cut), int(e.whole), e.states] for e in a.examples]
        for t, here in nexts.items()
        for i, a in enumerate(here)
        if a.examples
    }
    core["next"] = {
        str(t): [_next_token(a, _token_text(a, base, t, vocabulary)) for a in here]
        for t, here in nexts.items()
    }
    core["texts"] = bool(texts)
    core["spent"] = row["spent"] = int(rollouts["n_tokens"].sum())
    core["rollouts"] = row["rollouts"] = len(rollouts)
    core["drawn"] = dict(Counter("".join(rollouts["states"].dropna())))
    core["statuses"] = {k: int(n) for k, n in rollouts["status"].value_counts(sort=False).items()}
    core["reference"] = _reference(reference, base, question)
    if not run.has_curve:
        return View(key, row, card, core, None, texts or None)

    draws = run.draws(question_id)
    grid = draws.default_grid()
    if not draws.continuations or not len(grid):
        return View(key, row, card, core, None, texts or None)
    sizes, strides = _sizes(draws, options)
    cells = {
        f"{'all' if s is None else s}/{n}": _cell(draws.select(s, n), grid, options)
        for s, n in product(sizes, strides)
    }
    core |= {
        "grid": deltas(grid),
        "positions": deltas(draws.positions),
        "sizes": ["all" if s is None else s for s in sizes],
        "strides": list(strides),
        "draws": _held(draws),
        "forced": len(draws.forced),
        "full": cells["all/1"],
    }
    # As the page draws it, so that its forks and the overview's are the same ones.
    front = np.cumsum(cells["all/1"]["curves"][_front(cells["all/1"], options)]["p"], axis=1).T / SCALE
    row |= _figures(front, grid, question, options.threshold)
    card["spark"] = _spark(front, grid, len(base.token_ids))
    card["forks"] = rounded(grid[jumps(front, options.threshold)] / len(base.token_ids), 3)
    return View(key, row, card, core, cells if len(cells) > 1 else None, texts or None)


def _path(base: BasePath, p: FloatArray) -> dict[str, Any]:
    """The base path. Where the entropy is unknown, that of the listed tokens, the rest as one, is a floor."""
    known = np.array([d.entropy for d in base.distributions])
    whole = bool(np.isfinite(known).all())
    if not whole:
        known = np.array([entropy([*d.p, d.tail_mass]) if len(d.p) else np.nan for d in base.distributions])
    return {
        "tokens": list(base.token_texts),
        "p": rounded(p),
        "entropy": rounded(known),
        "entropyWhole": whole,
        "base": {
            "outcome": base.answer.outcome,
            "status": base.answer.status,
            "finish": base.finish_reason,
        },
    }


def _rules(run: Run, base: BasePath) -> dict[str, Any]:
    """What rules of entropy-guided generation say at each token of the base path, with the run's own numbers if any.

    ``states`` has a letter a token for either rule set of Entropix, and for EAGER: where one sequence alone would
    split. ``own`` names the rules that the run was collected by, ``theta`` is EAGER's threshold.
    """
    guide = strategy(run.config["strategy"], run.config.get("options")) if _guided(run) else None
    four, threshold = FourStateRules(), ThresholdRules()
    own = None
    if isinstance(guide, Entropix):
        rules = guide.rule_set
        if isinstance(rules, FourStateRules):
            own, four = "four", rules
        elif isinstance(rules, ThresholdRules):
            own, threshold = "threshold", rules
    h, v, tops = (
        np.array([getattr(d, name) for d in base.distributions], float)
        for name in ("entropy", "varentropy", "top_entropy")
    )
    states = {}
    if (known := np.isfinite(h) & np.isfinite(v)).any():
        states["four"] = _letters([LETTERS[s] for s in four_state(h, v, four)], known)
        states["threshold"] = _letters([LETTERS[s] for s in threshold_state(h, v, threshold)], known)
    theta = THETA
    if isinstance(guide, Eager):
        own = "eager"
        collected = run.collected_ids[:CALIBRATED_ON] if isinstance(guide.theta, str) else ()
        theta = guide.threshold([run.base(q) for q in collected])
    if (known := np.isfinite(tops)).all() and len(tops):
        states["eager"] = _letters(["b" if at else "d" for at in branch_points(tops, theta)], known)
    return {"states": states or None, "own": own, "theta": round(theta, 3)}


def _guided(run: Run) -> bool:
    return run.config.get("strategy") in ("entropix", "eager")


def _letters(letters: Sequence[str], known: NDArray[np.bool_]) -> str:
    return "".join(letter if there else "-" for letter, there in zip(letters, known, strict=True))


def _token_text(a: Alternative, base: BasePath, t: int, vocabulary: Mapping[int, str]) -> str | None:
    """What a next token would add at ``t``; None where the run does not tell."""
    if a.base:
        return base.token_texts[t]
    here = base.distributions[t]
    listed = dict(zip(here.ids.tolist(), here.texts, strict=False))
    return listed.get(a.token, vocabulary.get(a.token))


def _next_token(a: Alternative, text: str | None) -> list[Any]:
    """[text or None, id, probability, whether it is the base path's, outcome counts, how an example begins]."""
    p = None if a.p is None else round(a.p, 4)
    begins = None if text is not None or not a.examples else _begins(a.examples[0].text)
    return [text, a.token, p, int(a.base), a.counts.tolist(), begins]


def _begins(text: str) -> str | None:
    """The first word, for a token whose own text is not known."""
    words = text.split(maxsplit=1)
    return words[0][:BEGINNING] if words else None


def _sizes(draws: Draws, options: Options) -> tuple[list[int | None], list[int]]:
    """Samples per position (None: all) and strides that the sliders offer."""
    if len(draws.forced):  # belongs to no sample of a position: shown as it is
        return [None], [1]
    most = draws.available
    offered = options.samples or (SAMPLES if most > 2 * SAMPLES[0] else FEW_SAMPLES)
    sampled = len(draws.positions)
    strides = sorted({n for n in options.every if n == 1 or (sampled - 1) // n >= 2} | {1})
    return [*sorted({s for s in offered if s < most}), None], strides


def _held(draws: Draws) -> list[int]:
    """The fewest and the most draws of a position."""
    held = (draws.outcomes >= 0).sum(axis=1)
    return [int(held.min()), int(held.max())] if len(held) else [0, 0]


def _cell(chosen: Draws, grid: IntArray, options: Options) -> dict[str, Any]:
    """Every method's curve from some of the draws, and what those cost."""
    observations = chosen.observations(grid)
    curves: dict[str, Any] = {}
    for method in options.methods:
        try:
            fitted = fit(observations, method)
        except ValueError as error:
            curves[method] = {"missing": str(error)}
            continue
        lower, upper = fitted.band(grid, options.level)
        curves[method] = {
            "p": columns(fitted.predict(grid)),
            "lo": columns(lower),
            "hi": columns(upper),
            "chosen": {k: v if isinstance(v, str) else float(v) for k, v in fitted.hyperparameters.items()},
        }
        change = change_scores(fitted, grid, grid, options.threshold)
        if change is not None:
            curves[method]["change"] = quantised(change)
    return {
        "curves": curves,
        "tokens": chosen.generated_tokens,
        "rollouts": chosen.continuations,
        "sampled": len(chosen.positions),
    }


def _front(cell: Mapping[str, Any], options: Options) -> str:
    """The first method that could be fitted."""
    return next((m for m in options.methods if "p" in cell["curves"][m]), options.methods[0])


def _figures(curve: FloatArray, grid: IntArray, question: Question, threshold: float) -> dict[str, Any]:
    """What the overview sorts by."""
    moved = total_variation(curve[1:], curve[:-1])
    answers = question.categories
    right = float(curve[0, answers.index(question.answer)]) if question.answer in answers else None
    return {
        "accuracy": None if right is None else round(right, 3),
        "confidence": round(float(curve[-1].max()), 3),
        "final": answers[int(curve[-1].argmax())],
        "forks": int((moved > threshold).sum()),
        "largest": round(float(moved.max()), 3) if len(moved) else 0.0,
        "at": int(grid[1 + int(moved.argmax())]) if len(moved) else None,
    }


def _spark(curve: FloatArray, grid: IntArray, length: int) -> list[list[int]]:
    """The curve at ``SPARK`` places along the path, in hundredths, category by category."""
    places = np.linspace(0, length, SPARK)
    return [np.rint(100 * np.interp(places, grid, c)).astype(int).tolist() for c in curve.T]


def _reference(reference: Run | None, base: BasePath, question: Question) -> dict[str, Any] | None:
    """The reference's own curve from all of its draws."""
    if reference is None or question.question_id not in reference.collected_ids:
        return None
    other = reference.base(question.question_id)
    if other.token_ids != base.token_ids:
        raise UsageError(
            f"{question.question_id}: the base path in {reference.path} is another one; a reference must "
            "continue the same tokens"
        )
    positions, curve, names = reference.curve(question.question_id)
    if names != question.categories:
        raise UsageError(
            f"{question.question_id}: the choices in {reference.path} are others; a reference must be of "
            "the same question"
        )
    if not len(positions):
        return None
    return {
        "positions": deltas(positions),
        "p": columns(curve),
        "draws": _held(reference.draws(question.question_id)),
    }


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1].rstrip() + "…"
