"""A packet's way through one direction: bottleneck, loss, propagation, jitter."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from netsim.links.direction import Direction
from netsim.links.gaps import GapTimes
from netsim.links.loss import LossProcess
from netsim.links.randomness import stream
from netsim.links.trace import TraceClock

TOGETHER_S = 1e-3
"""Packets that leave within this time of the first have the same jitter: what makes it, such
as a radio's scheduler, treats them alike."""


class Path:
    """Carries packets. Its queue, loss state and gaps outlive connections.

    side: "up" or "down", so that the two differ in what is random. gaps_seed: of outages and
    handovers, which the two directions have in common where they are described alike.
    """

    __slots__ = (
        "_busy",
        "_delay",
        "_drawn",
        "_drawn_at",
        "_handovers",
        "_jitter",
        "_last",
        "_loss",
        "_outages",
        "_queue",
        "_queued",
        "_room",
        "_seconds_per_byte",
        "_trace",
        "dead",
        "lost",
        "packets",
    )

    def __init__(self, direction: Direction, seed: int, side: str, gaps_seed: int) -> None:
        self._delay = direction.delay_s
        rate = direction.rate_bit_s
        self._seconds_per_byte = 8 / rate if rate else 0.0
        self._trace = TraceClock(direction.trace) if direction.trace else None
        self._room = math.inf if direction.queue_bytes is None else direction.queue_bytes
        self._queue: deque[tuple[float, int, float]] | None = deque() if direction.limited else None
        self._queued = 0
        self._busy = 0.0
        self._jitter: Callable[[], float] | None = (
            direction.jitter.sampler(stream(seed, side, "jitter")) if direction.jitter else None
        )
        self._loss = (
            LossProcess(direction.loss, stream(seed, side, "loss")) if direction.loss else None
        )
        gaps = direction.outages
        self._outages = GapTimes(gaps, stream(gaps_seed, "outages")) if gaps else None
        gaps = direction.handovers
        self._handovers = GapTimes(gaps, stream(gaps_seed, "handovers")) if gaps else None
        self._drawn_at = -math.inf
        self._drawn = 0.0
        self._last = 0.0
        self.dead = direction.loss.rate == 1
        """Nothing ever arrives."""
        self.packets = 0
        """Sent, retransmissions included."""
        self.lost = 0

    def carry(self, at: float, size: int) -> float | None:
        """When a packet of `size` bytes, headers included, that is sent at `at` arrives.

        None where it is lost. Packets leave the bottleneck in the order of the calls.
        """
        self.packets += 1
        if self._queue is not None:
            departs = self._depart(at, size)
            if departs is None:
                self.lost += 1
                return None
            at = departs
        if (self._outages is not None and self._outages.end(at) > at) or (
            self._loss is not None and self._loss.lost()
        ):
            self.lost += 1
            return None
        arrives = at + self._delay
        if self._jitter is not None:
            if at - self._drawn_at > TOGETHER_S:
                self._drawn_at = at
                self._drawn = self._jitter()
            arrives += self._drawn
        if arrives < self._last:
            return self._last
        self._last = arrives
        return arrives

    def _depart(self, at: float, size: int) -> float | None:
        """When it has left the bottleneck; None where the queue is full."""
        queue = self._queue
        assert queue is not None
        while queue and queue[0][0] <= at:
            self._queued -= queue.popleft()[1]
        # The packet at the head is being sent: it takes no room.
        if queue and self._queued - queue[0][1] + size > self._room:
            return None
        departs = self._serve(max(at, self._busy), size)
        queue.append((departs, size, at))
        self._queued += size
        return departs

    def _serve(self, start: float, size: int) -> float:
        if self._trace is not None:
            if self._handovers is not None:
                start = self._handovers.end(start)
            self._busy = self._trace.depart(start, size)
        elif self._handovers is not None:
            self._busy = self._handovers.served(start, size * self._seconds_per_byte)
        else:
            self._busy = start + size * self._seconds_per_byte
        return self._busy

    def lengthen(self, at: float, size: int) -> float:
        """When `size` more bytes of a packet sent at `at` are there, unless it was lost."""
        if self._queue is not None:
            at = self._serve(max(at, self._busy), size)
        return at + self._delay

    def dark_until(self, at: float) -> float:
        """The end of the outage that `at` lies in; `at` itself where it lies in none."""
        return at if self._outages is None else self._outages.end(at)

    def silent_for_ever(self, at: float) -> bool:
        """Whether nothing sent from `at` on arrives."""
        return self.dead or self.dark_until(at) == math.inf

    def waiting_s(self, at: float) -> float:
        """How long a packet sent at `at` would wait for those before it."""
        return max(0.0, self._busy - at)

    def forget(self, now: float) -> None:
        """Give up what was to be sent after `now`: its connection is gone."""
        self._last = min(self._last, now)
        queue = self._queue
        if queue is None:
            return
        # What has entered the queue still leaves before anything new does.
        kept = deque(packet for packet in queue if packet[2] <= now < packet[0])
        self._queue = kept
        self._queued = sum(size for _, size, _ in kept)
        if kept:
            self._busy = kept[-1][0]
        else:
            self._busy = min(self._busy, now)
        if self._trace is not None:
            self._trace.seek(self._busy)
