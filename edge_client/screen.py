"""A terminal that shows provisional text after the text that stays, and takes it back."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Callable
from typing import TextIO

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LINE_END = re.compile(r"((?:\x1b\[[0-9;]*m)*)\n")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_TAB = 8


def terminal_size() -> tuple[int, int]:
    """Columns and rows of the terminal now."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


class Screen:
    """Writes text to a terminal; a dim tail behind it never stays.

    The tail is erased before anything else is written, so that nothing of it is left in
    what scrolls away. Its rows are counted as a terminal wraps them; no more are shown
    than fit on it.

    Args:
        stream: the terminal.
        tell: shows a line for a person, maybe on the same terminal.
        size: columns and rows.
    """

    def __init__(
        self,
        stream: TextIO,
        tell: Callable[[str], None],
        size: Callable[[], tuple[int, int]] = terminal_size,
    ) -> None:
        self._stream = stream
        self._tell = tell
        self._size = size
        self._column = 0  # equals the width where a line is full
        self._wrapped = False  # a full line was ended here, before the text did it
        self._erasure = ""
        self._tail = ""
        self.untouched = True
        """Whether nothing was written yet."""

    def write(self, text: str) -> int:
        """Add text that stays."""
        self.untouched, self._tail, fresh = False, "", text
        if self._wrapped:
            fresh = _LINE_END.sub(r"\1", text, count=1) if _LINE_END.match(text) else text
            self._wrapped = not _ESCAPES.sub("", text)
        self._stream.write(self._take_erasure() + fresh)
        self._column = _place(_ESCAPES.sub("", fresh), self._column, self._size()[0])[1]
        return len(text)

    def flush(self) -> None:
        """Hold nothing back."""
        self._stream.flush()

    def provisional(self, text: str) -> None:
        """Show this after the text that stays, instead of what was shown before; "" for nothing."""
        self._tail = text
        self._stream.write(self._take_erasure())
        width, height = self._size()
        text = _fitting(_harmless(text), self._column, width, height - 1)
        if text:
            if self._column >= width:  # from a full line no way leads back to its end
                self._stream.write("\r\n")
                self._column, self._wrapped = 0, True
            rows, _ = _place(text, self._column, width)
            up = f"\x1b[{rows}A" if rows else ""
            right = f"\x1b[{self._column}C" if self._column else ""
            self._stream.write(f"{_DIM}{text}{_RESET}")
            self._erasure = f"\r{up}{right}\x1b[J"
        self._stream.flush()

    def notice(self, line: str) -> None:
        """Tell a person something, on a line of its own."""
        self._stream.write(self._take_erasure())
        if self._column:
            self._stream.write("\n")
            self._column = 0
        self._stream.flush()
        self._tell(line)
        self.provisional(self._tail)

    def _take_erasure(self) -> str:
        erasure, self._erasure = self._erasure, ""
        return erasure


def _harmless(text: str) -> str:
    """Without what would move the cursor otherwise than counted."""
    text = text.replace("\t", " ")
    return "".join(c for c in text if c == "\n" or unicodedata.category(c)[0] != "C")


def _place(text: str, column: int, width: int) -> tuple[int, int]:
    """How many rows down, and in which column, the cursor is after `text`."""
    row = 0
    for char in text:
        if char == "\n":
            row, column = row + 1, 0
        elif char == "\r":
            column = 0
        elif char == "\t":
            column = min(column + _TAB - column % _TAB, width - 1)
        else:
            cells = _cells(char)
            if column + cells > width:
                row, column = row + 1, 0
            column += cells
    return row, column


def _fitting(text: str, column: int, width: int, rows: int) -> str:
    """As much of the beginning as takes no more than `rows` rows."""
    row = 0
    for index, char in enumerate(text):
        more, column = _place(char, column, width)
        row += more
        if row >= rows:
            return text[:index]
    return text


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
