"""`netsim demo` while it runs: a line for each token as it comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from unicodedata import east_asian_width

from edge_client.render import Sink, TokenWriter
from edge_client.result import Token
from netsim.real import Arrival
from specwire.committed import Origin

AUTHORS = {
    Origin.ACCEPTED: "accepted draft",
    Origin.CORRECTION: "correction",
    Origin.BONUS: "bonus",
    Origin.RUN_AHEAD: "target",
    Origin.CAUGHT_UP: "caught up",
}
_NONE = "–"  # an end token, or part of a character that a later token completes


class TokenLines:
    """Writes a line for each token: when it came, who wrote it, and what it says.

    Texts are quoted as in Python's sources, so that a line end is no line end here and
    nothing steers a terminal. On a terminal each line is coloured by who wrote the token, and cut
    to its width.

    Args:
        stream: gets them.
        colour: whether it can colour.
        terminal: whether it is one.
        columns: how wide it is, asked for each line.
    """

    def __init__(
        self,
        stream: Sink,
        *,
        colour: bool,
        terminal: bool,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._writer = TokenWriter(stream, colour=colour, terminal=terminal)
        self._terminal = terminal
        self._columns = columns

    def write(self, arrival: Arrival) -> None:
        """Show one token at once."""
        origin = Origin(arrival.origin)
        text = repr(arrival.text) if arrival.text else _NONE
        line = f"{arrival.at_s:6.2f} s  {AUTHORS[origin]:<14}  {text}"
        if self._terminal:
            line = _cut(line, self._columns())
        self._writer.write(Token(0, f"{line}\n", origin, 0))


def _cut(line: str, columns: int) -> str:
    """The line if it fits, else as much of it as does; a line that wraps is hard to read."""
    width = 0
    for index, char in enumerate(line):
        width += 1 + (east_asian_width(char) in "WF")
        if width >= columns and (width > columns or index < len(line) - 1):
            return f"{line[:index]}…"
    return line
