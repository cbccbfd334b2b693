"""Randomness as a function of (seed, position, purpose, token id).

Nothing here has state, so a round that is repeated, resumed, moved to another
server or batched with others draws what it drew before.

The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) read at an index
instead of in sequence: value i of the stream with state s is mix(s + (i+1)·φ).
The stream's state is a hash of seed, position and purpose. It is written in
wrapping 64-bit integers, which numpy and torch share, so that both ends draw the
same bits on any device; only the last bit of a logarithm may differ between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from specwire.arrays import Array, like, namespace

_MASK = (1 << 64) - 1
_PHI = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a draw decides; draws for different purposes are independent."""

    ACCEPT = 1  # whether the draft token at a position is accepted
    TARGET = 2  # the cloud's own token at a position: correction, bonus or run-ahead
    COUPLED = 3  # the shared noise of coupled verification
    DRAFT = 4  # the edge's draft token in rejection mode


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def stream(seed: int, position: int, purpose: Purpose, salt: int = 0) -> int:
    """The 64-bit state of the stream for one position and purpose.

    `salt` separates several draws for the same position (the edge drafts a
    position again in each new chain).
    """
    state = _mix(seed + _PHI)
    for word in (position, int(purpose), salt):
        state = _mix(state ^ _mix(word + _PHI) + _PHI)
    return state


def uniform(seed: int, position: int, purpose: Purpose, salt: int = 0) -> float:
    """One number in the open interval (0, 1), a multiple of 2^−53."""
    return _to_unit(_mix(stream(seed, position, purpose, salt) + _PHI))


def uniforms(seed: int, start: int, count: int, purpose: Purpose) -> list[float]:
    """`uniform` for positions start … start+count−1."""
    return [uniform(seed, start + i, purpose) for i in range(count)]


def _to_unit(bits: int) -> float:
    # 52 bits and a half: never 0 and never 1, both of which would break a comparison.
    return ((bits >> 12) + 0.5) * 2.0**-52


def exponentials(seed: int, positions: Sequence[int], ids: Array) -> Array:
    """Shared noise of coupled verification: standard exponential numbers.

    Args:
        seed: of the session.
        positions: absolute positions, one for each row.
        ids: token ids, int64, shape (rows, k), or (k,) for the same ids in each row.

    Returns:
        float64 (rows, k) on the device of `ids`. The value for an id depends on
        (seed, position, id) alone. −log of it is Gumbel noise g, and
        argmax(log p + g) = argmin(noise / p).
    """
    xp = namespace(ids)
    states = [_signed(stream(seed, position, Purpose.COUPLED)) for position in positions]
    z = like(states, ids, "int64")[:, None] + (ids + 1) * _signed(_PHI)
    # In place: these arrays are as long as the vocabulary.
    z ^= (z >> 30) & ((1 << 34) - 1)
    z *= _signed(_M1)
    z ^= (z >> 27) & ((1 << 37) - 1)
    z *= _signed(_M2)
    z ^= (z >> 31) & ((1 << 33) - 1)
    z >>= 12
    z &= (1 << 52) - 1
    unit = xp.asarray(z, dtype=xp.float64)
    unit += 0.5
    unit *= -(2.0**-52)
    return -xp.log1p(unit)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
