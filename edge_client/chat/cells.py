"""Where text ends up on a terminal: widths in cells, and wrapping."""

from __future__ import annotations

import re

from prompt_toolkit.utils import get_cwidth

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
_TAB = 8
ELLIPSIS = "…"


def width_of(text: str) -> int:
    """Cells that a line takes; escape sequences take none."""
    return sum(max(get_cwidth(char), 0) for char in _ESCAPES.sub("", text))


def cut(text: str, width: int) -> str:
    """What of a line fits into `width` cells, with an ellipsis where it was longer."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for char in text:
        room -= max(get_cwidth(char), 0)
        if room < 0:
            break
        kept += char
    return kept + ELLIPSIS if width > 0 else ""


def end_of(text: str, width: int) -> str:
    """The end of a line that fits into `width` cells, after an ellipsis where it was longer."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for char in reversed(text):
        room -= max(get_cwidth(char), 0)
        if room < 0:
            break
        kept = char + kept
    return ELLIPSIS + kept if width > 0 else ""


class Cursor:
    """The column where the next character goes, as a terminal that wraps counts it.

    column: equals the width where the last character filled the line; a terminal then
        stays on it until something more comes.
    """

    def __init__(self) -> None:
        self.column = 0
        self._cells = 0  # of the line so far, however often it wrapped
        self._width = 0

    def fills(self, width: int) -> bool:
        """Whether the line is full, so that no one can say which cell the cursor is on."""
        self._fit(width)
        return self.column >= width

    def write(self, text: str, width: int) -> None:
        """Follow text that is written at `width` cells a line."""
        self._fit(width)
        for char in _ESCAPES.sub("", text):
            if char in "\n\r":
                self.column = self._cells = 0
                continue
            if char == "\t":
                step = _TAB - self.column % _TAB
                self.column = min(self.column + step, width - 1)
                self._cells += step
                continue
            cells = max(get_cwidth(char), 0)
            self.column = cells if self.column + cells > width else self.column + cells
            self._cells += cells

    def _fit(self, width: int) -> None:
        if width != self._width and self._width:
            # Most terminals wrap their lines anew.
            self.column = self._cells % max(width, 1)
        self._width = width
