"""A TCP relay that treats what goes through it as bad links do, when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Self


@dataclass(eq=False)
class _Connection:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    dead: bool = False  # nothing is forwarded any more, but both sockets stay open
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class RoughLink:
    """Relays a free loopback port to `server`.

    `deaf`: new connections are taken, but nothing is forwarded on them.
    `pause_s`: is waited before each piece of at most `piece` bytes, in either direction.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._target = (host, int(port))
        self._connections: list[_Connection] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.deaf = False
        self.pause_s = 0.0
        self.piece = 4096
        self.accepted = 0
        self.cuts = 0
        self.half_opened = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for connection in self._connections for task in connection.tasks]
        self.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def open(self) -> int:
        """Connections that still carry something."""
        return sum(not connection.dead for connection in self._connections)

    def cut(self) -> None:
        """Break every connection at once, without an orderly end."""
        connections, self._connections = self._connections, []
        for connection in connections:
            self.cuts += not connection.dead
            for writer in (connection.near, connection.far):
                writer.transport.abort()

    def half_open(self) -> None:
        """Forward nothing more on the connections there are, and keep their sockets open."""
        for connection in self._connections:
            self.half_opened += not connection.dead
            connection.dead = True

    def stall(self) -> None:
        """Hold everything back until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again what was held back."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, far_writer, dead=self.deaf)
        self._connections.append(connection)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pipe(connection, source, sink))
            connection.tasks.append(task)

    async def _pipe(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(self.piece):
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
                await self._flowing.wait()
                if connection.dead:
                    return  # nothing more is read either: what is sent then fills the buffers
                sink.write(data)
                await sink.drain()
        for writer in (connection.near, connection.far):
            writer.close()
        with contextlib.suppress(ValueError):
            self._connections.remove(connection)
