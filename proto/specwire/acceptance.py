"""The rule of acceptance, once, for numpy and torch, without control flow on data.

`examine_rejection` is speculative sampling (Leviathan, Kalman, Matias 2023;
Chen et al. 2023): accept draft token x with probability min(1, p(x)/q(x)); at
the first rejection draw from norm(max(0, p − q)); after full acceptance draw a
bonus token from p. What is committed is distributed as p, whatever q is.

`examine_coupled` draws from p with noise that the edge shares (Gumbel-max
coupling): the target's token at each position is a function of p and the noise
alone, and draft tokens are accepted while they agree with it.

Both take one session's round and return arrays on the device of p, so that a
caller on an accelerator moves a few integers to the host and no row of p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specwire.arrays import Array, like, namespace
from specwire.randomness import Purpose, exponentials, uniforms


class Examination(NamedTuple):
    """Outcome of a round: int64 arrays without dimensions.

    accepted: how many draft tokens, 0 … n.
    token: the target's token after them (correction or bonus); −1 if the
        distribution it would come from is not usable (NaN, no mass).
    """

    accepted: Array
    token: Array


class QRows(NamedTuple):
    """Draft distributions of n tokens, each over at most k ids.

    ids: (n, k) int64; unused places hold the vocabulary size.
    probs: (n, k) float64; 0 in unused places; each row sums to 1.
    """

    ids: Array
    probs: Array


def examine_rejection(
    p: Array, tokens: Array, q: QRows, accept_noise: Array, draw_noise: Array
) -> Examination:
    """Examine n draft tokens against n + 1 rows of p.

    Args:
        p: (n+1, V) float32 or float64; row i is the target's distribution of draft
            token i, the last row that of the bonus token.
        tokens: (n,) int64, drawn from q.
        q: what they were drawn from.
        accept_noise: (n,) uniform in (0, 1), one for each position.
        draw_noise: (n+1,) uniform in (0, 1), for the target's own token there.
    """
    xp = namespace(p)
    n, size = tokens.shape[0], p.shape[-1]
    rows = xp.arange(n, device=p.device)
    q_token = xp.sum(xp.where(q.ids == tokens[:, None], q.probs, 0.0), axis=1)
    accept = accept_noise * q_token < p[rows, tokens]
    accepted = _leading(accept)

    # The bonus row subtracts nothing. Column V takes the writes of unused places.
    none = like([[size] * q.ids.shape[1]], q.ids, "int64")
    ids = _at(xp.concat([q.ids, none]), accepted)
    probs = _at(xp.concat([q.probs, like([[0.0] * q.ids.shape[1]], p, "float64")]), accepted)
    row = xp.asarray(_at(p, accepted), dtype=xp.float64)
    residual = xp.concat([row, like([0.0], p, "float64")])
    residual[ids] = residual[ids] - probs
    residual = xp.where(residual[:size] > 0.0, residual[:size], 0.0)
    # p = q up to rounding leaves no residual, and then p itself is the limit.
    # A NaN in the row must not be hidden by the comparison above.
    usable = xp.isfinite(xp.sum(row))
    weights = xp.where(usable & (xp.sum(residual) > 0.0), residual, row)
    return Examination(accepted, draw(weights, _at(draw_noise, accepted)))


def examine_greedy(best: Array, tokens: Array) -> Examination:
    """Examine n draft tokens at temperature 0, in either mode.

    With a one-hot p both rules come to the same: a draft token is accepted if it is the
    target's likeliest.

    Args:
        best: (n+1,) int64, the target's likeliest tokens, `sampling.greedy_tokens`.
        tokens: (n,) int64.
    """
    accepted = _leading(best[: tokens.shape[0]] == tokens)
    return Examination(accepted, _at(best, accepted))


def examine_coupled(p: Array, tokens: Array, noise: Array) -> Examination:
    """Examine n draft tokens that were drawn with the shared noise.

    Args:
        p: (n+1, V), as in `examine_rejection`.
        tokens: (n,) int64.
        noise: (n+1, V) standard exponential numbers, `randomness.exponentials`.
    """
    winners = coupled_tokens(p, noise)
    accepted = _leading(winners[: tokens.shape[0]] == tokens)
    return Examination(accepted, _at(winners, accepted))


@np.errstate(over="ignore")
def coupled_tokens(p: Array, noise: Array) -> Array:
    """argmax over i of log p_i + g_i for each row, as argmin of noise_i / p_i.

    (rows, k) and (rows, k) → (rows,) int64 column numbers; −1 where no column has mass.
    """
    xp = namespace(p)
    score = xp.where(p > 0.0, noise / xp.where(p > 0.0, p, 1.0), float("inf"))
    usable = xp.isfinite(xp.sum(p, axis=1)) & (xp.amin(score, axis=1) < float("inf"))
    return xp.where(usable, xp.argmin(score, 1), -1)


def draw(weights: Array, noise: Array) -> Array:
    """Inverse transform: the first index where the running sum exceeds noise × total.

    weights: (V,) ≥ 0, in any scale. noise: uniform in (0, 1), without dimensions.
    Returns int64 without dimensions; −1 if the total is 0, infinite or NaN.
    An index of weight 0 is never returned.
    """
    xp = namespace(weights)
    running = xp.cumsum(weights, 0)
    total = running[-1]
    index = xp.searchsorted(running, (noise * total)[None], side="right")[0]
    # noise × total may round up to the total; the last index with mass is right then.
    last = xp.searchsorted(running, total[None], side="left")[0]
    index = xp.where(index < last, index, last)
    return xp.where((total > 0.0) & (total < float("inf")), index, -1)


def _at(array: Array, index: Array) -> Array:
    # array[index] for an index without dimensions. As a list of one it stays on the
    # device; torch would fetch a bare one to the host.
    return array[index[None]][0]


def _leading(flags: Array) -> Array:
    # Number of True before the first False.
    xp = namespace(flags)
    return xp.sum(xp.asarray(xp.cumsum(~flags, 0) == 0, dtype=xp.int64))


def rejection_noise(seed: int, start: int, count: int) -> tuple[list[float], list[float]]:
    """Noise for `examine_rejection` of `count` draft tokens whose first is at `start`.

    Returns (accept_noise of length count, draw_noise of length count + 1).
    """
    return (
        uniforms(seed, start, count, Purpose.ACCEPT),
        uniforms(seed, start, count + 1, Purpose.TARGET),
    )


def coupled_noise(seed: int, start: int, count: int, p: Array) -> Array:
    """Noise for `examine_coupled`: (count + 1, V) on the device of p (count + 1, V)."""
    xp = namespace(p)
    ids = xp.arange(p.shape[-1], dtype=xp.int64, device=p.device)
    return exponentials(seed, range(start, start + count + 1), ids)


def acceptance_probability(p: Sequence[float], q: Sequence[float]) -> float:
    """α of one position: Σ min(p, q), the chance that a token drawn from q is accepted."""
    return float(sum(min(a, b) for a, b in zip(p, q, strict=True)))
