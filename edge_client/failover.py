"""One of several verifiers, and another when it fails.

A generation begins at the first verifier that can be used. When its link breaks it resumes
there; where that does not work at once, the next address gets the session rebuilt from its
seed and committed tokens, if it serves the same target.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from edge_client import link as timing
from edge_client.link import Link, Stream, StreamEnded, Unanswered
from edge_client.retry import TRANSIENT
from specwire.errors import (
    Draining,
    LinkError,
    OtherTarget,
    SessionNotFound,
    SpecwireError,
    Superseded,
    Unconnected,
)
from specwire.v1 import verifier_pb2 as pb

AVOID_S = 30.0
"""How long an address that failed comes after those that did not."""

_NOT_THE_VERIFIERS_FAULT = (StreamEnded, SessionNotFound, Superseded, Unconnected)

Notify = Callable[[str], None]
Call = Callable[[Link, pb.Open], AbstractAsyncContextManager[Stream]]


@dataclass(eq=False)
class _Verifier:
    """One address, and how it behaved. Times are in seconds of time.monotonic."""

    link: Link
    failed_at: float | None = None
    draining: bool = False

    @property
    def server(self) -> str:
        return self.link.server

    def avoided_since(self, now: float) -> float:
        """When it failed, if that was not long ago, else 0."""
        if self.failed_at is None or now - self.failed_at > AVOID_S:
            self.failed_at, self.draining = None, False
            return 0.0
        return self.failed_at

    def works(self) -> None:
        self.failed_at, self.draining = None, False

    def failed(self, error: SpecwireError) -> None:
        if isinstance(error, _NOT_THE_VERIFIERS_FAULT):
            return
        self.link.forget()
        if isinstance(error, TRANSIENT):
            if self.failed_at is None:  # the session's home, which fails first, stays ahead
                self.failed_at = time.monotonic()
            self.draining = isinstance(error, Draining)


class FailoverLink:
    """A `TargetLink` over the links to one or more verifiers, the preferred one first."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._verifiers = [_Verifier(link) for link in links]
        self._used = self._verifiers[0]

    async def describe(self) -> pb.DescribeResponse:
        """What the first verifier serves that can be reached, asked anew.

        Raises:
            SpecwireError: one refuses, or none can be reached.
        """
        errors: list[SpecwireError] = []
        for verifier in self.order():
            try:
                served = await verifier.link.describe()
            except SpecwireError as error:
                verifier.failed(error)
                if not isinstance(error, TRANSIENT):
                    raise
                errors.append(error)
            else:
                if not verifier.draining:  # it answers, but takes no sessions
                    verifier.works()
                return served
        raise _none_left(errors)

    def route(self, notify: Notify) -> Route:
        """A way for one generation."""
        return Route(self, notify)

    def order(self) -> list[_Verifier]:
        """As they were given, but those that failed lately last, the longest ago first."""
        now = time.monotonic()
        return sorted(self._verifiers, key=lambda verifier: verifier.avoided_since(now))

    def use(self, verifier: _Verifier, why: SpecwireError | None, notify: Notify) -> None:
        """Take note of which one serves now, and tell where that is news."""
        if verifier is not self._used and why is not None:
            notify(f"using {verifier.server} ({why})")
        self._used = verifier

    async def close(self) -> None:
        """Close all links."""
        await asyncio.gather(*(verifier.link.close() for verifier in self._verifiers))


class Route:
    """One generation's way: to one verifier, and on to another when that fails.

    Where a session was opened and cannot be resumed at once, `decode` raises
    `SessionNotFound` as a verifier would that never knew it; what is opened then goes to
    whichever verifier takes it first.
    """

    def __init__(self, link: FailoverLink, notify: Notify) -> None:
        self._link = link
        self._notify = notify
        self._served: pb.DescribeResponse | None = None  # what the generation is made for
        self._home: _Verifier | None = None  # where its session is
        self._session = b""
        self._resume: pb.EdgeFrame | None = None  # did not work at home, but still may
        self._why: SpecwireError | None = None  # the last thing that went wrong
        self._told: set[str] = set()

    async def describe(self) -> pb.DescribeResponse:
        """What the verifier serves that will be asked first; not asked anew without need.

        Raises:
            SpecwireError: one refuses, or none can be reached.
        """
        errors: list[SpecwireError] = []
        for verifier in self._link.order():
            try:
                self._served = verifier.link.known or await verifier.link.describe()
            except SpecwireError as error:
                verifier.failed(error)
                if not isinstance(error, TRANSIENT):
                    raise
                errors.append(error)
            else:
                self._link.use(verifier, errors[0] if errors else None, self._notify)
                return self._served
        raise _none_left(errors)

    @asynccontextmanager
    async def decode(self, first: pb.EdgeFrame) -> AsyncIterator[RouteStream]:
        """A session's stream, begun with `first`; cancelled on leaving.

        Raises:
            SessionNotFound: a session that was to be resumed must be opened anew, with what
                is committed.
            SpecwireError: no verifier can be reached, or one refuses.
        """
        async with AsyncExitStack() as stack:
            if first.WhichOneof("kind") == "resume" and self._home is not None:
                stream = await self._go_back(stack, self._home, first)
            else:
                stream = await self._open(stack, first.open, _decode)
            yield stream

    @asynccontextmanager
    async def generate(self, opening: pb.Open) -> AsyncIterator[RouteStream]:
        """A plain token stream; cancelled on leaving. Raises as `decode`."""
        async with AsyncExitStack() as stack:
            yield await self._open(stack, opening, _generate)

    def leave(self, session_id: bytes) -> None:
        """Have a session closed, without waiting for it; best effort."""
        if self._home is not None:
            self._home.link.leave(session_id)

    # ------------------------------------------------------------- resuming

    async def _go_back(
        self, stack: AsyncExitStack, home: _Verifier, first: pb.EdgeFrame
    ) -> RouteStream:
        others = self._link.order() != [home]
        try:
            if home.draining and others:
                raise self._why or Draining(f"the verifier at {home.server} is stopping")
            stream = await self._begin(stack, home, home.link.decode(first), first.ByteSize())
        except TRANSIENT as error:
            self._why = error
            if not others or isinstance(error, StreamEnded):
                raise
            self._resume = first
            raise SessionNotFound(f"{error}; the session must be opened elsewhere") from error
        self._arrived(home, stream)
        return stream

    # -------------------------------------------------------------- opening

    async def _open(self, stack: AsyncExitStack, opening: pb.Open, call: Call) -> RouteStream:
        """Open the session at the first verifier that takes it."""
        errors: list[SpecwireError] = []
        for verifier in self._link.order():
            try:
                stream = await self._open_at(stack, verifier, opening, call)
            except SpecwireError as error:
                if not self._goes_on_after(error, verifier):
                    raise
                self._why = error
                errors.append(error)
            else:
                self._arrived(verifier, stream)
                return stream
        raise self._gravest(errors)

    async def _open_at(
        self, stack: AsyncExitStack, verifier: _Verifier, opening: pb.Open, call: Call
    ) -> RouteStream:
        if verifier is self._home and self._resume is not None and not verifier.draining:
            with contextlib.suppress(SessionNotFound):
                frame = self._resume
                resumed = verifier.link.decode(frame)
                return await self._begin(stack, verifier, resumed, frame.ByteSize())
        await self._check_target(verifier)
        stream = call(verifier.link, opening)
        return await self._begin(stack, verifier, stream, opening.ByteSize())

    def _goes_on_after(self, error: SpecwireError, verifier: _Verifier) -> bool:
        """Whether another verifier may be asked after this answer."""
        if isinstance(error, StreamEnded):
            return False
        if isinstance(error, (*TRANSIENT, OtherTarget)):
            return True
        # What refuses a session that is under way may know too little of it, or allow less.
        return self._home is not None and verifier is not self._home

    def _gravest(self, errors: Sequence[SpecwireError]) -> SpecwireError:
        """What to report: for a session under way what may pass, for a new one what won't."""
        passing = [error for error in errors if isinstance(error, TRANSIENT)]
        final = [error for error in errors if not isinstance(error, TRANSIENT)]
        if self._home is None:
            return (final or passing)[0]
        if passing:
            for error in final:
                if str(error) not in self._told:
                    self._told.add(str(error))
                    self._notify(str(error))
        return (passing or final)[0]

    # --------------------------------------------------------------- common

    async def _begin(
        self,
        stack: AsyncExitStack,
        verifier: _Verifier,
        call: AbstractAsyncContextManager[Stream],
        size: int,
    ) -> RouteStream:
        """Enter a call and wait for its Opened; on `stack` if it comes."""
        most_s = timing.CONNECT_S + size / timing.SLOWEST_BYTE_S
        connection = verifier.link.connection
        try:
            async with AsyncExitStack() as trial:
                try:
                    async with asyncio.timeout(most_s):
                        stream = await trial.enter_async_context(call)
                        frame = await stream.receive()
                except TimeoutError:
                    await verifier.link.renew(connection)
                    raise Unanswered(
                        f"the verifier at {verifier.server} did not open the session "
                        f"within {most_s:.3g} s"
                    ) from None
                if frame is None or frame.WhichOneof("kind") != "opened":
                    raise LinkError(f"the verifier at {verifier.server} did not open the session")
                self._check_model(verifier, frame.opened)
                stack.push_async_exit(trial.pop_all())
        except SpecwireError as error:
            verifier.failed(error)
            raise
        return RouteStream(stream, frame.opened, verifier)

    def _arrived(self, verifier: _Verifier, stream: RouteStream) -> None:
        verifier.works()
        session = stream.opened.session_id
        if self._resume is not None and self._home is not None and self._session != session:
            self._home.link.leave(self._session)  # it may still be kept there, for nobody
        self._link.use(verifier, self._why, self._notify)
        self._home, self._session = verifier, session
        self._resume = self._why = None

    async def _check_target(self, verifier: _Verifier) -> None:
        """Raise `OtherTarget` if the generation can't be at home there."""
        if self._served is None:
            return
        try:
            found = verifier.link.known or await verifier.link.describe()
        except SpecwireError as error:
            verifier.failed(error)
            raise
        wanted = self._served
        self._check_name(verifier, found.model)
        if found.vocabulary.fingerprint != wanted.vocabulary.fingerprint:
            raise OtherTarget(
                f"the verifier at {verifier.server} serves {found.model} with another vocabulary "
                "than the one that this text was begun with; start it again"
            )
        for what in ("context", "gamma", "chain"):
            ours, theirs = getattr(wanted.limits, what), getattr(found.limits, what)
            if theirs < ours:
                raise OtherTarget(
                    f"the verifier at {verifier.server} has a lower limit ({what} {theirs}) than "
                    f"the one that this text was begun with ({ours}); start it again"
                )

    def _check_model(self, verifier: _Verifier, opened: pb.Opened) -> None:
        # The description may be older than the process that answered.
        try:
            if self._served is not None:
                self._check_name(verifier, opened.model)
        except OtherTarget:
            verifier.link.leave(opened.session_id)
            raise

    def _check_name(self, verifier: _Verifier, model: str) -> None:
        assert self._served is not None
        if model != self._served.model:
            raise OtherTarget(
                f"the verifier at {verifier.server} serves {model}, but this text was begun with "
                f"{self._served.model}; start it again"
            )


class RouteStream:
    """A `TargetStream` from one of several verifiers."""

    def __init__(self, stream: Stream, opened: pb.Opened, verifier: _Verifier) -> None:
        self.opened = opened
        self._stream = stream
        self._verifier = verifier

    @property
    def bytes_up(self) -> int:
        """Payload sent."""
        return self._stream.bytes_up

    @property
    def bytes_down(self) -> int:
        """Payload received."""
        return self._stream.bytes_down

    async def send(self, frame: pb.EdgeFrame) -> None:
        """Send a frame. Raises as `Stream.send`."""
        await self._stream.send(frame)

    async def receive(self) -> pb.CloudFrame | None:
        """The next frame; None at the end. Raises as `Stream.receive`."""
        try:
            return await self._stream.receive()
        except SpecwireError as error:
            self._verifier.failed(error)
            raise


def _none_left(errors: Sequence[SpecwireError]) -> SpecwireError:
    """The first error; of several, one that tells them all."""
    if len(errors) == 1:
        return errors[0]
    return type(errors[0])("no verifier can be used: " + " · ".join(map(str, errors)))


def _decode(link: Link, opening: pb.Open) -> AbstractAsyncContextManager[Stream]:
    return link.decode(pb.EdgeFrame(open=opening))


def _generate(link: Link, opening: pb.Open) -> AbstractAsyncContextManager[Stream]:
    return link.generate(opening)
