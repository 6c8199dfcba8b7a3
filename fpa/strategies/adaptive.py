"""Adaptive sampling: rounds of forced divergences, each given out where a token buys most.

A pilot follows the allocation formula. Before every further round the posterior of each question says by how
much a draw at each position would lower the variance of its curve (``smoothing.allocation``); draws go, one
after the other, to the position and question where that is most per token. So the budget moves from settled
questions to open ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fpa.errors import UsageError
from fpa.settings import Settings
from fpa.strategies.base import SEEDS, SPREAD, Known, Unit
from fpa.strategies.stratified import expected_tokens, forced_groups, leavable, phases_of
from smoothing.allocation import Design, next_draws, stratified_shares, whole_numbers
from smoothing.auto import fit_auto

PILOT = 0.3  # of the budget
PILOT_DRAWS = 0.5  # per token of the base path, where there is no budget to take a share of
ROUNDS = 4  # after the pilot, for a budget
MOST_ROUNDS = 24  # towards a target error, each as large as all before it
LEVEL = 0.9  # of the bands whose half-width is the target error


class Adaptive:
    """Rounds of forced divergences until ``budget`` is spent or every question reaches ``target_error``."""

    def waits(self, number: int) -> bool:
        """Every question's draws are placed by what its own draws found."""
        return False

    def next_round(self, number: int, questions: Sequence[Known], settings: Settings) -> list[Unit]:
        """The pilot, then what the posterior asks for; none once the budget or the target is reached."""
        open_questions = [q for q in questions if leavable(q.base).any()]
        if not open_questions:
            return []
        if number == 0:
            counts = _pilot(open_questions, settings)
        else:
            spent = float(sum(q.tokens.sum() for q in questions))
            if number > (ROUNDS if settings.target_error is None else MOST_ROUNDS):
                return []
            goal = _goal(number, spent, settings)
            if settings.target_error is not None:
                open_questions = [q for q in open_questions if half_width(q) > settings.target_error]
            if goal <= 0 or not open_questions:
                return []
            designs = [_design(q, settings) for q in open_questions]
            counts = []
            for question, design, given in zip(
                open_questions, designs, next_draws(designs, goal), strict=True
            ):
                row = np.zeros(len(question.base.token_ids), np.int64)
                row[design.positions] = given
                counts.append(row)
        return _units(number, open_questions, counts, settings)


def half_width(question: Known) -> float:
    """Mean half-width of the 90 % bands over positions and categories."""
    fitted = fit_auto(question.observations())
    lo, hi = fitted.band(np.arange(len(question.base.token_ids)), LEVEL)
    return float((hi - lo).mean() / 2)


def _pilot(questions: Sequence[Known], settings: Settings) -> list[NDArray[np.int64]]:
    """Draws of the pilot: the allocation formula in every question, equally many per token of base path."""
    shares = [
        stratified_shares(np.where(leavable(q.base), q.base.p, 1.0), expected_tokens(q.base, settings))
        for q in questions
    ]
    lengths = np.array([len(q.base.token_ids) for q in questions], dtype=np.float64)
    draws = lengths * PILOT_DRAWS
    if settings.budget is not None:
        price = [float(s @ expected_tokens(q.base, settings)) for s, q in zip(shares, questions, strict=True)]
        draws = lengths * PILOT * settings.budget / float(lengths @ np.array(price))
    return [
        whole_numbers(n * s, phases_of(q.index, q.base, settings)[0])
        for n, s, q in zip(draws, shares, questions, strict=True)
    ]


def _goal(number: int, spent: float, settings: Settings) -> float:
    """Tokens that the next round may take."""
    if settings.budget is None:
        return spent
    left = settings.budget - spent
    rounds_left = max(1, ROUNDS + 1 - number)
    return left / rounds_left if settings.target_error is None else min(left, spent)


def _design(question: Known, settings: Settings) -> Design:
    base = question.base
    prior = expected_tokens(base, settings)
    made = question.outcomes.sum(axis=1)
    # Continuations of this question may be longer or shorter than what is left of its base path.
    ratio = (question.tokens.sum() + prior.mean()) / (float(prior @ made) + prior.mean())
    return Design.of(
        fit_auto(question.observations(), {"multiplier": 1.0}),
        base.p,
        made,
        np.clip(prior * ratio, 1.0, settings.rollout_tokens),
        base.finish_reason == "stop",
        leavable(base),
    )


def _units(
    number: int,
    chosen: Sequence[Known],
    counts: Sequence[NDArray[np.int64]],
    settings: Settings,
) -> list[Unit]:
    units = []
    for question, row in zip(chosen, counts, strict=True):
        phases = phases_of(question.index, question.base, settings)[1]
        # Every question has streams of its own, numbered through all rounds: no two draws of the run share one,
        # whichever questions have failed and are taken up again.
        own = SEEDS // question.asked
        drawn = int(question.outcomes.sum())
        if drawn + row.sum() > own:
            raise UsageError(
                f"{question.base.question_id}: more than {own:,} draws, for which there are no seeds"
            )
        seed = settings.seed * SPREAD % SEEDS + question.index * own + drawn
        for position in np.flatnonzero(row):
            first = int(question.outcomes[position].sum())
            count = int(row[position])
            groups = forced_groups(question.base, int(position), first, count, float(phases[position]), seed)
            units.append(Unit(question.base.question_id, int(position), groups, f"r{number:02d}"))
            seed += count
    return units
