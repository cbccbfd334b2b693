"""q on the wire: round trips, sizes, and everything a hostile client may send."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from specwire.cloud_session import CloudSession, Outcome
from specwire.codec import decode_q, encode_dense, encode_q
from specwire.errors import BadRequest, Unconnected, Unsupported
from specwire.limits import Limits
from specwire.qrow import QRow, point_row
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

SIZE = 300
PADDING = 7
VOCABULARY = Vocabulary(
    [None if i == PADDING else f"t{i}" for i in range(SIZE)],
    [b"" if i == PADDING else b"x" for i in range(SIZE)],
    frozenset(),
)


def row_of(pairs: dict[int, int], bits: int) -> QRow:
    ids = sorted(pairs)
    return QRow(
        np.array(ids, np.int64), np.array([pairs[i] for i in ids], np.float64) / (1 << bits)
    )


@st.composite
def drafts(draw: st.DrawFn) -> tuple[int, list[int], list[QRow]]:
    """weight_bits, tokens, and the rows they were drawn from."""
    bits = draw(st.integers(1, 16))
    ids = st.integers(0, SIZE - 1).filter(lambda i: i != PADDING)
    tokens, rows = [], []
    for _ in range(draw(st.integers(0, 6))):
        support = draw(st.lists(ids, min_size=1, max_size=min(255, 1 << bits), unique=True))
        cuts = draw(
            st.lists(
                st.integers(1, (1 << bits) - 1),
                min_size=len(support) - 1,
                max_size=len(support) - 1,
                unique=True,
            )
        )
        edges = [0, *sorted(cuts), 1 << bits]
        weights = [b - a for a, b in itertools.pairwise(edges)]
        rows.append(row_of(dict(zip(support, weights, strict=True)), bits))
        tokens.append(draw(st.sampled_from(support)))
    return bits, tokens, rows


@settings(max_examples=200, deadline=None)
@given(drafts())
def test_what_is_encoded_is_decoded(case: tuple[int, list[int], list[QRow]]) -> None:
    bits, tokens, rows = case
    proposal = pb.Proposal(number=1, chain=1, start=1, tokens=tokens)
    encode_q(proposal, rows, bits)
    received = pb.Proposal.FromString(proposal.SerializeToString())
    decoded = decode_q(received, VOCABULARY)
    assert len(decoded) == len(rows)
    for one, other in zip(decoded, rows, strict=True):
        assert np.array_equal(one.ids, other.ids) and np.array_equal(one.probs, other.probs)


def test_dense_rows_are_decoded() -> None:
    probs = np.zeros((2, SIZE), np.float32)
    probs[0, [1, 5]] = [0.75, 0.25]
    probs[1, 2] = 1.0
    proposal = pb.Proposal(tokens=[5, 2])
    encode_dense(proposal, list(probs))
    first, second = decode_q(proposal, VOCABULARY)
    assert (first.ids.tolist(), first.probs.tolist()) == ([1, 5], [0.75, 0.25])
    assert (second.ids.tolist(), second.probs.tolist()) == ([2], [1.0])


def test_dense_rows_within_rounding_are_scaled_to_one() -> None:
    probs = np.zeros(SIZE, np.float32)
    probs[[1, 2, 3]] = np.float32(1 / 3)
    proposal = pb.Proposal(tokens=[1])
    encode_dense(proposal, [probs])
    assert decode_q(proposal, VOCABULARY)[0].probs.sum() == pytest.approx(1.0, abs=1e-15)


def test_points_need_no_rows() -> None:
    proposal = pb.Proposal(tokens=[4, 9])
    encode_q(proposal, [point_row(4), point_row(9)], 6)
    assert proposal.WhichOneof("q") == "point"
    assert proposal.point.ByteSize() == 0
    assert [r.ids.tolist() for r in decode_q(proposal, VOCABULARY)] == [[4], [9]]


def test_bytes_of_a_row() -> None:
    """count, gaps, weights: one byte each for near ids and 6-bit weights; two for far ids."""

    def size(token: int, pairs: dict[int, int]) -> bytes:
        proposal = pb.Proposal(tokens=[token])
        encode_q(proposal, [row_of(pairs, 6)], 6)
        return proposal.sparse.rows

    assert size(10, {10: 60, 11: 4}) == bytes([1, 11, 4])
    assert size(11, {10: 60, 11: 4}) == bytes([1, 10, 60])
    assert size(10, {10: 32, 20: 16, 40: 16}) == bytes([2, 20, 19, 16, 16])
    assert size(10, {10: 32, 290: 32}) == bytes([1, 0xA2, 0x02, 32])
    # A point among sparse rows costs a byte.
    proposal = pb.Proposal(tokens=[10, 4])
    encode_q(proposal, [row_of({10: 60, 11: 4}, 6), point_row(4)], 6)
    assert proposal.sparse.rows == bytes([1, 11, 4, 0])


@pytest.mark.parametrize(
    ("tokens", "rows", "bits"),
    [
        ([1, 2], [point_row(1)], 6),
        ([1], [point_row(1), point_row(2)], 6),
        ([1, 2, 3], [], 6),
        ([1], [point_row(2)], 6),
        ([3], [row_of({1: 32, 2: 32}, 6)], 6),
        ([1], [row_of({1: 1, 2: 127}, 7)], 6),
        ([1], [QRow(np.array([1, 2]), np.array([0.3, 0.7]))], 6),
    ],
    ids=["row missing", "row too many", "no rows", "other point", "token not in row",
         "weights too fine", "no weights"],
)  # fmt: skip
def test_rows_that_do_not_fit_are_never_written(
    tokens: list[int], rows: list[QRow], bits: int
) -> None:
    """A q that is not what was drawn from must not leave the edge."""
    proposal = pb.Proposal(tokens=tokens)
    with pytest.raises(ValueError, match=r"shorter|longer|does not fit"):
        encode_q(proposal, rows, bits)
    assert proposal.WhichOneof("q") is None


# ── malformed q (S7) ─────────────────────────────────────────────────────────────────


def sparse(rows: bytes, bits: int = 6) -> dict[str, pb.SparseQ]:
    return {"sparse": pb.SparseQ(weight_bits=bits, rows=rows)}


def dense(*values: dict[int, float]) -> dict[str, pb.DenseQ]:
    table = np.zeros((len(values), SIZE), "<f4")
    for row, pairs in zip(table, values, strict=True):
        for id_, value in pairs.items():
            row[id_] = value
    return {"dense": pb.DenseQ(rows=table.tobytes())}


MALFORMED = {
    "no q": ([1, 2], {}, r"2 tokens .* no q"),
    "fewer rows than tokens": ([10, 11, 12, 13], sparse(bytes([0, 0, 0])), "row 3"),
    "no bytes": ([1], sparse(b""), "row 0"),
    "extra bytes": ([10], sparse(bytes([0, 0])), "1 bytes follow"),
    "more rows than tokens": ([10], sparse(bytes([1, 11, 4, 0])), "1 bytes follow"),
    "no tokens but rows": ([], sparse(bytes([0])), "1 bytes follow"),
    "cut in an id": ([10], sparse(bytes([1, 0x80])), "end within row 0"),
    "cut before the weights": ([10], sparse(bytes([2, 11, 0, 4])), "end within row 0"),
    "weight 0": ([10], sparse(bytes([1, 11, 0])), "row 0 has a weight of 0"),
    "own weight 0": ([10], sparse(bytes([1, 11, 64])), "token 10 a weight of 0"),
    "own weight below 0": ([10], sparse(bytes([2, 11, 0, 63, 63])), "weight of -62"),
    "draft token repeated": ([10], sparse(bytes([1, 10, 4])), "repeats its draft token 10"),
    "id outside": ([10], sparse(bytes([1, 0xAC, 0x02, 4])), "token id 300"),
    "id far outside": ([10], sparse(bytes([1, *[0xFF] * 4, 0x7F, 4])), "token id 343597"),
    "padding id": ([10], sparse(bytes([1, PADDING, 4])), f"token id {PADDING}"),
    "overlong number": ([10], sparse(bytes([1, *[0x80] * 5, 0, 4])), "longer than 5 bytes"),
    "weight_bits 0": ([10], sparse(bytes([0]), bits=0), "not 0"),
    "weight_bits 17": ([10], sparse(bytes([0]), bits=17), "not 17"),
    "weight_bits huge": ([10], sparse(bytes([0]), bits=2**32 - 1), "not 4294967295"),
    "dense, too short": ([1], {"dense": pb.DenseQ(rows=b"\0" * 1196)}, "1196 bytes"),
    "dense, width 299": ([1, 2], {"dense": pb.DenseQ(rows=b"\0" * 2392)}, "2392 bytes"),
    "dense, odd bytes": ([1], {"dense": pb.DenseQ(rows=b"\0" * 1201)}, "1201 bytes"),
    "dense, fewer rows": ([1, 2, 3, 4], dense({1: 1}, {2: 1}, {3: 1}), "4 tokens"),
    "dense, no mass on the token": ([1], dense({2: 1.0}), "draft token 1 no mass"),
    "dense, sum 0.9": ([1], dense({1: 0.5, 2: 0.4}), r"sums to 0\.900"),
    "dense, sum 1.1": ([1], dense({1: 0.5, 2: 0.6}), r"sums to 1\.100"),
    "dense, negative": ([1], dense({1: 1.5, 2: -0.5}), "row 0 has a negative"),
    "dense, second row": ([1, 2], dense({1: 1.0}, {2: -1.0}), "row 1 has a negative"),
    "dense, NaN": ([1], dense({1: np.nan}), "non-finite"),
    "dense, inf": ([1], dense({1: np.inf}), "non-finite"),
    "dense, padding": ([1], dense({1: 0.5, PADDING: 0.5}), f"token id {PADDING}"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_s7_malformed_q_is_refused_with_the_value(name: str) -> None:
    tokens, q, message = MALFORMED[name]
    proposal = pb.Proposal(tokens=tokens, **q)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=message):
        decode_q(proposal, VOCABULARY)


@pytest.mark.parametrize("name", MALFORMED)
def test_s7_malformed_q_leaves_the_session_as_it_was(name: str) -> None:
    tokens, q, _ = MALFORMED[name]
    session = new_session()
    session.receive(pb.Proposal(number=1, chain=1, start=2, tokens=[3], point=pb.PointQ()))
    before = repr(vars(session))
    with pytest.raises(BadRequest):
        session.receive(pb.Proposal(number=2, chain=2, start=2, tokens=tokens, **q))  # type: ignore[arg-type]
    assert repr(vars(session)) == before
    work = session.next_work()
    assert work is not None and work.tokens == (3,)


def new_session(mode: pb.VerificationMode = pb.VERIFICATION_MODE_REJECTION) -> CloudSession:
    request = SessionRequest(prompt=(1, 2), seed=0, max_tokens=50, mode=mode)
    return CloudSession(request, VOCABULARY, Limits(context=100, gamma=8, chain=16))


def test_coupled_sessions_take_no_q() -> None:
    session = new_session(pb.VERIFICATION_MODE_COUPLED)
    with pytest.raises(BadRequest, match="takes no q"):
        session.receive(pb.Proposal(number=1, chain=1, start=2, tokens=[3], point=pb.PointQ()))
    session.receive(pb.Proposal(number=1, chain=1, start=2, tokens=[3]))
    assert session.has_work()


# ── random bytes ─────────────────────────────────────────────────────────────────────

token_lists = st.lists(st.integers(0, SIZE - 1).filter(lambda i: i != PADDING), max_size=8)


@settings(max_examples=400, deadline=None)
@given(token_lists, st.integers(0, 20), st.binary(max_size=60))
def test_random_sparse_bytes_decode_or_are_bad_requests(
    tokens: list[int], bits: int, rows: bytes
) -> None:
    proposal = pb.Proposal(tokens=tokens, sparse=pb.SparseQ(weight_bits=bits, rows=rows))
    try:
        decoded = decode_q(proposal, VOCABULARY)
    except BadRequest:
        return
    for token, row in zip(tokens, decoded, strict=True):
        assert row.prob(token) > 0 and row.probs.sum() == 1.0
        assert (row.probs > 0).all() and (np.diff(row.ids) > 0).all()
        assert row.ids[0] >= 0 and row.ids[-1] < SIZE and PADDING not in row.ids


@settings(max_examples=100, deadline=None)
@given(token_lists, st.binary(max_size=3 * 4 * SIZE))
def test_random_dense_bytes_decode_or_are_bad_requests(tokens: list[int], rows: bytes) -> None:
    proposal = pb.Proposal(tokens=tokens, dense=pb.DenseQ(rows=rows))
    try:
        decoded = decode_q(proposal, VOCABULARY)
    except BadRequest:
        return
    assert len(decoded) == len(tokens)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=80))
def test_random_frames_never_break_a_session(raw: bytes) -> None:
    try:
        proposal = pb.Proposal.FromString(raw)
    except DecodeError:
        return
    session = new_session()
    with contextlib.suppress(BadRequest, Unconnected, Unsupported):
        session.receive(proposal)
    assert session.frontier == 2


numbers = st.integers(0, 20) | st.integers(0, 2**64 - 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda number, chain, start, tokens, rows, continues, pacing: pb.Proposal(
                number=number,
                chain=chain,
                start=start,
                tokens=tokens,
                sparse=pb.SparseQ(weight_bits=6, rows=rows),
                continues=continues,
                pacing=pacing,
            ),
            numbers,
            st.integers(0, 3) | numbers,
            st.integers(0, 8) | numbers,
            st.lists(st.integers(0, 4) | st.integers(0, 2**32 - 1), max_size=10),
            st.lists(st.sampled_from([0, 1, 2, 7]), max_size=12).map(bytes),
            st.booleans(),
            st.integers(0, 4),
        ),
        max_size=8,
    )
)
def test_random_proposals_never_break_a_session(proposals: list[pb.Proposal]) -> None:
    """Whatever comes, a session stays able to run its rounds."""
    session = new_session()
    for proposal in proposals:
        before = repr(vars(session))
        try:
            session.receive(proposal)
        except (BadRequest, Unconnected, Unsupported):
            assert repr(vars(session)) == before
        work = session.next_work()
        if work is not None:
            frontier = session.frontier
            assert work.start == frontier and len(work.tokens) <= 8
            session.complete(work, Outcome(accepted=len(work.tokens) // 2, token=2))
            assert session.frontier > frontier
