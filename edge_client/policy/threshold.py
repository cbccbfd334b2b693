"""Where something stops being good: what would have to change for drafting to pay."""

from __future__ import annotations

from collections.abc import Callable

_STEPS = 60


def last_good(good_at: Callable[[float], bool], good: float, bad: float) -> float | None:
    """The last value on the way from `good` to `bad` that is good; None if not even `good` is.

    By bisection, so where it changes more than once, one of the changes.
    """
    if not good_at(good):
        return None
    if good_at(bad):
        return bad
    for _ in range(_STEPS):
        middle = (good + bad) / 2
        if good_at(middle):
            good = middle
        else:
            bad = middle
    return good
