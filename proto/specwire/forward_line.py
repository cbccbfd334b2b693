"""What a target forward costs: a line in what it evaluates, through those seen lately."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SPREAD = 4.0
"""What is expected of the slope weighs as much as forwards that differ by so much."""


def forward_line(
    forwards: Sequence[tuple[int, float]], *, expected: float = 0.0, longest: float = math.inf
) -> tuple[float, float]:
    """Seconds at 0, and those that each token adds; by least squares.

    Args:
        forwards: tokens and seconds of each, at least one.
        expected: what a token is expected to add while few different counts were seen, as a
            part of a whole forward.
        longest: no forward is taken to have lasted longer than so many times the median, for
            something else may have held it up.
    """
    seconds = sorted([s for _, s in forwards])
    most = longest * seconds[len(seconds) // 2]
    points = [(n, s if s < most else most) for n, s in forwards]
    count = len(points)
    mean_n = sum([n for n, _ in points]) / count
    mean_s = sum([s for _, s in points]) / count
    spread = sum([(n - mean_n) ** 2 for n, _ in points])
    slope = sum([(n - mean_n) * (s - mean_s) for n, s in points]) + _SPREAD * expected * mean_s
    slope = min(max(slope / (spread + _SPREAD), 0.0), mean_s)
    return max(mean_s - slope * mean_n, 0.1 * mean_s), slope
