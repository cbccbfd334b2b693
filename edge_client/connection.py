"""What a client asks of the way to its target, wherever that is: in the cloud or on this device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from edge_client.draft.source import DraftSource
from specwire.v1 import verifier_pb2 as pb


class TargetStream(Protocol):
    """One open session's frames, up and down, counted in bytes of payload that left this device."""

    @property
    def opened(self) -> pb.Opened:
        """The answer to the opening, which came before all other frames."""

    @property
    def bytes_up(self) -> int:
        """Payload sent."""

    @property
    def bytes_down(self) -> int:
        """Payload received."""

    async def send(self, frame: pb.EdgeFrame) -> None:
        """Send a frame.

        Raises:
            SpecwireError: the stream has broken or was refused.
        """

    async def receive(self) -> pb.CloudFrame | None:
        """The next frame; None when the session has ended in order.

        Raises:
            SpecwireError: the stream has broken or was refused.
        """


class TargetRoute(Protocol):
    """One generation's way to its target. Belongs to one event loop."""

    async def describe(self) -> pb.DescribeResponse:
        """What the target is. May be what was told before, if the link still stands."""

    def decode(self, first: pb.EdgeFrame) -> AbstractAsyncContextManager[TargetStream]:
        """A session's stream, begun with `first`, which was answered; over on leaving."""

    def generate(self, opening: pb.Open) -> AbstractAsyncContextManager[TargetStream]:
        """A plain token stream whose opening was answered; over on leaving."""

    def leave(self, session_id: bytes) -> None:
        """Have a session closed, without waiting for it; best effort."""


class TargetLink(Protocol):
    """What the generations on one event loop share of the way to a target."""

    async def describe(self) -> pb.DescribeResponse:
        """What the target is, asked anew; also the check that it can be reached."""

    def route(self, notify: Callable[[str], None]) -> TargetRoute:
        """A way for one generation; `notify` is told where it leads, if not where expected."""

    async def close(self) -> None:
        """Give back what the link holds."""


class Connector(Protocol):
    """Makes links, and owns what they share. Used from any thread and event loop."""

    @property
    def shares_cores(self) -> bool:
        """Whether target and draft compute on the same cores, in turn."""

    def link(self) -> TargetLink:
        """A link for the running event loop."""

    def place(self, source: DraftSource) -> DraftSource:
        """The source, made to draft where it does not get in the target's way."""

    def close(self) -> None:
        """Give back what the links share; they are closed already."""
