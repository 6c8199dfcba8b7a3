"""How figures say what they show: the draws with S, N and its unit, and names that fit on the canvas."""

from __future__ import annotations

from fpa.run import Run


def stride_text(every: int, unit: str) -> str:
    """A stride with its unit (``token`` or ``sentence``): 4 tokens, 1 sentence."""
    return f"{every} {unit}{'s' if every > 1 else ''}"


def draws_text(run: Run, question_id: str, samples: int | None = None, every: int = 1) -> str:
    """What a question was sampled with: S draws at every N-th token or sentence, or how many draws in all.

    Args:
        run: the run.
        question_id: the question.
        samples, every: the part of the run's draws that is used, as in ``Run.observations``.
    """
    draws = run.draws(question_id).select(samples, every)
    said = []
    if len(draws.positions):
        most, least = int((draws.outcomes >= 0).sum(axis=1).max()), draws.available
        # A run that stores every token strides over what it has: its own stride times the one asked for.
        stride = every * int(run.config.get("every", 1))
        s = str(most) if least == most else f"{least}–{most}"
        said.append(f"S={s}, N={stride_text(stride, run.config.get('unit', 'token'))}")
    if len(draws.forced):
        said.append(f"{len(draws.forced)} draws, placed by {run.config['strategy']}")
    return " and ".join(said) or "no draws"


def reference_text(run: Run, question_id: str) -> str:
    """The same for a reference, whose curve in branch form weighs S draws of each kept next token."""
    per_branch = " per branch" if run.config.get("strategy") == "branches" else ""
    s, n, rest = draws_text(run, question_id).partition(", N=")
    return f"reference, {s}{per_branch if n else ''}{n}{rest}"


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters, with the beginning and the end, which tell ids apart."""
    if len(text) <= most:
        return text
    left = most // 2
    return f"{text[:left]}…{text[left + 1 - most :]}"
