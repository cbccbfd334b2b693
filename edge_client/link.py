"""The way to a verifier: a channel, its calls, and errors in our own terms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from edge_client.credentials import Credentials, is_loopback
from specwire.errors import DETAIL_KEY, LinkError, SpecwireError, Untrusted, from_status
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

CONNECT_S = 5.0
"""How long a first answer may take; to an opening, beside the time for its bytes."""

SLOWEST_BYTE_S = 10_000
"""Bytes a second that every link is thought to carry."""

_MOST_RETIRED = 4

FAREWELL_S = 0.5
"""How long closing a link waits for sessions that were left to be closed."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A link that goes dead without a word is noticed within 20 s. gRPC gives an
    # unanswered ping a minute unless it is told otherwise under its own name.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # that is how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # A new link must not inherit the waiting time of one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 << 20),
)


_WRONG_NAME = (
    "Hostname Verification Check failed",
    "not in peer certificate",
    "does not match SSL server name",
)


class StreamEnded(LinkError):
    """The verifier ended the stream while something was being sent.

    gRPC then drops the frames that were not read yet, and the status; resuming the
    session brings both. The link itself is sound.
    """


class Unanswered(LinkError):
    """The verifier did not answer in time."""


class Link:
    """A channel to one verifier. Belongs to the event loop it was made on."""

    def __init__(self, server: str, credentials: Credentials | None = None) -> None:
        """`credentials` None: plain text, no token.

        Raises:
            BadRequest: a file of the credentials can't be read, or they don't suit the server.
        """
        credentials = credentials or Credentials()
        credentials.check(server)
        self.server = server
        self._metadata = credentials.metadata
        options = list(_OPTIONS)
        if is_loopback(server):
            # A proxy for the outside world can't reach this machine's own address.
            options.append(("grpc.enable_http_proxy", 0))
        self._credentials, self._options = credentials, options
        self._channel = credentials.channel(server, options)
        self._retired: list[grpc.aio.Channel] = []
        self._farewells: set[asyncio.Task[None]] = set()
        self._closed = False
        self._stub: rpc.VerifierAsyncStub = rpc.VerifierStub(self._channel)
        self._served: pb.DescribeResponse | None = None

    async def describe(self) -> pb.DescribeResponse:
        """What the verifier serves; also the check that it can be reached.

        Raises:
            SpecwireError: it can't be reached, or refuses.
        """
        self._served = None
        connection = self.connection
        try:
            with _translated(self.server):
                self._served = await self._calls.Describe(
                    pb.DescribeRequest(), timeout=CONNECT_S, metadata=self._metadata
                )
        except Unanswered:
            await self.renew(connection)
            raise
        return self._served

    @property
    def connection(self) -> object:
        """What calls begun now go over; another once it was renewed."""
        return self._channel

    @property
    def _calls(self) -> rpc.VerifierAsyncStub:
        if self._closed:
            raise RuntimeError("the client is closed")
        return self._stub

    @property
    def known(self) -> pb.DescribeResponse | None:
        """What `describe` said last, for as long as the connection it came over stands."""
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._served = None
        return self._served

    def forget(self) -> None:
        """What is known may be out of date: the verifier may have been replaced."""
        self._served = None

    async def renew(self, silent: object) -> None:
        """Nobody answers on the connection `silent`: make another for what follows.

        gRPC would find out by itself, but only once the connection is silent for its
        keepalive's time. Streams that are open stay on the old one. Where that was done
        already, by another call that waited in vain, nothing happens.
        """
        if self._closed or silent is not self._channel:
            return
        self._served = None
        self._retired.append(self._channel)
        self._channel = self._credentials.channel(self.server, self._options)
        self._stub = rpc.VerifierStub(self._channel)
        if len(self._retired) > _MOST_RETIRED:
            await self._retired.pop(0).close()

    @asynccontextmanager
    async def decode(self, first: pb.EdgeFrame) -> AsyncIterator[Stream]:
        """A session's stream, begun with `first`; cancelled on leaving."""
        call = self._calls.Decode(metadata=self._metadata)
        try:
            stream = Stream(call, self.server)
            await stream.send(first)
            yield stream
        finally:
            call.cancel()

    @asynccontextmanager
    async def generate(self, opening: pb.Open) -> AsyncIterator[Stream]:
        """A plain token stream; cancelled on leaving."""
        call = self._calls.Generate(opening, metadata=self._metadata)
        try:
            yield Stream(call, self.server, bytes_up=opening.ByteSize())
        finally:
            call.cancel()

    async def close_session(self, session_id: bytes) -> None:
        """Tell the verifier that a session is over; best effort."""
        with _translated(self.server):
            await self._stub.Close(
                pb.CloseRequest(session_id=session_id), timeout=CONNECT_S, metadata=self._metadata
            )

    def leave(self, session_id: bytes) -> None:
        """Have a session closed, without waiting for it; best effort."""
        if self._closed:  # too late; the verifier's idle time ends it
            return
        task = asyncio.create_task(self._say_farewell(session_id))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _say_farewell(self, session_id: bytes) -> None:
        # The verifier drops what it does not hear of after its idle time.
        with contextlib.suppress(SpecwireError):
            await self.close_session(session_id)

    async def close(self) -> None:
        """Close the channel, once sessions that were left are closed or FAREWELL_S have passed."""
        self._closed = True
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=FAREWELL_S)
        for task in self._farewells:
            task.cancel()
        for channel in (*self._retired, self._channel):
            await channel.close()


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
    except asyncio.CancelledError as error:
        # So gRPC tells of a call whose channel was closed under it, too.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise LinkError(f"the connection to {server} was replaced") from error
    except grpc.aio.AioRpcError as error:
        # Pair by pair: older gRPC's metadata can't be made a dict in one go.
        trailing = {str(key): value for key, value in error.trailing_metadata() or ()}
        detail = trailing.get(DETAIL_KEY)
        message = error.details() or error.code().name
        if detail is None and _is_masked(error.code(), message):
            raise StreamEnded(f"the stream to {server} ended while something was sent") from error
        if detail is None and _is_reset(error.code(), message):
            raise LinkError(f"the stream to {server} was reset ({message})") from error
        if detail is None:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Unanswered(
                    f"the verifier at {server} did not answer within {CONNECT_S:g} s"
                ) from error
            _check_trust(server, message, error)
            message = _explain(server, error.code(), message)
        raise from_status(
            error.code(), message, detail if isinstance(detail, bytes) else None
        ) from error


def _is_masked(status: grpc.StatusCode, message: str) -> bool:
    # A write that meets the end of its stream hides the stream's status behind this one.
    return status is grpc.StatusCode.INTERNAL and message == "Internal error from Core"


def _is_reset(status: grpc.StatusCode, message: str) -> bool:
    # By the other side or by something between; our own cancelling shows differently.
    return status is grpc.StatusCode.CANCELLED or (
        status is grpc.StatusCode.INTERNAL and "RST_STREAM" in message
    )


def _check_trust(server: str, message: str, cause: grpc.aio.AioRpcError) -> None:
    """Raise `Untrusted` if it was TLS that failed: gRPC only says so in its words for people."""
    host = server.rpartition(":")[0]
    if any(words in message for words in _WRONG_NAME):
        reason = (
            f"the certificate shown at {server} is not made for {host}; connect by a name that "
            f"is in it, or have one made with {host} in its subjectAltName"
        )
    elif "certificate has expired" in message:
        reason = f"the certificate shown at {server} has expired; its operator must renew it"
    elif "CERTIFICATE_VERIFY_FAILED" in message:
        reason = (
            f"the certificate shown at {server} is signed by nobody this client trusts; "
            "if the authority is a private one, give its certificate with --tls-ca"
        )
    elif "WRONG_VERSION_NUMBER" in message:
        reason = f"what answers at {server} speaks no TLS; check the port, or leave TLS out"
    else:
        return
    raise Untrusted(reason) from cause


def _explain(server: str, status: grpc.StatusCode, message: str) -> str:
    # Without our own detail the fault lies on the way, and the address helps to find it.
    if status is grpc.StatusCode.UNAVAILABLE:
        hint = "is it running there?"
        if "Socket closed" in message:
            hint = "is it running there, and does it ask for TLS or a client certificate?"
        return f"can't reach the verifier at {server} ({message}); {hint}"
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return f"what answers at {server} is no specwire verifier ({message})"
    return message
