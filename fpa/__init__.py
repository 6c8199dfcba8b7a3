"""Forking Paths Analysis: collect rollouts along a language model's greedy answer, and read them back.

The smoothers live beside this package, in ``smoothing``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpa.answers import extract_answer
    from fpa.collect import collect
    from fpa.engines import load_engine
    from fpa.errors import FpaError, UsageError
    from fpa.questions import load_questions
    from fpa.run import Run, open_run
    from fpa.score import score
    from fpa.sentences import split_sentences
    from fpa.settings import Settings

_HOMES = {
    "FpaError": "errors",
    "Run": "run",
    "Settings": "settings",
    "UsageError": "errors",
    "collect": "collect",
    "extract_answer": "answers",
    "load_engine": "engines",
    "load_questions": "questions",
    "open_run": "run",
    "score": "score",
    "split_sentences": "sentences",
}

__all__ = [
    "FpaError",
    "Run",
    "Settings",
    "UsageError",
    "collect",
    "extract_answer",
    "load_engine",
    "load_questions",
    "open_run",
    "score",
    "split_sentences",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without the numerical stack."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fpa.{_HOMES[name]}"), name)
