"""Sampling parameters, and the one place that turns logits into a distribution.

Order of operations, as in transformers' generation: penalties, temperature,
top-k, top-p, min-p. Edge and cloud both call `distribution`, so that p and q
differ only by the models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from specwire.arrays import Array, like, namespace
from specwire.errors import BadRequest
from specwire.v1 import verifier_pb2 as pb

MAX_TEMPERATURE = 100.0
MAX_TOP_K = 1 << 31

_SINGLE = 1e-6
"""Below this temperature single precision does not reach; double does."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn from a row of logits.

    temperature: 0 is greedy; 1 leaves the model's distribution as it is.
    top_k: only the k likeliest tokens (ties with the k-th stay); 0 is off.
    top_p: the smallest set of likeliest tokens whose mass reaches top_p; 1 is off.
    min_p: only tokens with at least min_p times the likeliest one's probability; 0 is off.
    repetition_penalty: logits of tokens in prompt or output are divided (if positive)
        or multiplied (if negative) by it; 1 is off (Keskar et al. 2019, CTRL).
    presence_penalty: subtracted once from the logit of a token in the output.
    frequency_penalty: subtracted for each of its occurrences in the output.

    Raises:
        BadRequest: a value is out of range or not a number.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise BadRequest(f"{item.name} must be a number, not {value!r}")
            if not -math.inf < value < math.inf:
                raise BadRequest(f"{item.name} must be finite, not {value!r}")
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if self.top_k != int(self.top_k):
            raise BadRequest(f"top_k must be a whole number, not {self.top_k!r}")
        _within("top_k", self.top_k, 0, MAX_TOP_K)
        if not 0.0 < self.top_p <= 1.0:
            raise BadRequest(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        _within("min_p", self.min_p, 0.0, 1.0)
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise BadRequest(
                f"repetition_penalty must be above 0 and at most 100, "
                f"not {self.repetition_penalty!r} (1 is off)"
            )
        _within("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def to_proto(self) -> pb.Sampling:
        """The message that says the same."""
        return pb.Sampling(
            temperature=self.temperature,
            top_k=int(self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )

    @classmethod
    def from_proto(cls, message: pb.Sampling) -> SamplingParams:
        """Read a message; absent fields mean their defaults.

        Raises:
            BadRequest: a value is out of range or not a number.
        """
        return cls(
            temperature=message.temperature if message.HasField("temperature") else 1.0,
            top_k=message.top_k,
            top_p=message.top_p if message.HasField("top_p") else 1.0,
            min_p=message.min_p,
            repetition_penalty=(
                message.repetition_penalty if message.HasField("repetition_penalty") else 1.0
            ),
            presence_penalty=message.presence_penalty,
            frequency_penalty=message.frequency_penalty,
        )


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadRequest(f"{name} must be between {low:g} and {high:g}, not {value!r}")


@dataclass(frozen=True)
class History:
    """The tokens before the first row: what penalties look at."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


@np.errstate(invalid="ignore", over="ignore")
def distribution(
    logits: Array,
    params: SamplingParams,
    *,
    history: History | None = None,
    drafted: Sequence[int] = (),
    size: int | None = None,
    padding_ids: Sequence[int] = (),
) -> Array:
    """Probabilities after sampling parameters are applied.

    Args:
        logits: (rows, width) of the model; numpy or torch.
        params: what to apply.
        history: the tokens before row 0, for penalties.
        drafted: row j also follows drafted[:j]; at least rows − 1 long if penalties are on.
        size: of the vocabulary; columns from there on are padding and dropped.
        padding_ids: ids below `size` that must have probability 0.

    Returns:
        (rows, size) on the same device, in the precision of the logits (float32 or
        float64), rows summing to 1. A row of NaN or without any finite logit comes
        back as NaN: nothing is drawn from it (see `acceptance`).
    """
    xp = namespace(logits)
    z = _adjusted(logits, params, history, drafted, size, padding_ids)
    size = z.shape[-1]
    # Taking the maximum out first keeps even a temperature of 5e-324 well defined.
    z = z - xp.amax(z, axis=-1, keepdims=True)
    if params.greedy:
        return _greedy(z)
    if params.temperature < _SINGLE:
        z = xp.asarray(z, dtype=xp.float64)
    p = xp.exp(z / params.temperature)
    if 0 < params.top_k < size:
        kth = xp.sort(z, axis=-1) if xp.__name__ == "numpy" else xp.sort(z, -1).values
        p = xp.where(z >= kth[:, size - int(params.top_k), None], p, 0.0)
    p /= xp.sum(p, axis=-1, keepdims=True)
    if params.top_p < 1.0:
        p = _nucleus(p, params.top_p)
    if params.min_p > 0.0:
        p = xp.where(p >= params.min_p * xp.amax(p, axis=-1, keepdims=True), p, 0.0)
        p = p / xp.sum(p, axis=-1, keepdims=True)
    return p


@np.errstate(invalid="ignore")
def greedy_tokens(
    logits: Array,
    params: SamplingParams,
    *,
    history: History | None = None,
    drafted: Sequence[int] = (),
    size: int | None = None,
    padding_ids: Sequence[int] = (),
) -> Array:
    """The likeliest token of each row, after penalties; arguments as `distribution`.

    (rows, width) → (rows,) int64; −1 for a row of NaN or without any finite logit. The
    same as where `distribution` at temperature 0 has its one, without making it.
    """
    xp = namespace(logits)
    z = _adjusted(logits, params, history, drafted, size, padding_ids)
    best = xp.amax(z, -1)
    return xp.where(xp.isfinite(best), xp.argmax(z, -1), -1)


def _adjusted(
    logits: Array,
    params: SamplingParams,
    history: History | None,
    drafted: Sequence[int],
    size: int | None,
    padding_ids: Sequence[int],
) -> Array:
    # Logits after penalties, without padding; the input itself where nothing changes.
    xp = namespace(logits)
    size = logits.shape[-1] if size is None else size
    if size > logits.shape[-1]:
        raise ValueError(f"{logits.shape[-1]} logits but a vocabulary of {size}")
    z = logits[:, :size]
    if z.dtype not in (xp.float32, xp.float64):
        z = xp.asarray(z, dtype=xp.float32)
    if len(padding_ids) or params.penalises:
        z = xp.asarray(z, copy=True)
    if len(padding_ids):
        z[:, like(list(padding_ids), z, "int64")] = -math.inf
    if params.penalises:
        _penalise(z, params, history or History(), drafted)
    return z


def _greedy(z: Array) -> Array:
    # One-hot at the first maximum; a row without a maximum (all −inf, NaN) becomes NaN.
    xp = namespace(z)
    p = xp.zeros_like(z)
    rows = xp.arange(z.shape[0], device=z.device)
    p[rows, xp.argmax(z, -1)] = 1.0
    return xp.where(xp.amax(z, axis=-1, keepdims=True) == 0.0, p, math.nan)


def _nucleus(p: Array, top_p: float) -> Array:
    # Drop the tail whose mass stays within 1 − top_p (Holtzman et al. 2020).
    xp = namespace(p)
    order = xp.argsort(p)
    rows = xp.arange(p.shape[0], device=p.device)[:, None]
    ascending = p[rows, order]
    keep = xp.cumsum(ascending, -1) > 1.0 - top_p
    keep[:, -1] = True
    kept = xp.zeros_like(p)
    kept[rows, order] = xp.where(keep, ascending, 0.0)
    return kept / xp.sum(kept, axis=-1, keepdims=True)


def _penalise(z: Array, params: SamplingParams, history: History, drafted: Sequence[int]) -> None:
    # Each row has a history of its own: rejected drafts of an earlier round are in none.
    xp = namespace(z)
    size = z.shape[-1]
    if len(drafted) < z.shape[0] - 1:
        raise ValueError(f"{z.shape[0]} rows need {z.shape[0] - 1} drafted tokens")
    counts: dict[int, int] = {}
    for token in history.output:
        counts[token] = counts.get(token, 0) + 1
    seen = {t for t in history.prompt if t < size}
    for row in range(z.shape[0]):
        if row:
            token = drafted[row - 1]
            counts[token] = counts.get(token, 0) + 1
        if params.repetition_penalty != 1.0 and (seen or counts):
            ids = like(sorted(seen.union(counts)), z, "int64")
            picked = z[row, ids]
            z[row, ids] = xp.where(
                picked > 0, picked / params.repetition_penalty, picked * params.repetition_penalty
            )
        if counts and (params.presence_penalty or params.frequency_penalty):
            ids = like(list(counts), z, "int64")
            times = xp.asarray(like(list(counts.values()), z, "int64"), dtype=z.dtype)
            z[row, ids] = z[row, ids] - params.presence_penalty - params.frequency_penalty * times


@np.errstate(invalid="ignore")
def raw_logprobs(logits: Array, size: int) -> Array:
    """Natural-log probabilities of the target itself (temperature 1, nothing applied).

    (rows, width) → (rows, size) float64.
    """
    xp = namespace(logits)
    z = xp.asarray(logits[:, :size], dtype=xp.float64)
    z = z - xp.amax(z, axis=-1, keepdims=True)
    return z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True))
