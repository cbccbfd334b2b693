"""Lines for a person while something goes on, told to whoever shows them at the time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

from edge_client import render

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TURN_S = 0.12
_UNNOTICED_S = 0.3


class Teller:
    """Takes lines for a person, from any thread, and passes them on.

    They go to standard error, or to whoever has asked for them meanwhile.
    """

    def __init__(self, tell: Callable[[str], None] = render.notice) -> None:
        self._tell = tell

    def __call__(self, line: str) -> None:
        """Tell a line."""
        self._tell(line)

    @contextlib.contextmanager
    def to(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Tell `tell` instead, within this context."""
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before


class Spinner:
    """A line on standard error that turns while something goes on, and leaves no trace.

    Only on a terminal. Notices told meanwhile appear above it.

    Args:
        what: goes on; asked for each time.
        quiet: show nothing at all.
    """

    def __init__(self, what: Callable[[], str], *, quiet: bool = False) -> None:
        self._what = what
        self._on = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False
        self._began = time.monotonic()

    @contextlib.asynccontextmanager
    async def shown(self, teller: Teller) -> AsyncIterator[None]:
        """Turn within this context, unless `hide` ends it before."""
        if not self._on:
            yield
            return
        loop = asyncio.get_running_loop()

        def above(line: str) -> None:
            self._erase()
            render.notice(line)

        def tell(line: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(above, line)

        turning = asyncio.create_task(self._turn())
        try:
            with teller.to(tell):
                yield
        finally:
            await asyncio.sleep(0)  # notices on their way come first
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)
            self.hide()

    def hide(self) -> None:
        """Turn no more."""
        self._on = False
        self._erase()

    async def _turn(self) -> None:
        while self._on:
            self._draw()
            await asyncio.sleep(_TURN_S)

    def _draw(self) -> None:
        seconds = time.monotonic() - self._began
        if seconds < _UNNOTICED_S:
            return
        since = f" · {seconds:.0f} s" if seconds >= 1 else ""
        line = f"{_FRAMES[int(seconds / _TURN_S) % len(_FRAMES)]} {self._what()}{since}"
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{line[: max(room, 0)]}")
        sys.stderr.flush()
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
