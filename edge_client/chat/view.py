"""How an answer is shown: on a terminal with a status line, elsewhere as plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TextIO

from edge_client import render
from edge_client.chat.canvas import Canvas, terminal_width
from edge_client.chat.cells import end_of
from edge_client.chat.status import status_line, waiting_line
from edge_client.options import Mode
from edge_client.result import Status, Token

NOTICEABLE_S = 1.0
"""A wait shorter than this needs no word."""
_REPEAT_S = 10.0
_LOST = "link lost, not final: "
_PASSING = "; next attempt in"
"""In notices that need not stay where a line shows what is going on."""


class View(Protocol):
    """What an answer, or a wait, is shown on."""

    def write(self, token: Token) -> None:
        """Show a token."""

    def going(self, status: Status) -> None:
        """Text is coming; this is how it goes."""

    def waiting(self, what: str, seconds: float) -> None:
        """Nothing has come for so long."""

    def provisional(self, text: str) -> None:
        """The link is lost, and the draft has gone on with this."""

    def tell(self, line: str) -> None:
        """A notice, while this is shown."""

    def end(self) -> None:
        """It is over: leave nothing but the text, and notices that were held back."""


class TerminalView:
    """Text in the colours of its authors, and a status line below it.

    Args:
        stream: the terminal.
        colour: whether it can colour.
        mode: that was asked for.
        before: tells a notice that comes before the text, and may hold for each answer.
    """

    def __init__(
        self, stream: TextIO, *, colour: bool, mode: Mode, before: Callable[[str], None]
    ) -> None:
        self._canvas = Canvas(stream, colour=colour)
        self._writer = render.TokenWriter(self._canvas, colour=colour, terminal=True)
        self._mode = mode
        self._before = before
        self._begun = False
        self._held: list[str] = []

    def write(self, token: Token) -> None:
        """Show a token."""
        self._begun = self._begun or bool(token.text)
        self._writer.write(token)

    def going(self, status: Status) -> None:
        """Show the status line."""
        self._canvas.status(status_line(status, self._mode, terminal_width() - 1))

    def waiting(self, what: str, seconds: float) -> None:
        """Show what is waited for in place of the status line."""
        self._canvas.status(waiting_line(_one_line(what), seconds, terminal_width() - 1))

    def provisional(self, text: str) -> None:
        """Show the end of it in place of the status line."""
        width = terminal_width() - 1
        self._canvas.status(_LOST + end_of(_one_line(text), max(width - len(_LOST), 0)))

    def tell(self, line: str) -> None:
        """Show a notice that is to stay: above the text, or after it where it has begun."""
        if _PASSING in line:
            return
        if self._begun:
            self._held.append(line)
            return
        self._canvas.status("")
        self._before(line)

    def end(self) -> None:
        """Take the status line away."""
        self._canvas.status("")
        self._writer.end()
        for line in self._held:
            render.notice(line)
        self._held.clear()


class PlainView:
    """Text as it is on standard output; notices and waits as lines on standard error."""

    def __init__(self) -> None:
        self._writer = render.TokenWriter(
            sys.stdout, colour=render.wants_colour(sys.stdout), terminal=sys.stdout.isatty()
        )
        self._said = ""
        self._again_s = 0.0

    def write(self, token: Token) -> None:
        """Write a token's text."""
        self._said = ""
        self._writer.write(token)

    def going(self, status: Status) -> None:
        """Say nothing: the text speaks for itself."""

    def waiting(self, what: str, seconds: float) -> None:
        """Say once what is waited for, and again when that takes long."""
        if seconds < NOTICEABLE_S:
            return
        if what != self._said:
            self._said, self._again_s = what, seconds + _REPEAT_S
            render.notice(f"{what} …")
        elif seconds >= self._again_s:
            self._again_s = seconds + _REPEAT_S
            render.notice(f"{what} … {seconds:.0f} s")

    def provisional(self, text: str) -> None:
        """Say nothing: it may be taken back."""

    def tell(self, line: str) -> None:
        """Say it at once."""
        self._said, self._again_s = line, _REPEAT_S
        render.notice(line)

    def end(self) -> None:
        """End the line."""
        self._writer.end()


def _one_line(text: str) -> str:
    return render.harmless(text).replace("\n", " ").replace("\t", " ")
