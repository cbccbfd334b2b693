"""The Verifier service: frames between gRPC and the session state machines."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from cloud_verifier.observe import SILENT, Observer
from cloud_verifier.rates import Rates
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.security import Access
from cloud_verifier.sessions import LiveSession, Outbox
from cloud_verifier.status import reporting
from specwire.cloud_session import CloudSession
from specwire.errors import BadRequest, Draining, SpecwireError
from specwire.limits import Limits
from specwire.opening import check_length, describe, prompt_ids
from specwire.ports import PromptEncoder, TargetBackend
from specwire.request import check_version, read_open
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]

OPENING_S = 30.0
"""How long a new stream may be silent."""


class VerifierService(rpc.VerifierServicer):
    """All calls of the protocol, over one scheduler."""

    def __init__(
        self,
        backend: TargetBackend,
        encoder: PromptEncoder,
        scheduler: Scheduler,
        limits: Limits,
        *,
        access: Access | None = None,
        observer: Observer = SILENT,
    ) -> None:
        self._name = backend.name
        self._vocabulary = backend.vocabulary
        self._encoder = encoder
        self._scheduler = scheduler
        self._sessions = scheduler.sessions
        self._limits = limits
        self._access = access or Access()
        self._observer = observer
        self._rates = Rates(limits.requests_per_s)
        self._draining = False
        self._encoding = asyncio.Lock()  # tokenizers bear one caller at a time

    def refuse_new(self) -> None:
        """Take no new sessions, streams or calls; those under way go on."""
        self._draining = True

    def dismiss(self) -> None:
        """End the streams and calls that are open, and tell them why."""
        for session in list(self._sessions):
            if session.outbox is not None:
                session.outbox.fail(_draining(session.state.frontier))

    # ------------------------------------------------------------------ calls

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        """What this verifier serves."""
        return describe(self._name, self._vocabulary, self._encoder, self._limits)

    async def Decode(
        self, request_iterator: AsyncIterator[pb.EdgeFrame], context: Context
    ) -> AsyncIterator[pb.CloudFrame]:
        """One session over a stream."""
        async with reporting(context, self._observer):
            frames = aiter(request_iterator)
            try:
                first = await asyncio.wait_for(anext(frames, None), OPENING_S)
            except TimeoutError:
                raise BadRequest(
                    f"no first frame, Open or Resume, came within {OPENING_S:g} s"
                ) from None
            if first is None:
                raise BadRequest("the stream ended before its first frame, Open or Resume")
            session, opened = await self._enter(self._access.identify(context), first)
            async for frame in self._serve(session, opened, frames):
                yield frame

    async def Generate(self, request: pb.Open, context: Context) -> AsyncIterator[pb.CloudFrame]:
        """Plain streaming: a session that runs ahead all the way."""
        async with reporting(context, self._observer):
            request.pacing = pb.PACING_RUN_AHEAD
            session, opened = await self._open(self._access.identify(context), request)
            # Its key may have reached a session that waits for proposals.
            session.state.pacing = pb.PACING_RUN_AHEAD
            async for frame in self._serve(session, opened, None):
                yield frame

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """One round as a unary call."""
        async with reporting(context, self._observer):
            caller = self._access.identify(context)
            response = pb.VerifyResponse()
            if request.WhichOneof("session") == "open":
                session, opened = await self._open(caller, request.open)
                response.opened.CopyFrom(opened)
                frontier = opened.prompt_length + len(request.open.committed.ids)
            else:
                self._admit(caller)
                session = self._sessions.get(caller, request.session_id)
                frontier = request.frontier
            session.state.committed_from(frontier)  # refuses a frontier that is not ours
            if request.HasField("proposal"):
                verdict = await self._round(session, request.proposal)
                if verdict is not None:
                    response.verdict.CopyFrom(verdict)
            response.committed.CopyFrom(session.state.committed_from(frontier))
            response.frontier = session.state.frontier
            if session.state.finished is not None:
                response.finished.CopyFrom(session.state.finished)
            return response
        raise AssertionError("unreachable: reporting aborts the call")

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:
        """End a session."""
        async with reporting(context, self._observer):
            caller = self._access.identify(context)
            try:
                session = self._sessions.get(caller, request.session_id)
            except SpecwireError as error:
                if error.status is grpc.StatusCode.NOT_FOUND:
                    return pb.CloseResponse(existed=False)
                raise
            usage = session.state.usage()
            self._sessions.drop(session)
            if session.outbox is not None and session.state.finished is not None:
                session.outbox.put(pb.CloudFrame(finished=session.state.finished))
                session.outbox.end()
            return pb.CloseResponse(existed=True, usage=usage)
        raise AssertionError("unreachable: reporting aborts the call")

    # ---------------------------------------------------------------- opening

    async def _enter(self, caller: str, first: pb.EdgeFrame) -> tuple[LiveSession, pb.Opened]:
        kind = first.WhichOneof("kind")
        if kind == "open":
            return await self._open(caller, first.open)
        if kind != "resume":
            raise BadRequest(f"the first frame must be Open or Resume, not {kind or 'empty'}")
        self._admit(caller)
        check_version(first.resume.protocol_version)
        session = self._sessions.get(caller, first.resume.session_id)
        return session, session.state.resumed(first.resume.frontier, session.id, self._name)

    async def _open(self, caller: str, frame: pb.Open) -> tuple[LiveSession, pb.Opened]:
        self._admit(caller)
        check_length(frame, self._limits)
        check_version(frame.protocol_version)
        with_prompt = frame.WhichOneof("prompt") != "ids"
        session = self._sessions.find_opened(caller, frame.open_key)
        if session is None:
            if len(frame.open_key) not in (0, 16):
                raise BadRequest(
                    f"open_key has {len(frame.open_key)} bytes; it must be 16 random bytes or empty"
                )
            async with self._encoding:
                prompt = await asyncio.to_thread(prompt_ids, frame, self._encoder)
            request = read_open(
                frame,
                prompt,
                seed=secrets.randbits(64),
                vocabulary=self._vocabulary,
                limits=self._limits,
            )
            # Another Open with the same key may have come while the prompt was encoded.
            again = self._sessions.find_opened(caller, frame.open_key)
            if again is not None:
                return again, again.state.opened(again.id, self._name, with_prompt=with_prompt)
            self._sessions.check_room(caller)
            state = CloudSession(request, self._vocabulary, self._limits)
            session = self._sessions.add(caller, state, frame.open_key)
        return session, session.state.opened(session.id, self._name, with_prompt=with_prompt)

    def _admit(self, caller: str) -> None:
        """Raise `Draining` or `Exhausted` if nothing may begin now, for this caller or anyone."""
        if self._draining:
            raise _draining(0)
        self._rates.take(caller, time.monotonic())

    # ----------------------------------------------------------------- rounds

    async def _serve(
        self,
        session: LiveSession,
        opened: pb.Opened,
        frames: AsyncIterator[pb.EdgeFrame] | None,
    ) -> AsyncIterator[pb.CloudFrame]:
        """Frames of an attached session until it ends or the client leaves."""
        outbox = session.attach()
        # Rounds may run while Opened is on its way: what they yield is in the outbox.
        finished = session.state.finished
        reader: asyncio.Task[None] | None = None
        try:
            yield pb.CloudFrame(opened=opened)
            if finished is not None:
                yield pb.CloudFrame(finished=finished)
                return
            if frames is not None:
                reader = asyncio.create_task(self._read(session, outbox, frames))
            self._scheduler.wake(session)
            while (frame := await outbox.get()) is not None:
                yield frame
                if frame.WhichOneof("kind") == "finished":
                    return
        finally:
            session.detach(outbox)
            if reader is not None:
                reader.cancel()

    async def _read(
        self, session: LiveSession, outbox: Outbox, frames: AsyncIterator[pb.EdgeFrame]
    ) -> None:
        """Take proposals until the client half-closes."""
        try:
            async for frame in frames:
                if session.outbox is not outbox:
                    return
                kind = frame.WhichOneof("kind")
                if kind != "proposal":
                    raise BadRequest(
                        f"only proposals may follow the first frame, not {kind or 'an empty frame'}"
                    )
                received = time.perf_counter()
                wait_s = self._rates.wait(session.owner, time.monotonic())
                if wait_s:  # the stream's flow control then slows the client down
                    await asyncio.sleep(wait_s)
                session.state.receive(frame.proposal, received)
                self._observer.drafts_received(len(frame.proposal.tokens))
                self._scheduler.wake(session)
        except Exception as error:
            # Whatever it is, the stream must end with it, not wait for ever.
            outbox.fail(error)
            return
        if session.outbox is outbox:
            session.half_closed = True
            if self._scheduler.idle(session):
                outbox.end()

    async def _round(self, session: LiveSession, proposal: pb.Proposal) -> pb.Verdict | None:
        """Run the round that a proposal asks for, once, however often it is sent."""
        state = session.state
        if session.last_call is not None and proposal.number == session.last_call[0]:
            return session.last_call[1]
        state.receive(proposal, time.perf_counter())
        self._observer.drafts_received(len(proposal.tokens))
        if state.finished is not None or not state.has_work():
            return None
        outbox = session.attach(calls=True)
        try:
            self._scheduler.wake(session)
            while (frame := await outbox.get()) is not None:
                if frame.WhichOneof("kind") == "verdict":
                    session.last_call = (proposal.number, frame.verdict)
                    return frame.verdict
            return None
        finally:
            session.detach(outbox)


def _draining(frontier: int) -> Draining:
    return Draining(
        "the verifier is stopping; resume when it is back, or open the session elsewhere "
        "with its seed and committed tokens",
        frontier=frontier,
    )
