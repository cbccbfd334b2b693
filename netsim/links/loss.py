"""Packet loss, independent or in bursts (Gilbert's model of two states)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """Loss by what one observes.

    rate: share of packets that are lost. burst: mean length of a run of lost packets; None
    makes losses independent of each other, which is the same as 1/(1 − rate).

    The two states are "all arrive" and "all are lost". With r = 1/burst for leaving the
    second and p = r·rate/(1 − rate) for leaving the first, the share of time in the second
    is p/(p + r) = rate, and a stay there is geometric with mean 1/r = burst.
    """

    rate: float = 0.0
    burst: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"loss of {self.rate}: it is a share between 0 and 1")
        if self.burst is None or self.rate in (0, 1):
            return
        least = max(1.0, self.rate / (1 - self.rate))
        if not least <= self.burst < math.inf:
            raise ValueError(
                f"bursts of {self.burst} packets with a loss of {self.rate}:"
                f" the mean burst is at least {least:.4g}"
            )

    def __bool__(self) -> bool:
        return self.rate > 0

    @property
    def mean_burst(self) -> float:
        """Mean length of a run of lost packets."""
        if self.rate == 1:
            return math.inf
        return 1 / (1 - self.rate) if self.burst is None else self.burst


class LossProcess:
    """Which packets of one direction are lost. Its state lasts from message to message."""

    def __init__(self, loss: Loss, rng: random.Random) -> None:
        self._rng = rng
        self._rate = loss.rate
        leave_bad = 0.0 if loss.rate == 1 else 1 / loss.mean_burst
        leave_good = 0.0 if loss.rate in (0, 1) else leave_bad * loss.rate / (1 - loss.rate)
        self._leave = (min(leave_good, 1.0), leave_bad)
        self._bad = rng.random() < loss.rate
        self._left = self._stay()

    def _stay(self) -> float:
        """How many packets see the state that has been entered: geometric, at least one."""
        leave = self._leave[self._bad]
        if leave <= 0:
            return math.inf
        if leave >= 1:
            return 1
        further = math.log(1 - self._rng.random()) / math.log1p(-leave)
        return 1 + int(further) if further < 1e15 else math.inf

    def lost(self) -> bool:
        """Whether the next packet is lost."""
        if self._left <= 0:
            self._bad = not self._bad
            self._left = self._stay()
        self._left -= 1
        return self._bad
