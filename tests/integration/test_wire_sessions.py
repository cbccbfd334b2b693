"""How long sessions live, who may speak to them, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from cloud_verifier.engine import Engine
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.server import VerifierServer
from cloud_verifier.service import VerifierService
from specwire.limits import Limits
from specwire.ports import Step
from specwire.qrow import point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import (
    Drafter,
    Stream,
    call_failure,
    open_frame,
    persist,
    point,
    until,
)
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire

TABLE = random_table(5, seed=3)


class Slow(TableBackend):
    """A table whose forward takes 2 ms of the model thread."""

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(0.002)
        return super().forward(steps)


def greedy(last: int, count: int) -> list[int]:
    tokens = []
    for _ in range(count):
        last = int(TABLE[last].argmax())
        tokens.append(last)
    return tokens


def wild(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
    tokens = [(ids[-1] + i) % 5 for i in range(count)]
    return tokens, [point_row(t) for t in tokens]


async def opened(stub: rpc.VerifierAsyncStub, **fields: Any) -> tuple[Stream, pb.Opened]:
    stream = Stream.decode(stub)
    await stream.send(open_frame([1], **fields))
    return stream, await stream.opened()


async def test_more_sessions_than_the_limit_are_refused() -> None:
    limits = Limits(context=64, sessions=4)
    async with (
        serving(TableBackend(TABLE), LetterEncoder(), limits) as server,
        stub_for(server) as stub,
    ):
        running = [await opened(stub) for _ in range(4)]
        for _ in range(10):
            stream = Stream.decode(stub)
            await stream.send(open_frame([1]))
            failure = await stream.failure()
            assert failure.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert failure.code == pb.ERROR_CODE_EXHAUSTED
            assert "4" in failure.message
        failure = await call_failure(stub.Verify(pb.VerifyRequest(open=open_frame([1]))))
        assert failure.code == pb.ERROR_CODE_EXHAUSTED
        assert server.sessions == 4
        # Those that run are not disturbed, and one that is closed makes room.
        for i, (stream, _) in enumerate(running):
            await stream.send(point(1, 1, 1, [i % 5]))
            assert (await stream.verdict()).number == 1
        await stub.Close(pb.CloseRequest(session_id=running[0][1].session_id))
        stream, _ = await opened(stub)
        await stream.cancel()
        for stream, _ in running:
            await stream.cancel()


async def test_sessions_that_ended_give_way_oldest_first() -> None:
    backend = TableBackend(TABLE)
    limits = Limits(context=64, sessions=3)
    async with serving(backend, LetterEncoder(), limits) as server, stub_for(server) as stub:
        ended = []
        for _ in range(8):
            drafter = Drafter(open_frame([1], max_tokens=4), wild)
            await persist(stub, drafter)
            await asyncio.sleep(0.002)
            ended.append(drafter)
            assert server.sessions <= 3
        for drafter in ended[-3:]:  # still known: a lost last frame can be had again
            stream = Stream.decode(stub)
            await stream.send(drafter.first())
            await stream.opened()
            assert await stream.finished() == drafter.finished
        for drafter in ended[:-3]:
            request = pb.VerifyRequest(session_id=drafter.session_id, frontier=drafter.frontier)
            failure = await call_failure(stub.Verify(request))
            assert failure.code == pb.ERROR_CODE_NO_SESSION


async def test_an_abandoned_session_is_dropped_after_the_idle_time() -> None:
    backend = TableBackend(TABLE)
    limits = Limits(context=64, sessions=2, idle_s=0.3)
    async with serving(backend, LetterEncoder(), limits) as server, stub_for(server) as stub:
        kept, kept_opened = await opened(stub)
        drafter = Drafter(open_frame([1], max_tokens=10, seed=1), wild)
        left = Stream.decode(stub)
        await left.send(drafter.first())
        frame = await left.read()
        assert frame is not None and drafter.take(frame)
        await left.send(drafter.proposals()[0])
        frame = await left.read()
        assert frame is not None
        drafter.take(frame)
        assert backend.sequences == 1
        began = time.monotonic()
        await left.cancel()
        await until(lambda: server.sessions == 1)
        assert 0.25 < time.monotonic() - began < 5.0
        await until(lambda: backend.sequences == 0)

        stream = Stream.decode(stub)
        await stream.send(drafter.first())
        failure = await stream.failure()
        assert failure.status is grpc.StatusCode.NOT_FOUND
        assert failure.code == pb.ERROR_CODE_NO_SESSION
        # What the message says to do works: seed and committed tokens make it again.
        drafter.rebuild()
        await persist(stub, drafter)
        assert drafter.output == greedy(1, 10)
        # A session with a stream is not idle, however silent.
        await kept.send(point(1, 1, 1, [0]))
        assert (await kept.verdict()).start == kept_opened.frontier
        await kept.cancel()


async def test_a_session_used_by_calls_alone_lives_while_it_is_used() -> None:
    limits = Limits(context=64, idle_s=0.4)
    async with (
        serving(TableBackend(TABLE), LetterEncoder(), limits) as server,
        stub_for(server) as stub,
    ):
        answer = await stub.Verify(pb.VerifyRequest(open=open_frame([1])))
        request = pb.VerifyRequest(session_id=answer.opened.session_id, frontier=1)
        for _ in range(6):
            await asyncio.sleep(0.15)
            await stub.Verify(request)
        await until(lambda: server.sessions == 0)


async def test_a_newer_stream_takes_the_session_over() -> None:
    async with serving(TableBackend(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        drafter = Drafter(open_frame([1], max_tokens=12), wild)
        older = Stream.decode(stub)
        await older.send(drafter.first())
        frame = await older.read()
        assert frame is not None and drafter.take(frame)
        await older.send(drafter.proposals()[0])
        frame = await older.read()
        assert frame is not None
        drafter.take(frame)
        newer = Stream.decode(stub)
        await newer.send(drafter.first())
        frame = await newer.read()
        assert frame is not None
        drafter.take(frame)
        failure = await older.failure()
        assert failure.status is grpc.StatusCode.ABORTED
        assert (failure.code, failure.frontier) == (
            pb.ERROR_CODE_SUPERSEDED,
            drafter.frontier,
        )
        await newer.send(drafter.proposals()[0])
        frame = await newer.read()
        assert frame is not None
        drafter.take(frame)
        await newer.cancel()
        await persist(stub, drafter)
        assert drafter.output == greedy(1, 12)


async def test_what_an_older_stream_sends_afterwards_is_not_heard() -> None:
    async with serving(TableBackend(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        older, first = await opened(stub, max_tokens=12)
        newer = Stream.decode(stub)
        await newer.send(pb.Resume(protocol_version=1, session_id=first.session_id, frontier=1))
        await newer.opened()
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await older.send(point(1, 1, 1, [0, 0]))
        await asyncio.sleep(0.05)
        await newer.send(point(1, 1, 1, greedy(1, 3)))
        verdict = await newer.verdict()
        assert (verdict.number, verdict.accepted) == (1, 3)
        await newer.cancel()


@pytest.mark.parametrize("call", ["Decode", "Generate"])
async def test_a_client_that_left_stops_costing_forwards(call: str) -> None:
    backend = Slow(TABLE, context=100_000)
    async with serving(backend, LetterEncoder()) as server, stub_for(server) as stub:
        frame = open_frame([1], pacing=pb.PACING_RUN_AHEAD)
        if call == "Decode":
            stream = Stream.decode(stub)
            await stream.send(frame)
        else:
            stream = Stream(stub.Generate(frame))
        await stream.opened()
        for _ in range(5):
            await stream.verdict()
        await stream.cancel()
        await asyncio.sleep(0.1)
        forwards = backend.forwards
        assert forwards < 100
        await asyncio.sleep(0.2)
        assert backend.forwards == forwards


async def test_a_client_that_does_not_read_stops_costing_forwards_when_it_leaves() -> None:
    backend = TableBackend(TABLE, context=1_000_000)
    async with serving(backend, LetterEncoder()) as server:
        async with stub_for(server) as stub:
            stream, _ = await opened(stub, pacing=pb.PACING_RUN_AHEAD)
            await until(lambda: backend.forwards > 500)
            del stream
        await asyncio.sleep(0.2)  # the channel is closed
        forwards = backend.forwards
        await asyncio.sleep(0.2)
        assert backend.forwards == forwards


async def test_a_waiting_client_costs_nothing() -> None:
    backend = TableBackend(TABLE)
    async with serving(backend, LetterEncoder()) as server, stub_for(server) as stub:
        stream, _ = await opened(stub)
        await asyncio.sleep(0.05)
        assert backend.forwards <= 1
        await stream.cancel()


async def test_200_short_sessions_leave_nothing_behind() -> None:
    backend = TableBackend(TABLE)
    limits = Limits(context=64, sessions=16)
    async with serving(backend, LetterEncoder(), limits) as server, stub_for(server) as stub:

        async def several(first: int) -> None:
            for i in range(first, 200, 8):
                drafter = Drafter(open_frame([i % 5], max_tokens=5), wild)
                await persist(stub, drafter)
                assert drafter.output == greedy(i % 5, 5)
                if i % 3 == 0:
                    await stub.Close(pb.CloseRequest(session_id=drafter.session_id))

        await asyncio.gather(*(several(first) for first in range(8)))
        await until(lambda: backend.sequences == 0)
        assert server.sessions <= 16


async def test_a_session_that_ends_while_opened_is_on_its_way_loses_no_verdict() -> None:
    # On the service itself, to hold Opened back for as long as it takes.
    backend, limits = TableBackend(TABLE), Limits(context=256)
    scheduler = Scheduler(Engine(backend), limits)
    service = VerifierService(backend, LetterEncoder(), scheduler, limits)
    context: Any = None  # used for errors only
    scheduler.start()
    frame = open_frame([1], max_tokens=3, pacing=pb.PACING_RUN_AHEAD)
    slow = aiter(service.Generate(frame, context))
    opened = (await anext(slow)).opened
    beside = [f async for f in service.Generate(open_frame([1], max_tokens=20), context)]
    assert len(beside) == 22
    frames = [f async for f in slow]
    assert opened.frontier == 1
    assert [f.verdict.token for f in frames[:-1]] == greedy(1, 3)
    assert frames[-1].finished.frontier == 4
    # None of them waited longer than the test has run.
    assert all(f.verdict.queue_us < 20_000_000 for f in frames[:-1])
    await scheduler.stop()


async def test_many_open_sessions_closed_at_once_leave_nothing_behind() -> None:
    backend = Slow(TABLE)
    async with serving(backend, LetterEncoder()) as server, stub_for(server) as stub:
        streams = [await opened(stub, pacing=pb.PACING_RUN_AHEAD) for _ in range(20)]
        await asyncio.sleep(0.02)
        assert backend.sequences > 0
        answers = await asyncio.gather(
            *(stub.Close(pb.CloseRequest(session_id=o.session_id)) for _, o in streams)
        )
        assert all(answer.existed for answer in answers)
        for stream, _ in streams:
            frames = await stream.rest()
            assert frames[-1].finished.reason == pb.FINISH_REASON_CLOSED
        await until(lambda: backend.sequences == 0)
        assert server.sessions == 0


async def test_after_half_closing_a_run_ahead_client_gets_the_rest() -> None:
    async with serving(Slow(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        stream, _ = await opened(stub, pacing=pb.PACING_RUN_AHEAD, max_tokens=9)
        await stream.half_close()
        frames = await stream.rest()
        assert [f.verdict.token for f in frames[:-1]] == greedy(1, 9)
        assert frames[-1].finished.reason == pb.FINISH_REASON_LENGTH


async def test_after_half_closing_a_waiting_client_gets_its_verdicts() -> None:
    async with serving(Slow(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        stream, first = await opened(stub, max_tokens=9)
        await stream.send(point(1, 1, 1, greedy(1, 2)))
        await stream.half_close()
        frames = await stream.rest()
        assert [f.verdict.accepted for f in frames] == [2]
        # The stream has ended, the session has not.
        resumed = Stream.decode(stub)
        await resumed.send(pb.Resume(protocol_version=1, session_id=first.session_id, frontier=4))
        assert (await resumed.opened()).frontier == 4
        await resumed.half_close()
        assert await resumed.rest() == []


async def test_pacing_can_be_changed_by_a_proposal() -> None:
    async with serving(Slow(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        stream, _ = await opened(stub, max_tokens=40)
        await stream.send(pb.Proposal(number=1, chain=1, start=1, pacing=pb.PACING_RUN_AHEAD))
        tokens = [(await stream.verdict()).token for _ in range(6)]
        await stream.send(pb.Proposal(number=2, chain=1, start=1, pacing=pb.PACING_WAIT))
        with contextlib.suppress(TimeoutError):  # until nothing comes any more
            while len(tokens) < 40:
                frame = await asyncio.wait_for(stream.call.read(), 0.3)
                tokens.append(frame.verdict.token)
        assert 6 <= len(tokens) < 40
        assert tokens == greedy(1, len(tokens))
        await stream.cancel()


async def test_ids_and_seeds_of_sessions_differ() -> None:
    async with serving(TableBackend(TABLE), LetterEncoder()) as server, stub_for(server) as stub:
        answers = [await stub.Verify(pb.VerifyRequest(open=open_frame([1]))) for _ in range(50)]
        assert len({a.opened.session_id for a in answers}) == 50
        assert {len(a.opened.session_id) for a in answers} == {16}
        assert len({a.opened.seed for a in answers}) == 50


async def test_a_stopping_server_tells_its_streams_why() -> None:
    server = VerifierServer(Slow(TABLE), LetterEncoder())
    await server.start()
    async with stub_for(server) as stub:
        waiting, _ = await opened(stub)
        ahead, _ = await opened(stub, pacing=pb.PACING_RUN_AHEAD)
        stopping = asyncio.create_task(server.stop(2.0))
        for stream in (waiting, ahead):
            failure = await stream.failure()
            assert failure.status is grpc.StatusCode.UNAVAILABLE
            assert failure.code == pb.ERROR_CODE_DRAINING
            assert "stopping" in failure.message
        began = time.monotonic()
        await stopping
        assert time.monotonic() - began < 1.5


async def _read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_scheduler_that_fails_does_not_keep_clients_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can't, but if it did: streams end, and health checks fail, instead of a silent hang."""

    def broken(self: Scheduler) -> list[Any]:
        raise RuntimeError("a fault of ours")

    backend = TableBackend(random_table(5, 1))
    async with (
        serving(backend, LetterEncoder()) as server,
        stub_for(server) as stub,
        asyncio.timeout(10),
    ):
        monkeypatch.setattr(Scheduler, "_collect", broken)
        call = stub.Decode()
        await call.write(pb.EdgeFrame(open=open_frame([1], max_tokens=3)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_all(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the scheduler has failed" in caplog.text
