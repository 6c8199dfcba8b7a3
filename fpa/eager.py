"""EAGER's branching (Scalena et al. 2025, arXiv 2510.11170): one sequence, which splits where the model is unsure.

All sequences of a prompt grow in step. Where the entropy of the 20 likeliest tokens exceeds a limit, a sequence goes on
with the likeliest token and a new one with the second likeliest; what they share is never generated again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpa.engines.base import Request, ends_with_stop
from fpa.entropix import tempered
from fpa.guided import Draw, StepEngine, StepSampler, pick

THETA = 2.5
"""Published threshold: nats, of the 20 likeliest tokens, renormalised (at most ln 20 = 3.0)."""
PERCENTILE = 99
"""Of the entropies seen so far for a prompt: no token below it splits a sequence."""
THOUGHT_ENDS = ("</think>",)


def branch_limit(seen: ArrayLike, theta: float) -> float:
    """The entropy above which a sequence splits: ``max(θ, 99th percentile of those seen)``, in nats.

    Args:
        seen: (n,) entropies at this prompt's tokens before, in nats; may be empty.
        theta: the threshold, in nats.
    """
    values = np.asarray(seen, dtype=np.float64)
    return max(theta, float(np.percentile(values, PERCENTILE))) if len(values) else theta


def branch_points(entropies: ArrayLike, theta: float) -> NDArray[np.bool_]:
    """(T,) where one sequence alone would split, from its (T,) entropies in nats."""
    h = np.asarray(entropies, dtype=np.float64)
    return np.array([value > branch_limit(h[:t], theta) for t, value in enumerate(h)], dtype=bool)


@dataclass
class TreeSampler(StepSampler):
    """Grows the sequences of a prompt: one to begin with, at most ``n`` of the request.

    No sequence splits after its thought has ended. A split takes no random number; other tokens are drawn at the
    request's temperature.

    Args:
        engine: where the next-token distributions come from.
        theta: threshold of requests that bring none, in nats.
    """

    engine: StepEngine
    theta: float = THETA

    def _draws(self, request: Request) -> list[Draw]:
        theta = self.theta if request.theta is None else request.theta
        grown = [Draw(0, np.random.default_rng(request.seed))]
        running = list(grown)
        answering: set[Draw] = set()
        seen: list[float] = []
        while running:
            # All at once, however many the engine works on: so it keeps what it has of each.
            read = self.engine.next_distributions(
                [request.prefix_ids + draw.ids for draw in running],
                temperature=request.temperature,
                entropies=False,
            )
            limit = branch_limit(seen, theta)
            for draw, distribution in zip(list(running), read, strict=True):
                unsure = distribution.top_entropy > limit and len(distribution.ids) > 1
                if unsure and draw not in answering and len(grown) < request.n:
                    first, second = distribution.ids[np.argsort(-distribution.p, kind="stable")[:2]].tolist()
                    draw.take(first, "branch", distribution)
                    grown.append(draw.split(len(grown), request.seed, second))
                    running.append(grown[-1])
                else:
                    p = tempered(distribution.p, request.temperature)
                    draw.take(int(distribution.ids[pick(p, draw.stream.random())]), "default", distribution)
            seen += [distribution.top_entropy for distribution in read]
            for draw in running:
                if ends_with_stop(self.engine.decode, draw.ids, THOUGHT_ENDS):
                    answering.add(draw)
            running = [draw for draw in running if not self._ended(request, draw)]
        return grown
