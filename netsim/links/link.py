"""A link: two directions, and the connections over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from netsim.links.direction import Direction
from netsim.links.losses import backed_off
from netsim.links.one_way import OneWay
from netsim.links.path import Path

HANDSHAKE_RTO_S = 1.0
"""Before a round trip has been measured (RFC 6298), doubling."""
SYN_BYTES = 60
CLIENT_HELLO_BYTES = 517
SERVER_HELLO_BYTES = 3000
"""With a chain of two certificates."""


@dataclass(frozen=True)
class LinkModel:
    """A link to be opened, as often as one likes, by any seed.

    source: where its figures are from.
    """

    name: str
    up: Direction
    down: Direction
    source: str = "given by hand"

    @classmethod
    def symmetric(
        cls, rtt_s: float, *, name: str = "", source: str = "given by hand", **direction: Any
    ) -> LinkModel:
        """Both directions alike; `rtt_s` is there and back, `direction` the rest of each."""
        way = Direction(delay_s=rtt_s / 2, **direction)
        return cls(name or _rtt_name(rtt_s), way, way, source)

    @property
    def rtt_s(self) -> float:
        """There and back without load, jitter at its average."""
        return self.up.average_delay_s + self.down.average_delay_s

    def with_rtt(self, rtt_s: float) -> LinkModel:
        """The same link with this round trip, there and back and jitter at its average.

        Propagation makes up for the difference, in proportion where up and down differ. Where
        jitter alone takes longer, propagation is none and jitter less, its shape the same.
        """
        jitters_s = self.up.jitter.average_s + self.down.jitter.average_s
        delays_s = self.up.delay_s + self.down.delay_s
        less = min(1.0, rtt_s / jitters_s) if jitters_s else 1.0
        left_s = max(0.0, rtt_s - jitters_s)

        def way(of: Direction) -> Direction:
            share = of.delay_s / delays_s if delays_s else 0.5
            jitter = replace(of.jitter, mean_s=of.jitter.mean_s * less)
            return replace(of, delay_s=left_s * share, jitter=jitter)

        name = _rtt_name(rtt_s) if self.name == _rtt_name(self.rtt_s) else self.name
        return replace(self, name=name, up=way(self.up), down=way(self.down))

    def with_header_bytes(self, header_bytes: int) -> LinkModel:
        """The same link with TCP/IP headers of this size on each segment."""
        return replace(
            self,
            up=replace(self.up, header_bytes=header_bytes),
            down=replace(self.down, header_bytes=header_bytes),
        )

    def open(self, seed: int = 0, *, gaps_seed: int | None = None) -> Link:
        """The link in time, from 0 on.

        gaps_seed: of outages and handovers, which several connections of one device share;
        by default the seed.
        """
        return Link(self, seed, seed if gaps_seed is None else gaps_seed)


class Link:
    """A link with one connection at a time, which is there from the beginning.

    `connect` says what a connection costs, and begins a new one.
    """

    __slots__ = ("down", "model", "up")

    def __init__(self, model: LinkModel, seed: int, gaps_seed: int) -> None:
        self.model = model
        self.up = _one_way(model.up, model.down, seed, "up", gaps_seed)
        self.down = _one_way(model.down, model.up, seed, "down", gaps_seed)
        self.up.other, self.down.other = self.down, self.up

    def connect(self, now: float, tls: bool = True) -> float:
        """When the client may send on a new connection begun at `now`.

        TCP's handshake is a round trip, that of TLS 1.3 another. What was under way on an
        earlier connection is given up. Infinite where nothing gets through.
        """
        if self.up.path.dead or self.down.path.dead:
            return math.inf
        for way in (self.up, self.down):
            way.reset()
            way.path.forget(now)
        ready = self._handshake(now)
        if tls and ready < math.inf:
            ready = self.up.send(ready, CLIENT_HELLO_BYTES)
            ready = self.down.send(ready, SERVER_HELLO_BYTES)
        return ready

    def _handshake(self, now: float) -> float:
        """SYN there, SYN and ACK back; whichever is lost, the client begins again."""
        timeouts = 0
        while True:
            arrives = self.up.path.carry(now, SYN_BYTES)
            self.up.bytes += SYN_BYTES
            if arrives is not None:
                back = self.down.path.carry(arrives, SYN_BYTES)
                self.down.bytes += SYN_BYTES
                if back is not None:
                    return back
            if self.up.path.silent_for_ever(now) or self.down.path.silent_for_ever(now):
                return math.inf
            now += backed_off(HANDSHAKE_RTO_S, timeouts)
            timeouts += 1


def _rtt_name(rtt_s: float) -> str:
    return f"rtt-{rtt_s * 1000:g}"


def _one_way(there: Direction, back: Direction, seed: int, side: str, gaps_seed: int) -> OneWay:
    return OneWay(
        Path(there, seed, side, gaps_seed),
        delay_s=there.delay_s,
        average_s=there.average_delay_s,
        back_s=back.average_delay_s,
        plain=there.plain,
        header=there.header_bytes,
    )
