"""Two network namespaces, a cable between them, and the kernel's netem at both of its ends.

Needs Linux, root, and iproute2 (`ip`, `tc`). All of it is gone when the cable is closed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Self

from netsim.links import Direction, LinkModel
from netsim.links.jitter import JitterKind
from specwire.errors import SpecwireError

ADDRESSES = {"edge": "198.18.0.1", "cloud": "198.18.0.2"}
"""Of the two ends, from the range that is set aside for measurements (RFC 2544)."""
PACKET_BYTES = 1500
_PLENTY = 100_000
"""Packets, where a queue is without limit."""


class Unavailable(SpecwireError):
    """There is no such cable here; the message says what is missing."""


def netem(direction: Direction) -> list[str]:
    """What `tc qdisc add … netem` is told of a direction.

    Raises:
        ValueError: netem has nothing like it.
    """
    if direction.trace is not None or direction.outages or direction.handovers:
        raise ValueError("netem has no traces, outages or handovers")
    words = ["delay", f"{direction.average_delay_s * 1e6:.0f}us", *_jitter(direction)]
    if direction.rate_bit_s is not None:
        words += ["rate", f"{direction.rate_bit_s:.0f}bit"]
    if direction.loss.rate == 1 or (direction.loss and direction.loss.burst is None):
        words += ["loss", "random", f"{direction.loss.rate:.6%}"]
    elif direction.loss:
        # Of its two states one loses everything: the chances to enter and to leave it.
        leave = 1 / direction.loss.mean_burst
        enter = leave * direction.loss.rate / (1 - direction.loss.rate)
        words += ["loss", "gemodel", f"{enter:.6%}", f"{leave:.6%}"]
    return [*words, "limit", str(_packets(direction))]


def _jitter(direction: Direction) -> list[str]:
    jitter = direction.jitter
    if not jitter:
        return []
    # Around the delay, where ours is added to it.
    if jitter.kind == JitterKind.UNIFORM:
        return [f"{jitter.mean_s * 1e6:.0f}us"]
    if jitter.kind == JitterKind.NORMAL:
        return [f"{jitter.mean_s / 2 * 1e6:.0f}us", "distribution", "normal"]
    raise ValueError(f"netem has no {jitter.kind} jitter")


def _packets(direction: Direction) -> int:
    """Its limit also counts what has left the bottleneck and is under way."""
    if direction.rate_bit_s is None or direction.queue_bytes is None:
        return _PLENTY
    under_way = direction.average_delay_s * direction.rate_bit_s / 8
    return int((direction.queue_bytes + under_way) / PACKET_BYTES) + 2


class Cable:
    """A link between two namespaces of this process. Use it as a context manager.

    Raises:
        ValueError: netem has nothing like the link.
        Unavailable: this machine or user can't make it.
    """

    def __init__(self, link: LinkModel) -> None:
        self._netem = {"edge": netem(link.up), "cloud": netem(link.down)}
        self._free = link.up.plain and link.down.plain and not link.rtt_s  # nothing to imitate
        self._names = {end: f"specwire-{os.getpid()}-{end}" for end in ADDRESSES}
        self._made: list[str] = []

    def inside(self, end: str) -> list[str]:
        """What a command is put behind to run at an end, "edge" or "cloud"."""
        return ["ip", "netns", "exec", self._names[end]]

    def __enter__(self) -> Self:
        _check()
        try:
            for name in self._names.values():
                _run("ip", "netns", "add", name)
                self._made.append(name)
            edge, cloud = self._names["edge"], self._names["cloud"]
            _run(
                *("ip", "-n", edge, "link", "add", "cable", "type", "veth"),
                *("peer", "name", "cable", "netns", cloud),
            )
            for end, name in self._names.items():
                _run("ip", "-n", name, "address", "add", f"{ADDRESSES[end]}/30", "dev", "cable")
                for device in ("lo", "cable"):
                    _run("ip", "-n", name, "link", "set", device, "up")
                if not self._free:
                    words = ("root", "netem", *self._netem[end])
                    _run("tc", "-n", name, "qdisc", "add", "dev", "cable", *words)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take it away. What runs inside keeps its namespace until it ends."""
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], capture_output=True)


def _check() -> None:
    if sys.platform != "linux":
        raise Unavailable("netem is part of Linux")
    if os.geteuid() != 0:
        raise Unavailable("network namespaces and netem take root")
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} of iproute2 can't be found")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stderr.strip().splitlines()
    why = said[0].removeprefix("Error: ") if said else f"exit status {done.returncode}"
    if "netem" in command and "qdisc kind is unknown" in why:
        why = "this kernel has no netem (module sch_netem)"
    raise Unavailable(f"{why}  [{' '.join(command)}]")
