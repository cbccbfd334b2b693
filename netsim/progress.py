"""A bar on standard error while work goes on; only on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time

_EVERY_S = 0.1
_UNNOTICED_S = 0.5
"""What takes less is not worth a bar."""
_WIDTH = 30


class Progress:
    """How much of `total` is done; `done` may be there from before."""

    def __init__(self, total: int, done: int = 0, *, what: str = "scenarios") -> None:
        self._total, self._first, self._done = total, done, done
        self._what = what
        self._began = time.monotonic()
        self._drawn = 0.0
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def add(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        now = time.monotonic()
        if self._on and now - self._drawn >= _EVERY_S and now - self._began >= _UNNOTICED_S:
            self._drawn = now
            room = max(shutil.get_terminal_size().columns - 1, 0)
            sys.stderr.write(f"\r\x1b[K{self.line(now)[:room]}")
            sys.stderr.flush()

    def line(self, now: float) -> str:
        """What it shows."""
        share = self._done / self._total if self._total else 1.0
        full = int(share * _WIDTH)
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate else ""
        bar = "█" * full + "·" * (_WIDTH - full)
        return f"{bar} {share:4.0%}  {self._done} of {self._total} {self._what}, {rate:.0f}/s{left}"

    def end(self) -> None:
        """Leave no trace."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
