"""A terminal for a process under test: a pseudo-terminal, and a screen that shows what it says."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any, Self

import pyte
import pyte.modes
from prompt_toolkit.utils import get_cwidth

from tests.support.edge import EDGE_CLIENT, edge_environment

PATIENCE_S = 120.0
_PAUSE_S = 0.03
"""Without output for so long, nothing is being drawn."""
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class _XtermScreen(pyte.HistoryScreen):
    """pyte's screen, but as on xterm in two respects.

    A wide character that does not fit goes to the next row. Where there are fewer rows, those
    below the cursor go first, and what must go above it scrolls away and takes the cursor along.
    """

    def draw(self, data: str) -> None:
        for char in data:
            short = self.cursor.x == self.columns - 1 and get_cwidth(char) == 2
            if short and pyte.modes.DECAWM in self.mode:
                self.carriage_return()
                self.linefeed()
            super().draw(char)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        super().resize(self.lines, columns)
        lines = lines or self.lines
        y = self.cursor.y
        above = max(0, y - (lines - 1))
        for _ in range(above):
            self.cursor.y = self.lines - 1
            self.index()
        self.cursor.y = y - above
        for row in range(lines, self.lines):
            self.buffer.pop(row, None)
        self.lines = lines
        self.set_margins()


class Screen:
    """What a terminal shows of what is written to it, and what has scrolled away."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self._screen = _XtermScreen(columns, rows, history=2000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)

    @property
    def lines(self) -> list[str]:
        """All lines, those that scrolled away first."""
        gone = [
            "".join(line[column].data for column in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        return [line.rstrip() for line in (*gone, *self._screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Terminal:
    """`edge-client` on a terminal of its own, which is the one that Ctrl-C comes from."""

    def __init__(self, *args: str, rows: int = 24, columns: int = 80, **env: str) -> None:
        self._master, self._slave = pty.openpty()
        self.screen = Screen(rows, columns)
        self.raw = b""
        self._set_size(rows, columns)
        self.attributes_before = self.attributes
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *EDGE_CLIENT, *args],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=edge_environment(**{"TERM": "xterm-256color", **env}),
            start_new_session=True,
        )

    @property
    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        # What was written for the old size and not yet read would be taken for the new one.
        while select.select([self._master], [], [], _PAUSE_S)[0]:
            self._read()
        self._set_size(rows, columns)
        self.screen.resize(rows, columns)
        os.kill(self.process.pid, signal.SIGWINCH)

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def look(self, seconds: float) -> None:
        """Take in what comes within this time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], min(left, 0.05))[0]:
                self._read()

    def _read(self) -> None:
        data = os.read(self._master, 65536)
        self.raw += data
        self.screen.feed(data)

    def wait(self, seen: str | Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait until a text is on the screen, or something has become true."""
        condition = (lambda: seen in self.screen.text) if isinstance(seen, str) else seen
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{seen!r} not in:\n{self.screen.text}"
            assert self.process.poll() is None, f"ended before {seen!r}:\n{self.screen.text}"
            self.look(0.05)

    def exit_code(self, timeout_s: float = 60.0) -> int:
        """The exit code, once the process has ended."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running:\n{self.screen.text}"
            self.look(0.02)
        self.look(0.05)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)
