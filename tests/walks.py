"""Outcome curves drawn from the generative story itself, for tests of the estimators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoothing import Observations


@dataclass(frozen=True, eq=False)
class World:
    """A base path with known step probabilities, divergence distributions and outcome curve."""

    step_p: np.ndarray
    diverged: np.ndarray
    curve: np.ndarray
    end: int

    @classmethod
    def draw(cls, rng: np.random.Generator, length: int = 120, width: int = 4) -> World:
        """Half the tokens certain; most divergences change little, few change everything."""
        p = np.where(
            rng.random(length) < 0.5, 1 - 10 ** rng.uniform(-6, -2, length), rng.uniform(0.3, 1, length)
        )
        end = int(rng.integers(width))
        curve = np.zeros((length + 1, width))
        curve[length, end] = 1
        diverged = np.zeros((length, width))
        for t in range(length - 1, -1, -1):
            jump = rng.random() < 0.1
            diverged[t] = rng.dirichlet(np.ones(width)) if jump else rng.dirichlet(200 * curve[t + 1] + 1e-2)
            curve[t] = p[t] * curve[t + 1] + (1 - p[t]) * diverged[t]
        return cls(p, diverged, curve[:length], end)

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(f"c{k}" for k in range(self.curve.shape[1]))

    def grid(self, rng: np.random.Generator, samples: int, every: int, **changed: object) -> Observations:
        """Grid draws at every ``every``-th position."""
        at = np.arange(0, len(self.curve), every)
        draws = np.stack([rng.choice(self.curve.shape[1], samples, p=o / o.sum()) for o in self.curve[at]])
        given = {
            "step_p": self.step_p,
            "base_outcome": self.end,
            "grid": np.arange(len(self.curve)),
        } | changed
        return Observations.from_draws(at, draws, self.categories, **given)  # type: ignore[arg-type]

    def divergences(self, rng: np.random.Generator, counts: np.ndarray) -> Observations:
        """``counts[u]`` draws that leave the base path at u."""
        table = np.stack([rng.multinomial(n, d) for n, d in zip(counts, self.diverged, strict=True)])
        none = np.zeros((0, self.curve.shape[1]), dtype=int)
        return Observations.from_counts(
            [], none, self.categories, grid=np.arange(len(self.curve)), step_p=self.step_p,
            divergence=table, base_outcome=self.end,
        )  # fmt: skip
