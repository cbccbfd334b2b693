"""Sending an answer piece by piece, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
"""What ends an answer that is complete."""


def event(value: Mapping[str, Any]) -> bytes:
    """One event. ASCII: some readers take U+2028 for the end of a line."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n\n"


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


class EventStream:
    """An ASGI response that sends events as they come.

    Args:
        events: encoded.
        close: called at the end, however it comes.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._close()
