"""Lost segments, and when their sender learns of them (RFC 8985, RFC 6298)."""

from __future__ import annotations

import math

LARGEST_RTO_S = 120.0
_LATE_S = LARGEST_RTO_S / 8  # as late as Linux's timers may be at that length
_UNEVEN = (math.sqrt(5) - 1) / 2
LEAST_WAIT_S = 1e-3
"""A loss is found so long after the segment was sent, at least: a kernel's timers are no finer,
and where a round trip takes no time, time still goes on."""
_REORDERING = 1.25  # round trips after which a segment is not merely late
_CERTAIN = 3  # later ones acknowledged leave no doubt, however soon


def backed_off(timeout_s: float, before: int) -> float:
    """A timeout that comes after so many others in a row: doubled for each of them.

    The longest are late, by a time that differs: as a kernel's are, and so that they never
    miss for ever what comes and goes like clockwork.
    """
    if not before:
        return min(timeout_s, LARGEST_RTO_S)
    doubled = timeout_s * 2.0 ** min(before, 20)
    if doubled < LARGEST_RTO_S:
        return doubled
    return LARGEST_RTO_S + _LATE_S * (before * _UNEVEN % 1)


class LostSegment:
    """One that is not yet known to be lost.

    at: when it was sent. size: its bytes, headers included. due: when it is sent again.
    by_timeout: whether a timeout is what makes it due.
    """

    __slots__ = ("at", "by_timeout", "due", "round_trip_s", "seen", "size")

    def __init__(self, at: float, size: int, round_trip_s: float, timeout_s: float) -> None:
        self.at = at
        self.size = size
        self.due = at + timeout_s
        self.by_timeout = True
        self.round_trip_s = round_trip_s
        self.seen = 0
        """Segments sent later that are acknowledged."""

    def found_at(self, when: float) -> None:
        """It is known to be lost at `when`, if not before."""
        if when < self.due:
            self.due, self.by_timeout = max(when, self.at + LEAST_WAIT_S), False


def overtaken(pending: list[LostSegment], when: float) -> float:
    """A segment sent after all of `pending` is acknowledged at `when`; when any of them is due.

    They are in the order in which they were sent, and have seen the fewer the later that was.
    """
    due = math.inf
    for each in reversed(pending):
        if each.seen >= _CERTAIN:
            break
        each.seen += 1
        if each.seen == 1:
            each.found_at(max(when, each.at + _REORDERING * each.round_trip_s))
        elif each.seen == _CERTAIN:
            each.found_at(when)
        due = min(due, each.due)
    return due


def take(pending: list[LostSegment], now: float) -> tuple[list[int], bool]:
    """Take out those that are due, and all there are if a timeout is among them.

    Returns their sizes, and whether one is.
    """
    timeout = False
    taken, kept = [], []
    for each in pending:
        if each.due <= now:
            timeout = timeout or each.by_timeout
            taken.append(each.size)
        else:
            kept.append(each)
    if timeout:
        taken = [each.size for each in pending]
        kept.clear()
    pending[:] = kept
    return taken, timeout
