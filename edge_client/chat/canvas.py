"""Text that grows on a terminal, with a line below it that never stays.

The status line lies on the row under the text's last one and is erased before each
piece of text, so what scrolls away is text alone. Nothing depends on where on the
screen that is, or on how the terminal wraps after a resize.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TextIO

from edge_client.chat.cells import Cursor, cut

# Makes a row below (scrolling if there is none), and remembers the place in the text.
_ROOM = "\x1bD\x1b[A\x1b7"
_BELOW = "\x1b[B\r"
_ERASE_DOWN = "\x1b[J"
_BACK = "\x1b8"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


def terminal_width() -> int:
    """Cells in a row of the terminal now."""
    return shutil.get_terminal_size().columns


class Canvas:
    """A text stream onto a terminal, with a status line.

    Args:
        stream: the terminal.
        colour: whether the status line may be dim.
        width: cells in a row.
    """

    def __init__(
        self, stream: TextIO, *, colour: bool, width: Callable[[], int] = terminal_width
    ) -> None:
        self._stream = stream
        self._colour = colour
        self._width = width
        self._cursor = Cursor()
        self._status = ""
        self._shown = False
        self._shown_width = 0

    @property
    def at_line_start(self) -> bool:
        """Whether the text so far ends a line."""
        return self._cursor.column == 0

    def write(self, text: str) -> int:
        """Add text; the status line moves out of its way."""
        before = self._erasure()
        self._cursor.write(text, self._width())
        self._put(before + text + self._drawing())
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def status(self, line: str) -> None:
        """Show another status line; an empty one shows none."""
        if self._shown and line == self._status and self._width() == self._shown_width:
            return
        self._status = line
        self._put(self._erasure() + self._drawing())

    def _put(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()

    def _erasure(self) -> str:
        if not self._shown:
            return ""
        self._shown = False
        return _ROOM + _BELOW + _ERASE_DOWN + _BACK

    def _drawing(self) -> str:
        width = self._width()
        # On a full line, moving away and back could lose the wrap that is due.
        if not self._status or self._cursor.fills(width) or width < 2:
            return ""
        self._shown, self._shown_width = True, width
        line = cut(self._status, width - 1)
        if self._colour:
            line = f"{_DIM}{line}{_RESET}"
        return f"{_ROOM}{_BELOW}{_NO_WRAP}{line}{_WRAP}{_BACK}"
