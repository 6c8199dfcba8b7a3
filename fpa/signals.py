"""Signals of a next-token distribution: entropy, varentropy, and what the listed tokens leave out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpa.records import AttentionSignals, Distribution

COVERAGE = 0.999  # mass at the sampling temperature that a stored distribution must list
MIN_LISTED = 10  # alternatives kept even where fewer cover the mass
ROUNDING = 1e-5  # mass that the sum of the listed, from 32-bit logarithms, may hide
TOP = 20  # likeliest tokens that ``top_entropy`` sees, as EAGER does
MAX_ENTROPY_GAP = 0.01  # nats by which unlisted tokens may leave the entropy open


def entropy(p: ArrayLike) -> float:
    """Shannon entropy ``-sum p ln p`` in nats; ``0 ln 0 = 0``."""
    q = np.asarray(p, dtype=np.float64)
    q = q[q > 0]
    return float(-(q * np.log(q)).sum()) + 0.0


def varentropy(p: ArrayLike) -> float:
    """Variance of the surprisal, ``sum p (ln p + H)^2``, in nats squared."""
    q = np.asarray(p, dtype=np.float64)
    q = q[q > 0]
    log_q = np.log(q)
    return float((q * (log_q - (q * log_q).sum()) ** 2).sum())


def top_entropy(p: ArrayLike, top: int = TOP) -> float:
    """Entropy of the ``top`` likeliest tokens, renormalised, in nats (EAGER, Scalena et al. 2025, section 3)."""
    q = np.sort(np.asarray(p, dtype=np.float64))[::-1][:top]
    return entropy(q / q.sum())


def attention_signals(scores: ArrayLike, counts: ArrayLike | None = None) -> AttentionSignals:
    """Signals of one position's attention in one layer, as Entropix defines them (xjdr-alt/entropix, 2024).

    Args:
        scores: (heads, tokens) scores before the softmax, scaled as the layer scales them.
        counts: (tokens,) which tokens are attended to; empty or masked positions of a cache are not. All by default.
    """
    s = np.asarray(scores, dtype=np.float64)
    if counts is not None:
        s = s[:, np.asarray(counts, dtype=bool)]
    weights = np.exp(s - s.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    entropies = np.array([entropy(head) for head in weights])
    return AttentionSignals(
        entropy=float(entropies.mean()),
        varentropy=float(entropies.var()),
        agreement=float(np.abs(weights - weights.mean(axis=0)).mean()),
        interaction=float(np.abs(s).mean()),
    )


class NotEnoughListed(ValueError):
    """The listed tokens do not pin the distribution down: ask the engine for more of them."""


def next_token_distribution(
    ids: ArrayLike,
    logprobs: ArrayLike,
    temperature: float,
    vocabulary: int,
    *,
    coverage: float = COVERAGE,
    entropy_gap: float = MAX_ENTROPY_GAP,
    least: int = MIN_LISTED,
    drawn_at: float | None = None,
) -> Distribution:
    """The distribution at the sampling temperature, from the likeliest tokens' raw log-probabilities.

    Args:
        ids: (k,) token ids, any order.
        logprobs: (k,) natural log-probabilities at temperature 1, normalised over the full vocabulary;
            ``-inf`` for impossible tokens.
        temperature: sampling temperature, > 0.
        vocabulary: size of the full vocabulary.
        coverage: least mass at ``drawn_at`` that must be listed.
        entropy_gap: nats by which the tokens left out may leave the entropy open.
        least: tokens listed even where fewer cover the mass.
        drawn_at: temperature at which the mass is to be covered; ``temperature`` when None.

    Returns:
        The shortest list that covers ``COVERAGE`` of the mass at ``drawn_at`` (at least ``least``).
        At a temperature other than 1 the mass of the tokens that ``logprobs`` leaves out is known only
        within bounds; its upper bound is taken, so listed probabilities are at most 0.1 % too low.
        Entropy and varentropy count the left-out tokens as equally likely, which is exact when all are
        given and otherwise right to ``entropy_gap`` nats.

    Raises:
        NotEnoughListed: when the left-out tokens could hold more than that.
    """
    order = np.argsort(-np.asarray(logprobs, dtype=np.float64), kind="stable")
    log_p = np.asarray(logprobs, dtype=np.float64)[order]
    token_ids = np.asarray(ids, dtype=np.int32)[order]
    possible = np.isfinite(log_p)
    log_p, token_ids = log_p[possible], token_ids[possible]
    raw = np.exp(log_p)
    unlisted = max(0, vocabulary - len(ids))  # type: ignore[arg-type]
    last = float(raw[-1])
    raw_tail = min(max(0.0, 1.0 - float(raw.sum())) + ROUNDING, unlisted * last)

    def tempered(at: float) -> NDArray[np.float64]:
        weights = np.exp(log_p / at - log_p[0] / at)
        tail = _tail_weight(raw_tail, unlisted, last, at) * math.exp(-log_p[0] / at)
        return np.asarray(weights / (float(weights.sum()) + tail))

    p = tempered(temperature)
    covered = np.cumsum(p if drawn_at is None else tempered(drawn_at))
    if covered[-1] < coverage or _entropy_gap(raw_tail, unlisted, last) > entropy_gap:
        raise NotEnoughListed(f"{len(raw)} listed tokens cover {covered[-1]:.4f} of the mass")

    kept = min(len(p), max(least, int(np.searchsorted(covered, COVERAGE)) + 1))
    head, spread = _surprisal_moments(raw, raw_tail, unlisted)
    return Distribution(
        ids=token_ids[:kept],
        p=p[:kept],
        tail_mass=float(max(0.0, 1.0 - p[:kept].sum())),
        entropy=head,
        varentropy=spread,
        top_entropy=top_entropy(raw),
    )


def _tail_weight(raw_tail: float, unlisted: int, last: float, temperature: float) -> float:
    """Upper bound of ``sum p^(1/temperature)`` over tokens of total mass ``raw_tail``, each at most ``last``."""
    if raw_tail <= 0.0 or unlisted == 0:
        return 0.0
    if temperature <= 1.0:
        # p^(1/T) = p * p^(1/T - 1), and the second factor is largest at the largest p.
        return float(raw_tail * last ** (1.0 / temperature - 1.0))
    # Concave in p: largest when the mass is spread evenly (Jensen).
    return float(unlisted * (raw_tail / unlisted) ** (1.0 / temperature))


def _entropy_gap(raw_tail: float, unlisted: int, last: float) -> float:
    """By how much the entropy is open: the tail spread evenly, against packed into tokens of mass ``last``."""
    if raw_tail <= 0.0 or unlisted == 0:
        return 0.0
    return raw_tail * max(0.0, math.log(max(last, 1e-300) * unlisted / raw_tail))


def _surprisal_moments(raw: NDArray[np.float64], raw_tail: float, unlisted: int) -> tuple[float, float]:
    """Mean and variance of the surprisal with the tail spread evenly over the unlisted tokens."""
    positive = raw[raw > 0]
    surprisal = -np.log(positive)
    mass = positive
    if raw_tail > 0.0 and unlisted:
        surprisal = np.append(surprisal, math.log(unlisted / raw_tail))
        mass = np.append(mass, raw_tail)
    mean = float((mass * surprisal).sum())
    return mean, float((mass * (surprisal - mean) ** 2).sum())
