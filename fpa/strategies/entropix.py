"""Entropix: continuations steered by entropy and varentropy (``fpa.entropix``), from the positions of ``grid``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from fpa.engines.base import Engine, ReadsNext, Sampler, SteersItself
from fpa.entropix import RULES, Rules
from fpa.errors import UsageError
from fpa.guided import RuleSampler, StepEngine
from fpa.records import BasePath
from fpa.settings import Settings
from fpa.strategies.base import Unit
from fpa.strategies.grid import Grid

BRANCH_LIMIT, BRANCH_MIN_P = 4, 0.05
MOST_TEMPERATURE = 10.0


@dataclass(frozen=True)
class Entropix:
    """``samples`` steered continuations from each position that ``every`` and ``unit`` choose.

    Attributes:
        rules: ``threshold`` or ``four-state``.
        clarify: text of the clarifying token, one token of the model.
        branch_limit: four-state: alternatives that one draw keeps at most, 4 by default.
        branch_min_p: four-state: least probability of an alternative, 0.05 by default.
        faithful: threshold: do as the published code does, its oversights included.
        others: the numbers of the rule set, as its class names them; the published ones by default.

    Raises:
        UsageError: an option that the rule set does not have, or a value that makes no sense.
    """

    rules: str = "threshold"
    clarify: str = " wait"
    branch_limit: int | None = None
    branch_min_p: float | None = None
    faithful: bool | None = None
    low_entropy: float | None = None
    high_entropy: float | None = None
    low_varentropy: float | None = None
    high_varentropy: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    draws: int | None = None
    keep_entropy: float | None = None
    clarify_entropy: float | None = None
    branch_entropy: float | None = None
    resample_entropy: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense, naming the option."""
        if self.rules not in RULES:
            raise UsageError(f"strategy option rules: choose {' or '.join(RULES)}, got {self.rules!r}")
        if not isinstance(self.clarify, str) or not self.clarify:
            raise UsageError(f"strategy option clarify: the text of a token, got {self.clarify!r}")
        if not isinstance(self.faithful, bool | None):
            raise UsageError(f"strategy option faithful: true or false, got {self.faithful!r}")
        _check("branch_limit", self.branch_limit, 0, whole=True)
        _check("branch_min_p", self.branch_min_p, 0, 1, above=True)
        for name in ("low_entropy", "high_entropy", "low_varentropy", "high_varentropy", "keep_entropy",
                     "clarify_entropy", "branch_entropy", "resample_entropy"):  # fmt: skip
            _check(name, getattr(self, name), 0)
        _check("temperature", self.temperature, 0, MOST_TEMPERATURE, above=True)
        _check("top_p", self.top_p, 0, 1, above=True)
        _check("min_p", self.min_p, 0, 1)
        _check("top_k", self.top_k, 1, 100, whole=True)
        _check("draws", self.draws, 1, whole=True)
        if self.rules != "four-state":
            for name in ("branch_limit", "branch_min_p"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"strategy option {name}: the {self.rules} rules never branch; rules=four-state do"
                    )
        kind = RULES[self.rules]
        known = [f.name for f in fields(kind)]
        for name in _given(self):
            if name not in known:
                raise UsageError(
                    f"strategy option {name}: the {self.rules} rules have none such; they have {', '.join(known)}"
                )
        made = kind(**_given(self))
        for low, high in (("low_entropy", "high_entropy"), ("keep_entropy", "clarify_entropy"),
                          ("low_varentropy", "high_varentropy")):  # fmt: skip
            if hasattr(made, low) and getattr(made, low) > getattr(made, high):
                raise UsageError(
                    f"strategy option {low}: must not be above {high} ({getattr(made, high)}), "
                    f"got {getattr(made, low)}"
                )

    @property
    def rule_set(self) -> Rules:
        """The rules with their numbers."""
        return RULES[self.rules](**_given(self))

    def units(self, index: int, base: BasePath, settings: Settings) -> Iterator[Unit]:
        """One unit a position."""
        return Grid().units(index, base, settings)

    def check_engine(self, engine: object, name: str) -> None:
        """Refuse an engine, or a class of engines, that cannot be steered.

        Raises:
            UsageError: it cannot.
        """
        methods = (ReadsNext.next_distributions.__name__, SteersItself.steered.__name__)
        if not any(hasattr(engine, method) for method in methods):
            raise UsageError(
                f"strategy entropix needs an engine that can be steered token by token (llamacpp, transformers, "
                f"vllm; not over Ray), and {name} cannot"
            )

    def sampler(self, engine: Engine, settings: Settings) -> Sampler:
        """Rules in place of the engine's own sampling.

        Raises:
            UsageError: the engine cannot be steered, or the clarifying text is not one token of the model.
        """
        self.check_engine(engine, engine.info.name)
        ids = engine.encode(self.clarify)
        if len(ids) != 1 or engine.decode(ids) != self.clarify:
            raise UsageError(
                f"strategy option clarify: {self.clarify!r} is not one token of this model; give a text that is "
                "(a word with the space before it, mostly)"
            )
        if isinstance(engine, SteersItself):
            return engine.steered({"rules": self.rules, "clarify": ids[0], "numbers": _given(self)})
        branching = self.rules == "four-state"
        return RuleSampler(
            cast(StepEngine, engine),
            self.rule_set,
            ids[0],
            (BRANCH_LIMIT if self.branch_limit is None else self.branch_limit) if branching else 0,
            BRANCH_MIN_P if self.branch_min_p is None else self.branch_min_p,
        )


def _given(strategy: Entropix) -> dict[str, Any]:
    """The rule set's numbers that were given."""
    own = ("rules", "clarify", "branch_limit", "branch_min_p")
    return {name: value for name, value in asdict(strategy).items() if name not in own and value is not None}


def _check(
    name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False, whole: bool = False
) -> None:
    """Refuse what is not a number in the range, ``least`` itself left out where it must be ``above``."""
    if value is None:
        return
    kind = int if whole else (int, float)
    number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or value > most or (above and value == least):
        wanted = f"{'a whole number' if whole else 'a number'} {'above' if above else 'of at least'} {least}"
        wanted += "" if most == math.inf else f" and at most {most}"
        raise UsageError(f"strategy option {name}: {wanted}, got {value!r}")
