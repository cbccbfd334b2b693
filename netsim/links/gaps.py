"""Stretches of time in which nothing gets through: outages and handovers."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

LEAST_PAUSE_S = 1e-3
"""Two random gaps are at least this far apart, so that a link always moves."""
LONGEST_S = 1e9


@dataclass(frozen=True)
class Gaps:
    """When a link is silent.

    fixed: (begin, end) in seconds of the link's time, in order and apart from each other.
    every_s, last_s: random ones instead, with exponential times of these means between the
    end of one and the beginning of the next, and from its beginning to its end. With
    `regular`, both are always exactly their mean.
    """

    fixed: tuple[tuple[float, float], ...] = ()
    every_s: float | None = None
    last_s: float = 0.0
    regular: bool = False

    def __post_init__(self) -> None:
        end = -math.inf
        for begin, until in self.fixed:
            if not (end < begin < until and begin >= 0):
                raise ValueError(
                    f"a gap from {begin} s to {until} s: it begins at 0 or later, ends after"
                    " that, and gaps are given in order and do not touch"
                )
            end = until
        if self.every_s is None:
            return
        if self.fixed:
            raise ValueError("gaps are either fixed or random: give `fixed` or `every_s`")
        for value in (self.every_s, self.last_s):
            if not LEAST_PAUSE_S <= value <= LONGEST_S:
                raise ValueError(
                    f"a gap of {self.last_s} s every {self.every_s} s: both are"
                    f" {LEAST_PAUSE_S:g} to {LONGEST_S:g} seconds"
                )

    @property
    def share(self) -> float:
        """Of all time, in the long run."""
        if self.every_s is None:
            return 1.0 if self.fixed and self.fixed[-1][1] == math.inf else 0.0
        return self.last_s / (self.last_s + self.every_s)

    def __bool__(self) -> bool:
        return bool(self.fixed) or self.every_s is not None


class GapTimes:
    """The gaps of one link, found as time goes on; any time may be asked for."""

    def __init__(self, gaps: Gaps, rng: random.Random) -> None:
        self._gaps = gaps
        self._rng = rng
        self._begins = [begin for begin, _ in gaps.fixed]
        self._ends = [end for _, end in gaps.fixed]

    def end(self, at: float) -> float:
        """The end of the gap that `at` lies in; `at` itself where it lies in none."""
        if self._gaps.every_s is not None:
            self._extend(at)
        index = bisect.bisect_right(self._begins, at) - 1
        return max(at, self._ends[index]) if index >= 0 else at

    def served(self, begin: float, work_s: float) -> float:
        """When work of `work_s` that starts at `begin` is done, resting in gaps."""
        now = self.end(begin)
        while True:
            if self._gaps.every_s is not None:
                self._extend(now + work_s)
            index = bisect.bisect_right(self._begins, now)
            if index == len(self._begins) or self._begins[index] >= now + work_s:
                return now + work_s
            work_s -= self._begins[index] - now
            now = self._ends[index]

    def _extend(self, until: float) -> None:
        """Draw gaps until one begins after `until`."""
        every, last = self._gaps.every_s, self._gaps.last_s
        assert every is not None
        while not self._begins or self._begins[-1] <= until:
            before = self._ends[-1] if self._ends else 0.0
            begin = before + (every if self._gaps.regular else self._draw(every))
            length = last if self._gaps.regular else self._draw(last)
            self._begins.append(begin)
            self._ends.append(begin + max(length, LEAST_PAUSE_S))

    def _draw(self, mean: float) -> float:
        return max(LEAST_PAUSE_S, -mean * math.log(1 - self._rng.random()))
