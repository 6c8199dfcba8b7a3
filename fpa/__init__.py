"""Forking Paths Analysis: collect rollouts along a language model's greedy answer, and read them back.

The smoothers live beside this package, in ``smoothing``.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpa.answers import extract_answer
    from fpa.collect import collect
    from fpa.curves import fork_table, smooth_question, smooth_run
    from fpa.data import data_path
    from fpa.engines import load_engine
    from fpa.errors import FpaError, UsageError
    from fpa.plan import plan
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
    "data_path": "data",
    "extract_answer": "answers",
    "fork_table": "curves",
    "load_engine": "engines",
    "load_questions": "questions",
    "open_run": "run",
    "plan": "plan",
    "score": "score",
    "smooth_question": "curves",
    "smooth_run": "curves",
    "split_sentences": "sentences",
}

__all__ = [
    "FpaError",
    "Run",
    "Settings",
    "UsageError",
    "collect",
    "data_path",
    "extract_answer",
    "fork_table",
    "load_engine",
    "load_questions",
    "open_run",
    "plan",
    "score",
    "smooth_question",
    "smooth_run",
    "split_sentences",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without the numerical stack."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fpa.{_HOMES[name]}"), name)


class _Package(ModuleType):
    """Keeps functions in front of the modules of their name: importing ``fpa.score`` would hide ``score`` behind it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
