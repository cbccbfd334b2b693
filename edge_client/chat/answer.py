"""Showing an answer as it comes, and every wait on the way to it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from edge_client.chat.view import NOTICEABLE_S, View
from edge_client.client import EdgeClient, Messages
from edge_client.options import GenerateOptions
from edge_client.progress import Teller
from edge_client.result import Result, Status

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
        self._tail = ""

    def heard(self) -> None:
        """A token has come."""
        self._since = time.monotonic()
        self._news = None

    def tell(self, line: str) -> None:
        """A notice has come, which says better than we could what is waited for."""
        self._news = line
        self._view.tell(line)

    def drafting(self, text: str) -> None:
        """The link is lost, and this is what the draft says meanwhile; "" when that is over."""
        self._tail = text

    def look(self) -> None:
        """Tell the view how it is now."""
        status, silent = self._status(), time.monotonic() - self._since
        if status is not None and status.tokens and silent < NOTICEABLE_S:
            self._view.going(status)
            return
        if self._tail:
            self._view.provisional(self._tail)
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


class Answer:
    """One answer on its way to a view.

    Args:
        client: is asked.
        messages: the conversation so far, the message to answer last.
        options: how.
        view: what shows it.
        server: what to call the verifier.
    """

    def __init__(
        self,
        client: EdgeClient,
        messages: Messages,
        options: GenerateOptions,
        view: View,
        *,
        server: str,
    ) -> None:
        self._watch = Watch(view, f"connecting to {server}", lambda: self._stream.status)
        self._view = view
        self._stream = client.stream(
            messages=messages, options=options, provisional=self._watch.drafting
        )

    @property
    def result(self) -> Result:
        """What has come of it so far."""
        return self._stream.result

    async def show(self, teller: Teller) -> None:
        """Show it to its end.

        Raises:
            SpecwireError: as the stream does; what came before is shown.
        """
        async with self._watch(teller):
            tokens = aiter(self._stream)
            try:
                async for token in tokens:
                    self._watch.heard()
                    self._view.write(token)
            finally:
                if isinstance(tokens, AsyncGenerator):
                    await tokens.aclose()
