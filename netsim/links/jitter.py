"""Delay that varies: what queues elsewhere, radio schedulers and retransmissions below IP add.

A draw is added to the propagation delay and is never negative, so nothing arrives before
light would. Every distribution is given by its mean, and has exactly that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist


class JitterKind(StrEnum):
    """The shape of a jitter's distribution; m is its mean."""

    NONE = "none"
    UNIFORM = "uniform"  # 0 … 2m, all alike
    NORMAL = "normal"  # around m with deviation m/2, truncated to 0 … 2m
    EXPONENTIAL = "exponential"  # deviation m: most are small, few are long
    PARETO = "pareto"  # Lomax with shape 3, deviation 1.7 m: a heavy tail


@dataclass(frozen=True)
class Jitter:
    """Extra delay of `mean_s` on average."""

    kind: JitterKind = JitterKind.NONE
    mean_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.mean_s < math.inf):
            raise ValueError(f"jitter of {self.mean_s} s: give a mean of 0 or more seconds")
        if self.kind not in set(JitterKind):
            raise ValueError(f"jitter {self.kind!r}: it is one of {', '.join(JitterKind)}")

    def __bool__(self) -> bool:
        return self.mean_s > 0 and self.kind != JitterKind.NONE

    @property
    def average_s(self) -> float:
        """What it adds on average."""
        return self.mean_s if self else 0.0

    def sampler(self, rng: random.Random) -> Callable[[], float]:
        """Draws of the extra delay, in seconds."""
        mean = self.mean_s
        if not self:
            return lambda: 0.0
        if self.kind == JitterKind.UNIFORM:
            return lambda: 2 * mean * rng.random()
        if self.kind == JitterKind.NORMAL:
            bell = NormalDist()
            low, mass = bell.cdf(-2), bell.cdf(2) - bell.cdf(-2)
            return lambda: mean * (1 + bell.inv_cdf(low + mass * rng.random()) / 2)
        if self.kind == JitterKind.EXPONENTIAL:
            return lambda: -mean * math.log(1 - rng.random())
        return lambda: 2 * mean * ((1 - rng.random()) ** (-1 / 3) - 1)
