"""Messages from a pipe or a file, a line each."""

from __future__ import annotations

import asyncio
import os
import threading

_PIECE = 1 << 16
_LONGEST = 16 << 20


class LineReader:
    """Reads lines from a file descriptor in a thread of its own, no more than are asked for.

    The thread is a daemon and reads the descriptor itself: it holds nothing that the
    end of the process would wait for.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._wanted = threading.Event()
        self._ended = False

    def start(self) -> None:
        """Begin to read, for the running event loop."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="lines", daemon=True).start()

    async def next(self) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there is none any more.
        """
        if self._lines.empty():
            self._wanted.set()
        line = None if self._ended else await self._lines.get()
        if line is None:
            self._ended = True
            raise EOFError
        return line

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        rest = b""
        piece = b"-"
        while piece:
            self._wanted.wait()
            try:
                piece = os.read(self._descriptor, _PIECE)
            except OSError:  # a terminal that is gone
                piece = b""
            *whole, rest = (rest + piece).split(b"\n")
            if rest and (not piece or len(rest) > _LONGEST):
                whole.append(rest)
                rest = b""
            if whole or not piece:
                self._wanted.clear()
            try:
                for line in whole:
                    text = line.decode("utf-8", "replace").rstrip("\r")
                    loop.call_soon_threadsafe(self._lines.put_nowait, text)
                if not piece:
                    loop.call_soon_threadsafe(self._lines.put_nowait, None)
            except RuntimeError:  # the loop is closed
                return
