"""Sessions with a target on this device, as if it were behind a link: the same frames.

Nothing is serialised, and no byte is counted. A session ends with its stream: there is
no link to lose, so there is nothing to resume.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from edge_client.local.device import Round, Seat, TargetDevice
from specwire.cloud_session import CloudSession, Work
from specwire.errors import BadRequest, SessionNotFound, SpecwireError
from specwire.opening import check_length, describe, prompt_ids
from specwire.request import check_version, read_open
from specwire.sampling import History
from specwire.v1 import verifier_pb2 as pb


class LocalLink:
    """A `TargetLink` to a target on this device."""

    def __init__(self, device: TargetDevice) -> None:
        self._device = device

    async def describe(self) -> pb.DescribeResponse:
        """What the target is; loads it, if that is not done.

        Raises:
            ModelError: it can't be loaded.
        """
        loaded = await self._device.load()
        weights = loaded.weights
        return describe(weights.name, weights.vocabulary, loaded.encoder, loaded.limits)

    @asynccontextmanager
    async def decode(self, first: pb.EdgeFrame) -> AsyncIterator[LocalStream]:
        """A session's stream, begun with an Open; the session is over on leaving.

        Raises:
            SessionNotFound: `first` is a Resume: open the session anew, with what is committed.
            SpecwireError: the target can't be used, or the Open is wrong.
        """
        if first.WhichOneof("kind") != "open":
            raise SessionNotFound("a session on this device ends with its stream; open it anew")
        async with self._session(first.open) as stream:
            yield stream

    @asynccontextmanager
    async def generate(self, opening: pb.Open) -> AsyncIterator[LocalStream]:
        """A plain token stream; over on leaving."""
        alone = pb.Open()
        alone.CopyFrom(opening)
        alone.pacing = pb.PACING_RUN_AHEAD
        async with self._session(alone) as stream:
            yield stream

    def leave(self, session_id: bytes) -> None:
        """Nothing to do: a session is over when its stream is left."""

    def route(self, notify: Callable[[str], None]) -> Self:
        """This link: there is one way only."""
        return self

    async def close(self) -> None:
        """Nothing to do: the device belongs to the client."""

    @asynccontextmanager
    async def _session(self, opening: pb.Open) -> AsyncIterator[LocalStream]:
        loaded = await self._device.load()
        check_version(opening.protocol_version)
        check_length(opening, loaded.limits)
        vocabulary = loaded.weights.vocabulary
        request = read_open(
            opening,
            await self._device.run(prompt_ids, opening, loaded.encoder),
            seed=secrets.randbits(64),
            vocabulary=vocabulary,
            limits=loaded.limits,
        )
        state = CloudSession(request, vocabulary, loaded.limits)
        opened = state.opened(
            secrets.token_bytes(16),
            loaded.weights.name,
            with_prompt=opening.WhichOneof("prompt") != "ids",
        )
        seat = self._device.seat(loaded)
        try:
            yield LocalStream(seat, state, opened)
        finally:
            seat.leave()


class LocalStream:
    """A `TargetStream` that runs a session's rounds as its frames are asked for."""

    def __init__(self, seat: Seat, state: CloudSession, opened: pb.Opened) -> None:
        self.bytes_up = self.bytes_down = 0
        self._seat = seat
        self._state = state
        self.opened = opened
        self._outbox = deque[pb.CloudFrame]()
        if state.finished is not None:
            self._outbox.append(pb.CloudFrame(finished=state.finished))
        self._error: SpecwireError | None = None
        self._news = asyncio.Event()

    async def send(self, frame: pb.EdgeFrame) -> None:
        """Give the session a proposal.

        Raises:
            SpecwireError: it was refused, and the stream is broken.
        """
        try:
            if frame.WhichOneof("kind") != "proposal":
                raise BadRequest("only proposals may follow the first frame")
            self._state.receive(frame.proposal, time.perf_counter())
        except SpecwireError as error:
            self._error = error
            raise
        finally:
            self._news.set()

    async def receive(self) -> pb.CloudFrame | None:
        """The next frame, for which a round is run if there is work; None at the end.

        Raises:
            SpecwireError: a proposal was refused, or the target failed.
        """
        while not self._outbox:
            if self._error is not None:
                raise self._error
            if self._state.finished is not None:
                return None
            work = self._state.next_work()
            if work is None:
                self._news.clear()
                await self._news.wait()
            else:
                await self._run(work)
        return self._outbox.popleft()

    async def _run(self, work: Work) -> None:
        state, request = self._state, self._state.request
        history = None
        if request.sampling.penalises:
            history = History(request.prompt, tuple(state.output))
        committed = state.committed(0, state.frontier)
        outcome = await self._seat.run(
            Round(request, committed, work, history, time.perf_counter())
        )
        state.note_shared_prompt(self._seat.shared)
        self._outbox.extend(state.complete(work, outcome, time.perf_counter()))
