"""A timer for asyncio that fires within a tenth of a millisecond, and never early.

asyncio waits in whole milliseconds where the system's poll does (epoll on Linux), which is
late by half of one on average. On Linux this timer is a descriptor that the kernel makes
readable at a time given in nanoseconds; elsewhere it is asyncio's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable

_CLOCK_MONOTONIC = 1  # the clock of time.monotonic(), which is the loop's
_NONBLOCK_CLOEXEC = 0o2004000
_ABSOLUTE = 1


class PreciseTimer:
    """Calls `fire` at the time set last, once. Times are those of `loop.time()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._descriptor = -1
        if self._libc is not None and hasattr(self._libc, "timerfd_create"):
            self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._readable)

    @property
    def exact(self) -> bool:
        """Whether the kernel's own timer is used."""
        return self._descriptor >= 0

    def set(self, when: float) -> None:
        """Fire at `when` and not at the time set before."""
        if self._descriptor < 0:
            self.clear()
            self._handle = self._loop.call_at(when, self._fire)
            return
        assert self._libc is not None
        seconds, rest = divmod(max(when, 0.0), 1.0)
        # it_interval, then it_value; a value of zero would mean never
        setting = struct.pack("qqqq", 0, 0, int(seconds), max(1, int(rest * 1e9)))
        if self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, setting, None):
            raise OSError(ctypes.get_errno(), "the kernel's timer can't be set")

    def clear(self) -> None:
        """Fire no more, until set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._descriptor >= 0:
            assert self._libc is not None
            self._libc.timerfd_settime(self._descriptor, 0, bytes(32), None)

    def close(self) -> None:
        """Give the descriptor back."""
        self.clear()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)
            self._fire()
