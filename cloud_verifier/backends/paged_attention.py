"""Attention over paged keys and values, for a ragged batch packed into one row.

The model's own code computes queries, keys and values of all tokens of all
sequences at once. What differs between sequences is only which keys a query may
see, and that is decided here: keys and values go into the pool's slots, and each
sequence's are gathered from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from specwire.errors import ModelError

_WASTE = 2
"""Sequences are attended together while the longest has at most this times the keys of the
shortest: padding costs less than another pass, up to there."""


@dataclass(frozen=True)
class Sight:
    """Which keys a layer's queries see, besides none that come later.

    window: the last so many, the query's own included. chunk: those of its own run of
    so many positions.
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Scoring:
    """How scores become weights.

    scale: of the products; None for 1/√width. softcap: scores are squeezed into ±softcap
    (Gemma 2). sinks: (heads,) a score that takes weight and gives nothing (GPT-OSS).
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True)
class Span:
    """One sequence's part of the packed row.

    first: index of its first token in the row. count: its tokens. slots: of all its
    keys in order, its own new ones included, int64 (length,).
    """

    first: int
    count: int
    slots: torch.Tensor


@dataclass
class _Group:
    """Sequences attended to together, padded to the longest.

    keys: (sequences × keys,) slots. queries: (sequences × queries,) indices into the row.
    query_at, key_at: positions, (sequences, queries) and (keys,). back: for each of
    the group's tokens, its place among the padded queries; tokens: their indices in the row.
    """

    sequences: int
    keys: torch.Tensor
    queries: torch.Tensor
    query_at: torch.Tensor
    back: torch.Tensor
    tokens: torch.Tensor
    masks: dict[tuple[Sight, int], torch.Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> _Group:
        """A copy on another device; masks are made there."""
        return _Group(
            sequences=self.sequences,
            keys=self.keys.to(device),
            queries=self.queries.to(device),
            query_at=self.query_at.to(device),
            back=self.back.to(device),
            tokens=self.tokens.to(device),
        )

    @property
    def most_keys(self) -> int:
        return self.keys.shape[0] // self.sequences

    @property
    def most_queries(self) -> int:
        return self.queries.shape[0] // self.sequences

    def mask(self, sight: Sight, heads: int) -> torch.Tensor:
        """(sequences, 1, heads × queries, keys) bool: which keys each query sees."""
        known = self.masks.get((sight, heads))
        if known is None:
            key_at = torch.arange(self.most_keys, device=self.keys.device)
            query_at = self.query_at[:, :, None]
            sees = key_at <= query_at
            if sight.window is not None:
                sees &= key_at > query_at - sight.window
            if sight.chunk is not None:
                sees &= key_at >= query_at - query_at % sight.chunk
            known = sees.repeat(1, heads, 1)[:, None]
            self.masks[sight, heads] = known
        return known


class PackedBatch:
    """What attention must know about one forward, made on the CPU."""

    def __init__(self, spans: Sequence[Span]) -> None:
        slots = torch.cat([span.slots[-span.count :] for span in spans])
        groups = [_group(part) for part in _by_length(spans)]
        self._placed = {torch.device("cpu"): PlacedBatch(slots, groups)}

    def on(self, device: torch.device) -> PlacedBatch:
        """The batch on a device. A model over several devices asks for each once."""
        placed = self._placed.get(device)
        if placed is None:
            placed = self._placed[device] = self._placed[torch.device("cpu")].to(device)
        return placed


@dataclass(frozen=True)
class PlacedBatch:
    """A `PackedBatch` on one device.

    new_slots: (tokens,) slots of the packed row's own keys.
    """

    new_slots: torch.Tensor
    groups: list[_Group]

    def to(self, device: torch.device) -> PlacedBatch:
        """A copy on another device."""
        return PlacedBatch(self.new_slots.to(device), [g.to(device) for g in self.groups])

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        sight: Sight,
        scoring: Scoring,
    ) -> torch.Tensor:
        """Attention output of the packed row, (tokens, heads, value width).

        `query` is (heads, tokens, width); `keys` and `values` are the pool of one layer,
        (slots, kv_heads, width); `sight` and `scoring` are the layer's.
        """
        heads, tokens, width = query.shape
        kv_heads, value_width = keys.shape[1], values.shape[2]
        shared = heads // kv_heads
        out = query.new_empty(tokens, heads, value_width)
        for group in self.groups:
            n, q, k = group.sequences, group.most_queries, group.most_keys
            # Queries that share a key head stand one below the other: no key is repeated.
            rows = query.index_select(1, group.queries).view(kv_heads, shared, n, q, width)
            rows = rows.permute(2, 0, 1, 3, 4).reshape(n, kv_heads, shared * q, width)
            key = keys.index_select(0, group.keys).view(n, k, kv_heads, width).transpose(1, 2)
            value = values.index_select(0, group.keys).view(n, k, kv_heads, value_width)
            attended = _weigh(rows, key, value.transpose(1, 2), group.mask(sight, shared), scoring)
            attended = attended.view(n, kv_heads, shared, q, value_width).permute(0, 3, 1, 2, 4)
            attended = attended.reshape(n * q, heads, value_width)
            out.index_copy_(0, group.tokens, attended.index_select(0, group.back))
        return out


def _weigh(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention of (n, kv_heads, shared × queries, width) on (n, kv_heads, keys, width)."""
    if scoring.softcap is None and scoring.sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scoring.scale)
    scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if scoring.sinks is not None:
        kv_heads, rows = query.shape[1:3]
        sinks = scoring.sinks.float().view(kv_heads, -1, 1)
        sinks = sinks.expand(-1, -1, rows // sinks.shape[1]).reshape(1, kv_heads, rows, 1)
        scores = torch.cat([scores, sinks.expand(len(scores), -1, -1, -1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[-2]]
    return weights.to(value.dtype) @ value


def _by_length(spans: Sequence[Span]) -> list[list[Span]]:
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (len(s.slots), s.count)):
        if groups and _fits(groups[-1], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _fits(group: Sequence[Span], span: Span) -> bool:
    # Both dimensions are padded: a prefill among short rounds would make them all long.
    least = min(s.count for s in group)
    keys = len(span.slots) <= _WASTE * max(len(group[0].slots), 64)
    return keys and max(span.count, *(s.count for s in group)) <= _WASTE * max(least, 8)


def _group(spans: Sequence[Span]) -> _Group:
    most_keys = max(len(span.slots) for span in spans)
    most_queries = max(span.count for span in spans)
    keys = torch.zeros(len(spans), most_keys, dtype=torch.int64)
    queries, query_at, back, tokens = [], [], [], []
    for index, span in enumerate(spans):
        keys[index, : len(span.slots)] = span.slots
        start = len(span.slots) - span.count
        # Padding repeats the last query: its result is not used.
        padded = [min(j, span.count - 1) for j in range(most_queries)]
        queries += [span.first + j for j in padded]
        query_at.append([start + j for j in padded])
        back += [index * most_queries + j for j in range(span.count)]
        tokens += [span.first + j for j in range(span.count)]
    return _Group(
        sequences=len(spans),
        keys=keys.flatten(),
        queries=torch.tensor(queries),
        query_at=torch.tensor(query_at),
        back=torch.tensor(back),
        tokens=torch.tensor(tokens),
    )


class LayerPool:
    """Keys and values of one layer: (slots, kv_heads, width), made when first written."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(
        self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (tokens, kv_heads, width) at `slots`; returns the whole pool of the layer."""
        if self.keys is None or self.values is None:
            # Left as it comes, so that memory never used is never touched; but slot 0
            # is gathered as padding, and there a NaN would spread.
            self.keys = keys.new_empty(self._slots, *keys.shape[1:])
            self.values = values.new_empty(self._slots, *values.shape[1:])
            self.keys[0] = self.values[0] = 0.0
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)
        return self.keys, self.values

    def copy(self, source: slice, target: slice) -> None:
        """Copy slots to other slots."""
        if self.keys is not None and self.values is not None:
            self.keys[target] = self.keys[source]
            self.values[target] = self.values[source]

    @property
    def bytes_per_slot(self) -> int:
        """Of keys and values together."""
        if self.keys is None or self.values is None:
            raise ModelError("the layer has not been written to")
        return (self.keys[0].nbytes) + (self.values[0].nbytes)
