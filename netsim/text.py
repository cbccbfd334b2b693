"""Tables and numbers for people."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import combining, east_asian_width


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns side by side: the first `left` of them aligned left, all others right."""
    lines = [head, *rows]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(head))]
    shown = []
    for line in lines:
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            pad = " " * (width - _width(cell))
            cells.append(cell + pad if column < left else pad + cell)
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def _width(text: str) -> int:
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def plain(value: object) -> str:
    """A value as one would write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)
