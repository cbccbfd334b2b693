"""Draft distributions: truncating, quantising, drawing, and stacking them.

The edge first makes the q that will travel (few ids, integer weights) and then
draws from exactly that, so that the cloud examines a token against the very
distribution it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specwire.acceptance import QRows, coupled_tokens
from specwire.arrays import Array, like
from specwire.errors import ModelError
from specwire.randomness import Purpose, exponentials, uniform
from specwire.sampling import History, SamplingParams, distribution

Ids = npt.NDArray[np.int64]
Probs = npt.NDArray[np.float64]

COUPLED_FLOOR = 1e-7
"""Coupled drafting leaves out ids below this probability: they hardly ever win."""


@dataclass(frozen=True, eq=False)
class QRow:
    """The distribution one draft token was drawn from.

    ids: (k,) int64, ascending, without repetition. probs: (k,) float64, each above 0,
    summing to 1.
    """

    ids: Ids
    probs: Probs

    def prob(self, token: int) -> float:
        """q(token)."""
        found = np.flatnonzero(self.ids == token)
        return float(self.probs[found[0]]) if len(found) else 0.0


@dataclass(frozen=True)
class Truncation:
    """How much of a draft distribution travels.

    The smallest set of likeliest ids that covers `cover` of the mass, at most
    `cap` ids, with integer weights that sum to 2^`weight_bits`. The defaults cost
    0.4 points of α against sending everything, at about 6 bytes a token.
    """

    cover: float = 0.9
    cap: int = 16
    weight_bits: int = 6

    def __post_init__(self) -> None:
        if not 0.0 < self.cover <= 1.0:
            raise ValueError(f"cover must be above 0 and at most 1, not {self.cover}")
        if not 1 <= self.weight_bits <= 16:
            raise ValueError(f"weight_bits must be 1 … 16, not {self.weight_bits}")
        if not 1 <= self.cap <= min(255, 1 << self.weight_bits):
            raise ValueError(f"cap must be 1 … {min(255, 1 << self.weight_bits)}, not {self.cap}")


def point_row(token: int) -> QRow:
    """All mass on one token."""
    return QRow(np.array([token], np.int64), np.array([1.0]))


def draft_row(
    logits: npt.NDArray[Any],
    params: SamplingParams,
    truncation: Truncation,
    *,
    size: int,
    padding_ids: Sequence[int] = (),
    history: History | None = None,
) -> QRow:
    """q for one draft token.

    Args:
        logits: (width,) of the draft model.
        params: the session's sampling parameters, which p is made with too.
        truncation: how much of the distribution to keep.
        size: of the vocabulary; columns from there on are padding.
        padding_ids: ids below `size` that stand for nothing and are never drafted.
        history: tokens before this one; needed if penalties are on.

    Raises:
        ModelError: the logits are NaN, or none is finite.
    """
    mass = _mass(logits, params, size, padding_ids, history)
    if params.greedy:
        return point_row(int(np.argmax(mass)))
    total = float(mass.sum())
    # An id whose share would round to weight 0 can't be in the result: leave the
    # bulk of the vocabulary out before sorting.
    floor = total * truncation.cover / (1 << (truncation.weight_bits + 1))
    candidates = np.flatnonzero(mass > floor)
    if len(candidates) == 0:
        candidates = np.argpartition(mass, -truncation.cap)[-truncation.cap :]
    candidates = candidates[np.argsort(mass[candidates])[::-1]][: truncation.cap]
    kept = mass[candidates].astype(np.float64)
    enough = int(np.searchsorted(np.cumsum(kept), truncation.cover * total)) + 1
    candidates, kept = candidates[:enough], kept[:enough]
    weights = _quantise(kept / kept.sum(), truncation.weight_bits)
    candidates, weights = candidates[weights > 0], weights[weights > 0]
    order = np.argsort(candidates)
    return QRow(
        candidates[order].astype(np.int64), weights[order] / float(1 << truncation.weight_bits)
    )


@np.errstate(invalid="ignore", over="ignore")
def _mass(
    logits: npt.NDArray[Any],
    params: SamplingParams,
    size: int,
    padding_ids: Sequence[int],
    history: History | None,
) -> npt.NDArray[Any]:
    # Probabilities up to a factor. Plain temperature sampling, the usual case, takes a
    # float32 shortcut: q need not be exact, it must only be what is drawn from.
    plain = params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0
    if plain and not params.penalises:
        z = logits[:size]
        if len(padding_ids):
            z = z.copy()
            z[list(padding_ids)] = -np.inf
        top = z.max()
        if params.greedy:
            mass = (z == top).astype(np.float32)
        else:
            mass = np.exp((z - top) / np.float32(max(params.temperature, 1e-30)))
        usable = bool(np.isfinite(top))
    else:
        mass = distribution(
            logits[None], params, history=history, size=size, padding_ids=padding_ids
        )[0]
        usable = bool(np.isfinite(mass[0]))
    if not usable:
        raise ModelError("the draft model's logits are NaN or infinite: nothing can be drafted")
    return np.asarray(mass)


def _quantise(shares: Probs, bits: int) -> npt.NDArray[np.int64]:
    # Largest remainder: integers in proportion to the shares that sum to 2^bits exactly.
    exact = shares * (1 << bits)
    weights = np.floor(exact).astype(np.int64)
    missing = (1 << bits) - int(weights.sum())
    weights[np.argsort(weights - exact, kind="stable")[:missing]] += 1
    return weights


def draw_row(row: QRow, noise: float) -> int:
    """Draw a token from q with a uniform number in (0, 1)."""
    index = int(np.searchsorted(np.cumsum(row.probs), noise, side="right"))
    return int(row.ids[min(index, len(row.ids) - 1)])


def draft_noise(seed: int, position: int, chain: int) -> float:
    """The edge's uniform number for one draft token in rejection mode.

    Depends on the chain, so that a position drafted again is drawn anew.
    """
    return uniform(seed, position, Purpose.DRAFT, chain)


def coupled_draft(
    logits: npt.NDArray[Any],
    params: SamplingParams,
    *,
    seed: int,
    position: int,
    size: int,
    padding_ids: Sequence[int] = (),
    history: History | None = None,
) -> int:
    """The draft token of coupled mode: the draft's argmax under the shared noise.

    Raises:
        ModelError: the logits are NaN, or none is finite.
    """
    mass = _mass(logits, params, size, padding_ids, history)
    if params.greedy:
        return int(np.argmax(mass))
    ids = np.flatnonzero(mass > COUPLED_FLOOR * float(mass.sum()))
    noise = exponentials(seed, [position], ids.astype(np.int64))
    return int(ids[int(coupled_tokens(mass[ids][None].astype(np.float64), noise)[0])])


def stack_rows(rows: Sequence[QRow], size: int, p: Array) -> QRows:
    """Rows of different lengths as the padded arrays that acceptance takes.

    Args:
        rows: n draft distributions.
        size: of the vocabulary, which pads the ids.
        p: the target's rows; the result has their kind and device.
    """
    width = max((len(row.ids) for row in rows), default=1)
    ids = np.full((len(rows), width), size, np.int64)
    probs = np.zeros((len(rows), width), np.float64)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        probs[i, : len(row.probs)] = row.probs
    return QRows(like(ids, p, "int64"), like(probs, p, "float64"))
