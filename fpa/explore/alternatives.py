"""The next tokens at each position, what followed each of them, and rollouts to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fpa.records import BasePath

IntArray = NDArray[np.int64]

COLUMNS = (
    "start",
    "first_token",
    "first_token_p",
    "outcome",
    "status",
    "diverge_at",
    "n_tokens",
    "token_ids",
)
ANOTHER = -1
"""Stands for a token other than the base path's whose identity was not recorded."""
LISTED = 10
SMALLEST = 0.01
LONGEST = 1200
"""Most next tokens of a position; least probability of one never sampled; most characters of a text."""


@dataclass(frozen=True)
class Example:
    """One rollout to read.

    ``text`` is what it says from the position on, or the whole response where the base path's text is not its
    beginning (decoders may leave special tokens out); ``cut`` tells that it was shortened. ``states`` has a letter for
    each of its own tokens from there, where a sampler of ours chose them.
    """

    outcome: str
    status: str | None
    text: str
    cut: bool
    whole: bool
    states: str = ""


@dataclass
class Alternative:
    """One next token: its probability (None where unknown) and the outcomes of rollouts that took it."""

    token: int
    p: float | None
    base: bool
    counts: IntArray
    examples: list[Example] = field(default_factory=list)


def alternatives(
    rollouts: pd.DataFrame, base: BasePath, categories: tuple[str, ...], told: bool, examples: int
) -> dict[int, list[Alternative]]:
    """Next tokens by position, the likeliest first.

    Given the base path up to ``t``, where a rollout was started from says nothing more about how it ends: one
    started earlier that is still on the path at ``t`` and takes the token ``w`` there is a draw like those
    started at ``t`` with ``w``. All of them are counted.

    Args:
        rollouts: of one question, with ``COLUMNS``, and ``text`` and ``states`` where examples are wanted.
        base: its base path.
        categories: K outcome names.
        told: whether ``diverge_at`` was recorded; if not, only a rollout's own start counts.
        examples: rollouts to keep per token; their texts must be there.
    """
    length, width = len(base.token_ids), len(categories)
    outcome = pd.Categorical(rollouts["outcome"], categories).codes.astype(np.int64)
    start = rollouts["start"].to_numpy(np.int64)
    token, leaves = _choices(rollouts, base, start)
    ends = np.minimum(leaves, length) if told else start + (leaves > start)

    # Rollouts that took the base token at t: those with start <= t < ends, by running sums.
    staying = np.zeros((length + 1, width), np.int64)
    np.add.at(staying, (start, outcome), 1)
    np.add.at(staying, (ends, outcome), -1)
    staying = staying.cumsum(axis=0)

    gone = leaves < length
    if not told:
        gone &= leaves == start
    counted: dict[int, dict[int, IntArray]] = {}
    for t, w, k in zip(leaves[gone].tolist(), token[gone].tolist(), outcome[gone], strict=True):
        counted.setdefault(t, {}).setdefault(w, np.zeros(width, np.int64))[k] += 1
    forced_p = _forced(rollouts)

    found: dict[int, list[Alternative]] = {}
    for t, (own, distribution) in enumerate(zip(base.token_ids, base.distributions, strict=True)):
        here = counted.get(t, {})
        p: dict[int, float] = dict(zip(distribution.ids.tolist(), distribution.p.tolist(), strict=True))
        p.update({w: q for w, q in forced_p.get(t, {}).items() if w not in p})
        if not p and not here and not staying[t].any():
            continue
        shown = {own, *here, *(w for w, q in p.items() if q >= SMALLEST)}
        ranked = sorted(shown, key=lambda w: (w == ANOTHER, -p.get(w, 0.0), w))
        kept = [w for i, w in enumerate(ranked) if i < LISTED or w in (own, ANOTHER)]
        found[t] = [
            Alternative(
                w, p.get(w), w == own, staying[t] if w == own else here.get(w, np.zeros(width, np.int64))
            )
            for w in kept
        ]
    if examples:
        _pick_examples(found, rollouts, base, np.where(gone, token, ANOTHER), start, leaves, examples)
    return found


def _choices(rollouts: pd.DataFrame, base: BasePath, start: IntArray) -> tuple[IntArray, IntArray]:
    """(n,) the token by which each rollout leaves the base path, and where (the path's length: never)."""
    length = len(base.token_ids)
    own = np.array(base.token_ids, np.int64)
    first = rollouts["first_token"].to_numpy(float, na_value=np.nan)
    leaves = rollouts["diverge_at"].to_numpy(float, na_value=np.nan)
    forced = ~np.isnan(first)
    leaves = np.where(np.isnan(leaves), length, leaves).astype(np.int64)
    leaves = np.where(forced & (first != own[start]), start, leaves)
    token = np.full(len(rollouts), ANOTHER, np.int64)
    token[forced & (leaves == start)] = first[forced & (leaves == start)].astype(np.int64)
    for i, ids in enumerate(rollouts["token_ids"]):
        if ids is not None and leaves[i] < length and leaves[i] - start[i] < len(ids):
            token[i] = ids[leaves[i] - start[i]]
    return token, leaves


def _forced(rollouts: pd.DataFrame) -> dict[int, dict[int, float]]:
    """Probabilities of forced first tokens, as stored with the rollouts."""
    rows = rollouts[["start", "first_token", "first_token_p"]].dropna().drop_duplicates()
    found: dict[int, dict[int, float]] = {}
    for t, w, p in rows.itertuples(index=False):
        found.setdefault(int(t), {})[int(w)] = float(p)
    return found


def _pick_examples(
    found: Mapping[int, list[Alternative]],
    rollouts: pd.DataFrame,
    base: BasePath,
    token: IntArray,
    start: IntArray,
    leaves: IntArray,
    wanted: int,
) -> None:
    """Give each alternative rollouts to read: one of every outcome, the commonest first, then others."""
    length = len(base.token_ids)
    # A rollout is read where it leaves the path; one that stays at first is also read at its start, so that
    # the base token has examples too.
    places = [(leaves, token, leaves < length), (start, np.array(base.token_ids)[start], leaves > start)]
    rows: dict[tuple[int, int], list[int]] = {}
    there = rollouts["text"].notna().to_numpy()
    for where, which, holds in places:
        for i in np.flatnonzero(holds & there).tolist():
            rows.setdefault((int(where[i]), int(which[i])), []).append(i)
    prefixes = np.cumsum([0, *(len(text) for text in base.token_texts)])
    path = "".join(base.token_texts)
    outcomes, statuses, texts, states = (
        rollouts[c].to_numpy() for c in ("outcome", "status", "text", "states")
    )
    for t, here in found.items():
        for alternative in here:
            candidates = rows.get((t, alternative.token), [])
            by_outcome: dict[str, list[int]] = {}
            for i in candidates:
                by_outcome.setdefault(outcomes[i], []).append(i)
            turns = sorted(by_outcome.values(), key=len, reverse=True)
            picked = [turn[n] for n in range(wanted) for turn in turns if n < len(turn)][:wanted]
            for i in picked:
                rest, whole = _after(texts[i], path[: prefixes[t]])
                told = states[i][0 if whole else t - start[i] :] if isinstance(states[i], str) else ""
                alternative.examples.append(
                    Example(str(outcomes[i]), statuses[i], rest[:LONGEST], len(rest) > LONGEST, whole, told)
                )


def _after(text: str, prefix: str) -> tuple[str, bool]:
    """The text beyond the base path's; all of it, and True, where it does not begin with that."""
    for start in (prefix, prefix.lstrip()):
        if text.startswith(start):
            return text[len(start) :], False
    return text, True
