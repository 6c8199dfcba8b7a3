"""Compiled inner loops of the walk model (``smoothing.walk`` says what they compute and why).

Notation. A *message* is what one side of the base path says about the curve at one node: a weighted set of
pseudo-count vectors ``a`` (K,), each a Dirichlet density ``Dir(base + a)`` relative to ``Dir(base)``. Slot
``l`` of a message holds the vectors whose total lies in the l-th logarithmic bin, merged to one. A vector's
total is a precision in units of one draw: adding ``c`` draws adds ``c``, and a step of relative variance
``s`` turns a total ``A`` into ``A / (1 + s A)``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_NOTHING = -np.inf
_NEGLIGIBLE = 1e-9
"""Relative weight below which a vector is dropped from a message."""
_STILL = 0.01
"""A step whose widest class changes no precision by more than this share is not split into classes."""
_PAIR_CUT = 18.0
"""Pairs of vectors lighter than the heaviest by this many nats are left out of a posterior."""
_SETTLED = 0.05
"""Variance floor, so that merging vectors at a vertex of the simplex stays defined."""


@njit(cache=True)
def log_rise(x: float, n: float) -> float:
    """log of ``Gamma(x + n) / Gamma(x)``, by the product for few draws (exact, and faster)."""
    if n <= 12.0:
        product = 1.0
        for i in range(int(n)):
            product *= x + i
        return math.log(product)
    return math.lgamma(x + n) - math.lgamma(x)


@njit(cache=True)
def _slot(total: float, slots: int) -> int:
    return min(int(2.0 * math.log2(1.0 + total)), slots - 1)


@njit(cache=True)
def _log_beta(x: np.ndarray) -> float:
    total = 0.0
    value = 0.0
    for k in range(x.size):
        total += x[k]
        value += math.lgamma(x[k])
    return value - math.lgamma(total)


@njit(cache=True)
def _evidence(a: np.ndarray, shrink: float, base: np.ndarray, counts: np.ndarray, n: float) -> float:
    """log Dirichlet-multinomial probability of ``counts`` under ``Dir(base + shrink * a)``, less a
    constant.
    """
    total = 0.0
    value = 0.0
    for k in range(a.size):
        x = base[k] + shrink * a[k]
        total += x
        if counts[k] > 0:
            value += log_rise(x, counts[k])
    return value - log_rise(total, n)


@njit(cache=True)
def _through(total: float, q: float, scale: float, n: float, upstream: bool) -> tuple[float, float, float]:
    """One step past ``n`` divergence draws: (gain on their mean, new precision, precision they are judged
    by).

    ``o_u = o_{u+1} + q x`` and ``d_u = o_{u+1} + x`` with ``Var(x) = scale``; ``upstream`` goes from
    ``o_{u+1}`` to ``o_u``. Linear-Gaussian updating in information form, so that a precision of 0 is allowed.
    """
    p = 1.0 - q
    if upstream:
        seen = scale
        shared = q * scale
        rest = p * p * scale
    else:
        seen = p * p * scale
        shared = -q * p * scale
        rest = scale
    noise = 1.0 / n
    below = 1.0 + total * (seen + noise)
    gain = (1.0 + total * shared) / below
    variance = (rest + noise + total * q * q * scale * noise) / below
    return gain, 1.0 / variance, total / (1.0 + seen * total)


@njit(cache=True)
def sweep(
    counts: np.ndarray,
    divergence: np.ndarray,
    q: np.ndarray,
    scales: np.ndarray,
    log_weights: np.ndarray,
    base: np.ndarray,
    start: np.ndarray,
    upstream: bool,
    before: np.ndarray,
    before_w: np.ndarray,
    after: np.ndarray,
    after_w: np.ndarray,
) -> float:
    """Pass a message along the nodes and return the log evidence of everything passed.

    Args:
        counts, divergence: (T, K) draws of ``o_t``, and of ``d_t`` on the step from node t to t + 1.
        q: (T,) chance of leaving the base path on that step; scales, log_weights: (J,) step classes.
        base, start: (K,) pseudo-counts of the stationary law, and of what is known at the first node passed.
        upstream: from the last node to the first (the step after the last node, to the end, included).
        before, before_w: (T, L, K) and (T, L), filled with the message at each node without its own draws;
        after, after_w: with them. Arrays of first length 0 are not filled (evidence only).
    """
    nodes, categories = counts.shape
    classes = scales.size
    slots = before.shape[1]
    keep = before.shape[0] == nodes
    a = np.zeros((slots, categories))
    w = np.full(slots, _NOTHING)
    merged = np.zeros((slots, categories))
    weight = np.zeros(slots)
    spread = np.zeros(slots)
    inverse = np.zeros(slots)
    move = np.zeros(categories)
    slot = _slot(start.sum(), slots)
    a[slot] = start
    w[slot] = 0.0
    evidence = 0.0
    widest = scales.max()
    for i in range(nodes):
        t = nodes - 1 - i if upstream else i
        if upstream or i > 0:
            step = t if upstream else t - 1
            n = divergence[step].sum()
            s = q[step] * q[step]
            top = w.max()
            largest = 0.0
            for i0 in range(slots):
                if w[i0] > _NOTHING:
                    largest = max(largest, a[i0].sum())
            if n == 0.0 and s * widest * largest < _STILL:
                mean_scale = 0.0
                for j in range(classes):
                    mean_scale += math.exp(log_weights[j]) * scales[j]
                for i0 in range(slots):
                    if w[i0] > _NOTHING:
                        a[i0] /= 1.0 + s * mean_scale * a[i0].sum()
            else:
                merged[:] = 0.0
                weight[:] = 0.0
                spread[:] = 0.0
                inverse[:] = 0.0
                peak = top
                if n > 0.0:
                    # The classes are weighed by the divergence draws: find the heaviest before adding up.
                    peak = _NOTHING
                    for i0 in range(slots):
                        if w[i0] == _NOTHING:
                            continue
                        total = a[i0].sum()
                        for j in range(classes):
                            _, _, judged = _through(total, q[step], scales[j], n, upstream)
                            shrink = judged / total if total > 0.0 else 0.0
                            x = w[i0] + log_weights[j] + _evidence(a[i0], shrink, base, divergence[step], n)
                            peak = max(peak, x)
                for i0 in range(slots):
                    if w[i0] == _NOTHING:
                        continue
                    total = a[i0].sum()
                    for j in range(classes):
                        x = w[i0] + log_weights[j] - peak
                        if x < -60.0 and n == 0.0:
                            continue
                        if n > 0.0:
                            gain, precision, judged = _through(total, q[step], scales[j], n, upstream)
                            shrink = judged / total if total > 0.0 else 0.0
                            x += _evidence(a[i0], shrink, base, divergence[step], n)
                            size = 0.0
                            for k in range(categories):
                                share = a[i0, k] / total if total > 0.0 else 0.0
                                move[k] = max(share + gain * (divergence[step, k] / n - share), 0.0)
                                size += move[k]
                            for k in range(categories):
                                move[k] /= size
                        else:
                            precision = total / (1.0 + s * scales[j] * total)
                            for k in range(categories):
                                move[k] = a[i0, k] / total if total > 0.0 else 0.0
                        x = math.exp(x)
                        if x < _NEGLIGIBLE:
                            continue
                        slot = _slot(precision, slots)
                        weight[slot] += x
                        inverse[slot] += x / max(precision, 1e-9)
                        for k in range(categories):
                            merged[slot, k] += x * move[k]
                            spread[slot] += x * move[k] * move[k]
                for i0 in range(slots):
                    if weight[i0] == 0.0:
                        w[i0] = _NOTHING
                        continue
                    w[i0] = math.log(weight[i0]) + peak
                    square = 0.0
                    size = 0.0
                    for k in range(categories):
                        merged[i0, k] /= weight[i0]
                        size += merged[i0, k]
                        square += merged[i0, k] * merged[i0, k]
                    if size == 0.0:  # a message that knows nothing yet
                        a[i0] = 0.0
                        continue
                    between = max(spread[i0] / weight[i0] - square, 0.0) / (1.0 - square + _SETTLED)
                    precision = 1.0 / (inverse[i0] / weight[i0] + between)
                    for k in range(categories):
                        a[i0, k] = merged[i0, k] * precision
        if keep:
            before[t] = a
            before_w[t] = w
        n = counts[t].sum()
        if n > 0.0:
            for i0 in range(slots):
                if w[i0] > _NOTHING:
                    w[i0] += _evidence(a[i0], 1.0, base, counts[t], n)
                    for k in range(categories):
                        a[i0, k] += counts[t, k]
        top = w.max()
        total = 0.0
        for i0 in range(slots):
            total += math.exp(w[i0] - top)
        top += math.log(total)
        evidence += top
        for i0 in range(slots):
            w[i0] -= top
            if w[i0] < -40.0:
                w[i0] = _NOTHING
        if keep:
            after[t] = a
            after_w[t] = w
    return evidence


@njit(cache=True)
def _pairs(
    a: np.ndarray,
    aw: np.ndarray,
    b: np.ndarray,
    bw: np.ndarray,
    base: np.ndarray,
    out: np.ndarray,
    out_w: np.ndarray,
) -> int:
    """Join the two messages at one node: posterior Dirichlet vectors and normalised weights; their number."""
    slots = a.shape[0]
    categories = base.size
    norm = _log_beta(base)
    la = np.empty(slots)
    lb = np.empty(slots)
    for i0 in range(slots):
        la[i0] = _log_beta(base + a[i0]) if aw[i0] > _NOTHING else 0.0
        lb[i0] = _log_beta(base + b[i0]) if bw[i0] > _NOTHING else 0.0
    found = 0
    top = _NOTHING
    top_a = aw.max()
    top_b = bw.max()
    for i0 in range(slots):
        if aw[i0] < top_a - _PAIR_CUT:
            continue
        for m in range(slots):
            if bw[m] < top_b - _PAIR_CUT:
                continue
            for k in range(categories):
                out[found, k] = base[k] + a[i0, k] + b[m, k]
            x = aw[i0] + bw[m] + _log_beta(out[found]) - la[i0] - lb[m] + norm
            if x > top - _PAIR_CUT:
                out_w[found] = x
                top = max(top, x)
                found += 1
    total = 0.0
    for i in range(found):
        out_w[i] = math.exp(out_w[i] - top)
        total += out_w[i]
    for i in range(found):
        out_w[i] /= total
    return found


@njit(cache=True)
def moments(
    a: np.ndarray,
    aw: np.ndarray,
    b: np.ndarray,
    bw: np.ndarray,
    base: np.ndarray,
    share: float,
    mean: np.ndarray,
    square: np.ndarray,
) -> None:
    """Add ``share`` of the posterior mean and mean square, (T, K) each, of the curve at every node."""
    nodes, slots, categories = a.shape
    vectors = np.empty((slots * slots, categories))
    weights = np.empty(slots * slots)
    for t in range(nodes):
        found = _pairs(a[t], aw[t], b[t], bw[t], base, vectors, weights)
        for i in range(found):
            total = vectors[i].sum()
            for k in range(categories):
                x = vectors[i, k]
                mean[t, k] += share * weights[i] * x / total
                square[t, k] += share * weights[i] * x * (x + 1.0) / (total * (total + 1.0))


@njit(cache=True)
def _beta_tail(a: float, b: float, x: float) -> float:
    """Continued fraction of the regularised incomplete beta function (DLMF 8.17.22), modified Lentz."""
    tiny = 1e-300
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    if abs(d) < tiny:
        d = tiny
    d = 1.0 / d
    h = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        d = 1.0 + even * d
        c = 1.0 + even / c
        if abs(d) < tiny:
            d = tiny
        if abs(c) < tiny:
            c = tiny
        d = 1.0 / d
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        d = 1.0 + odd * d
        c = 1.0 + odd / c
        if abs(d) < tiny:
            d = tiny
        if abs(c) < tiny:
            c = tiny
        d = 1.0 / d
        h *= d * c
        if abs(d * c - 1.0) < 1e-9:
            break
    return h


@njit(cache=True)
def beta_cdf(a: float, b: float, x: float, log_norm: float) -> float:
    """P(X <= x) for X ~ Beta(a, b); ``log_norm`` is log B(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_norm)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_tail(a, b, x) / a
    return 1.0 - front * _beta_tail(b, a, 1.0 - x) / b


@njit(cache=True)
def mixture_quantile(
    a: np.ndarray, b: np.ndarray, norms: np.ndarray, weights: np.ndarray, level: float
) -> float:
    """Quantile of a mixture of Beta(a_i, b_i), to 1e-6: Newton steps, halving where they leave the
    bracket.
    """
    low = 0.0
    high = 1.0
    mean = 0.0
    square = 0.0
    for i in range(a.size):
        total = a[i] + b[i]
        mean += weights[i] * a[i] / total
        square += weights[i] * a[i] * (a[i] + 1.0) / (total * (total + 1.0))
    x = mean + (1.6 if level > 0.5 else -1.6) * math.sqrt(max(square - mean * mean, 0.0))
    if not 0.0 < x < 1.0:
        x = 0.5
    for _ in range(60):
        mass = 0.0
        density = 0.0
        for i in range(a.size):
            mass += weights[i] * beta_cdf(a[i], b[i], x, norms[i])
            density += weights[i] * math.exp(
                (a[i] - 1.0) * math.log(x) + (b[i] - 1.0) * math.log1p(-x) - norms[i]
            )
        if mass < level:
            low = x
        else:
            high = x
        if high - low < 1e-6:
            break
        new = x - (mass - level) / density if density > 0.0 else low
        if not low < new < high:
            new = 0.5 * (low + high)
        elif abs(new - x) < 1e-7:
            return new
        x = new
    return 0.5 * (low + high)


@njit(cache=True)
def bands(
    a: np.ndarray,
    aw: np.ndarray,
    b: np.ndarray,
    bw: np.ndarray,
    bases: np.ndarray,
    shares: np.ndarray,
    nodes: np.ndarray,
    lower: float,
    upper: float,
    low: np.ndarray,
    high: np.ndarray,
) -> None:
    """Quantiles ``lower`` and ``upper`` of every category at the given nodes, into (len(nodes), K) arrays.

    ``a``, ``b`` are (M, T, L, K): one pair of messages for each of the M averaged models, with ``shares``
    (M,).
    """
    models, _, slots, categories = a.shape
    room = slots * slots
    vectors = np.empty((models * room, categories))
    weights = np.empty(models * room)
    for i in range(nodes.size):
        t = nodes[i]
        found = 0
        for m in range(models):
            new = _pairs(a[m, t], aw[m, t], b[m, t], bw[m, t], bases[m], vectors[found:], weights[found:])
            weights[found : found + new] *= shares[m]
            found += new
        order = np.argsort(-weights[:found])
        used = 0
        mass = 0.0
        while used < found and used < 30 and mass < 0.999:
            mass += weights[order[used]]
            used += 1
        top = order[:used]
        share = weights[top] / mass
        norms = np.empty(used)
        for k in range(categories):
            x = vectors[top, k].copy()
            y = np.empty(used)
            for u in range(used):
                y[u] = max(vectors[top[u]].sum() - x[u], 1e-12)
                norms[u] = math.lgamma(x[u]) + math.lgamma(y[u]) - math.lgamma(x[u] + y[u])
            low[i, k] = mixture_quantile(x, y, norms, share, lower)
            high[i, k] = mixture_quantile(x, y, norms, share, upper)


@njit(cache=True)
def _normal_above(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))


@njit(cache=True)
def fork_probability(
    a: np.ndarray,
    aw: np.ndarray,
    b: np.ndarray,
    bw: np.ndarray,
    base: np.ndarray,
    divergence: np.ndarray,
    q: np.ndarray,
    scales: np.ndarray,
    log_weights: np.ndarray,
    thresholds: np.ndarray,
    out: np.ndarray,
    size: np.ndarray,
    square: np.ndarray,
) -> None:
    """Posterior of the change ``o_t - o_{t-1}`` into each node (row 0 stays 0).

    ``out`` (T, thresholds): P(TV > threshold). ``size`` (T,): mean TV. ``square`` (T,): mean squared length.

    ``a`` is the message at t-1 with its own draws, from the left; ``b`` that at t with its draws, from the
    right. For each pair of vectors and each step class the change is Gaussian; its total variation is judged
    along the direction of its mean.
    """
    nodes, slots, categories = a.shape
    classes = scales.size
    room = slots * slots * classes
    weights = np.empty(room)
    length = np.empty(room)
    sd = np.empty(room)
    squares = np.empty(room)
    moved = np.zeros(categories)
    norm = _log_beta(base)
    joint = np.empty(categories)
    for t in range(1, nodes):
        step = t - 1
        n = divergence[step].sum()
        found = 0
        top = _NOTHING
        top_a = aw[step].max()
        top_b = bw[t].max()
        for i0 in range(slots):
            if aw[step, i0] < top_a - _PAIR_CUT:
                continue
            total = a[step, i0].sum()
            for j in range(classes):
                s = q[step] * q[step] * scales[j]
                # Joint of (o_{t-1}, change), in precision units, past the divergence draws where there are
                # any.
                start_var = 1.0 / max(total, 1e-6)
                change_var = s
                cross = 0.0
                drift = 0.0
                x0 = aw[step, i0] + log_weights[j]
                pull = 0.0
                if n > 0.0:
                    p = 1.0 - q[step]
                    _, _, judged = _through(total, q[step], scales[j], n, False)
                    shrink = judged / total if total > 0.0 else 0.0
                    x0 += _evidence(a[step, i0], shrink, base, divergence[step], n)
                    # y = o_{t-1} + p x with change = -q x
                    vy = start_var + p * p * scales[j] + 1.0 / n
                    c1 = start_var
                    c2 = -q[step] * p * scales[j]
                    pull = c1 / vy
                    drift = c2 / vy
                    start_var -= c1 * c1 / vy
                    change_var -= c2 * c2 / vy
                    cross = -c1 * c2 / vy
                here = start_var + change_var + 2.0 * cross  # variance of o_t
                precision = 1.0 / max(here, 1e-12)
                size_m = 0.0
                for k in range(categories):
                    start = a[step, i0, k] / total if total > 0.0 else base[k] / base.sum()
                    seen = divergence[step, k] / n - start if n > 0.0 else 0.0
                    moved[k] = max(start + (pull + drift) * seen, 0.0)
                    size_m += moved[k]
                for k in range(categories):
                    moved[k] *= precision / size_m
                known = _log_beta(base + moved)
                for m in range(slots):
                    if bw[t, m] < top_b - _PAIR_CUT:
                        continue
                    right = b[t, m].sum()
                    for k in range(categories):
                        joint[k] = base[k] + moved[k] + b[t, m, k]
                    x = x0 + bw[t, m] + _log_beta(joint) - known - _log_beta(base + b[t, m]) + norm
                    if x < top - _PAIR_CUT:
                        continue
                    top = max(top, x)
                    gain = (change_var + cross) / (here + 1.0 / max(right, 1e-6))
                    variance = max(change_var - gain * (change_var + cross), 0.0)
                    spin = 0.0
                    half = 0.0
                    two = 0.0
                    spread = 1.0
                    sizes = joint.sum()
                    peak = 0
                    for k in range(categories):
                        start = a[step, i0, k] / total if total > 0.0 else base[k] / base.sum()
                        seen = divergence[step, k] / n - start if n > 0.0 else 0.0
                        now = moved[k] / precision
                        target = b[t, m, k] / right if right > 0.0 else now
                        change = drift * seen + gain * (target - now)
                        half += 0.5 * abs(change)
                        two += change * change
                        spread -= (joint[k] / sizes) ** 2
                        spin += joint[k] / sizes if change > 0.0 else -joint[k] / sizes
                        if joint[k] > joint[peak]:
                            peak = k
                    if half < 1e-6:
                        spin = 2.0 * joint[peak] / sizes - 1.0
                    weights[found] = x
                    length[found] = half
                    squares[found] = two + variance * max(spread, 0.0)
                    sd[found] = 0.5 * math.sqrt(variance * max(1.0 - spin * spin, 1e-6))
                    found += 1
        mass = 0.0
        for i in range(found):
            x = math.exp(weights[i] - top)
            mass += x
            d = max(sd[i], 1e-9)
            for h in range(thresholds.size):
                out[t, h] += x * (
                    _normal_above((thresholds[h] - length[i]) / d)
                    + _normal_above((thresholds[h] + length[i]) / d)
                )
            square[t] += x * squares[i]
            z = length[i] / d
            size[t] += x * (
                d * math.sqrt(2.0 / math.pi) * math.exp(-0.5 * min(z * z, 1400.0))
                + length[i] * (1.0 - 2.0 * _normal_above(z))
            )
        for h in range(thresholds.size):
            out[t, h] = min(out[t, h] / mass, 1.0)
        size[t] /= mass
        square[t] /= mass


@njit(cache=True)
def _choose(rng: np.random.Generator, log_weights: np.ndarray, count: int) -> int:
    top = log_weights[:count].max()
    total = 0.0
    for i in range(count):
        total += math.exp(log_weights[i] - top)
    u = rng.random() * total
    for i in range(count):
        u -= math.exp(log_weights[i] - top)
        if u <= 0.0:
            return i
    return count - 1


@njit(cache=True)
def _dirichlet(rng: np.random.Generator, x: np.ndarray, out: np.ndarray) -> None:
    total = 0.0
    for k in range(x.size):
        # For small shapes, Gamma(x) = Gamma(x + 1) U^(1/x), which does not underflow to 0 / 0.
        if x[k] < 1.0:
            out[k] = rng.gamma(x[k] + 1.0) * math.exp(math.log(1.0 - rng.random()) / x[k])
        else:
            out[k] = rng.gamma(x[k])
        total += out[k]
    if total == 0.0:
        out[:] = 0.0
        out[np.argmax(x)] = 1.0
    else:
        out /= total


@njit(cache=True)
def sample_curves(
    b: np.ndarray,
    bw: np.ndarray,
    base: np.ndarray,
    divergence: np.ndarray,
    q: np.ndarray,
    scales: np.ndarray,
    log_weights: np.ndarray,
    rng: np.random.Generator,
    out: np.ndarray,
) -> None:
    """Joint draws of whole curves, into (size, T, K): sample node 0, then each node given the one before.

    ``b`` is the message from the right at each node with its own draws: backward filtering, forward sampling.
    """
    size, nodes, categories = out.shape
    slots = b.shape[1]
    classes = scales.size
    x = np.empty(slots * classes)
    vectors = np.empty((slots * classes, categories))
    known = np.zeros((nodes, slots))
    for t in range(nodes):
        for m in range(slots):
            if bw[t, m] > _NOTHING:
                known[t, m] = _log_beta(base + b[t, m])
    move = np.empty(categories)
    for draw in range(size):
        for t in range(nodes):
            found = 0
            top_b = bw[t].max()
            if t == 0:
                for m in range(slots):
                    if bw[t, m] >= top_b - _PAIR_CUT:
                        vectors[found] = base + b[t, m]
                        x[found] = bw[t, m]
                        found += 1
            else:
                here = out[draw, t - 1]
                n = divergence[t - 1].sum()
                s = q[t - 1] * q[t - 1]
                if n == 0.0 and s * scales.max() < 1e-7:
                    out[draw, t] = here
                    continue
                for j in range(classes):
                    x0 = log_weights[j]
                    if n > 0.0:
                        gain, precision, judged = _through(1e9, q[t - 1], scales[j], n, False)
                        x0 += _evidence(here, judged, base, divergence[t - 1], n)
                        total = 0.0
                        for k in range(categories):
                            move[k] = max(here[k] + gain * (divergence[t - 1, k] / n - here[k]), 0.0)
                            total += move[k]
                        for k in range(categories):
                            move[k] *= precision / total
                    else:
                        for k in range(categories):
                            move[k] = here[k] / max(s * scales[j], 1e-9)
                    left = _log_beta(base + move)
                    for m in range(slots):
                        if bw[t, m] < top_b - _PAIR_CUT:
                            continue
                        for k in range(categories):
                            vectors[found, k] = base[k] + move[k] + b[t, m, k]
                        x[found] = x0 + bw[t, m] + _log_beta(vectors[found]) - left - known[t, m]
                        found += 1
            _dirichlet(rng, vectors[_choose(rng, x, found)], out[draw, t])
