"""The rules of Entropix (xjdr-alt/entropix, 2024): what to do at a token, from entropy and varentropy.

Two published rule sets: the threshold rules, which hold their thresholds against bits, and the four states, in nats.
Each maps what is seen at a token to a state and to *the distribution that the next token is drawn from*: also
"the best of five draws" and "draw again without the token drawn" are distributions, known in closed form. So one
uniform number decides a token, whoever draws it, and every rule can be checked by hand. docs/entropy.md has all
numbers in one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpa.records import AttentionSignals

FloatArray = NDArray[np.float64]

BITS = float(1 / np.log(2))
"""Bits in a nat."""
MOST_TOP_K = 100  # of the adaptive state
LETTERS = {
    "argmax": "a", "explore": "e", "adaptive": "v",
    "keep": "k", "branch": "b", "default": "d",
    "clarify": "c", "resample": "r",
}  # fmt: skip
"""The letter of each state in ``records.Trace.states``: those of the threshold rules, of the four, of both."""


@dataclass(frozen=True)
class Seen:
    """What the rules are shown at one token.

    Attributes:
        p: (k,) probabilities of the tokens at temperature 1, any order, the likeliest among them.
        entropy, varentropy: of the whole distribution, in nats and nats squared.
        temperature: the run's own sampling temperature.
        unlisted: tokens of the vocabulary that ``p`` leaves out; what is left of the mass counts as spread evenly.
        attention: signals of the attention; None counts as zeros.
        asked: whether the token before was the clarifying one.
    """

    p: FloatArray
    entropy: float
    varentropy: float
    temperature: float = 1.0
    unlisted: int = 0
    attention: AttentionSignals | None = None
    asked: bool = False


@dataclass(frozen=True)
class Choice:
    """What the rules decide.

    Attributes:
        state: the name of the rule that fits.
        p: (k,) the distribution that the next token is drawn from, over the tokens seen; None where the
            clarifying token is to be inserted.
    """

    state: str
    p: FloatArray | None


class Rules(Protocol):
    """A rule set.

    Attributes:
        reads_attention: whether attention signals change what it does.
        reads_temperature: whether the run's temperature does.
    """

    reads_attention: ClassVar[bool]
    reads_temperature: ClassVar[bool]

    def choose(self, seen: Seen) -> Choice:
        """The state at a token, and the distribution of the next one."""


# --- the threshold rules


@dataclass(frozen=True)
class ThresholdRules:
    """The threshold rules, in bits and bits squared.

    Attributes:
        low_entropy, low_varentropy: below both: the likeliest token.
        high_entropy, high_varentropy: above one or both: clarify, explore, resample.
        temperature, top_p, top_k, min_p: what the rules start from; the run's temperature has no part.
        draws: of the adaptive state, of which the best is taken.
        faithful: do as the published code does. There the best of five draws is the likeliest, since all else in
            its score is the same for the five; ``min_p`` masks logits that are not used any more; and ``top_p``
            counts from the least likely of the ``top_k``, so that it takes the likeliest away where the others
            hold more than ``top_p``. By default the three do what they are named for: a draw scores by how
            near its surprisal is to the entropy (as locally typical sampling ranks tokens: Meister et al. 2023,
            arXiv 2202.00666), ``min_p`` drops tokens below that share of the likeliest one, and ``top_p`` keeps the
            likeliest tokens that hold so much of what is left.
    """

    low_entropy: float = 0.1
    low_varentropy: float = 0.1
    high_entropy: float = 5.0
    high_varentropy: float = 5.0
    temperature: float = 0.666
    top_p: float = 0.9
    top_k: int = 27
    min_p: float = 0.03
    draws: int = 5
    faithful: bool = False

    reads_attention: ClassVar[bool] = True
    reads_temperature: ClassVar[bool] = False

    def choose(self, seen: Seen) -> Choice:
        """The state at a token, and the distribution of the next one."""
        [state] = threshold_state([seen.entropy], [seen.varentropy], self)
        h, v = seen.entropy * BITS, seen.varentropy * BITS**2
        a = seen.attention or AttentionSignals(0.0, 0.0, 0.0, 0.0)
        ah, av, agreement = a.entropy * BITS, a.varentropy * BITS**2, a.agreement
        if state == "argmax":
            return Choice(state, one_hot(seen.p))
        if state == "clarify":
            if not seen.asked:
                return Choice(state, None)
            warmer = min(1.5, self.temperature * (1.3 + 0.2 * ah))
            return Choice(state, self._filtered(seen, warmer, self.top_p, self.top_k, self.min_p))
        if state == "explore":
            warmer = min(1.5, self.temperature * (1.2 + 0.3 * a.interaction))
            wider = max(5, int(self.top_k * (1 + 0.5 * (1 - agreement))))
            return Choice(state, self._filtered(seen, warmer, self.top_p, wider, self.min_p))
        if state == "resample":
            hot = max(2.0, self.temperature * (2 + 0.5 * av))
            narrower = max(0.5, self.top_p - 0.2 * ah)
            return Choice(state, self._filtered(seen, hot, narrower, self.top_k, self.min_p))
        p = self._filtered(
            seen,
            self.temperature * (1 + 0.3 * (h + v) + 0.2 * (ah + av) - 0.2 * agreement),
            float(np.clip(self.top_p * (1 + 0.1 * av), 0.1, 1.0)),
            int(np.clip(np.round(self.top_k * (1 + 0.3 * a.interaction - 0.2 * agreement)), 1, MOST_TOP_K)),
            float(np.clip(self.min_p * (1 - 0.5 * (h + v)), 0.01, 0.5)),
        )
        return Choice(state, best_of(p, self._score(seen), self.draws))

    def _filtered(self, seen: Seen, temperature: float, top_p: float, top_k: int, min_p: float) -> FloatArray:
        if self.faithful:
            rest = max(0.0, 1.0 - float(seen.p.sum()))
            return filtered_as_published(tempered(seen.p, temperature, rest, seen.unlisted), top_k, top_p)
        return filtered(tempered(seen.p, temperature), top_k, top_p, min_p)

    def _score(self, seen: Seen) -> FloatArray:
        with np.errstate(divide="ignore"):
            surprisal = -np.log(seen.p)
        return -surprisal if self.faithful else -np.abs(surprisal - seen.entropy)


def threshold_state(h: ArrayLike, v: ArrayLike, rules: ThresholdRules = ThresholdRules()) -> list[str]:
    """Entropix' threshold rules, from (n,) entropy (nats) and varentropy (nats²), which they hold against bits.

    ``argmax``, ``clarify``, ``explore``, ``resample``, and ``adaptive`` where none of them fits.
    """
    entropy, varentropy = np.asarray(h, float) * BITS, np.asarray(v, float) * BITS**2
    little, much = varentropy < rules.low_varentropy, varentropy > rules.high_varentropy
    fits = {
        "argmax": little & (entropy < rules.low_entropy),
        "clarify": little & (entropy > rules.high_entropy),
        "explore": much & (entropy < rules.high_entropy),
        "resample": much & (entropy > rules.high_entropy),
    }
    return [str(state) for state in np.select(list(fits.values()), list(fits), "adaptive")]


# --- the four states


@dataclass(frozen=True)
class FourStateRules:
    """The four states, in nats and nats squared; what is drawn is drawn at the run's temperature.

    Attributes:
        keep_entropy: below it, and with little varentropy: the likeliest token.
        clarify_entropy: above it, and with little varentropy: the clarifying token, unless it was the last.
        branch_entropy: below it, and with much varentropy: draw, and keep the alternatives.
        resample_entropy: above it, and with much varentropy, where ``branch`` does not fit: draw a token, ban it
            and draw again.
        low_varentropy, high_varentropy: little is below the first, much above the second.
    """

    keep_entropy: float = 0.3
    clarify_entropy: float = 2.5
    branch_entropy: float = 2.5
    resample_entropy: float = 1.2
    low_varentropy: float = 1.2
    high_varentropy: float = 2.5

    reads_attention: ClassVar[bool] = False
    reads_temperature: ClassVar[bool] = True

    def choose(self, seen: Seen) -> Choice:
        """The state at a token, and the distribution of the next one."""
        [state] = four_state([seen.entropy], [seen.varentropy], self)
        if state == "keep":
            return Choice(state, one_hot(seen.p))
        if state == "clarify" and not seen.asked:
            return Choice(state, None)
        p = tempered(seen.p, seen.temperature)
        return Choice(state, drawn_again(p) if state == "resample" else p)


def four_state(h: ArrayLike, v: ArrayLike, rules: FourStateRules = FourStateRules()) -> list[str]:
    """Entropix' four states, from (n,) entropy (nats) and varentropy (nats²): the first rule that fits.

    ``keep``, ``clarify``, ``branch``, ``resample``, and ``default`` where none fits. With the published numbers
    ``branch`` and ``resample`` both fit between 1.2 and 2.5 nats; branching, which loses nothing, has it.
    """
    entropy, varentropy = np.asarray(h, float), np.asarray(v, float)
    little, much = varentropy < rules.low_varentropy, varentropy > rules.high_varentropy
    fits = {
        "keep": little & (entropy < rules.keep_entropy),
        "clarify": little & (entropy > rules.clarify_entropy),
        "branch": much & (entropy < rules.branch_entropy),
        "resample": much & (entropy > rules.resample_entropy),
    }
    return [str(state) for state in np.select(list(fits.values()), list(fits), "default")]


RULES: dict[str, type[ThresholdRules] | type[FourStateRules]] = {
    "threshold": ThresholdRules,
    "four-state": FourStateRules,
}
"""The rule sets by name."""


# --- distributions made of distributions; all are (k,) and add up to 1


def one_hot(p: FloatArray) -> FloatArray:
    """The likeliest token, for sure; the first of equals."""
    chosen = np.zeros_like(p)
    chosen[int(np.argmax(p))] = 1.0
    return chosen


def tempered(p: FloatArray, temperature: float, rest: float = 0.0, unlisted: int = 0) -> FloatArray:
    """``p^(1/T)``, normalised; ``rest``, spread evenly over ``unlisted`` tokens more, counts in the sum alone."""
    top = float(p.max())
    weights = (p / top) ** (1.0 / temperature)
    total = float(weights.sum())
    if rest > 0.0 and unlisted:
        total += unlisted * (rest / unlisted / top) ** (1.0 / temperature)
    return weights / total


def filtered(p: FloatArray, top_k: int, top_p: float, min_p: float) -> FloatArray:
    """What ``min_p``, ``top_k`` and ``top_p`` leave, in this order, normalised.

    ``min_p`` drops tokens below that share of the likeliest; ``top_p`` those before which the likelier ones left
    hold more than it.
    """
    order = _likeliest(p, top_k)
    order = order[p[order] >= min_p * p[order[0]]]
    held = p[order] / p[order].sum()
    order = order[np.cumsum(held) - held <= top_p]
    left = np.zeros_like(p)
    left[order] = p[order] / p[order].sum()
    return left


def filtered_as_published(p: FloatArray, top_k: int, top_p: float) -> FloatArray:
    """The published ``top_k`` and ``top_p``: of the ``top_k``, dropped are those before which the *less* likely
    ones hold more than ``top_p``; ``p`` may add up to less than 1, since they are not normalised in between."""
    order = _likeliest(p, top_k)[::-1]
    order = order[np.cumsum(p[order]) - p[order] <= top_p]
    left = np.zeros_like(p)
    left[order] = p[order] / p[order].sum()
    return left


def _likeliest(p: FloatArray, k: int) -> NDArray[np.intp]:
    """(k,) indices of the k largest, in descending order, the first of equals first."""
    among = np.arange(len(p))
    if k < len(p):
        among = np.flatnonzero(p >= np.partition(p, -k)[-k])
    return among[np.argsort(-p[among], kind="stable")][:k]


def best_of(p: FloatArray, score: FloatArray, draws: int) -> FloatArray:
    """The distribution of the best of so many independent draws; among equal scores the first drawn.

    ``P(best ≤ s) = P(one ≤ s)^draws``; within one score tokens keep their proportions.
    """
    possible = np.flatnonzero(p > 0)
    _, level = np.unique(score[possible], return_inverse=True)
    mass = np.bincount(level, weights=p[possible])
    best = np.diff((np.cumsum(mass) / mass.sum()) ** draws, prepend=0.0)
    chosen = np.zeros_like(p)
    chosen[possible] = p[possible] * (best / mass)[level]
    return chosen / chosen.sum()


def drawn_again(p: FloatArray) -> FloatArray:
    """The distribution of a second draw with the token of a first one banned.

    ``p'(w) = Σ_{v≠w} p(v)·p(w) / (1 − p(v))``. A token that is certain stays: nothing else can be drawn.
    """
    top = int(np.argmax(p))
    others = 1.0 - p
    others[top] = float(np.delete(p, top).sum())  # 1 − p loses all digits where one token is nearly certain
    if others[top] <= 0.0:
        return one_hot(p)
    odds = p / others
    again = p * (float(odds.sum()) - odds)
    again[top] = p[top] * float(np.delete(odds, top).sum())
    return again / again.sum()
