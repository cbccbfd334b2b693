"""q on the wire: `point`, `sparse`, `dense`.

A sparse row stands beside its draft token and leaves out what that already
says. Layout of a row, varints being unsigned LEB128:

    count       one byte: ids other than the draft token
    ids         `count` varints, ascending: the first as it is, then gaps minus one
    weights     `count` varints, each at least 1

The draft token's own weight is what is missing to 2^weight_bits, so a row that
does not sum to one can't be written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specwire.errors import BadRequest
from specwire.qrow import QRow, point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

MAX_WEIGHT_BITS = 16
DENSE_TOLERANCE = 1e-4


def encode_q(proposal: pb.Proposal, rows: Sequence[QRow], weight_bits: int) -> None:
    """Write the distributions of `proposal.tokens` into it, in the smaller codec.

    Raises:
        ValueError: there is not one row for each token, a row does not hold its
            token, or its probabilities are not multiples of 2^−weight_bits.
    """
    pairs = list(zip(proposal.tokens, rows, strict=True))
    if all(len(row.ids) == 1 and row.ids[0] == token for token, row in pairs):
        proposal.point.SetInParent()
        return
    out = bytearray()
    for token, row in pairs:
        _encode_sparse(out, token, row, weight_bits)
    proposal.sparse.weight_bits = weight_bits
    proposal.sparse.rows = bytes(out)


def encode_dense(proposal: pb.Proposal, rows: Sequence[np.ndarray]) -> None:
    """Write full float32 rows (size,) into the proposal; for reference and tests."""
    proposal.dense.rows = b"".join(np.asarray(row, "<f4").tobytes() for row in rows)


def _encode_sparse(out: bytearray, token: int, row: QRow, weight_bits: int) -> None:
    scaled = row.probs * (1 << weight_bits)
    weights = np.rint(scaled)
    if not np.array_equal(weights, scaled) or row.prob(token) == 0.0:
        raise ValueError(f"the row of token {token} does not fit {weight_bits} weight bits")
    others = [(int(i), int(w)) for i, w in zip(row.ids, weights, strict=True) if i != token]
    out.append(len(others))
    previous = -1
    for id_, _ in others:
        _write_varint(out, id_ - previous - 1)
        previous = id_
    for _, weight in others:
        _write_varint(out, weight)


def decode_q(proposal: pb.Proposal, vocabulary: Vocabulary) -> list[QRow]:
    """The distributions of a proposal's tokens, checked as untrusted input.

    Raises:
        BadRequest: q is missing, or has the wrong number of rows, an id outside
            the vocabulary, a weight out of range, a sum other than 1, or no
            mass on the draft token.
    """
    kind = proposal.WhichOneof("q")
    tokens = proposal.tokens
    if kind == "point":
        return [point_row(token) for token in tokens]
    if kind == "sparse":
        return _decode_sparse(proposal.sparse, tokens, vocabulary)
    if kind == "dense":
        return _decode_dense(proposal.dense.rows, tokens, vocabulary)
    if not tokens:
        return []
    raise BadRequest(
        f"a proposal of {len(tokens)} tokens in rejection mode has no q; "
        "send point, sparse or dense distributions, or open the session in coupled mode"
    )


def _decode_sparse(
    message: pb.SparseQ, tokens: Sequence[int], vocabulary: Vocabulary
) -> list[QRow]:
    bits = message.weight_bits
    if not 1 <= bits <= MAX_WEIGHT_BITS:
        raise BadRequest(f"sparse q: weight_bits must be 1 … {MAX_WEIGHT_BITS}, not {bits}")
    reader = _Reader(message.rows)
    rows = [_decode_row(reader, i, token, bits, vocabulary) for i, token in enumerate(tokens)]
    if reader.left:
        raise BadRequest(f"sparse q: {reader.left} bytes follow the row of the last token")
    return rows


def _decode_row(reader: _Reader, index: int, token: int, bits: int, vocabulary: Vocabulary) -> QRow:
    count = reader.byte(index)
    ids, previous = [], -1
    for _ in range(count):
        previous += reader.varint(index) + 1
        ids.append(previous)
    if token in ids:
        raise BadRequest(f"sparse q: row {index} repeats its draft token {token}")
    vocabulary.check_ids(ids, f"sparse q, row {index}")
    weights = [reader.varint(index) for _ in range(count)]
    if 0 in weights:
        raise BadRequest(f"sparse q: row {index} has a weight of 0")
    own = (1 << bits) - sum(weights)
    if own < 1:
        raise BadRequest(
            f"sparse q: row {index} leaves draft token {token} a weight of {own} "
            f"of {1 << bits}; it must be at least 1"
        )
    pairs = sorted([*zip(ids, weights, strict=True), (token, own)])
    return QRow(
        np.array([i for i, _ in pairs], np.int64),
        np.array([w for _, w in pairs], np.float64) / (1 << bits),
    )


def _decode_dense(raw: bytes, tokens: Sequence[int], vocabulary: Vocabulary) -> list[QRow]:
    size = len(vocabulary)
    if len(raw) != 4 * size * len(tokens):
        raise BadRequest(
            f"dense q: {len(raw)} bytes for {len(tokens)} tokens; "
            f"a row is {size} float32 values, {4 * size} bytes"
        )
    rows = []
    for index, values in enumerate(np.frombuffer(raw, "<f4").reshape(len(tokens), size)):
        probs = values.astype(np.float64)
        if not np.isfinite(probs).all() or (probs < 0.0).any():
            raise BadRequest(f"dense q: row {index} has a negative or non-finite value")
        total = float(probs.sum())
        if abs(total - 1.0) > DENSE_TOLERANCE:
            raise BadRequest(f"dense q: row {index} sums to {total:.6f}, not 1")
        token = tokens[index]
        if probs[token] == 0.0:
            raise BadRequest(f"dense q: row {index} gives its draft token {token} no mass")
        ids = np.flatnonzero(probs)
        vocabulary.check_ids(ids.tolist(), f"dense q, row {index}")
        rows.append(QRow(ids.astype(np.int64), probs[ids] / total))
    return rows


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class _Reader:
    """Reads varints from untrusted bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self, row: int) -> int:
        if self._at >= len(self._data):
            raise BadRequest(f"sparse q: the bytes end within row {row}; each token needs a row")
        self._at += 1
        return self._data[self._at - 1]

    def varint(self, row: int) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte(row)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BadRequest(f"sparse q: a number in row {row} is longer than 5 bytes")
