"""The event loops that a client is used from: each has a link of its own, and one is ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from edge_client.connection import Connector, TargetLink

T = TypeVar("T")


class LoopLinks:
    """Links to a target, one for each event loop. May be used from any thread."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lock = threading.Lock()
        self._links: dict[asyncio.AbstractEventLoop, TargetLink] = {}
        self._own: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def here(self) -> TargetLink:
        """The link of the running event loop."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            link = self._connector.link()
            with self._lock:
                gone = [known for known in self._links if known.is_closed()]
                for known in gone:
                    del self._links[known]
                self._links[loop] = link
        return link

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of a coroutine, for callers that have no loop: it runs on ours."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._own is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="edge-client", daemon=True)
                thread.start()
                self._own = loop, thread
            return self._own[0]

    async def leave(self) -> None:
        """Close the running loop's link."""
        link = self._links.pop(asyncio.get_running_loop(), None)
        if link is not None:
            await link.close()

    def close(self) -> None:
        """Cancel what runs on our loop, so that nobody waits for it for ever, and end it."""
        if self._own is None:
            return
        loop, thread = self._own
        asyncio.run_coroutine_threadsafe(self._wind_up(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._own = None

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.leave()
