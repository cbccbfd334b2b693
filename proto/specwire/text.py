"""From token bytes to text: stop strings held back, characters never cut."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings in a stream of bytes.

    Text that may yet turn out to be the beginning of a stop is held back. The
    result does not depend on how the stream is cut into pieces: the stop whose
    last byte comes first wins, and of those that end together the longest.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("an empty stop string matches everywhere")
        self._stops = tuple(stops)
        self._held = b""
        self.hit: int | None = None
        """Index of the stop that was found, None before."""

    def feed(self, piece: bytes) -> bytes:
        """Take more bytes; return those that are certainly before any stop."""
        if self.hit is not None:
            return b""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [
            (at + len(stop), at, index)
            for index, stop in enumerate(self._stops)
            if (at := text.find(stop)) >= 0
        ]
        if found:
            _, at, self.hit = min(found)
            self._held = b""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> bytes:
        """What is still held back, once nothing follows."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, stop: bytes) -> int:
    # Length of the longest end of `text` that begins `stop`.
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class TextStream:
    """Token bytes in, printable text out: stop strings and UTF-8 both held back.

    The concatenation of what comes out equals decoding all bytes at once;
    bytes that are no UTF-8 come out as U+FFFD.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._matcher = StopMatcher([stop.encode() for stop in stops])
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing comes out after it."""
        return self._matcher.hit is not None

    def feed(self, piece: bytes) -> str:
        """Text that this piece makes certain."""
        return self._decoder.decode(self._matcher.feed(piece))

    def finish(self) -> str:
        """The rest, once no token follows."""
        return self._decoder.decode(self._matcher.flush(), final=True)
