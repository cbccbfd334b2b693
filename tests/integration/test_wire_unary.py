"""The calls beside Decode: Verify, Generate and Close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.qrow import QRow
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, Stream, call_failure, open_frame, persist, point, until
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire

PROMPT = [1, 3]
OUTPUT = 12
TABLE = random_table(6, seed=2)
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "rejection": {"temperature": 0.8, "seed": 5},
    "coupled": {"temperature": 0.8, "seed": 5, "mode": pb.VERIFICATION_MODE_COUPLED},
}


def draft(ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
    """A function of the ids alone: the likeliest token, or at every third position another."""
    tokens, last = [], ids[-1]
    for position in range(len(ids), len(ids) + count):
        last = (int(TABLE[last].argmax()) + (position % 3 == 0)) % 6
        tokens.append(last)
    rows = [
        QRow(np.array(sorted({t, (t + 1) % 6}), np.int64), np.array([0.5, 0.5])) for t in tokens
    ]
    return tokens, rows


@pytest.fixture
def backend() -> TableBackend:
    return TableBackend(TABLE, context=64)


@pytest.fixture
async def server(backend: TableBackend) -> AsyncIterator[VerifierServer]:
    async with serving(backend, LetterEncoder(), Limits(context=64, sessions=8)) as made:
        yield made


@pytest.fixture
async def stub(server: VerifierServer) -> AsyncIterator[rpc.VerifierAsyncStub]:
    async with stub_for(server) as made:
        yield made


def drafter_of(mode: str, gamma: int = 3, **fields: Any) -> Drafter:
    return Drafter(open_frame(PROMPT, max_tokens=OUTPUT, **MODES[mode], **fields), draft, gamma)


def request_of(drafter: Drafter, proposal: pb.Proposal) -> pb.VerifyRequest:
    if not drafter.session_id:
        return pb.VerifyRequest(open=drafter.open, proposal=proposal)
    return pb.VerifyRequest(
        session_id=drafter.session_id, frontier=drafter.frontier, proposal=proposal
    )


def take(drafter: Drafter, answer: pb.VerifyResponse) -> None:
    """Take the answer of a round."""
    if answer.HasField("opened"):
        drafter.session_id = answer.opened.session_id
    verdict = answer.verdict
    drafts = list(drafter.sent[0].tokens) if drafter.sent else []
    own = [verdict.token] if verdict.HasField("token") else []
    assert list(answer.committed.tokens) == drafts[: verdict.accepted] + own
    assert answer.committed.start == verdict.start == drafter.frontier
    drafter.output.extend(answer.committed.tokens)
    drafter.verdicts.append(verdict)
    drafter.sent = []
    assert answer.frontier == drafter.frontier
    if answer.HasField("finished"):
        drafter.finished = answer.finished


async def by_verify(stub: rpc.VerifierAsyncStub, drafter: Drafter, rounds: int = 1 << 30) -> None:
    while drafter.finished is None and rounds:
        take(drafter, await stub.Verify(request_of(drafter, drafter.proposals()[0])))
        rounds -= 1


@pytest.mark.parametrize("mode", MODES)
async def test_verify_alone_gives_what_decode_gives(
    stub: rpc.VerifierAsyncStub, backend: TableBackend, mode: str
) -> None:
    streamed, called = drafter_of(mode), drafter_of(mode)
    await persist(stub, streamed)
    await by_verify(stub, called)
    assert called.output == streamed.output
    assert len(called.output) == OUTPUT
    assert called.finished is not None and streamed.finished is not None
    assert called.finished == streamed.finished
    assert called.finished.usage.accepted > 0
    await until(lambda: backend.sequences == 0)


@pytest.mark.parametrize("mode", MODES)
async def test_a_repeated_call_gets_the_same_verdict_and_commits_nothing_twice(
    stub: rpc.VerifierAsyncStub, server: VerifierServer, backend: TableBackend, mode: str
) -> None:
    expected = drafter_of(mode)
    await persist(stub, expected)
    drafter = drafter_of(mode, open_key=b"0123456789abcdef")
    while drafter.finished is None:
        request = request_of(drafter, drafter.proposals()[0])
        answer = await stub.Verify(request)
        forwards = backend.forwards
        for _ in range(2):
            again = await stub.Verify(request)
            assert again.verdict == answer.verdict
            assert again.committed == answer.committed
            assert again.frontier == answer.frontier
            assert again.finished == answer.finished
            assert again.opened.session_id == answer.opened.session_id
        assert backend.forwards == forwards
        take(drafter, answer)
    assert drafter.output == expected.output
    assert drafter.finished == expected.finished
    assert server.sessions == 2


async def test_calls_at_the_same_time_commit_once(stub: rpc.VerifierAsyncStub) -> None:
    expected = drafter_of("rejection")
    await persist(stub, expected)
    drafter = drafter_of("rejection")
    await by_verify(stub, drafter, rounds=1)
    request = request_of(drafter, drafter.proposals()[0])
    answers = await asyncio.gather(
        *(stub.Verify(request) for _ in range(4)), return_exceptions=True
    )
    # The newest call has the session; the others are told, or come after it.
    for answer in answers:
        if isinstance(answer, grpc.aio.AioRpcError):
            assert answer.code() is grpc.StatusCode.ABORTED
    assert any(isinstance(answer, pb.VerifyResponse) for answer in answers)
    take(drafter, await stub.Verify(request))
    await by_verify(stub, drafter)
    assert drafter.output == expected.output


async def test_a_call_that_was_given_up_is_caught_up_with(
    stub: rpc.VerifierAsyncStub, backend: TableBackend
) -> None:
    expected = drafter_of("rejection")
    await persist(stub, expected)
    drafter = drafter_of("rejection", open_key=b"0123456789abcdef")
    while drafter.finished is None:
        request = request_of(drafter, drafter.proposals()[0])
        given_up = stub.Verify(request)
        await asyncio.sleep(0.002)
        given_up.cancel()
        answer = await stub.Verify(request)
        drafter.session_id = drafter.session_id or answer.opened.session_id
        assert answer.committed.start == drafter.frontier
        drafter.output.extend(answer.committed.tokens)
        drafter.sent = []
        drafter.finished = answer.finished if answer.HasField("finished") else None
    assert drafter.output == expected.output
    await until(lambda: backend.sequences == 0)


async def test_verify_without_a_proposal_opens_or_catches_up(
    stub: rpc.VerifierAsyncStub, backend: TableBackend
) -> None:
    opened = await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT, max_tokens=4)))
    assert (opened.opened.frontier, opened.frontier) == (2, 2)
    assert not opened.HasField("verdict") and not opened.HasField("finished")
    assert backend.forwards == 0
    session_id = opened.opened.session_id
    round_ = await stub.Verify(
        pb.VerifyRequest(session_id=session_id, frontier=2, proposal=point(1, 1, 2, [0, 1]))
    )
    late = await stub.Verify(pb.VerifyRequest(session_id=session_id, frontier=2))
    assert late.committed == round_.committed
    assert not late.HasField("opened")


async def test_a_frontier_beyond_the_session_is_refused(stub: rpc.VerifierAsyncStub) -> None:
    opened = await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT, max_tokens=4)))
    for frontier in (0, 1, 3, 1 << 40):
        request = pb.VerifyRequest(session_id=opened.opened.session_id, frontier=frontier)
        failure = await call_failure(stub.Verify(request))
        assert failure.status is grpc.StatusCode.INVALID_ARGUMENT
        assert (failure.code, failure.frontier) == (pb.ERROR_CODE_BAD_REQUEST, 2)


@pytest.mark.parametrize("mode", MODES)
async def test_decode_and_verify_take_turns_on_one_session(
    stub: rpc.VerifierAsyncStub, mode: str
) -> None:
    expected = drafter_of(mode)
    await persist(stub, expected)
    drafter = drafter_of(mode)
    await by_verify(stub, drafter, rounds=2)
    stream = Stream.decode(stub)
    await stream.send(drafter.first())
    frame = await stream.read()
    assert frame is not None and drafter.take(frame)
    await stream.send(drafter.proposals()[0])
    frame = await stream.read()
    assert frame is not None and drafter.take(frame)
    # The stream is still open: the call takes the session over, and the stream learns it.
    await by_verify(stub, drafter, rounds=1)
    failure = await stream.failure()
    assert failure.status is grpc.StatusCode.ABORTED
    assert failure.code == pb.ERROR_CODE_SUPERSEDED
    await persist(stub, drafter)
    assert drafter.output == expected.output


@pytest.mark.parametrize("mode", MODES)
async def test_generate_is_decode_without_drafts(
    stub: rpc.VerifierAsyncStub, backend: TableBackend, mode: str
) -> None:
    without = drafter_of(mode, gamma=0)
    await persist(stub, without)
    stream = Stream(stub.Generate(open_frame(PROMPT, max_tokens=OUTPUT, **MODES[mode])))
    opened = await stream.opened()
    verdicts = [await stream.verdict() for _ in range(OUTPUT)]
    finished = await stream.finished()
    assert [v.token for v in verdicts] == without.output
    assert {v.kind for v in verdicts} == {pb.TOKEN_KIND_RUN_AHEAD}
    assert [v.start for v in verdicts] == list(range(2, 2 + OUTPUT))
    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert finished.usage.rounds == OUTPUT
    assert opened.max_frontier == finished.frontier == 2 + OUTPUT
    await until(lambda: backend.sequences == 0)


async def test_a_broken_generate_goes_on_with_resume(stub: rpc.VerifierAsyncStub) -> None:
    whole = drafter_of("rejection", gamma=0)
    await persist(stub, whole)
    stream = Stream(stub.Generate(open_frame(PROMPT, max_tokens=OUTPUT, **MODES["rejection"])))
    drafter = drafter_of("rejection", gamma=0)
    for _ in range(4):
        frame = await stream.read()
        assert frame is not None
        drafter.take(frame)
    await stream.cancel()
    resumed = Stream.decode(stub)
    await resumed.send(drafter.first())
    for frame in await resumed.rest():  # it still runs ahead: nothing has to be proposed
        drafter.take(frame)
    assert drafter.output == whole.output


async def test_generate_with_the_key_of_a_waiting_session_streams_the_rest(
    stub: rpc.VerifierAsyncStub,
) -> None:
    whole = drafter_of("greedy")
    await persist(stub, whole)
    drafter = drafter_of("greedy", open_key=b"0123456789abcdef")
    await by_verify(stub, drafter, rounds=2)
    stream = Stream(stub.Generate(drafter.open))
    drafter.reopens = True
    for frame in await stream.rest():
        drafter.take(frame)
    assert drafter.output == whole.output


async def test_close_frees_the_session_and_may_be_repeated(
    stub: rpc.VerifierAsyncStub, server: VerifierServer, backend: TableBackend
) -> None:
    drafter = drafter_of("greedy")
    await by_verify(stub, drafter, rounds=2)
    assert backend.sequences == 1
    request = pb.CloseRequest(session_id=drafter.session_id)
    first = await stub.Close(request)
    assert first.existed
    assert first.usage.output_tokens == len(drafter.output)
    assert first.usage.rounds == 2
    for _ in range(2):
        assert await stub.Close(request) == pb.CloseResponse(existed=False)
    assert server.sessions == 0
    await until(lambda: backend.sequences == 0)
    failure = await call_failure(stub.Verify(request_of(drafter, drafter.proposals()[0])))
    assert failure.status is grpc.StatusCode.NOT_FOUND
    assert failure.code == pb.ERROR_CODE_NO_SESSION


async def test_close_of_an_unknown_session_says_so(stub: rpc.VerifierAsyncStub) -> None:
    for session_id in (b"", b"x", bytes(16)):
        assert not (await stub.Close(pb.CloseRequest(session_id=session_id))).existed


@pytest.mark.parametrize("pacing", [pb.PACING_WAIT, pb.PACING_RUN_AHEAD])
async def test_close_finishes_the_attached_stream(
    stub: rpc.VerifierAsyncStub, backend: TableBackend, pacing: pb.Pacing
) -> None:
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, max_tokens=0, pacing=pacing))
    opened = await stream.opened()
    closed = await stub.Close(pb.CloseRequest(session_id=opened.session_id))
    frames = await stream.rest()
    finished = frames[-1].finished
    tokens = sum(frame.HasField("verdict") for frame in frames)
    assert finished.usage.output_tokens == tokens == finished.frontier - 2
    if closed.existed and pacing == pb.PACING_WAIT:
        assert finished.reason == pb.FINISH_REASON_CLOSED
    await until(lambda: backend.sequences == 0)
