"""Engine options: held to their types and ranges before anything is loaded, connected to or started.

Options come from the command line as JSON or text. A constructor states what it takes in its signature, with
``Annotated[..., Bounds(...)]`` for ranges, and ``checked`` holds what it is given to that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Annotated, Any, ParamSpec, get_args, get_origin, get_type_hints

from fpa.errors import UsageError

P = ParamSpec("P")
INT_MAX = 2**31 - 1  # what libraries in C take for an int


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option may be: ``least`` to ``most``, without ``least`` itself where ``above``."""

    least: float
    most: float = INT_MAX
    above: bool = False

    def hold(self, value: Any) -> bool:
        """Whether a number is within them; NaN and infinities never are."""
        return bool((self.least < value if self.above else self.least <= value) and value <= self.most)

    def __str__(self) -> str:
        """Bounds in words."""
        least = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        return least if self.most == INT_MAX else f"{least} and at most {self.most:,.10g}"


Count = Annotated[int, Bounds(1)]

KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}
"""Types of options that can be written on a command line: how to know a value of one, and its name."""


def checked(engine: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorates the constructor of the engine of that name: wrong options raise ``UsageError``."""

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        names = tuple(inspect.signature(init).parameters)

        @wraps(init)
        def check(*args: P.args, **options: P.kwargs) -> None:
            check_options(engine, init, {**dict(zip(names[1:], args[1:], strict=False)), **options})
            init(*args, **options)

        return check

    return decorate


def check_options(engine: str, init: Callable[..., None], options: Mapping[str, Any]) -> None:
    """Hold options to the signature of an engine's constructor.

    Raises:
        UsageError: one that the engine does not have, of another type, or out of its range.
    """
    parameters = inspect.signature(init).parameters
    hints = get_type_hints(inspect.unwrap(init), include_extras=True)
    for name, value in options.items():
        if name not in parameters:
            known = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
            raise UsageError(f"engine {engine} has no option {name!r}: it takes {', '.join(known)}")
        check_option(engine, name, value, hints[name])


def check_option(engine: str, name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of the option's type, or out of its range.

    Raises:
        UsageError: saying what the option takes.
    """
    wanted = []
    for kind, bounds in _members(hint):
        if kind is type(None):
            if value is None:
                return
        elif kind in KINDS:
            like, words = KINDS[kind]
            # Python's truth values are whole numbers too, but nobody means them.
            fits = isinstance(value, like) and isinstance(value, bool) == (kind is bool)
            if fits and (bounds is None or bounds.hold(value)):
                return
            wanted.append(f"{words} {bounds}" if bounds else words)
        elif not isinstance(value, bool | int | float | str | list | dict | None):
            return  # an object that only code can give
    quote = (
        f": {name}='\"{value}\"' makes it text" if "text" in wanted and isinstance(value, int | float) else ""
    )
    raise UsageError(f"engine {engine}: {name} must be {' or '.join(wanted)}, got {value!r}{quote}")


def _members(hint: Any) -> list[tuple[Any, Bounds | None]]:
    """The types that a hint is the union of, each with its bounds."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return [(kind, next((note for note in notes if isinstance(note, Bounds)), None))]
    members = get_args(hint)
    if not members:
        return [(hint, None)]
    return [found for member in members for found in _members(member)]
