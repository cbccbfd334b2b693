"""Which sequence holds which cells of llama.cpp's memory: sharing, and who gives way.

Bookkeeping only; the keys and values are behind `SlotMemory`. A cell holds one token.
llama.cpp knows sequences by a small number, here called a slot, and lets several of them
hold one cell, so that a sequence which begins like another takes its beginning for
nothing. A few closed sequences stay as donors of their beginnings, until their cells or
slots are needed; the least recently used goes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

SHARE = 16
"""What is shared is a multiple of this many tokens.

A client learns how much of its prompt was at hand. Token by token it could try out what
others have sent; sixteen at once it can't.
"""

DONORS = 8
"""Closed sequences that are kept. Attention looks at their cells too, so not many."""


class OutOfCells(Exception):
    """There is no free cell or slot, and no donor to take it from."""


class SlotMemory(Protocol):
    """llama.cpp's memory of keys and values."""

    def copy(self, source: int, target: int, count: int) -> None:
        """Let the empty slot `target` hold the first `count` tokens of `source` as well."""

    def truncate(self, slot: int, keep: int) -> None:
        """Forget all but the first `keep` tokens."""

    def intact(self, slot: int, count: int) -> bool:
        """Whether a sequence can go on after its first `count` tokens."""


@dataclass(eq=False)
class Line:
    """One sequence: its tokens, the cell of each, and its slot once it needed one."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    slot: int | None = None


class SharedCells:
    """A fixed number of cells and slots."""

    def __init__(self, memory: SlotMemory, *, cells: int, slots: int) -> None:
        self.count = cells
        """All cells there are."""
        self._memory = memory
        self._slots = list(range(slots - 1, -1, -1))
        self._next_cell = itertools.count()
        self._open: dict[Line, None] = {}
        self._donors: dict[Line, None] = {}  # least recently used first
        self._holders: dict[int, int] = {}  # by cell, of all lines
        self._users: dict[int, int] = {}  # by cell, of open lines

    @property
    def used(self) -> int:
        """Cells that an open sequence holds."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Cells that only donors hold."""
        return len(self._holders) - len(self._users)

    def open(self, tokens: Sequence[int]) -> Line:
        """A new sequence, holding what is at hand of a beginning of `tokens`.

        The last of `tokens` is never among it.
        """
        line = Line()
        source, count = self._longest(tokens)
        if source is not None:
            self._adopt(line, source, count)
        self._open[line] = None
        return line

    def close(self, line: Line) -> None:
        """Forget a sequence, or keep it as a donor."""
        del self._open[line]
        for cell in line.cells:
            _drop(self._users, cell)
        if len(line.tokens) < SHARE or self._is_covered(line):
            self._forget(line)
            return
        for donor in [d for d in self._donors if _starts_with(line.tokens, d.tokens)]:
            self._forget_donor(donor)
        self._donors[line] = None
        while len(self._donors) > DONORS:
            self._forget_donor(next(iter(self._donors)))

    def start(self, line: Line, keep: int) -> int:
        """How many tokens can really be kept if `keep` are wanted: those, or none.

        Sliding layers give up cells that lie far behind, and going back to before them
        is then impossible.
        """
        return keep if line.slot is None or self._memory.intact(line.slot, keep) else 0

    def fits(self, wanted: Sequence[tuple[Line, int, int]]) -> bool:
        """Whether there is room for (line, tokens kept, tokens added) of different lines."""
        cells = slots = 0
        for line, keep, more in wanted:
            cells += more - sum(self._users[cell] == 1 for cell in line.cells[keep:])
            slots += line.slot is None
        free_slots = len(self._slots) + len(self._donors)
        return cells <= self.count - len(self._users) and slots <= free_slots

    def truncate(self, line: Line, keep: int) -> None:
        """Forget the tokens from `keep` on."""
        if keep >= len(line.tokens):
            return
        if line.slot is not None:
            self._memory.truncate(line.slot, keep)
        for cell in line.cells[keep:]:
            _drop(self._users, cell)
            _drop(self._holders, cell)
        del line.tokens[keep:], line.cells[keep:]

    def append(self, line: Line, tokens: Sequence[int]) -> int:
        """Make room for `tokens` after what the sequence holds; returns its slot.

        Raises:
            OutOfCells: nothing was changed but that donors are gone.
        """
        while len(self._holders) + len(tokens) > self.count:
            self._forget_donor(self._oldest_donor())
        if line.slot is None:
            if not self._slots:
                self._forget_donor(self._oldest_donor())
            line.slot = self._slots.pop()
        fresh = list(itertools.islice(self._next_cell, len(tokens)))
        line.tokens.extend(tokens)
        self._hold(line, fresh)
        return line.slot

    # --------------------------------------------------------------- sharing

    def _longest(self, tokens: Sequence[int]) -> tuple[Line | None, int]:
        best: Line | None = None
        most = 0
        for line in (*self._open, *self._donors):
            common = _common(line.tokens, tokens, len(tokens) - 1) // SHARE * SHARE
            if common > most and line.slot is not None and self._memory.intact(line.slot, common):
                best, most = line, common
        return best, most

    def _adopt(self, line: Line, source: Line, count: int) -> None:
        if source in self._donors:
            self._donors[source] = self._donors.pop(source)  # now the most recently used
        if not self._slots:
            victim = next((d for d in self._donors if d is not source), None)
            if victim is not None:
                self._forget_donor(victim)
            elif source not in self._donors:
                return  # every slot is an open sequence's; one may be free when it is needed
        assert source.slot is not None
        line.tokens = list(source.tokens[:count])
        cells = source.cells[:count]
        if self._slots:
            line.slot = self._slots.pop()
            self._memory.copy(source.slot, line.slot, count)
            self._hold(line, cells)
        else:  # the source's own slot is the only one to be had
            self._memory.truncate(source.slot, count)
            line.slot, source.slot = source.slot, None
            self._hold(line, cells)
            self._forget_donor(source)

    def _is_covered(self, line: Line) -> bool:
        others = (*self._open, *self._donors)
        return any(_starts_with(other.tokens, line.tokens) for other in others)

    # --------------------------------------------------------------- holding

    def _hold(self, line: Line, cells: Sequence[int]) -> None:
        line.cells.extend(cells)
        for cell in cells:
            self._holders[cell] = self._holders.get(cell, 0) + 1
            self._users[cell] = self._users.get(cell, 0) + 1

    def _oldest_donor(self) -> Line:
        donor = next(iter(self._donors), None)
        if donor is None:
            raise OutOfCells
        return donor

    def _forget_donor(self, donor: Line) -> None:
        del self._donors[donor]
        self._forget(donor)

    def _forget(self, line: Line) -> None:
        for cell in line.cells:
            _drop(self._holders, cell)
        if line.slot is not None:
            self._memory.truncate(line.slot, 0)
            self._slots.append(line.slot)


def _drop(counts: dict[int, int], cell: int) -> None:
    left = counts[cell] - 1
    if left:
        counts[cell] = left
    else:
        del counts[cell]


def _common(held: Sequence[int], wanted: Sequence[int], limit: int) -> int:
    """Length of the common beginning, at most `limit`."""
    shorter = max(0, min(len(held), len(wanted), limit))
    if list(held[:shorter]) == list(wanted[:shorter]):
        return shorter
    return next(i for i in range(shorter) if held[i] != wanted[i])


def _starts_with(tokens: Sequence[int], beginning: Sequence[int]) -> bool:
    return _common(tokens, beginning, len(beginning)) == len(beginning)
