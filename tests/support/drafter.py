"""A drafter made by hand from bare gRPC stubs: it shares no code with the edge client.

It speaks the protocol as its description says, checks every frame it gets
against that description, and can be cut off between any two frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from specwire.codec import encode_dense, encode_q
from specwire.errors import DETAIL_KEY
from specwire.qrow import QRow
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

WEIGHT_BITS = 6
PATIENCE_S = 20.0
"""Longest wait for one frame; a test that hangs fails here."""

Drafts = tuple[list[int], list[QRow]]
DraftFunction = Callable[[list[int], int], Drafts]
"""(all ids so far, how many) → draft tokens after them and the rows they were drawn from."""


def open_frame(prompt: Sequence[int], *, temperature: float = 0.0, **fields: Any) -> pb.Open:
    """An `Open` of prompt ids; further fields by their names in the protocol."""
    fields.setdefault("protocol_version", 1)
    fields.setdefault("sampling", pb.Sampling(temperature=temperature))
    return pb.Open(ids=pb.TokenIds(ids=prompt), **fields)


def proposal(
    number: int,
    chain: int,
    start: int,
    tokens: Sequence[int] = (),
    rows: Sequence[QRow] | None = None,
    *,
    dense: Sequence[np.ndarray] | None = None,
    **fields: Any,
) -> pb.Proposal:
    """A `Proposal` with q from `rows` or `dense`; without either it carries no q."""
    frame = pb.Proposal(number=number, chain=chain, start=start, tokens=tokens, **fields)
    if rows is not None and tokens:
        encode_q(frame, rows, WEIGHT_BITS)
    elif dense is not None:
        encode_dense(frame, dense)
    return frame


def point(number: int, chain: int, start: int, tokens: Sequence[int], **f: Any) -> pb.Proposal:
    """A `Proposal` whose tokens were picked with certainty."""
    return pb.Proposal(
        number=number, chain=chain, start=start, tokens=tokens, point=pb.PointQ(), **f
    )


@dataclass(frozen=True)
class Failure:
    """How a call failed, status and detail."""

    status: grpc.StatusCode
    code: pb.ErrorCode
    frontier: int
    message: str
    versions: tuple[int, ...] = ()


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """Read the status and `specwire-error-bin`, which must be there."""
    trailing = {str(key): value for key, value in error.trailing_metadata() or ()}
    raw = trailing[DETAIL_KEY]
    assert isinstance(raw, bytes)
    detail = pb.ErrorDetail.FromString(raw)
    return Failure(
        error.code(),
        detail.code,
        detail.frontier,
        error.details() or "",
        tuple(detail.protocol_versions),
    )


class Stream:
    """One Decode (or Generate) call, frame by frame."""

    def __init__(self, call: Any) -> None:
        self.call = call

    @classmethod
    def decode(cls, stub: rpc.VerifierAsyncStub) -> Stream:
        """A Decode call without any frame yet."""
        return cls(stub.Decode())

    async def send(self, frame: pb.Open | pb.Resume | pb.Proposal) -> None:
        """Send a frame of the kind given."""
        if isinstance(frame, pb.Open):
            up = pb.EdgeFrame(open=frame)
        elif isinstance(frame, pb.Resume):
            up = pb.EdgeFrame(resume=frame)
        else:
            up = pb.EdgeFrame(proposal=frame)
        await self.call.write(up)

    async def half_close(self) -> None:
        """Say that no frame follows."""
        await self.call.done_writing()

    async def read(self) -> pb.CloudFrame | None:
        """The next frame, or None at the stream's regular end."""
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.call.read()
        return None if frame is grpc.aio.EOF else frame

    async def verdict(self) -> pb.Verdict:
        """The next frame, which must be a verdict."""
        frame = await self.read()
        assert frame is not None and frame.WhichOneof("kind") == "verdict", frame
        return frame.verdict

    async def opened(self) -> pb.Opened:
        """The next frame, which must be Opened."""
        frame = await self.read()
        assert frame is not None and frame.WhichOneof("kind") == "opened", frame
        return frame.opened

    async def finished(self) -> pb.Finished:
        """The next frame, which must be Finished, and the end of the stream after it."""
        frame = await self.read()
        assert frame is not None and frame.WhichOneof("kind") == "finished", frame
        assert await self.read() is None
        return frame.finished

    async def rest(self) -> list[pb.CloudFrame]:
        """Every frame to the stream's regular end."""
        frames = []
        while (frame := await self.read()) is not None:
            frames.append(frame)
        return frames

    async def failure(self) -> Failure:
        """The failure that the stream ends with; frames before it are dropped."""
        try:
            await self.rest()
        except grpc.aio.AioRpcError as error:
            return failure_of(error)
        raise AssertionError("the stream ended without a failure")

    async def cancel(self) -> None:
        """Drop the call as a client that dies would."""
        self.call.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await self.call.code()


async def call_failure(call: Any) -> Failure:
    """The failure of a unary call."""
    try:
        answer = await asyncio.wait_for(call, PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return failure_of(error)
    raise AssertionError(f"the call succeeded: {answer}")


@dataclass
class Drafter:
    """What a client remembers of a session: enough to go on after any cut.

    open: how the session is opened. draft: makes draft tokens. gamma: of a
    proposal. parts: proposals of a chain; all but the last say `continues`.
    """

    open: pb.Open
    draft: DraftFunction
    gamma: int = 3
    parts: int = 1
    output: list[int] = field(default_factory=list)
    session_id: bytes = b""
    verdicts: list[pb.Verdict] = field(default_factory=list)
    finished: pb.Finished | None = None
    sent: list[pb.Proposal] = field(default_factory=list)
    """Proposals of the chain that is alive."""
    history: list[pb.Proposal] = field(default_factory=list)
    """All proposals so far."""
    reopens: bool = False
    """Go on by repeating Open instead of Resume."""
    number: int = 0
    chain: int = 0
    max_frontier: int = 1 << 62

    @property
    def ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.open.ids.ids, *self.output]

    @property
    def frontier(self) -> int:
        """Committed tokens as far as this end knows."""
        return len(self.open.ids.ids) + len(self.output)

    def first(self) -> pb.Open | pb.Resume:
        """The first frame of a stream."""
        if self.session_id and not self.reopens:
            return pb.Resume(protocol_version=1, session_id=self.session_id, frontier=self.frontier)
        return self.open

    def proposals(self) -> list[pb.Proposal]:
        """A new chain at the frontier, or the proposals of the one that is alive."""
        if not self.sent:
            self.chain += 1
            tokens, rows = self.draft(self.ids, self.gamma * self.parts)
            for part in range(self.parts):
                self.number += 1
                share = slice(part * self.gamma, (part + 1) * self.gamma)
                coupled = self.open.mode == pb.VERIFICATION_MODE_COUPLED
                self.sent.append(
                    proposal(
                        self.number,
                        self.chain,
                        self.frontier + part * self.gamma,
                        tokens[share],
                        None if coupled else rows[share],
                        continues=part < self.parts - 1,
                    )
                )
            self.history.extend(self.sent)
        return self.sent

    def rebuild(self) -> None:
        """Prepare for a server that has never heard of the session: seed and committed ids."""
        self.open.committed.ids[:] = self.output
        self.session_id, self.verdicts, self.sent, self.history = b"", [], [], []
        self.number = self.chain = 0

    def take(self, frame: pb.CloudFrame) -> bool:
        """Take a frame; whether new proposals are due."""
        kind = frame.WhichOneof("kind")
        if kind == "opened":
            return self._take_opened(frame.opened)
        if kind == "verdict":
            return self._take_verdict(frame.verdict)
        assert kind == "finished"
        assert frame.finished.frontier == self.frontier
        assert frame.finished.usage.output_tokens == len(self.output)
        self.finished = frame.finished
        return False

    def _take_opened(self, opened: pb.Opened) -> bool:
        assert not self.session_id or self.session_id == opened.session_id
        assert opened.prompt_length == len(self.open.ids.ids)
        skip = self.frontier - opened.committed.start
        assert skip >= 0
        self.session_id = opened.session_id
        self.max_frontier = opened.max_frontier
        self._advance(list(opened.committed.tokens[skip:]))
        assert opened.frontier == self.frontier
        assert opened.highest_chain <= self.chain
        return self.frontier < self.max_frontier

    def _take_verdict(self, verdict: pb.Verdict) -> bool:
        assert verdict.start == self.frontier
        assert not self.verdicts or verdict.number > self.verdicts[-1].number
        self.verdicts.append(verdict)
        accepted = []
        if verdict.accepted:
            drafts = self._drafts(verdict.chain)
            begin = verdict.start - self.sent[0].start
            accepted = drafts[begin : begin + verdict.accepted]
            assert len(accepted) == verdict.accepted
        own = [verdict.token] if verdict.HasField("token") else []
        return self._advance([*accepted, *own])

    def _drafts(self, chain: int) -> list[int]:
        assert self.sent and self.sent[0].chain == chain
        return [token for part in self.sent for token in part.tokens]

    def _advance(self, tokens: list[int]) -> bool:
        # The chain lives on while what is committed agrees with it and does not pass it.
        start = self.frontier
        self.output.extend(tokens)
        if self.frontier >= self.max_frontier:
            return False
        if not self.sent:
            return True
        drafts = self._drafts(self.chain)
        begin = start - self.sent[0].start
        alive = drafts[begin : begin + len(tokens)] == tokens
        if alive and self.frontier < self.sent[0].start + len(drafts):
            return False
        self.sent = []
        return True


class Cut(Exception):
    """The stream is gone; `Drafter` knows enough to go on."""


@dataclass
class Scissors:
    """Counts frames in both directions and raises `Cut` after one of them.

    at: number of that frame, from 1; 0 never cuts.
    """

    at: int = 0
    count: int = 0

    def snip(self) -> None:
        """Note a frame."""
        self.count += 1
        if self.count == self.at:
            raise Cut


async def converse(
    stub: rpc.VerifierAsyncStub,
    drafter: Drafter,
    scissors: Scissors | None = None,
    *,
    copies: int = 1,
    echoes: bool = False,
    eager: bool = False,
    linger_s: float = 0.0,
    cancels: bool = True,
) -> None:
    """Run one stream to the session's end.

    Args:
        stub: of the server.
        drafter: what the client knows; it is kept up to date.
        scissors: where to cut.
        copies: how often each proposal is sent.
        echoes: send all earlier proposals again, before and after each new one.
        eager: send the first proposals without waiting for the answer to Open.
        linger_s: how long a stream that was cut stays open, unread.
        cancels: end the stream; otherwise closing the channel has to.

    Raises:
        Cut: the scissors cut, or the server ended the stream while a proposal was
            on its way, in which case gRPC loses frames that were not read yet.
    """
    scissors = scissors or Scissors()
    stream = Stream.decode(stub)
    try:
        await stream.send(drafter.first())
        scissors.snip()
        if eager:
            await _propose(stream, drafter, scissors, copies, echoes)
        while (frame := await stream.read()) is not None:
            due = drafter.take(frame)
            scissors.snip()
            if due and not (eager and frame.WhichOneof("kind") == "opened"):
                await _propose(stream, drafter, scissors, copies, echoes)
        assert drafter.finished is not None
    finally:
        if drafter.finished is None and linger_s:
            await asyncio.sleep(linger_s)
        if cancels:
            await stream.cancel()


async def _propose(
    stream: Stream, drafter: Drafter, scissors: Scissors, copies: int, echoes: bool
) -> None:
    earlier = list(drafter.history) if echoes else []
    for frame in list(drafter.proposals()):
        try:
            for item in [*earlier, *[frame] * copies, *earlier]:
                await stream.send(item)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError) as error:
            raise Cut from error
        scissors.snip()


async def persist(stub: rpc.VerifierAsyncStub, drafter: Drafter, **options: Any) -> None:
    """`converse` again and again until the session has ended."""
    while drafter.finished is None:
        with contextlib.suppress(Cut):
            await converse(stub, drafter, **options)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for what the server does a moment later, such as freeing a cache."""
    for _ in range(int(within_s / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"the condition did not become true within {within_s:g} s")
