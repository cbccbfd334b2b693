"""What the link models and the relay cost: time of their own, and how true the delay is.

Sender and receiver are plain sockets in a process of their own, the relay in another, as
between real programs. What the two loopback passages take without a relay is measured too.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netsim.links import Jitter, JitterKind, LinkModel, Loss, profile
from netsim.relay import split_address

MESSAGE_BYTES = 64
_STAMP = struct.Struct("d")


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Rows of: what, how often, and the median, 99th percentile and worst in microseconds."""
    rate, seconds = 10_000, 1.0 if quick else 4.0
    rows = []
    for name, model in _MODELS.items():
        rows.append(_row(f"OneWay.send, {name}", _send_cost(model, links=10 if quick else 100)))
    for name in ("none", "rtt-0", "rtt-20"):
        with _way(name) as address:
            times = _flood(address, rate=rate, count=int(rate * seconds))
        link_s = 0.0 if name == "none" else profile(name).up.delay_s
        rows.append(_row(f"{rate}/s, {name}, beyond its delay", [t - link_s for t in times]))
    for name in ("none", "rtt-100"):
        with _way(name) as address:
            rows.append(_row(f"round trip, {name}", _pings(address, count=10 if quick else 60)))
    return rows


_MODELS = {
    "delay only": LinkModel.symmetric(0.1),
    "delay and rate": LinkModel.symmetric(0.1, rate_bit_s=1e7, queue_bytes=100_000),
    "4g-weak": profile("4g-weak"),
    "rate, loss and jitter": LinkModel.symmetric(
        0.1, rate_bit_s=1e7, loss=Loss(0.01, 3), jitter=Jitter(JitterKind.EXPONENTIAL, 0.01)
    ),
}


def _row(what: str, times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "what": what,
        "count": len(ordered),
        "median_us": 1e6 * statistics.median(ordered),
        "p99_us": 1e6 * ordered[int(len(ordered) * 0.99)],
        "worst_us": 1e6 * ordered[-1],
    }


def _send_cost(model: LinkModel, *, links: int, messages: int = 500) -> list[float]:
    """Seconds for each message of 20 bytes, averaged over a link's messages."""
    costs = []
    for seed in range(links):
        send = model.open(seed).up.send
        begun = time.perf_counter()
        for i in range(messages):
            send(i * 0.05, 20)
        costs.append((time.perf_counter() - begun) / messages)
    return costs


# ------------------------------------------------------------------- processes


@contextmanager
def _way(name: str) -> Iterator[tuple[str, socket.socket]]:
    """An address to send to, and the listening socket that it leads to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        if name == "none":
            yield target, server
            return
        command = "import sys; from netsim.cli import main; sys.exit(main())"
        words = ["proxy", "--profile", name, "--target", target]
        with subprocess.Popen(
            [sys.executable, "-c", command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as relay:
            try:
                assert relay.stdout is not None
                yield relay.stdout.readline().split()[2].rstrip(":"), server
            finally:
                relay.terminate()


def _flood(way: tuple[str, socket.socket], *, rate: int, count: int) -> list[float]:
    """One-way times of `count` messages at `rate` a second."""
    address, server = way
    sender = multiprocessing.get_context("spawn").Process(
        target=_sender, args=(address, rate, count)
    )
    sender.start()
    taken, _ = server.accept()
    times: list[float] = []
    rest = b""
    with taken:
        while data := taken.recv(1 << 16):
            now = time.monotonic()
            rest += data
            whole = len(rest) - len(rest) % MESSAGE_BYTES
            times.extend(
                now - _STAMP.unpack_from(rest, at)[0] for at in range(0, whole, MESSAGE_BYTES)
            )
            rest = rest[whole:]
    sender.join()
    if len(times) != count or rest:
        raise RuntimeError(f"{len(times)} of {count} messages came through")
    return times[count // 10 :]  # connecting is over by then


def _sender(address: str, rate: int, count: int) -> None:
    with socket.create_connection(split_address(address)) as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        padding = bytes(MESSAGE_BYTES - _STAMP.size)
        begun = time.monotonic()
        for i in range(count):
            while (wait := begun + i / rate - time.monotonic()) > 0:
                time.sleep(wait)
            near.sendall(_STAMP.pack(time.monotonic()) + padding)


def _pings(way: tuple[str, socket.socket], *, count: int) -> list[float]:
    """Round trips of single messages, with pauses between."""
    address, server = way

    def echo() -> None:
        taken, _ = server.accept()
        with taken:
            while data := taken.recv(1 << 16):
                taken.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    times = []
    with socket.create_connection(split_address(address)) as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            begun = time.monotonic()
            near.sendall(bytes(20))
            near.recv(1 << 16)
            times.append(time.monotonic() - begun)
            time.sleep(0.01)
    thread.join()
    return times[1:]
