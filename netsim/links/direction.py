"""One direction of a link, described."""

from __future__ import annotations

import math
from dataclasses import dataclass

from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter
from netsim.links.loss import Loss
from netsim.links.trace import Trace

HEADER_BYTES = 52
"""IPv4 (20), TCP (20) and its timestamp option (12), on each segment."""
MOST_HEADER_BYTES = 500
"""With it and the largest payload a packet still fits into the smallest queue."""

_NO_JITTER, _NO_LOSS, _NO_GAPS = Jitter(), Loss(), Gaps()


@dataclass(frozen=True)
class Direction:
    """How packets fare one way.

    delay_s: propagation, the least that any packet takes. jitter: is added to it; a packet
    never overtakes another. rate_bit_s: of the bottleneck; None is without limit.
    queue_bytes: what the bottleneck holds besides the packet that is leaving; what does not
    fit is lost. None is without limit. loss: of packets, after the bottleneck. outages:
    what is sent meanwhile is lost. handovers: what is sent meanwhile waits for their end.
    trace: recorded capacity in place of a rate. header_bytes: of TCP and IP, a segment.
    """

    delay_s: float = 0.0
    jitter: Jitter = _NO_JITTER
    rate_bit_s: float | None = None
    queue_bytes: int | None = None
    loss: Loss = _NO_LOSS
    outages: Gaps = _NO_GAPS
    handovers: Gaps = _NO_GAPS
    trace: Trace | None = None
    header_bytes: int = HEADER_BYTES

    def __post_init__(self) -> None:
        if not 0 <= self.delay_s < math.inf:
            raise ValueError(f"a delay of {self.delay_s} s: give 0 or more seconds")
        if self.rate_bit_s is not None and not 0 < self.rate_bit_s < math.inf:
            raise ValueError(f"a rate of {self.rate_bit_s} bit/s: give more than 0, or none")
        if self.rate_bit_s is not None and self.trace is not None:
            raise ValueError("a direction has a rate or a trace, not both")
        if self.queue_bytes is not None and not 2000 <= self.queue_bytes < math.inf:
            raise ValueError(
                f"a queue of {self.queue_bytes} bytes: give at least 2000, so that a packet fits,"
                " or none"
            )
        if not 0 <= self.header_bytes <= MOST_HEADER_BYTES:
            raise ValueError(f"headers of {self.header_bytes} bytes: give 0 to {MOST_HEADER_BYTES}")

    @property
    def limited(self) -> bool:
        """Whether packets wait for each other at a bottleneck."""
        return self.rate_bit_s is not None or self.trace is not None or bool(self.handovers)

    @property
    def plain(self) -> bool:
        """Whether every packet takes the propagation delay exactly."""
        return not (self.limited or self.jitter or self.loss or self.outages)

    @property
    def average_delay_s(self) -> float:
        """Propagation and jitter, on average and without any load."""
        return self.delay_s + self.jitter.average_s
