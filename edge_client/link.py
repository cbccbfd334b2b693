"""The way to a verifier: a channel, its calls, and errors in our own terms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from specwire.errors import DETAIL_KEY, LinkError, from_status
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

CONNECT_S = 5.0
"""How long a first answer may take."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A link that goes dead without a word is noticed within 20 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # A new link must not inherit the waiting time of one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 << 20),
)


class Link:
    """A channel to one verifier. Belongs to the event loop it was made on."""

    def __init__(self, server: str) -> None:
        self.server = server
        options = list(_OPTIONS)
        if _is_loopback(server):
            # A proxy for the outside world can't reach this machine's own address.
            options.append(("grpc.enable_http_proxy", 0))
        self._channel = grpc.aio.insecure_channel(server, options=options)
        self._stub: rpc.VerifierAsyncStub = rpc.VerifierStub(self._channel)

    async def describe(self) -> pb.DescribeResponse:
        """What the verifier serves; also the check that it can be reached.

        Raises:
            SpecwireError: it can't be reached, or refuses.
        """
        with _translated(self.server):
            return await self._stub.Describe(pb.DescribeRequest(), timeout=CONNECT_S)

    @asynccontextmanager
    async def decode(self, first: pb.EdgeFrame) -> AsyncIterator[Stream]:
        """A session's stream, begun with `first`; cancelled on leaving."""
        call = self._stub.Decode()
        try:
            stream = Stream(call, self.server)
            await stream.send(first)
            yield stream
        finally:
            call.cancel()

    @asynccontextmanager
    async def generate(self, opening: pb.Open) -> AsyncIterator[Stream]:
        """A plain token stream; cancelled on leaving."""
        call = self._stub.Generate(opening)
        try:
            yield Stream(call, self.server, bytes_up=opening.ByteSize())
        finally:
            call.cancel()

    async def close_session(self, session_id: bytes) -> None:
        """Tell the verifier that a session is over; best effort."""
        with _translated(self.server):
            await self._stub.Close(pb.CloseRequest(session_id=session_id), timeout=CONNECT_S)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class Stream:
    """Frames up and down one call, counted in bytes of payload."""

    def __init__(self, call: Any, server: str, bytes_up: int = 0) -> None:
        self._call = call
        self._server = server
        self.bytes_up = bytes_up
        self.bytes_down = 0

    async def send(self, frame: pb.EdgeFrame) -> None:
        """Send a frame.

        Raises:
            SpecwireError: the stream has broken or was refused.
        """
        with _translated(self._server):
            try:
                await self._call.write(frame)
            except asyncio.InvalidStateError as error:
                raise LinkError(f"the stream to {self._server} is closed") from error
        self.bytes_up += frame.ByteSize()

    async def receive(self) -> pb.CloudFrame | None:
        """The next frame; None when the verifier has ended the stream in order.

        Raises:
            SpecwireError: the stream has broken or was refused.
        """
        with _translated(self._server):
            frame = await self._call.read()
        if frame is grpc.aio.EOF:
            return None
        self.bytes_down += frame.ByteSize()
        assert isinstance(frame, pb.CloudFrame)
        return frame


@contextmanager
def _translated(server: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        detail = dict(error.trailing_metadata() or ()).get(DETAIL_KEY)
        message = error.details() or error.code().name
        if detail is None and _is_broken(error.code(), message):
            raise LinkError(f"the stream to {server} broke ({message})") from error
        if detail is None:
            message = _explain(server, error.code(), message)
        raise from_status(
            error.code(), message, detail if isinstance(detail, bytes) else None
        ) from error


def _is_broken(status: grpc.StatusCode, message: str) -> bool:
    # A write that meets the end of its stream hides the stream's status behind INTERNAL;
    # resuming brings what was missed. CANCELLED is a stream reset by the other side.
    if status is grpc.StatusCode.INTERNAL:
        return message == "Internal error from Core" or "RST_STREAM" in message
    return status is grpc.StatusCode.CANCELLED


def _explain(server: str, status: grpc.StatusCode, message: str) -> str:
    # Without our own detail the fault lies on the way, and the address helps to find it.
    if status is grpc.StatusCode.UNAVAILABLE:
        return f"can't reach the verifier at {server} ({message}); is it running there?"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the verifier at {server} did not answer within {CONNECT_S:g} s"
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return f"what answers at {server} is no specwire verifier ({message})"
    return message


def _is_loopback(server: str) -> bool:
    host = server.rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")
