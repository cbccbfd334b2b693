"""Recorded link capacity in mahimahi's format.

A line is a time in milliseconds at which one packet may leave; a line repeated is several
packets in that millisecond. The last line is the period: there the trace begins anew.
(R. Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015.)
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from pathlib import Path

PACKET_BYTES = 1500
"""What one opportunity carries, as an IP packet. (Mahimahi's own constant is 1504, for it
counts the four bytes that the kernel's tunnel device puts before each packet.)"""

_SLACK_MS = 1e-6  # far below the format's resolution, above the error of seconds as floats


@dataclass(frozen=True)
class Trace:
    """Times of delivery, in milliseconds from its start, in order."""

    times_ms: tuple[int, ...] = field(repr=False)
    name: str = "trace"

    def __post_init__(self) -> None:
        if not self.times_ms or self.times_ms[-1] <= 0:
            raise ValueError(f"{self.name}: a trace has at least one line above 0 milliseconds")
        previous = 0
        for number, time_ms in enumerate(self.times_ms, 1):
            if time_ms < previous:
                raise ValueError(
                    f"{self.name}, line {number}: {time_ms} ms comes after {previous} ms;"
                    " the times of a trace never decrease"
                )
            previous = time_ms

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """A trace from a file.

        Raises:
            ValueError: it can't be read, or is no such trace.
        """
        path = Path(path)
        times = []
        try:
            with path.open(encoding="ascii") as lines:
                for number, line in enumerate(lines, 1):
                    if not (text := line.strip()):
                        continue
                    if not text.isdigit():
                        raise ValueError(
                            f"{path}, line {number}: {text[:40]!r} is no whole number of"
                            " milliseconds"
                        )
                    times.append(int(text))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} can't be read as a trace: {error}") from error
        return cls(tuple(times), path.name)

    @property
    def period_s(self) -> float:
        """How long it takes until it repeats."""
        return self.times_ms[-1] / 1000

    @property
    def mean_bit_s(self) -> float:
        """Its capacity on average."""
        return len(self.times_ms) * PACKET_BYTES * 8 / self.period_s


class TraceClock:
    """Uses up the opportunities of a trace in order."""

    def __init__(self, trace: Trace) -> None:
        self._times = trace.times_ms
        self._period = trace.times_ms[-1]
        self._next = 0  # opportunities are counted through all repetitions
        self._left = PACKET_BYTES  # of the one that is next
        self._now_ms = float(self._times[0])  # when that is

    def _time_ms(self, index: int) -> float:
        turn, place = divmod(index, len(self._times))
        return turn * self._period + self._times[place]

    def _first(self, at_ms: float) -> int:
        """The first opportunity at `at_ms` or later."""
        turn = max(0, math.ceil(at_ms / self._period) - 1)
        place = bisect.bisect_left(self._times, at_ms - turn * self._period)
        return turn * len(self._times) + place

    def seek(self, at: float) -> None:
        """Go on at `at`, in seconds, be that earlier or later."""
        self._next = self._first(at * 1000 - _SLACK_MS)
        self._left = PACKET_BYTES
        self._now_ms = self._time_ms(self._next)

    def depart(self, at: float, size: int) -> float:
        """When a packet of `size` bytes that waits from `at` on, in seconds, has left.

        A packet may take the rest of an opportunity and a part of the next. What nobody
        waits for is lost.
        """
        if self._now_ms < at * 1000 - _SLACK_MS:
            self.seek(at)
        while size > self._left:
            size -= self._left
            self._next += 1
            self._left = PACKET_BYTES
            self._now_ms = self._time_ms(self._next)
        self._left -= size
        return max(at, self._now_ms / 1000)
