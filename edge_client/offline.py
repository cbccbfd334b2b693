"""What is drafted while there is no link: shown as provisional, and compared later."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from edge_client.result import OfflineTail
from specwire.text import TextStream

MOST_TOKENS = 64
"""Drafted beyond the committed text while the link is lost."""

Show = Callable[[str], None]


class ProvisionalText:
    """The draft's text after the committed one, while the link is lost.

    Args:
        show: hears the whole provisional text whenever it has grown, and "" when it is
            withdrawn; None if nobody wants to see it.
        pieces: the bytes of each token; None where they are not known here.
    """

    def __init__(self, show: Show | None, pieces: Sequence[bytes] | None) -> None:
        self.account = OfflineTail()
        self._show = show
        self._pieces = pieces
        self._text: TextStream | None = None  # while the link is lost
        self._shown = ""
        self._start = 0
        self._ids: list[int] = []  # drafted, and not compared with what was committed yet
        self._kept = 0

    def begin(self, committed: TextStream, frontier: int, drafted: Sequence[int]) -> None:
        """The link is lost; `drafted` follows the committed text already, from `frontier` on."""
        if self._text is not None:
            return
        # What was not compared yet, when the link broke again, is in `drafted` once more.
        self.account.drafted += self._kept
        self.account.kept += self._kept
        self._text = copy.deepcopy(committed)
        self._start, self._ids, self._kept = frontier, [], 0
        for token in drafted:
            self.add(token)

    def add(self, token: int) -> None:
        """One more token was drafted; nothing happens while there is a link."""
        if self._text is None:
            return
        self._ids.append(token)
        if self._show is None or self._pieces is None:
            return
        more = self._text.feed(self._pieces[token])
        if more:
            self._shown += more
            self._show(self._shown)

    def withdraw(self) -> None:
        """The link is back, or given up: what follows is committed."""
        self._text = None
        if self._shown and self._show is not None:
            self._show("")
        self._shown = ""

    def compare(self, position: int, token: int) -> str | None:
        """A token was committed; returns what to tell a person once all is known."""
        if self._text is not None or not self._ids or position != self._start + self._kept:
            return None
        agrees = self._ids[self._kept] == token
        self._kept += agrees
        if agrees and self._kept < len(self._ids):
            return None
        return self.settle()

    def settle(self) -> str | None:
        """Nothing more will be committed of it; returns what to tell a person, if anything."""
        drafted, kept = len(self._ids), self._kept
        if not drafted:
            return None
        self.account.drafted += drafted
        self.account.kept += kept
        self._ids, self._kept = [], 0
        return f"the link is back: {kept} of {drafted} provisional tokens stand"
