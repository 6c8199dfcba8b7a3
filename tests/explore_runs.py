"""Small runs for the explorer's tests, drawn from a process whose outcome curve is known exactly."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.records import Answer, BasePath, Distribution, Question, Rollout
from fpa.store import RunWriter, unit_name

HOSTILE = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\"'`${window.hurt = 1}`</"
FIRST_ALTERNATIVE = 50_000
"""Token ids from here on are not of the base path."""


@dataclass(frozen=True)
class World:
    """A question, its base path, and what happens to rollouts that leave it.

    A rollout at ``t`` stays on the path with probability ``p[t]``, and ends in the outcome ``divert[t]`` (a
    distribution) if it leaves there; if it never does, in ``ends``. With ``listed``, the texts of the tokens beside
    the path are known: `` else<id>``.
    """

    question: Question
    tokens: tuple[str, ...]
    p: NDArray[np.float64]
    divert: NDArray[np.float64]
    ends: int
    samples: int = 20
    every: int = 1
    entropies: bool = True
    listed: bool = False

    @property
    def curve(self) -> NDArray[np.float64]:
        """(T + 1, K) the exact outcome curve."""
        curve = np.zeros((len(self.tokens) + 1, self.divert.shape[1]))
        curve[-1, self.ends] = 1.0
        for t in reversed(range(len(self.tokens))):
            curve[t] = self.p[t] * curve[t + 1] + (1 - self.p[t]) * self.divert[t]
        return curve


def world(
    question_id: str,
    tokens: list[str] | None = None,
    fork: int | None = 6,
    question: str = "Which one is it?",
    choices: tuple[str, ...] = ("one", "two", "three", "four"),
    answer: str | None = "A",
    subject: str | None = None,
    samples: int = 20,
    every: int = 1,
    entropies: bool = True,
) -> World:
    """A path that leads to B or, at its only uncertain token ``fork``, away to A; without it, always to B."""
    words = tokens if tokens is not None else [f" w{i}" for i in range(20)]
    length, width = len(words), len(choices) + 1
    p = np.full(length, 0.98)
    divert = np.tile(np.eye(width)[1] * 0.9 + 0.1 / width, (length, 1))
    if fork is not None:
        p[fork] = 0.4
        divert[fork] = np.eye(width)[0]
    asked = Question(question_id, question, choices, answer, subject)
    return World(asked, tuple(words), p, divert, 1, samples, every, entropies)


def base_path(w: World) -> BasePath:
    """The world's base path; token ids are the positions, alternatives two each."""
    distributions = tuple(
        Distribution(
            np.array([t, FIRST_ALTERNATIVE + 2 * t, FIRST_ALTERNATIVE + 2 * t + 1], np.int32),
            np.array([p, 0.75 * (1 - p), 0.25 * (1 - p)]),
            0.0,
            float(-p * np.log(p) - (1 - p) * np.log((1 - p) / 2)) if w.entropies else float("nan"),
            0.1 if w.entropies else float("nan"),
            (w.tokens[t], *(f" else{FIRST_ALTERNATIVE + 2 * t + i}" for i in (0, 1))) if w.listed else (),
        )
        for t, p in enumerate(w.p)
    )
    return BasePath(
        w.question.question_id,
        tuple(range(len(w.tokens))),
        w.tokens,
        distributions,
        (0,) * len(w.tokens),
        "stop",
        Answer(w.question.categories[w.ends], "parsed"),
    )


def rollouts(w: World, seed: int, texts: bool = True) -> list[Rollout]:
    """Draws from every ``every``-th position."""
    rng = np.random.default_rng(seed)
    length, names = len(w.tokens), w.question.categories
    rows = []
    for start in range(0, length, w.every):
        for draw in range(w.samples):
            gone = np.flatnonzero(rng.random(length - start) >= w.p[start:])
            leaves = None if not len(gone) else start + int(gone[0])
            ids = tuple(range(start, length))
            outcome, second = names[w.ends], False
            if leaves is not None:
                outcome = names[int(rng.choice(len(names), p=w.divert[leaves]))]
                second = bool(rng.random() >= 0.75)
                ids = (*range(start, leaves), FIRST_ALTERNATIVE + 2 * leaves + second, 7)
            said = "".join(w.tokens[:leaves])
            if leaves is not None:
                said += f" else{int(second)} so it is ({outcome})."
            row = Rollout(
                w.question.question_id,
                start,
                draw,
                None,
                None,
                len(rows),
                outcome,
                "parsed",
                leaves,
                len(ids),
                "stop",
                ids if texts else None,
                said if texts else None,
            )
            rows.append(row)
    return rows


def write_run(
    path: Path,
    worlds: list[World],
    seed: int = 1,
    texts: bool = True,
    uncollected: tuple[World, ...] = (),
    asked_only: tuple[World, ...] = (),
    failed: dict[str, str] | None = None,
) -> Path:
    """Write a run: finished questions, some with a base path only, some only asked."""
    config = {
        "strategy": "grid",
        "samples": max((w.samples for w in worlds), default=1),
        "every": 1,
        "unit": "token",
        "temperature": 1.0,
        "keep_text": texts,
    }
    with RunWriter.open(path, config, engine=None, questions_fingerprint="test") as writer:
        for w in (*worlds, *uncollected, *asked_only):
            writer.put_question(w.question, None)
        for w in (*worlds, *uncollected):
            writer.put_base(base_path(w))
        for i, w in enumerate(worlds):
            writer.put_rollouts(unit_name(w.question.question_id, 0), rollouts(w, seed + i, texts))
        for question_id, message in (failed or {}).items():
            writer.put_failure(question_id, message)
        if not (uncollected or asked_only or failed):
            writer.finish({})
    return path


def read_data(path: Path) -> Any:
    """The content of one of the explorer's data scripts, read as a browser would."""
    text = path.read_text(encoding="ascii")
    match = re.fullmatch(r'fpaData\("(.*)","([A-Za-z0-9+/=]*)"\);\n', text)
    assert match, text[:100]
    assert match[1] == path.stem
    return json.loads(gzip.decompress(base64.b64decode(match[2])))
