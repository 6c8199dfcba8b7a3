"""Whether work grows no faster than its input: a statement about an algorithm, not about a machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable

ATTEMPTS = 6
NOISE = 0.1  # seconds that a busy machine adds to short times


def growth_is_linear(short: Callable[[], object], long: Callable[[], object], times: int) -> bool:
    """Whether ``long``, with ``times`` the input of ``short``, ever takes less than three times its share of CPU time.

    Quadratic work takes ``times`` times its share, on any machine and in every attempt; linear work takes its share
    in some attempt, however busy the machine is in the others.
    """
    return any(_seconds(long) < 3 * times * _seconds(short) + NOISE for _ in range(ATTEMPTS))


def _seconds(task: Callable[[], object]) -> float:
    began = time.process_time()
    task()
    return time.process_time() - began
