"""Frames taken from a stream as they come, each with the time at which it came."""

from __future__ import annotations

import asyncio
import time

from edge_client.connection import TargetStream
from specwire.v1 import verifier_pb2 as pb

MOST_WAITING = 64
"""Frames that may wait to be taken before the stream is left unread."""


class Inbox:
    """Reads a stream ahead of whoever takes its frames, and notes when each came.

    Else a verdict would seem to have been under way for as long as a slow reader of the
    text leaves it unread. Belongs to one event loop; close it before the stream.
    """

    def __init__(self, stream: TargetStream) -> None:
        self._stream = stream
        self._arrivals: asyncio.Queue[tuple[pb.CloudFrame | Exception | None, float]] = (
            asyncio.Queue(MOST_WAITING)
        )
        self._reader = asyncio.create_task(self._read())

    async def take(self) -> tuple[pb.CloudFrame | None, float]:
        """The next frame, None at the stream's end; and when it came, by time.perf_counter.

        Raises:
            SpecwireError: the stream has broken or was refused, after the frames before.
        """
        frame, came_at = await self._arrivals.get()
        if isinstance(frame, Exception):
            raise frame
        return frame, came_at

    async def close(self) -> None:
        """Read no more."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        frame: pb.CloudFrame | Exception | None
        going = True
        while going:
            try:
                frame = await self._stream.receive()
            except Exception as error:
                frame = error
            going = isinstance(frame, pb.CloudFrame)
            await self._arrivals.put((frame, time.perf_counter()))
