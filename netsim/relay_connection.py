"""One connection through the relay: two sockets, and a pipe each way between them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from netsim.links import Link, OneWay

HOP_S = 50e-6
"""What data has been under way when it is read here, and then waits for the loop: a second
passage over the loopback that the programs alone would not have. It is not charged."""
CONNECT_AHEAD_S = 0.002
"""The target's socket is opened this much early; what it says waits for its time."""
_LINGER_NONE = struct.pack("ii", 1, 0)  # closing sends a reset


class Mark(enum.Enum):
    """What flies through a pipe besides bytes."""

    END = "end"  # the sender is done; the other direction goes on
    RESET = "reset"  # the sender's socket is gone


class Host(Protocol):
    """What a connection needs of the relay. Times are the link's."""

    loop: asyncio.AbstractEventLoop
    target: tuple[str, int]
    buffer_bytes: int
    connections: set[Connection]
    tasks: set[asyncio.Task[None]]
    late_s: deque[float]
    closed: bool

    def now(self) -> float:
        """The time."""

    def open_link(self) -> Link:
        """A link for one more connection."""

    def wake(self, pipe: Pipe, arrives: float) -> None:
        """Have `pipe.flush` called at that time."""

    def hold_end(self) -> float:
        """Until when nothing is delivered."""

    def count(self, what: str, amount: int = 1) -> None:
        """Add to a figure."""


class Pipe:
    """One direction: what was read on one side waits here for its time on the other."""

    def __init__(self, host: Host, way: OneWay, name: str, marked: Callable[[Mark], None]) -> None:
        self._host = host
        self._marked = marked
        self.way = way
        self._figure, self._wire_figure = f"bytes_{name}", f"wire_{name}"
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes | Mark]] = deque()
        self._size = 0
        self._last = -math.inf
        self._woken = math.inf
        self._throttled = False
        self._free = -math.inf  # when the sink, or a command, last let anything through
        self.opens = -math.inf  # what is read earlier leaves then
        self.full = False  # the sink takes no more
        self.frozen = False
        self.ended = False  # the end has been delivered

    def take(self, data: bytes | Mark) -> None:
        """Carry what was read."""
        size = 0 if isinstance(data, Mark) else len(data)
        now = self._host.now()
        self._host.count(self._figure, size)
        before = self.way.bytes
        arrives = max(self.way.send(max(now - HOP_S, self.opens), size), self._last)
        self._host.count(self._wire_figure, self.way.bytes - before)
        self._last = arrives
        self._waiting.append((arrives, data))
        self._size += size
        if self._size > self._host.buffer_bytes and not self._throttled:
            self._throttled = True
            self._listen()
        if arrives <= now:
            self.flush(now)
        elif arrives < self._woken:
            self._woken = arrives
            self._host.wake(self, arrives)

    def flush(self, now: float) -> None:
        """Deliver what is due."""
        waiting, sink = self._waiting, self.sink
        self._woken = math.inf
        if sink is None or self.full or self.frozen or not waiting:
            return
        if (held := self._host.hold_end()) > now:
            self._woken = held
            self._host.wake(self, held)
            return
        late, free = self._host.late_s, max(held, self._free)
        due: list[bytes] = []
        mark: Mark | None = None
        while waiting and waiting[0][0] <= now and mark is None:
            arrives, data = waiting.popleft()
            late.append(now - max(arrives, free))
            if isinstance(data, Mark):
                mark = data
            else:
                due.append(data)
                self._size -= len(data)
        if due and not sink.is_closing():
            sink.write(due[0] if len(due) == 1 else b"".join(due))
        if mark is not None:
            if mark is Mark.END and not sink.is_closing():
                # Whoever is there may have left meanwhile, which asyncio does not know yet.
                with contextlib.suppress(OSError):
                    sink.write_eof()
            self.ended = True
            self._marked(mark)
        if self._throttled and self._size <= self._host.buffer_bytes // 2:
            self._throttled = False
            self._listen()
        if waiting:
            self._woken = waiting[0][0]
            self._host.wake(self, self._woken)

    def change(self, way: OneWay) -> None:
        """Go on by another way. What would never have arrived by the old one takes it."""
        self.way = way
        lost = [data for arrives, data in self._waiting if arrives == math.inf]
        if not lost:
            return
        while self._waiting and self._waiting[-1][0] == math.inf:
            self._waiting.pop()
        self._last = self._waiting[-1][0] if self._waiting else -math.inf
        for data in lost:
            size = 0 if isinstance(data, Mark) else len(data)
            self._size -= size
            self._host.count(self._figure, -size)
            self.take(data)

    def freeze(self, frozen: bool) -> None:
        """Forward nothing and read nothing, or go on."""
        self.frozen = frozen
        self._listen()
        if not frozen:
            self.release()

    def release(self) -> None:
        """Deliver what is due and could not be before."""
        self._free = self._host.now()
        self.flush(self._free)

    def _listen(self) -> None:
        """Read, or let the source wait."""
        if self.source is None or self.source.is_closing():
            return
        if self._throttled or self.frozen:
            self.source.pause_reading()
        else:
            self.source.resume_reading()


class End(asyncio.Protocol):
    """One socket. out: takes what is read from it. back: writes to it."""

    def __init__(self, connection: Connection, out: Pipe, back: Pipe) -> None:
        self._connection = connection
        self._out = out
        self._back = back

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._out.source = self._back.sink = cast("asyncio.Transport", transport)
        self._connection.made(self)

    def data_received(self, data: bytes) -> None:
        """Carry it."""
        self._out.take(data)

    def eof_received(self) -> bool:
        """Pass the end on, and go on in the other direction."""
        self._out.take(Mark.END)
        return True

    def pause_writing(self) -> None:
        """Its peer reads slower than the link delivers."""
        self._back.full = True

    def resume_writing(self) -> None:
        """Its peer has caught up."""
        self._back.full = False
        self._back.release()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reset by its peer, or closed from here."""
        if not self._connection.over:
            self._out.take(Mark.RESET)


class Connection:
    """Two sockets and what flies between them. Begins when the client's has been accepted."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.link = host.open_link()
        self._up = Pipe(host, self.link.up, "up", self._marked)
        self._down = Pipe(host, self.link.down, "down", self._marked)
        self.near = End(self, self._up, self._down)
        self.far = End(self, self._down, self._up)
        self.over = False
        self._reaching = False

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        """Up and down."""
        return self._up, self._down

    def made(self, end: End) -> None:
        """A socket is there."""
        if self.over or self._host.closed:
            self.reset()
        elif end is self.near:
            self._host.connections.add(self)
            self._host.count("accepted")
            self._up.opens = self.link.connect(self._host.now(), tls=False)
            self._host.count("wire_up", self.link.up.bytes)
            self._host.count("wire_down", self.link.down.bytes)
            self._down.opens = self._up.opens - self.link.model.down.delay_s
            self._reach()
        else:
            for pipe in self.pipes:
                pipe.freeze(pipe.frozen)

    def _reach(self) -> None:
        """Connect to the target, once the client's SYN would be there."""
        host = self._host
        if self.over or self._reaching or self._up.frozen:
            return
        wait = max(self._down.opens - CONNECT_AHEAD_S, host.hold_end()) - host.now()
        if wait <= 0:
            self._reaching = True
            task = host.loop.create_task(self._connect())
            host.tasks.add(task)
            task.add_done_callback(host.tasks.discard)
        elif wait < math.inf:
            host.loop.call_later(wait, self._reach)

    async def _connect(self) -> None:
        try:
            await self._host.loop.create_connection(lambda: self.far, *self._host.target)
        except OSError:
            self._host.count("refused")
            self._down.take(Mark.RESET)

    def _marked(self, mark: Mark) -> None:
        """The end of a direction has been delivered."""
        if mark is Mark.RESET:
            self.reset()
        elif self._up.ended and self._down.ended and not self.over:
            self.over = True
            self._host.connections.discard(self)
            for pipe in self.pipes:
                if pipe.sink is not None:
                    pipe.sink.close()

    def reset(self) -> None:
        """End it at once: both peers see a reset."""
        self.over = True
        self._host.connections.discard(self)
        for pipe in self.pipes:
            if pipe.sink is not None:
                _reset(pipe.sink)

    def freeze(self) -> None:
        """Forward nothing."""
        for pipe in self.pipes:
            pipe.freeze(True)

    def thaw(self) -> None:
        """Go on."""
        for pipe in self.pipes:
            pipe.freeze(False)
        self._reach()

    def change(self) -> None:
        """Go on over another link."""
        self.link = self._host.open_link()
        self._up.change(self.link.up)
        self._down.change(self.link.down)


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    transport.abort()
