"""What a client may not do: exact status and detail, and the session as it was before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.ports import Step
from specwire.qrow import point_row
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from specwire.vocabulary import Vocabulary
from tests.support.drafter import (
    Drafter,
    Failure,
    Stream,
    call_failure,
    failure_of,
    open_frame,
    persist,
    point,
    proposal,
    until,
)
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire

SIZE = 5
CONTEXT = 64
PROMPT = [1, 3]
OUTPUT = 10
LIMITS = Limits(
    context=CONTEXT, gamma=4, chain=8, sessions=16, stops=2, stop_bytes=4, logprobs=3, max_tokens=50
)
UNKNOWN_FIELD = b"\xf8\x3e\x01"
"""Field 1007, a varint."""


class Target(TableBackend):
    """A table that can be held up, fail, or lose a session's numbers."""

    def __init__(self) -> None:
        super().__init__(random_table(SIZE, seed=6), context=CONTEXT)
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self.poisoned: int | None = None
        """Sequences that begin with this token get NaN in the next forward."""

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        assert self.gate.wait(20)
        if self.failures:
            self.failures -= 1
            raise MemoryError("no memory for the target")
        results = super().forward(steps)
        for step, rows in zip(steps, results, strict=True):
            if self._sequences[step.sequence][0] == self.poisoned:
                rows[:] = np.nan
                self.poisoned = None
        return results

    def greedy(self, last: int, count: int) -> list[int]:
        tokens = []
        for _ in range(count):
            last = int(self.table[last].argmax())
            tokens.append(last)
        return tokens


@pytest.fixture
def backend() -> Target:
    return Target()


@pytest.fixture
async def server(backend: Target) -> AsyncIterator[VerifierServer]:
    async with serving(backend, LetterEncoder(), LIMITS) as made:
        yield made


@pytest.fixture
async def stub(server: VerifierServer) -> AsyncIterator[rpc.VerifierAsyncStub]:
    async with stub_for(server) as made:
        yield made


def wild(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
    """Drafts that are now and then right."""
    tokens = [(ids[-1] + i) % SIZE for i in range(count)]
    return tokens, [point_row(t) for t in tokens]


def drafter_of(prompt: Sequence[int] = PROMPT, **fields: Any) -> Drafter:
    fields.setdefault("max_tokens", OUTPUT)
    return Drafter(open_frame(prompt, **fields), wild, gamma=3)


# ------------------------------------------------------------- bad proposals

Build = Callable[[int], pb.Proposal]
BAD = (grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_CODE_BAD_REQUEST)
GAP = (grpc.StatusCode.OUT_OF_RANGE, pb.ERROR_CODE_NO_CONNECTION)


def sparse(rows: bytes, *, tokens: Sequence[int] = (2,), bits: int = 6) -> Build:
    def build(start: int) -> pb.Proposal:
        frame = proposal(2, 2, start, tokens)
        frame.sparse.weight_bits = bits
        frame.sparse.rows = rows
        return frame

    return build


def dense(*rows: Sequence[float], tokens: Sequence[int] = (2,)) -> Build:
    return lambda start: proposal(2, 2, start, tokens, dense=[np.array(row) for row in rows])


def points(*tokens: int, number: int = 2, chain: int = 2, ahead: int = 0, **fields: Any) -> Build:
    return lambda start: point(number, chain, start + ahead, tokens, **fields)


FLAT = [0.2] * 5
NAN, INF = float("nan"), float("inf")
MALFORMED: dict[str, tuple[Build, tuple[grpc.StatusCode, pb.ErrorCode]]] = {
    "no q": (lambda start: proposal(2, 2, start, [2, 3]), BAD),
    "three sparse rows for four tokens": (sparse(b"\x01\x00\x20" * 3, tokens=[2, 3, 2, 3]), BAD),
    "three dense rows for four tokens": (dense(FLAT, FLAT, FLAT, tokens=[2, 3, 2, 3]), BAD),
    "two rows for one token": (sparse(b"\x01\x00\x20" * 2), BAD),
    "row too narrow": (dense([0.25] * 4), BAD),
    "row too wide": (dense([0.2] * 5 + [0.0]), BAD),
    "no mass on the token, dense": (dense([0.5, 0.5, 0.0, 0.0, 0.0]), BAD),
    "no mass on the token, sparse": (sparse(b"\x01\x00\x40"), BAD),
    "more mass than one, sparse": (sparse(b"\x01\x00\x7f"), BAD),
    "sum 0.9": (dense([0.1, 0.2, 0.2, 0.2, 0.2]), BAD),
    "sum 1.1": (dense([0.3, 0.2, 0.2, 0.2, 0.2]), BAD),
    "negative": (dense([-0.2, 0.4, 0.4, 0.2, 0.2]), BAD),
    "NaN": (dense([NAN, 0.2, 0.2, 0.2, 0.2]), BAD),
    "infinite": (dense([INF, 0.2, 0.2, 0.2, 0.2]), BAD),
    "weight of zero": (sparse(b"\x01\x00\x00"), BAD),
    "row repeats its token": (sparse(b"\x01\x02\x20"), BAD),
    "id in a row outside the vocabulary": (sparse(b"\x01\x05\x20"), BAD),
    "bytes after the last row": (sparse(b"\x01\x00\x20\x00\x00"), BAD),
    "endless number": (sparse(b"\x01" + b"\xff" * 20), BAD),
    "no bytes": (sparse(b""), BAD),
    "no weight bits": (sparse(b"\x00", bits=0), BAD),
    "too many weight bits": (sparse(b"\x00", bits=17), BAD),
    "id outside the vocabulary": (points(SIZE), BAD),
    "largest id": (points(2, (1 << 32) - 1), BAD),
    "one more than gamma": (points(*[2] * 5), BAD),
    "100 000 tokens": (points(*[2] * 100_000), BAD),
    "number 0": (points(2, number=0), BAD),
    "chain 0": (points(2, chain=0), BAD),
    "unknown pacing": (points(2, pacing=9), BAD),
    "inside the prompt": (lambda start: point(2, 2, 1, [2]), GAP),
    "at position 0": (lambda start: point(2, 2, 0, [2]), GAP),
    "beyond the frontier": (points(2, ahead=1), GAP),
    "far beyond the frontier": (points(2, ahead=1 << 60), GAP),
    "empty and beyond the frontier": (points(ahead=1), GAP),
    "a tree": (
        points(2, 3, parents=[0, 0]),
        (grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_CODE_UNSUPPORTED),
    ),
}


@pytest.mark.parametrize("transport", ["Decode", "Verify"])
@pytest.mark.parametrize("name", MALFORMED)
async def test_a_bad_proposal_is_refused_and_changes_nothing(
    stub: rpc.VerifierAsyncStub, backend: Target, name: str, transport: str
) -> None:
    build, expected = MALFORMED[name]
    truth = backend.greedy(PROMPT[-1], OUTPUT)
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, max_tokens=OUTPUT))
    opened = await stream.opened()
    await stream.send(point(1, 1, 2, [*truth[:2], (truth[2] + 1) % SIZE]))
    assert (await stream.verdict()).token == truth[2]
    if transport == "Decode":
        await stream.send(build(5))
        failure = await stream.failure()
    else:
        await stream.cancel()
        request = pb.VerifyRequest(session_id=opened.session_id, frontier=5, proposal=build(5))
        failure = await call_failure(stub.Verify(request))
    assert (failure.status, failure.code) == expected
    assert failure.frontier == 5
    assert len(failure.message) > 15

    # The session stands where it stood, and the next round works.
    again = Stream.decode(stub)
    await again.send(pb.Resume(protocol_version=1, session_id=opened.session_id, frontier=5))
    resumed = await again.opened()
    assert (resumed.frontier, resumed.highest_chain, resumed.verdict) == (5, 1, 1)
    await again.send(point(2, 2, 5, truth[3:7]))
    verdict = await again.verdict()
    assert (verdict.accepted, verdict.token, verdict.proposal) == (4, truth[7], 2)
    await again.cancel()


@pytest.mark.parametrize("count", [0, 1, LIMITS.gamma])
async def test_proposals_up_to_gamma_are_taken(
    stub: rpc.VerifierAsyncStub, backend: Target, count: int
) -> None:
    truth = backend.greedy(PROMPT[-1], OUTPUT)
    answer = await stub.Verify(
        pb.VerifyRequest(
            open=open_frame(PROMPT, max_tokens=OUTPUT), proposal=point(1, 1, 2, truth[:count])
        )
    )
    assert list(answer.committed.tokens) == truth[: count + 1]


async def test_a_proposal_larger_than_a_message_is_refused(backend: Target) -> None:
    limits = Limits(context=CONTEXT, message_bytes=50_000)
    async with serving(backend, LetterEncoder(), limits) as server, stub_for(server) as stub:
        opened = (await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT)))).opened
        call = stub.Verify(
            pb.VerifyRequest(
                session_id=opened.session_id, frontier=2, proposal=point(1, 1, 2, [2] * 100_000)
            )
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await stub.Verify(
            pb.VerifyRequest(session_id=opened.session_id, frontier=2, proposal=point(1, 1, 2, [2]))
        )
        assert answer.verdict.number == 1


async def test_more_tokens_waiting_than_the_chain_limit_are_refused(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    truth = backend.greedy(PROMPT[-1], 20)
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, max_tokens=20))
    opened = await stream.opened()
    backend.gate.clear()  # nothing is decided meanwhile
    parts = [point(1, 1, 2, truth[:4], continues=True), point(2, 1, 6, truth[4:8])]
    for part in parts:
        await stream.send(part)
    await stream.send(point(3, 1, 10, truth[8:9]))
    failure = await stream.failure()
    assert (failure.status, failure.code, failure.frontier) == (*BAD, 2)
    assert "8" in failure.message
    backend.gate.set()
    # The eight that were taken are still examined.
    resumed = Drafter(open_frame(PROMPT, max_tokens=20), wild, session_id=opened.session_id)
    resumed.chain, resumed.number, resumed.sent = 1, 2, parts
    await persist(stub, resumed)
    assert resumed.output == truth
    assert resumed.finished is not None
    assert resumed.finished.usage.accepted >= 7


async def test_a_chain_sent_again_with_other_tokens_is_refused(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    truth = backend.greedy(PROMPT[-1], OUTPUT)
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, max_tokens=OUTPUT))
    await stream.opened()
    backend.gate.clear()
    await stream.send(point(1, 1, 2, truth[:3], continues=True))
    await stream.send(point(2, 1, 3, [truth[1], (truth[2] + 1) % SIZE]))
    failure = await stream.failure()
    backend.gate.set()
    assert (failure.status, failure.code) == BAD
    assert "other tokens" in failure.message


async def test_a_coupled_session_takes_no_q(stub: rpc.VerifierAsyncStub) -> None:
    frame = open_frame(PROMPT, temperature=1.0, mode=pb.VERIFICATION_MODE_COUPLED)
    for bad in (point(1, 1, 2, [1]), proposal(1, 1, 2, [1], dense=[np.array(FLAT)])):
        failure = await call_failure(stub.Verify(pb.VerifyRequest(open=frame, proposal=bad)))
        assert (failure.status, failure.code, failure.frontier) == (*BAD, 2)


async def test_proposals_after_the_end_are_ignored(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    drafter = drafter_of()
    await persist(stub, drafter)
    answer = await stub.Verify(
        pb.VerifyRequest(
            session_id=drafter.session_id,
            frontier=drafter.frontier,
            proposal=point(99, 99, drafter.frontier, [1, 2]),
        )
    )
    assert answer.finished == drafter.finished
    assert not answer.HasField("verdict") and not answer.committed.tokens
    stream = Stream.decode(stub)
    await stream.send(drafter.first())
    assert (await stream.opened()).frontier == drafter.frontier
    assert await stream.finished() == drafter.finished
    await until(lambda: backend.sequences == 0)


# ------------------------------------------------------------------- opening


def names_of(count: int) -> list[str | None]:
    return [f"<{i}>" for i in range(count)]


def fingerprint(names: Sequence[str | None]) -> bytes:
    return Vocabulary(names, [b"x"] * len(names), frozenset()).fingerprint


BAD_OPEN: dict[str, dict[str, Any]] = {
    "open_key of 15 bytes": {"open_key": b"k" * 15},
    "open_key of 17 bytes": {"open_key": b"k" * 17},
    "empty prompt": {"ids": pb.TokenIds()},
    "prompt outside the vocabulary": {"ids": pb.TokenIds(ids=[1, SIZE])},
    "chat without a template": {"chat": pb.Chat(messages=[pb.ChatMessage(role="user")])},
    "chat without messages": {"chat": pb.Chat()},
    "text of other letters": {"text": "xyz"},
    "prompt of the whole context": {"ids": pb.TokenIds(ids=[1] * CONTEXT)},
    "prompt beyond the context": {"ids": pb.TokenIds(ids=[1] * (CONTEXT + 1))},
    "committed outside the vocabulary": {"committed": pb.TokenIds(ids=[SIZE])},
    "committed beyond max_tokens": {"committed": pb.TokenIds(ids=[1, 1]), "max_tokens": 1},
    "committed beyond the context": {"committed": pb.TokenIds(ids=[1] * (CONTEXT - 1))},
    "committed beyond a stop": {"committed": pb.TokenIds(ids=[1, 1]), "stops": ["b"]},
    "max_tokens beyond the limit": {"max_tokens": LIMITS.max_tokens + 1},
    "too many stops": {"stops": ["a", "b", "c"]},
    "stop too long": {"stops": ["abcde"]},
    "empty stop": {"stops": [""]},
    "too many logprobs": {"logprobs": LIMITS.logprobs + 1},
    "unknown mode": {"mode": 7},
    "unknown pacing": {"pacing": 7},
    "negative temperature": {"sampling": pb.Sampling(temperature=-0.1)},
    "temperature of NaN": {"sampling": pb.Sampling(temperature=NAN)},
    "infinite temperature": {"sampling": pb.Sampling(temperature=INF)},
    "top_p of 0": {"sampling": pb.Sampling(top_p=0.0)},
    "top_p above 1": {"sampling": pb.Sampling(top_p=1.1)},
    "min_p above 1": {"sampling": pb.Sampling(min_p=1.1)},
    "repetition_penalty of 0": {"sampling": pb.Sampling(repetition_penalty=0.0)},
    "presence_penalty of NaN": {"sampling": pb.Sampling(presence_penalty=NAN)},
}


async def refusals(stub: rpc.VerifierAsyncStub, frame: pb.Open) -> list[Failure]:
    """How each of the calls that open a session refuses to."""
    stream = Stream.decode(stub)
    await stream.send(frame)
    failures = [
        await stream.failure(),
        await call_failure(stub.Verify(pb.VerifyRequest(open=frame))),
    ]
    if frame.pacing in pb.Pacing.values():  # Generate has its own
        failures.append(await Stream(stub.Generate(frame)).failure())
    return failures


@pytest.mark.parametrize("name", BAD_OPEN)
async def test_a_bad_open_is_refused(
    stub: rpc.VerifierAsyncStub, server: VerifierServer, name: str
) -> None:
    frame = open_frame(PROMPT)
    for field, value in BAD_OPEN[name].items():
        frame.MergeFrom(pb.Open(**{field: value}))
        if field == "ids":
            frame.ids.CopyFrom(value)
    for failure in await refusals(stub, frame):
        assert (failure.status, failure.code) == BAD
        assert len(failure.message) > 15
    assert server.sessions == 0


async def test_an_open_without_a_prompt_is_refused(stub: rpc.VerifierAsyncStub) -> None:
    for failure in await refusals(stub, pb.Open(protocol_version=1)):
        assert (failure.status, failure.code) == BAD


@pytest.mark.parametrize("version", [0, 2, 1 << 31])
async def test_another_protocol_version_is_refused(
    stub: rpc.VerifierAsyncStub, server: VerifierServer, version: int
) -> None:
    failures = await refusals(stub, open_frame(PROMPT, protocol_version=version))
    stream = Stream.decode(stub)
    await stream.send(pb.Resume(protocol_version=version, session_id=bytes(16)))
    for failure in [*failures, await stream.failure()]:
        assert failure.status is grpc.StatusCode.FAILED_PRECONDITION
        assert failure.code == pb.ERROR_CODE_VERSION
        assert failure.versions == (1,)
        assert str(version or "none") in failure.message and "1" in failure.message
    assert server.sessions == 0


async def test_another_vocabulary_is_refused() -> None:
    names = names_of(60)
    swapped = list(names)
    for i in range(0, 40, 2):
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
    others = {
        "20 swapped": swapped,
        "one special added": [*names, "<extra>"],
        "one missing": names[:-1],
        "one renamed": [*names[:-1], "<end>"],
        "one that means nothing": [*names[:30], None, *names[31:]],
    }
    backend = TableBackend(random_table(60, seed=1))
    backend.vocabulary = Vocabulary(names, [b"x"] * 60, frozenset())
    async with serving(backend, LetterEncoder()) as server, stub_for(server) as stub:
        described = await stub.Describe(pb.DescribeRequest())
        right = fingerprint(names)
        assert described.vocabulary.fingerprint == right
        await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT, vocabulary_fingerprint=right)))
        for other in (*map(fingerprint, others.values()), b"x", right[:-1]):
            frame = open_frame(PROMPT, vocabulary_fingerprint=other)
            for failure in await refusals(stub, frame):
                assert failure.status is grpc.StatusCode.FAILED_PRECONDITION
                assert failure.code == pb.ERROR_CODE_VOCABULARY
        assert server.sessions == 1


@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1])
async def test_a_session_ends_exactly_at_the_context(
    stub: rpc.VerifierAsyncStub, backend: Target, length: int
) -> None:
    prompt = [1] * length
    for pacing in (pb.PACING_WAIT, pb.PACING_RUN_AHEAD):
        for max_tokens in (0, 50):
            drafter = drafter_of(prompt, max_tokens=max_tokens, pacing=pacing)
            await persist(stub, drafter)
            assert drafter.output == backend.greedy(1, CONTEXT - length)
            assert drafter.finished is not None
            assert drafter.finished.reason == pb.FINISH_REASON_LENGTH
            assert drafter.finished.frontier == drafter.max_frontier == CONTEXT


async def test_right_drafts_up_to_the_context_are_accepted(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    truth = backend.greedy(1, CONTEXT)

    def right(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
        tokens = truth[len(ids) - 1 : len(ids) - 1 + count]
        return tokens, [point_row(t) for t in tokens]

    drafter = Drafter(open_frame([1], max_tokens=0), right, gamma=4)
    await persist(stub, drafter)
    assert drafter.output == truth[: CONTEXT - 1]
    assert drafter.finished is not None
    usage = drafter.finished.usage
    assert (usage.examined, usage.accepted) == (usage.output_tokens - usage.rounds,) * 2


@pytest.mark.parametrize("count", [1, OUTPUT])
async def test_a_session_that_had_ended_elsewhere_has_ended_here(
    stub: rpc.VerifierAsyncStub, backend: Target, count: int
) -> None:
    committed = pb.TokenIds(ids=backend.greedy(PROMPT[-1], count))
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, committed=committed, max_tokens=count))
    assert (await stream.opened()).frontier == 2 + count
    finished = await stream.finished()
    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert finished.usage.output_tokens == count
    assert backend.forwards == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
async def test_max_tokens_ends_the_text(
    stub: rpc.VerifierAsyncStub, backend: Target, max_tokens: int
) -> None:
    drafter = drafter_of(max_tokens=max_tokens)
    await persist(stub, drafter)
    assert drafter.output == backend.greedy(PROMPT[-1], max_tokens)
    assert drafter.finished is not None
    assert drafter.finished.reason == pb.FINISH_REASON_LENGTH


# -------------------------------------------------------------------- frames


async def test_a_stream_must_begin_with_open_or_resume(
    stub: rpc.VerifierAsyncStub, server: VerifierServer
) -> None:
    for frame in (pb.EdgeFrame(), pb.EdgeFrame(proposal=point(1, 1, 2, [1]))):
        stream = Stream.decode(stub)
        await stream.call.write(frame)
        failure = await stream.failure()
        assert (failure.status, failure.code) == BAD
    silent = Stream.decode(stub)
    await silent.half_close()
    failure = await silent.failure()
    assert (failure.status, failure.code) == BAD
    assert server.sessions == 0


@pytest.mark.parametrize("second", ["open", "resume", "empty"])
async def test_only_proposals_may_follow_the_first_frame(
    stub: rpc.VerifierAsyncStub, server: VerifierServer, second: str
) -> None:
    drafter = drafter_of()
    stream = Stream.decode(stub)
    await stream.send(drafter.first())
    opened = await stream.opened()
    frames = {
        "open": pb.EdgeFrame(open=drafter.open),
        "resume": pb.EdgeFrame(
            resume=pb.Resume(protocol_version=1, session_id=opened.session_id, frontier=2)
        ),
        "empty": pb.EdgeFrame(),
    }
    await stream.call.write(frames[second])
    failure = await stream.failure()
    assert (failure.status, failure.code) == BAD
    assert server.sessions == 1
    drafter.session_id = opened.session_id
    await persist(stub, drafter)


async def test_a_session_that_is_not_here_is_not_found(stub: rpc.VerifierAsyncStub) -> None:
    for session_id in (b"", b"x", bytes(16), bytes(1000)):
        stream = Stream.decode(stub)
        await stream.send(pb.Resume(protocol_version=1, session_id=session_id))
        failures = [
            await stream.failure(),
            await call_failure(stub.Verify(pb.VerifyRequest(session_id=session_id))),
        ]
        for failure in failures:
            assert failure.status is grpc.StatusCode.NOT_FOUND
            assert failure.code == pb.ERROR_CODE_NO_SESSION


async def test_a_request_that_names_no_session_is_refused(stub: rpc.VerifierAsyncStub) -> None:
    failure = await call_failure(stub.Verify(pb.VerifyRequest()))
    assert failure.status in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


async def test_resume_outside_the_session_is_refused(stub: rpc.VerifierAsyncStub) -> None:
    opened = (await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT)))).opened
    for frontier in (0, 1, 3, 1 << 63):
        stream = Stream.decode(stub)
        await stream.send(
            pb.Resume(protocol_version=1, session_id=opened.session_id, frontier=frontier)
        )
        failure = await stream.failure()
        assert (failure.status, failure.code, failure.frontier) == (*BAD, 2)


async def test_unknown_fields_are_ignored(stub: rpc.VerifierAsyncStub, backend: Target) -> None:
    truth = backend.greedy(PROMPT[-1], OUTPUT)
    frame = open_frame(PROMPT, max_tokens=OUTPUT).SerializeToString() + UNKNOWN_FIELD
    newer = pb.Open.FromString(frame)
    assert newer.SerializeToString() != open_frame(PROMPT, max_tokens=OUTPUT).SerializeToString()
    draft = pb.Proposal.FromString(point(1, 1, 2, truth[:2]).SerializeToString() + UNKNOWN_FIELD)
    stream = Stream.decode(stub)
    await stream.send(newer)
    await stream.opened()
    await stream.send(draft)
    assert (await stream.verdict()).accepted == 2
    await stream.cancel()


GARBAGE = b"\x0a\xff\xff\xff\xff\x0f"
"""A length that the message does not have."""


@pytest.mark.parametrize("position", [1, 2])
async def test_bytes_that_are_no_frame_end_the_stream(
    server: VerifierServer, stub: rpc.VerifierAsyncStub, position: int
) -> None:
    drafter = drafter_of()
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.stream_stream(
            "/specwire.v1.Verifier/Decode",
            request_serializer=lambda raw: raw,
            response_deserializer=pb.CloudFrame.FromString,
        )()
        stream = Stream(call)
        if position == 2:
            await call.write(pb.EdgeFrame(open=drafter.open).SerializeToString())
            drafter.session_id = (await stream.opened()).session_id
        await call.write(GARBAGE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.rest()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await persist(stub, drafter)


# ---------------------------------------------------------- other sessions


async def test_a_bad_client_never_hurts_the_session_beside_it(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    truth = backend.greedy(PROMPT[-1], 40)
    victim = drafter_of(max_tokens=40)

    async def trouble() -> int:
        refused = 0
        for build, _ in MALFORMED.values():
            stream = Stream.decode(stub)
            await stream.send(open_frame(PROMPT))
            opened = await stream.opened()
            await stream.send(build(2))
            refused += (await stream.failure()).status is not grpc.StatusCode.OK
            await stub.Close(pb.CloseRequest(session_id=opened.session_id))
        return refused

    refused, _ = await asyncio.gather(trouble(), persist(stub, victim))
    assert refused == len(MALFORMED)
    assert victim.output == truth


async def test_useless_drafts_for_200_rounds_do_no_harm(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    for _ in range(4):
        stream = Stream.decode(stub)
        await stream.send(open_frame([1], max_tokens=50))
        await stream.opened()
        truth = backend.greedy(1, 50)
        for i in range(49):
            wrong = [(truth[i] + 1) % SIZE] * 4
            await stream.send(point(i + 1, i + 1, 1 + i, wrong))
            verdict = await stream.verdict()
            assert (verdict.examined, verdict.accepted, verdict.token) == (1, 0, truth[i])
        await stream.cancel()


async def test_a_target_without_numbers_fails_that_session_alone(
    stub: rpc.VerifierAsyncStub, backend: Target
) -> None:
    backend.poisoned = 4
    backend.gate.clear()
    stream = Stream.decode(stub)
    await stream.send(open_frame([4], max_tokens=OUTPUT))
    opened = await stream.opened()
    await stream.send(point(1, 1, 1, [1, 2]))
    neighbours = [drafter_of([i % 4]) for i in range(4)]
    tasks = [asyncio.create_task(persist(stub, drafter)) for drafter in neighbours]
    await asyncio.sleep(0.05)
    backend.gate.set()
    failure = await stream.failure()
    assert failure.status is grpc.StatusCode.DATA_LOSS
    assert (failure.code, failure.frontier) == (pb.ERROR_CODE_TARGET_FAULT, 1)
    await asyncio.gather(*tasks)
    for i, drafter in enumerate(neighbours):
        assert drafter.output == backend.greedy(i % 4, OUTPUT)
    # Nothing was committed, and the session can go on.
    survivor = drafter_of([4])
    survivor.session_id, survivor.chain, survivor.number = opened.session_id, 1, 1
    await persist(stub, survivor)
    assert survivor.output == backend.greedy(4, OUTPUT)
    await until(lambda: backend.sequences == 0)


async def test_numbers_lost_in_a_call(stub: rpc.VerifierAsyncStub, backend: Target) -> None:
    backend.poisoned = 4
    request = pb.VerifyRequest(
        open=open_frame([4], max_tokens=OUTPUT, open_key=b"k" * 16), proposal=point(1, 1, 1, [2])
    )
    failure = await call_failure(stub.Verify(request))
    assert failure.code == pb.ERROR_CODE_TARGET_FAULT
    answer = await stub.Verify(request)
    assert answer.verdict.number == 1
    assert answer.committed.tokens[0] == backend.greedy(4, 1)[0]


async def test_a_failing_target_is_reported_to_the_sessions_of_that_forward(
    stub: rpc.VerifierAsyncStub, backend: Target, caplog: pytest.LogCaptureFixture
) -> None:
    ended = drafter_of([0])
    await persist(stub, ended)
    backend.gate.clear()
    streams, ids = [], []
    for token in (1, 2, 3):
        stream = Stream.decode(stub)
        await stream.send(open_frame([token], max_tokens=OUTPUT))
        ids.append((await stream.opened()).session_id)
        await stream.send(point(1, 1, 1, [1]))
        streams.append(stream)
    await asyncio.sleep(0.05)
    backend.failures = 2  # the round of the first session, and that of the others
    backend.gate.set()
    for stream in streams:
        failure = await stream.failure()
        assert failure.status is grpc.StatusCode.DATA_LOSS
        assert (failure.code, failure.frontier) == (pb.ERROR_CODE_TARGET_FAULT, 1)
        assert "no memory" not in failure.message  # what went wrong is for the operator's log
    assert "no memory for the target" in caplog.text
    later = drafter_of([3])
    await persist(stub, later)
    assert later.output == backend.greedy(3, OUTPUT)
    for token, session_id in zip((1, 2, 3), ids, strict=True):
        drafter = drafter_of([token])
        drafter.session_id, drafter.chain, drafter.number = session_id, 1, 1
        await persist(stub, drafter)
        assert drafter.output == backend.greedy(token, OUTPUT)
    await until(lambda: backend.sequences == 0)


class Cracked(list[bytes]):
    """Token contents that can't be read for one token, so that a commit fails halfway."""

    whole = False

    def __getitem__(self, index: Any) -> Any:
        if index == 4 and not self.whole:
            raise IndexError("cracked")
        return super().__getitem__(index)


async def test_a_fault_of_the_verifier_ends_one_stream_and_not_all(
    backend: Target, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = Cracked(backend.vocabulary.pieces)
    backend.vocabulary = replace(backend.vocabulary, pieces=pieces)
    backend.table[3] = [0, 0, 0, 0, 9]
    backend.table[:3] = [0, 0, 9, 0, 0]
    async with serving(backend, LetterEncoder(), LIMITS) as server, stub_for(server) as stub:
        stream = Stream.decode(stub)
        await stream.send(open_frame([3], max_tokens=2))
        opened = await stream.opened()
        await stream.send(pb.Proposal(number=1, chain=1, start=1))
        failure = await stream.failure()
        assert failure.status is grpc.StatusCode.DATA_LOSS
        assert "cracked" in caplog.text
        other = drafter_of([0])
        await persist(stub, other)
        assert other.output == [2] * OUTPUT
        pieces.whole = True
        answer = await stub.Close(pb.CloseRequest(session_id=opened.session_id))
        assert answer.existed
        await until(lambda: backend.sequences == 0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 100.0])
async def test_extreme_temperatures_give_tokens(
    stub: rpc.VerifierAsyncStub, backend: Target, temperature: float
) -> None:
    drafter = drafter_of(temperature=temperature, seed=3)
    await persist(stub, drafter)
    assert len(drafter.output) == OUTPUT
    if temperature < 0.01:
        assert drafter.output == backend.greedy(PROMPT[-1], OUTPUT)


async def test_sampling_parameters_do_not_see_rejected_drafts(stub: rpc.VerifierAsyncStub) -> None:
    params = SamplingParams(
        temperature=0.9, top_k=3, top_p=0.95, min_p=0.01, repetition_penalty=1.2,
        presence_penalty=0.1, frequency_penalty=0.2,
    )  # fmt: skip
    frame = open_frame(
        PROMPT,
        sampling=params.to_proto(),
        mode=pb.VERIFICATION_MODE_COUPLED,
        seed=8,
        max_tokens=30,
    )
    outputs = set()
    for gamma in (0, 1, 4):  # penalties see what is committed, not what was drafted
        drafter = Drafter(frame, wild, gamma)
        await persist(stub, drafter)
        outputs.add(tuple(drafter.output))
    assert len(outputs) == 1
    plain = open_frame(
        PROMPT, temperature=0.9, mode=pb.VERIFICATION_MODE_COUPLED, seed=8, max_tokens=30
    )
    drafter = Drafter(plain, wild, 4)
    await persist(stub, drafter)
    assert tuple(drafter.output) not in outputs


def test_failure_detail_is_read_from_the_metadata() -> None:
    detail = pb.ErrorDetail(code=pb.ERROR_CODE_VERSION, protocol_versions=[1, 2])
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.ABORTED,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("specwire-error-bin", detail.SerializeToString())),
        details="why",
    )
    expected = Failure(grpc.StatusCode.ABORTED, pb.ERROR_CODE_VERSION, 0, "why", (1, 2))
    assert failure_of(error) == expected
