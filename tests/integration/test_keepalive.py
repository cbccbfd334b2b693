"""Links that are quiet live on; links that are dead are noticed, at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from cloud_verifier import server as server_module
from cloud_verifier import service as service_module
from cloud_verifier.server import VerifierServer
from edge_client import link as link_module
from edge_client.link import Link, Stream
from specwire.errors import LinkError
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb
from tests.support.drafter import Stream as ByHand
from tests.support.drafter import open_frame, point
from tests.support.edge import Relay
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

LIMITS = Limits(context=64)
NOTICED_S = 30.0
"""What the product promises for a link that dies without a word."""


class StallingRelay(Relay):
    """A relay that can stop forwarding while it keeps every socket open."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.chunks = 0

    async def _pipe(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        left: int | None,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(4096):
                self.chunks += 1
                await self.flowing.wait()
                sink.write(data)
                await sink.drain()


@contextlib.asynccontextmanager
async def through(relay: StallingRelay) -> AsyncIterator[tuple[Stream, pb.Opened]]:
    """An open session of the edge's own link, through a relay."""
    link = Link(relay.address)
    try:
        frame = pb.EdgeFrame(open=open_frame([1, 3], max_tokens=50))
        async with link.decode(frame) as stream:
            first = await stream.receive()
            assert first is not None
            yield stream, first.opened
    finally:
        await link.close()


async def ask(stream: Stream, number: int, frontier: int) -> pb.CloudFrame | None:
    await stream.send(pb.EdgeFrame(proposal=point(number, 1, frontier, [])))
    return await stream.receive()


async def lost(stream: Stream) -> float:
    """Seconds until the edge says that the link is lost."""
    begun = time.monotonic()
    with pytest.raises(LinkError):
        await asyncio.wait_for(stream.receive(), 2 * NOTICED_S)
    return time.monotonic() - begun


async def detached(server: VerifierServer) -> float:
    """Seconds until the cloud has noticed that nobody is there."""
    begun = time.monotonic()
    while server.attached:
        assert time.monotonic() - begun < 2 * NOTICED_S
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


def replaced(options: tuple[tuple[str, object], ...], **fresh: int) -> tuple[object, ...]:
    names = {f"grpc.{name}": value for name, value in fresh.items()}
    assert names.keys() <= {name for name, _ in options}
    return tuple((name, names.get(name, value)) for name, value in options)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's keepalive, twenty to forty times as fast."""
    fast = {"keepalive_time_ms": 500, "keepalive_timeout_ms": 500, "http2.ping_timeout_ms": 500}
    monkeypatch.setattr(link_module, "_OPTIONS", replaced(link_module._OPTIONS, **fast))
    monkeypatch.setattr(server_module, "KEEPALIVE", replaced(server_module.KEEPALIVE, **fast))


@pytest.mark.parametrize("state", ["idle", "waiting for a verdict", "in the middle of sending"])
@pytest.mark.usefixtures("hurried")
async def test_a_dead_link_is_noticed_at_both_ends(state: str):
    backend = TableBackend(random_table(5, seed=6), context=64)
    async with (
        serving(backend, LetterEncoder(), LIMITS) as server,
        StallingRelay(server.address) as relay,
        through(relay) as (stream, opened),
    ):
        assert await ask(stream, 1, opened.frontier) is not None
        assert server.attached == 1
        relay.flowing.clear()
        sending = None
        if state == "waiting for a verdict":
            await stream.send(pb.EdgeFrame(proposal=point(2, 1, opened.frontier + 1, [])))
        elif state == "in the middle of sending":
            big = pb.EdgeFrame(proposal=pb.Proposal(number=2, chain=1, start=3))
            big.proposal.dense.rows = bytes(8 << 20)  # more than all buffers hold
            sending = asyncio.create_task(stream.send(big))
        times = await asyncio.gather(lost(stream), detached(server))
        assert max(times) < 5.0
        if sending is not None:
            with pytest.raises(LinkError):
                await sending
        relay.flowing.set()


@pytest.mark.usefixtures("hurried")
async def test_a_quiet_link_survives_many_pings():
    backend = TableBackend(random_table(5, seed=6), context=64)
    async with (
        serving(backend, LetterEncoder(), LIMITS) as server,
        StallingRelay(server.address) as relay,
        through(relay) as (stream, opened),
    ):
        before = relay.chunks
        await asyncio.sleep(4.0)
        assert relay.chunks - before >= 8  # pings and their answers went through
        frame = await ask(stream, 1, opened.frontier)
        assert frame is not None and frame.verdict.number == 1
        assert relay.connections == 1


@pytest.mark.slow
async def test_with_the_products_own_times():
    """A quiet link lives for longer than three pings; a dead one is noticed in the time stated."""
    backend = TableBackend(random_table(5, seed=6), context=64)

    async def quiet() -> None:
        async with (
            serving(backend, LetterEncoder(), LIMITS) as server,
            StallingRelay(server.address) as relay,
            through(relay) as (stream, opened),
        ):
            before = relay.chunks
            await asyncio.sleep(35.0)
            assert relay.chunks - before >= 3
            frame = await ask(stream, 1, opened.frontier)
            assert frame is not None and frame.verdict.number == 1
            assert relay.connections == 1

    async def dead() -> None:
        other = TableBackend(random_table(5, seed=6), context=64)
        async with (
            serving(other, LetterEncoder(), LIMITS) as server,
            StallingRelay(server.address) as relay,
            through(relay) as (stream, _),
        ):
            relay.flowing.clear()
            edge_s, cloud_s = await asyncio.gather(lost(stream), detached(server))
            assert edge_s < NOTICED_S and cloud_s < NOTICED_S + 5
            relay.flowing.set()

    await asyncio.gather(quiet(), dead())


async def test_a_stream_that_never_begins_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service_module, "OPENING_S", 0.2)
    backend = TableBackend(random_table(5, seed=6), context=64)
    async with serving(backend, LetterEncoder(), LIMITS) as server, stub_for(server) as stub:
        failure = await ByHand.decode(stub).failure()
        assert failure.status is grpc.StatusCode.INVALID_ARGUMENT
        assert "no first frame, Open or Resume, came within 0.2 s" in failure.message
