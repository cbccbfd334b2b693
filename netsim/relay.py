"""A TCP relay that puts a link between real programs, in real time.

Each connection has a `Link` of its own, the very objects that the simulation runs: what is
read from one side is handed to `OneWay.send` with the time it was read at, and is written
to the other side at the time that this returns. A lost packet is a delay; no byte is ever
dropped or changed. TCP's handshake takes its round trip: the target is connected to when
the SYN would be there, and what the client sends leaves when its answer would be back.

    async with Relay("127.0.0.1:7710", profile("4g-weak")) as relay:
        ...  # connect to relay.address
        relay.cut()
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from statistics import median
from typing import Any, Self

from netsim.links import Link, LinkModel
from netsim.precise_timer import PreciseTimer
from netsim.relay_connection import Connection, Pipe

BUFFER_BYTES = 1 << 20
"""What is on its way in one direction of a connection before its sender is made to wait."""

LONGEST_LEAD_S = 0.15e-3
_LEAD_STEP_S = 5e-6


class Relay:
    """Relays `listen` to `target` over a link.

    target, listen: HOST:PORT; port 0 takes a free one, and `address` says which. model: the
    link. seed: of everything random; outages come at the same times for all connections.
    Use it as an async context manager; the methods are for the loop it was entered in.

    It guarantees order and completeness of what it carries, and that nothing is early. How
    late it is itself is in `stats()`.
    """

    def __init__(
        self,
        target: str,
        model: LinkModel,
        *,
        listen: str = "127.0.0.1:0",
        seed: int = 0,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.target = split_address(target)
        self.model = model
        self.buffer_bytes = buffer_bytes
        self.address = listen
        self._listen = split_address(listen)
        self._seed = seed
        self._numbers = itertools.count()
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.held_until = -math.inf
        self.closed = False
        self._due: list[tuple[float, int, Pipe]] = []
        self._set_for = math.inf
        self._lead_s = 0.0  # by how much the timer is set early, for it is late by that
        self._server: asyncio.Server | None = None
        self.late_s: deque[float] = deque(maxlen=10_000)
        self._totals = dict.fromkeys(
            ("cut", "refused", "accepted", "bytes_up", "bytes_down", "wire_up", "wire_down"), 0
        )

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._timer = PreciseTimer(self.loop, self._deliver)
        self._start = self.loop.time()
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self).near, *self._listen
            )
        except OSError as error:
            self._timer.close()
            why = error.strerror or str(error)
            raise OSError(error.errno, f"can't listen on {self.address}: {why}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.closed = True
        self._server.close()
        self.cut()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets in the loop's next turn
        self._timer.close()

    # ------------------------------------------------------------------ commands

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        connections = list(self.connections)
        for connection in connections:
            connection.reset()
        self._totals["cut"] += len(connections)
        return len(connections)

    def stall(self, seconds: float = math.inf) -> None:
        """Deliver nothing for so long, or until `resume`; then all that is due at once."""
        if not seconds >= 0:
            raise ValueError(f"a stall of {seconds} seconds: give 0 or more")
        self.held_until = self.loop.time() + seconds

    def half_open(self) -> int:
        """Forward nothing more on the connections there are, and keep their sockets open.

        New ones are not affected.
        """
        for connection in self.connections:
            connection.freeze()
        return len(self.connections)

    def resume(self) -> None:
        """End what `stall` and `half_open` began; nothing is missing."""
        self.held_until = min(self.held_until, self.loop.time())
        for connection in self.connections:
            connection.thaw()

    def use(self, model: LinkModel) -> None:
        """Another link from now on. What is under way arrives as it would have."""
        self.model = model
        for connection in self.connections:
            connection.change()

    def stats(self) -> dict[str, Any]:
        """What it has done so far.

        Times in seconds. bytes_up, bytes_down: read from the sockets. wire_up, wire_down: as
        they would be on the link, with headers of TCP and IP, retransmissions and handshakes.
        """
        late = self.late_s
        return {
            "profile": self.model.name,
            "open": len(self.connections),
            **self._totals,
            "late_median_s": median(late) if late else 0.0,
            "late_max_s": max(late, default=0.0),
        }

    # ------------------------------------------------- what connections ask of it

    def now(self) -> float:
        """The link's time."""
        return self.loop.time() - self._start

    def open_link(self) -> Link:
        """A link for one more connection."""
        number = next(self._numbers)
        return self.model.open(self._seed * 1_000_003 + number, gaps_seed=self._seed)

    def count(self, what: str, amount: int = 1) -> None:
        """Add to a figure of `stats`."""
        self._totals[what] += amount

    def wake(self, pipe: Pipe, arrives: float) -> None:
        """Have `pipe.flush` called at `arrives`, in the link's time."""
        if arrives == math.inf:
            return
        heapq.heappush(self._due, (arrives, next(self._numbers), pipe))
        if arrives < self._set_for:
            self._set(arrives)

    def hold_end(self) -> float:
        """Until when nothing is delivered, in the link's time."""
        return self.held_until - self._start

    def _set(self, arrives: float) -> None:
        self._set_for = arrives
        self._timer.set(self._start + arrives - self._lead_s)

    def _deliver(self) -> None:
        due, now = self._due, self.now()
        # The lead follows the median of how late the timer is.
        if now > self._set_for:
            self._lead_s = min(self._lead_s + _LEAD_STEP_S, LONGEST_LEAD_S)
        else:
            self._lead_s = max(self._lead_s - _LEAD_STEP_S, 0.0)
            while now < self._set_for <= now + LONGEST_LEAD_S:
                now = self.now()
        self._set_for = math.inf
        while due and due[0][0] <= now:
            heapq.heappop(due)[2].flush(now)
            now = self.now()
        if due and due[0][0] < self._set_for:
            self._set(due[0][0])


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT or [IPv6]:PORT as two.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: give HOST:PORT, such as 127.0.0.1:7710")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: put an IPv6 address into brackets, [::1]:7710")
    return host or "127.0.0.1", int(port)
