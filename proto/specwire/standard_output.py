"""Standard output and error of the commands, whatever their encoding."""

from __future__ import annotations

import io
import sys


def take_any_text() -> None:
    """Make standard output and error take all text.

    What their encoding lacks becomes a question mark. On Windows pipes and files get UTF-8,
    as elsewhere.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            to_file = sys.platform == "win32" and not stream.isatty()
            stream.reconfigure(encoding="utf-8" if to_file else None, errors="replace")
