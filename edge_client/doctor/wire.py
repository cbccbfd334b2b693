"""Times over the wire: small calls, one with a payload, and rounds of a short session."""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from edge_client.credentials import Credentials, is_loopback
from edge_client.doctor.measured import Measured, Spread
from edge_client.link import Link, Stream
from specwire.errors import LinkError
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

PROMPT = "Once upon a time"
CALLS = 11
_PAYLOADS = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
_LONG_ENOUGH_S = 0.1
"""A payload that takes this much longer than a small call is measured well enough."""
_TELLING = 0.5
"""Of the small call's time: a payload that takes less than this on top tells nothing."""
_CALL_S = 20.0
_UNKNOWN_FIELD = (1023 << 3) | 2
_ROUNDS = 5
_MANY = 8
_SESSION_S = 8.0


async def round_trips(link: Link) -> Spread:
    """Times of small unary calls on a connection that stands.

    Raises:
        SpecwireError: the verifier can't be reached any more, or allows no more calls.
    """
    await link.describe()
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await link.describe()
        times.append(time.perf_counter() - began)
    return Spread.of(times)


async def up_rate(
    server: str, credentials: Credentials, rtt_s: float, limits: Limits
) -> float | None:
    """Bits a second that a call's payload took, at least; None where it took no time to speak of.

    The payload is a field that no verifier knows, so it is read and not looked at.
    Larger ones are sent until one takes long enough. What TCP needs to get going is
    part of the time, so the link may be able to do more.

    Raises:
        SpecwireError: the call failed.
    """
    local = [("grpc.enable_http_proxy", 0)] if is_loopback(server) else []
    channel = credentials.channel(server, [("grpc.use_local_subchannel_pool", 1), *local])
    stub: rpc.VerifierAsyncStub = rpc.VerifierStub(channel)
    rate = None
    try:
        await _describe(stub, credentials, 0)
        for size in _PAYLOADS:
            if size > limits.message_bytes // 2:
                break
            extra = min([await _describe(stub, credentials, size) for _ in range(2)]) - rtt_s
            if extra > _TELLING * rtt_s:
                rate = 8 * size / extra
            if extra > _LONG_ENOUGH_S:
                break
    except grpc.aio.AioRpcError as error:
        raise LinkError(f"a call with a payload failed ({error.details()})") from error
    finally:
        await channel.close()
    return rate


async def _describe(stub: rpc.VerifierAsyncStub, credentials: Credentials, size: int) -> float:
    request = pb.DescribeRequest.FromString(
        _varint(_UNKNOWN_FIELD) + _varint(size) + os.urandom(size)
    )
    began = time.perf_counter()
    await stub.Describe(request, timeout=_CALL_S, metadata=credentials.metadata)
    return time.perf_counter() - began


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# ------------------------------------------------------------------------- rounds


class _Over(Exception):
    """The text has come to its end."""


@dataclass
class _Round:
    """Seconds of one round: the forward with waiting for it, and all the rest."""

    forward_s: float
    rest_s: float


async def rounds(link: Link, limits: Limits, measured: Measured) -> Sequence[int]:
    """Measure rounds of a short session: without drafts, and with several; the prompt's ids.

    The drafts are guesses that the target will reject, which takes it as long as others.

    Raises:
        SpecwireError: the session was refused, or broke.
    """
    many = max(1, min(_MANY, limits.gamma, limits.chain))
    opening = pb.Open(
        protocol_version=PROTOCOL_VERSIONS[-1],
        text=PROMPT,
        sampling=pb.Sampling(temperature=0.0),
        max_tokens=max(1, min(_ROUNDS * 8, limits.context // 4)),
        mode=pb.VERIFICATION_MODE_REJECTION,
        pacing=pb.PACING_WAIT,
        open_key=secrets.token_bytes(16),
    )
    one, several = [], []
    async with link.decode(pb.EdgeFrame(open=opening)) as stream:
        frame = await stream.receive()
        if frame is None or frame.WhichOneof("kind") != "opened":
            raise LinkError("the verifier did not answer the opening")
        opened = frame.opened
        session = _Session(stream, opened.frontier, opened.prompt.ids[-1])
        try:
            began = time.perf_counter()
            for count in (0, many):  # the prompt's forward, and what comes for the first time
                await session.round(count)
            for _ in range(_ROUNDS):
                one.append(await session.round(0))
                several.append(await session.round(many))
                if time.perf_counter() - began > _SESSION_S:
                    break
        except _Over:
            pass
        finally:
            link.leave(opened.session_id)
    if one and several:
        measured.many = many
        measured.forward_s = statistics.median(item.forward_s for item in one)
        measured.forward_many_s = statistics.median(item.forward_s for item in several)
        measured.round_trip = Spread.of([item.rest_s for item in (*one, *several)])
    return list(opened.prompt.ids)


class _Session:
    """A session that is asked for one round after another."""

    def __init__(self, stream: Stream, frontier: int, guess: int) -> None:
        self._stream = stream
        self._frontier = frontier
        self._guess = guess
        self._number = 0

    async def round(self, drafts: int) -> _Round:
        """One round that examines so many draft tokens, the first of which decides it."""
        self._number += 1
        proposal = pb.Proposal(
            number=self._number,
            chain=self._number,
            start=self._frontier,
            tokens=[self._guess] * drafts,
        )
        if drafts:
            proposal.point.SetInParent()
        began = time.perf_counter()
        await self._stream.send(pb.EdgeFrame(proposal=proposal))
        frame = await self._stream.receive()
        took = time.perf_counter() - began
        if frame is None or frame.WhichOneof("kind") != "verdict":
            raise _Over
        verdict = frame.verdict
        self._frontier = verdict.start + verdict.accepted + verdict.HasField("token")
        forward_s = (verdict.forward_us + verdict.queue_us) / 1e6
        return _Round(forward_s, max(took - forward_s, 0.0))
