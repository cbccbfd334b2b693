"""A link on the virtual clock: messages go in, and are handed on as they arrive."""

from __future__ import annotations

import math
from typing import Any

import simpy

from netsim.links import WINDOW_BYTES, Link, OneWay, wire_bytes


class Wire:
    """One direction. Calls back when a message has arrived.

    windows: whether gRPC's WINDOW_UPDATE frames go along with the first message after one from
        the other end.
    """

    def __init__(self, env: simpy.Environment, way: OneWay, *, windows: bool) -> None:
        self._env = env
        self._way = way
        self._windows = windows
        self._last = 0.0  # when the latest message will be there
        self._news = False  # something arrived since the end there last sent
        self.back = self
        """The other direction."""

    def send(self, size: int, then: Any, *args: Any) -> tuple[float, float]:
        """Send a message of `size` bytes; returns when it left and when it arrives."""
        now, back = self._env.now, self.back
        if back._news:
            back._news = False
            if self._windows:
                size += WINDOW_BYTES
        arrival = self._way.send(now, wire_bytes(size))
        if arrival < self._last:
            arrival = self._last
        delay = arrival - now
        while now + delay < arrival:  # by rounding: it would overtake one that is there then
            delay = math.nextafter(delay, math.inf)
        self._last = now + delay

        def arrived(_: simpy.Event) -> None:
            self._news = True
            then(*args)

        event = self._env.timeout(delay)
        event.callbacks.append(arrived)
        return now, arrival


def wires(env: simpy.Environment, link: Link, *, windows: bool = True) -> tuple[Wire, Wire]:
    """Up and down."""
    up, down = Wire(env, link.up, windows=windows), Wire(env, link.down, windows=windows)
    up.back, down.back = down, up
    return up, down
