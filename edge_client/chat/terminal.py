"""The terminal's own settings: keys unseen while text is written, and all as it was at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn, TextIO

if sys.platform != "win32":
    import termios

Attributes = list[object]


def steerable(stream: TextIO) -> bool:
    """Whether the stream is a terminal that understands cursor movements."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def attributes() -> Attributes | None:
    """The settings of the terminal on standard input; None if there is none."""
    if sys.platform == "win32":
        return None
    try:
        return list(termios.tcgetattr(sys.stdin.fileno()))
    except (termios.error, OSError, ValueError):
        return None


def apply(settings: Attributes | None) -> None:
    """Put settings in force, if there are any and the terminal is still there."""
    if sys.platform == "win32" or settings is None:
        return
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, settings)  # type: ignore[arg-type]


def silent(settings: Attributes | None) -> Attributes | None:
    """The same settings, but keys are not shown and wait for whoever reads next.

    Ctrl-C and Ctrl-Z keep their meaning.
    """
    if sys.platform == "win32" or settings is None:
        return None
    flags = settings[3]
    assert isinstance(flags, int)
    return [*settings[:3], flags & ~(termios.ECHO | termios.ICANON), *settings[4:]]


def give_up(settings: Attributes | None, code: int) -> NoReturn:
    """End the process at once, with the terminal as these settings say."""
    apply(settings)
    os._exit(code)


@contextlib.contextmanager
def unseen_keys(wanted: bool = True) -> Iterator[None]:
    """Keys typed meanwhile are not shown, if that is wanted: the next prompt gets them."""
    before = attributes() if wanted else None
    apply(silent(before))
    try:
        yield
    finally:
        apply(before)
