"""Showing an answer as it comes, and every wait on the way to it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from edge_client.chat.view import NOTICEABLE_S, View
from edge_client.client import TokenStream
from edge_client.progress import Teller
from edge_client.result import Status

_TICK_S = 0.12
FIRST_TOKEN = "waiting for the first token"
SILENCE = "waiting for the verifier"


class Watch:
    """Tells a view, a few times a second, what is going on.

    Args:
        view: what is told.
        what: is waited for until there is a status.
        status: of an answer; None before there is one.
    """

    def __init__(
        self, view: View, what: str, status: Callable[[], Status | None] = lambda: None
    ) -> None:
        self._view = view
        self._what = what
        self._status = status
        self._since = time.monotonic()
        self._news: str | None = None

    def heard(self) -> None:
        """A token has come."""
        self._since = time.monotonic()
        self._news = None

    def tell(self, line: str) -> None:
        """A notice has come, which says better than we could what is waited for."""
        self._news = line
        self._view.tell(line)

    def look(self) -> None:
        """Tell the view how it is now."""
        status, silent = self._status(), time.monotonic() - self._since
        if status is not None and status.tokens and silent < NOTICEABLE_S:
            self._view.going(status)
            return
        what = self._what
        if status is not None:
            what = SILENCE if status.tokens else FIRST_TOKEN
        self._view.waiting(self._news or what, silent)

    @contextlib.asynccontextmanager
    async def __call__(self, teller: Teller) -> AsyncIterator[None]:
        """Look and take notices within this context."""
        loop = asyncio.get_running_loop()

        def tell(line: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.tell, line)

        async def tick() -> None:
            while True:
                self.look()
                await asyncio.sleep(_TICK_S)

        ticking = asyncio.create_task(tick())
        try:
            with teller.to(tell):
                yield
        finally:
            await asyncio.sleep(0)  # notices on their way come first
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            self._view.end()


async def show(stream: TokenStream, view: View, teller: Teller, *, server: str) -> None:
    """Show an answer to its end; `stream.result` says what came of it.

    Raises:
        SpecwireError: as the stream does; what came before is shown.
    """
    watch = Watch(view, f"connecting to {server}", lambda: stream.status)
    async with watch(teller):
        tokens = aiter(stream)
        try:
            async for token in tokens:
                watch.heard()
                view.write(token)
        finally:
            if isinstance(tokens, AsyncGenerator):
                await tokens.aclose()
