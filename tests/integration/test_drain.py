"""Stopping: nothing new begins, running rounds finish, clients learn why, and it ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.ports import Step
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Failure, Stream, call_failure, open_frame, point
from tests.support.serving import stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table
from tests.support.verifier_process import verifier_process

pytestmark = pytest.mark.wire

LIMITS = Limits(context=64)


PROMPT = [1, 3]


class Held(TableBackend):
    """A table whose rounds wait for a gate; the prompt that is read before does not."""

    def __init__(self) -> None:
        super().__init__(random_table(5, seed=6), context=64)
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        if any(step.keep + len(step.tokens) >= len(PROMPT) for step in steps):
            self.inside.set()
            assert self.gate.wait(20)
        return super().forward(steps)

    def hold(self) -> None:
        self.gate.clear()
        self.inside.clear()

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, 10)


@pytest.fixture
async def backend() -> AsyncIterator[Held]:
    held = Held()
    yield held
    held.gate.set()


@contextlib.asynccontextmanager
async def verifier(backend: Held) -> AsyncIterator[VerifierServer]:
    server = VerifierServer(backend, LetterEncoder(), listen="127.0.0.1:0", limits=LIMITS)
    await server.start()
    try:
        yield server
    finally:
        backend.gate.set()
        await server.stop(0.0)


async def chat(stub: rpc.VerifierAsyncStub) -> tuple[Stream, pb.Opened]:
    stream = Stream.decode(stub)
    await stream.send(open_frame(PROMPT, max_tokens=50))
    return stream, await stream.opened()


def is_draining(failure: Failure, frontier: int) -> None:
    assert failure.status is grpc.StatusCode.UNAVAILABLE
    assert failure.code == pb.ERROR_CODE_DRAINING
    assert failure.frontier == frontier
    assert "resume when it is back, or open the session elsewhere" in failure.message


async def test_running_rounds_finish_and_everyone_is_told(backend: Held):
    async with verifier(backend) as server, stub_for(server) as stub:
        running = [await chat(stub) for _ in range(2)]
        idle, _ = await chat(stub)
        backend.hold()
        for stream, opened in running:
            await stream.send(point(1, 1, opened.frontier, []))
        await backend.entered()

        stopping = asyncio.create_task(server.stop(10.0))
        await asyncio.sleep(0.1)
        # New ones are refused while the round still runs.
        late = Stream.decode(stub)
        await late.send(open_frame(PROMPT))
        is_draining(await late.failure(), 0)
        is_draining(await call_failure(stub.Verify(pb.VerifyRequest(open=open_frame([1])))), 0)
        assert not stopping.done()

        backend.gate.set()
        for stream, opened in running:
            if (frame := await first_or_failure(stream)) is not None:
                assert frame.verdict.number == 1
                is_draining(await stream.failure(), opened.frontier + 1)
        is_draining(await idle.failure(), 2)
        await asyncio.wait_for(stopping, 2)


async def first_or_failure(stream: Stream) -> pb.CloudFrame | None:
    """A verdict; or None where the round was not begun before the stop."""
    try:
        return await stream.read()
    except grpc.aio.AioRpcError:
        return None


async def test_a_call_whose_round_runs_gets_its_verdict(backend: Held):
    async with verifier(backend) as server, stub_for(server) as stub:
        opened = (await stub.Verify(pb.VerifyRequest(open=open_frame(PROMPT)))).opened
        backend.hold()
        request = pb.VerifyRequest(
            session_id=opened.session_id, frontier=2, proposal=point(1, 1, 2, [])
        )
        call = asyncio.ensure_future(stub.Verify(request))
        await backend.entered()
        stopping = asyncio.create_task(server.stop(10.0))
        await asyncio.sleep(0.1)
        backend.gate.set()
        answer: Any = await call
        assert answer.frontier == 3 and answer.verdict.number == 1
        await asyncio.wait_for(stopping, 2)


async def test_health_says_so_before_anything_is_refused(backend: Held):
    async with (
        verifier(backend) as server,
        stub_for(server) as stub,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        stream, opened = await chat(stub)
        backend.hold()
        await stream.send(point(1, 1, opened.frontier, []))
        await backend.entered()
        watch = health.Watch(health_pb2.HealthCheckRequest(service="specwire.v1.Verifier"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.stop(5.0))
        answer = await asyncio.wait_for(watch.read(), 5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not stopping.done()
        watch.cancel()
        # gRPC's client gives up what it has not read when the status comes: be there first.
        reading = asyncio.create_task(stream.verdict())
        await asyncio.sleep(0.05)
        backend.gate.set()
        assert (await reading).number == 1
        await asyncio.wait_for(stopping, 5)


async def test_a_forward_that_hangs_does_not_keep_clients_waiting(backend: Held):
    async with verifier(backend) as server, stub_for(server) as stub:
        stream, opened = await chat(stub)
        backend.hold()
        await stream.send(point(1, 1, opened.frontier, []))
        await backend.entered()
        begun = time.monotonic()
        stopping = asyncio.create_task(server.stop(1.0))
        is_draining(await stream.failure(), opened.frontier)
        assert time.monotonic() - begun < 3
        backend.gate.set()
        await asyncio.wait_for(stopping, 3)


async def test_sigterm_ends_the_process_with_0_within_the_grace_time(tmp_path: Path):
    with verifier_process(tmp_path / "log", "--grace", "5", how="0.3") as running:
        async with grpc.aio.insecure_channel(running.address) as channel:
            stub: rpc.VerifierAsyncStub = rpc.VerifierStub(channel)
            chats = [await chat(stub) for _ in range(3)]
            for stream, opened in chats:
                await stream.send(point(1, 1, opened.frontier, [], pacing=pb.PACING_RUN_AHEAD))
            counts = [(await stream.verdict()).number for stream, _ in chats]
            assert counts == [1, 1, 1]
            begun = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            for stream, _ in chats:
                failure = await stream.failure()
                assert failure.status is grpc.StatusCode.UNAVAILABLE
                assert failure.code == pb.ERROR_CODE_DRAINING
                assert failure.frontier > 3
        assert await asyncio.to_thread(running.process.wait, 10) == 0
        assert time.monotonic() - begun < 5  # the grace time
        assert running.said("stopping: open sessions can be resumed elsewhere")


async def test_a_process_leaves_a_forward_that_never_ends(tmp_path: Path):
    with verifier_process(tmp_path / "log", "--grace", "0.5", how="60") as running:
        async with grpc.aio.insecure_channel(running.address) as channel:
            stream, opened = await chat(rpc.VerifierStub(channel))
            await stream.send(point(1, 1, opened.frontier, []))
            await asyncio.sleep(0.3)
            begun = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            assert (await stream.failure()).code == pb.ERROR_CODE_DRAINING
        assert await asyncio.to_thread(running.process.wait, 10) == 0
        assert time.monotonic() - begun < 5
        assert running.said("leaving what still runs behind")
