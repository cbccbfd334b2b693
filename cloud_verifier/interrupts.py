"""Signals while there is no event loop yet that takes them.

Loading a model keeps the main thread inside libraries, and a handler written in Python
waits until they return. Without any handler SIGTERM does nothing at all to the first
process of a container, and SIGHUP ends any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

_STOPS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[threading.Event]:
    """Inside, SIGTERM and SIGINT end the process at once, unless an event loop handles them.

    The exit code is the shell's for the signal, 128 and its number. Nothing is cleaned up:
    use it only as long as there is nothing to lose. SIGHUP sets the event that this gives.
    To be called in the main thread.
    """
    reload = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True)
    watcher.start()
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    former = {number: signal.signal(number, _leave) for number in _STOPS}
    if hasattr(signal, "SIGHUP"):
        former[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: reload.set())
    try:
        yield reload
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        writer.close()
        watcher.join()
        reader.close()


def _watch(reader: socket.socket) -> None:
    """Leave when a signal's number comes, which Python writes whatever the main thread does."""
    while number := reader.recv(1):
        if number[0] in _STOPS:
            _leave(number[0], None)


def _leave(number: int, frame: FrameType | None) -> None:
    # Neither by print nor as a record: the code that was interrupted may hold their locks.
    with contextlib.suppress(OSError):
        os.write(2, b"stopped before it was ready\n")
    os._exit(128 + number)
