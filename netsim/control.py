"""Commands to a running relay, a line each, and a line in answer to each.

cut                 reset every connection
stall SECONDS       deliver nothing for so long; without a number, until resume
half-open           forward nothing more on the connections there are, keep their sockets
resume              end a stall and what half-open began
profile NAME        another link from now on
stats               figures as JSON
help                these lines
quit                end the relay
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import cast

from netsim.links import profile
from netsim.links.table import nearest
from netsim.relay import Relay, split_address

LONGEST_LINE = 4096
COMMANDS = ("cut", "stall", "half-open", "resume", "profile", "stats", "help", "quit")


def obey(relay: Relay, line: str, quit_: Callable[[], None]) -> str:
    """Carry a command out; what to answer, "ok …" or "error: …"."""
    given, *words = line.split() or [""]
    name = given.lower()
    most = 1 if name in ("stall", "profile") else 0
    if name in COMMANDS and len(words) > most:
        return f"error: {name} takes {most or 'no'} word{'s' * (most != 1)} after it"
    try:
        return _obey(relay, name, words, quit_)
    except ValueError as error:
        return f"error: {error}"


def _obey(relay: Relay, name: str, words: Sequence[str], quit_: Callable[[], None]) -> str:
    if name == "cut":
        return f"ok {relay.cut()} connections cut"
    if name == "stall":
        seconds = _seconds(words[0]) if words else math.inf
        relay.stall(seconds)
        return "ok stalled until resume" if seconds == math.inf else f"ok stalled for {seconds:g} s"
    if name == "half-open":
        return f"ok {relay.half_open()} connections half open"
    if name == "resume":
        relay.resume()
        return "ok"
    if name == "profile":
        if not words:
            raise ValueError("profile which? Say profile NAME, such as profile 4g-weak")
        relay.use(profile(words[0]))
        return f"ok {relay.model.name}"
    if name == "stats":
        return f"ok {json.dumps(relay.stats())}"
    if name == "help":
        return "ok " + ", ".join(COMMANDS)
    if name == "quit":
        quit_()
        return "ok"
    raise ValueError(f"no command is called {name!r}{nearest(name, COMMANDS)} Say help for all")


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        raise ValueError(f"{word!r} is no number of seconds") from None
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{word} seconds: give 0 or more")
    return seconds


class ControlPort(asyncio.Protocol):
    """One connection that commands come on."""

    def __init__(self, relay: Relay, quit_: Callable[[], None]) -> None:
        self._relay = relay
        self._quit = quit_
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each line."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            answer = obey(self._relay, line.decode("utf-8", "replace"), self._quit)
            self._transport.write(f"{answer}\n".encode())
        if len(self._begun) > LONGEST_LINE:
            self._transport.write(b"error: no command is that long\n")
            self._transport.close()


async def listen(relay: Relay, address: str, quit_: Callable[[], None]) -> asyncio.Server:
    """Take commands on a loopback port.

    Raises:
        ValueError: it is no loopback address; whoever reaches the port can cut connections.
        OSError: it can't be listened on.
    """
    host, port = split_address(address)
    if host != "localhost" and not _is_loopback(host):
        raise ValueError(f"--control {address}: commands are taken on this machine's loopback only")
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: ControlPort(relay, quit_), host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def follow(relay: Relay, descriptor: int, quit_: Callable[[], None]) -> None:
    """Take commands from a stream of lines, such as stdin, until it ends.

    A thread of its own reads, since files and terminals can't be waited for alike. It is
    left behind at exit, and reads the descriptor itself so as to hold no lock then.
    """
    loop = asyncio.get_running_loop()

    def answer(line: bytes) -> None:
        if text := line.decode("utf-8", "replace").strip():
            print(obey(relay, text, quit_), file=sys.stderr, flush=True)

    def read() -> None:
        begun = b""
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the loop is closed
            while data := os.read(descriptor, LONGEST_LINE):
                *lines, begun = (begun + data).split(b"\n")
                begun = begun[-LONGEST_LINE:]
                for line in lines:
                    loop.call_soon_threadsafe(answer, line)
            loop.call_soon_threadsafe(answer, begun)

    threading.Thread(target=read, name="commands", daemon=True).start()
