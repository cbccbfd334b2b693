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
    accepted = _leading(accepts(p, tokens, q, accept_noise))
    # The bonus row subtracts nothing: all its places are unused.
    none = like([[p.shape[-1]] * q.ids.shape[1]], p, "int64")
    ids = _at(xp.concat([q.ids, none]), accepted)
    probs = _at(xp.concat([q.probs, like([[0.0] * q.ids.shape[1]], p, "float64")]), accepted)
    token = target_token(_at(p, accepted), ids, probs, _at(draw_noise, accepted))
    return Examination(accepted, token)


def accepts(p: Array, tokens: Array, q: QRows, noise: Array) -> Array:
    """Whether each draft token is accepted, if those before it are: (n,) bool.

    Arguments as `examine_rejection`, of which only the first n rows of p are looked at.
    """
    xp = namespace(p)
    rows = xp.arange(tokens.shape[0], device=p.device)
    q_token = xp.sum(xp.where(q.ids == tokens[:, None], q.probs, 0.0), axis=1)
    return noise * q_token < p[rows, tokens]


def target_token(row: Array, ids: Array, probs: Array, noise: Array) -> Array:
    """The target's own token at a position: from norm(max(0, p − q)).

    Args:
        row: (V,) of p.
        ids: (k,) int64, the support of q at a rejected draft token, V in unused places;
            where none was rejected, k = 0 or all places unused.
        probs: (k,) float64, q there.
        noise: uniform in (0, 1), without dimensions.

    Returns int64 without dimensions; −1 if p is not usable.
    """
    xp = namespace(row)
    size = row.shape[0]
    row = xp.asarray(row, dtype=xp.float64)
    # Column V takes the writes of unused places.
    residual = xp.concat([row, like([0.0], row, "float64")])
    residual[ids] = residual[ids] - probs
    residual = xp.clip(residual[:size], 0.0, None)
    # p = q up to rounding leaves no residual, and then p itself is the limit.
    # A NaN in the row, which q may cover, must not be lost.
    usable = xp.isfinite(xp.sum(row))
    return draw(xp.where(usable & (xp.sum(residual) > 0.0), residual, row), noise)


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

    The sums run over blocks first and then within one, which is several times as fast
    as one running sum over a vocabulary.
    """
    xp = namespace(weights)
    rest = -weights.shape[0] % _BLOCK
    if rest:
        weights = xp.concat([weights, xp.zeros(rest, dtype=weights.dtype, device=weights.device)])
    blocks = xp.reshape(weights, (-1, _BLOCK))
    running = xp.cumsum(xp.sum(blocks, axis=1), 0)
    total = running[-1]
    block, left = _find(running, noise * total)
    place, _ = _find(xp.cumsum(_at(blocks, block), 0), left)
    return xp.where((total > 0.0) & (total < float("inf")), block * _BLOCK + place, -1)


_BLOCK = 256


def _find(running: Array, value: Array) -> tuple[Array, Array]:
    # The first index whose running sum exceeds the value, and what of the value is left
    # there. Rounding may bring the value up to the total; the last index with mass is
    # right then.
    xp = namespace(running)
    index = xp.searchsorted(running, value[None], side="right")
    last = xp.searchsorted(running, running[-1:], side="left")
    index = xp.where(index < last, index, last)
    before = xp.concat([xp.zeros(1, dtype=running.dtype, device=running.device), running])
    # A NaN sum is found nowhere, one past the end.
    index = xp.clip(index, None, running.shape[0] - 1)[0]
    return index, value - _at(before, index)


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
