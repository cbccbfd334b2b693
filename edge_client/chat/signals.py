"""Signals as calls on the event loop, where they can't meet code in the middle of something."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

PATIENCE_S = 1.9
"""How long the end that a signal asks for may take."""


@contextlib.contextmanager
def handled(
    interrupt: Callable[[], None],
    resume: Callable[[], None],
    leave: Callable[[int], None],
    give_up: Callable[[int], None],
) -> Iterator[None]:
    """Within this context signals become calls.

    SIGINT calls `interrupt`, and SIGCONT, when a stopped process goes on, `resume`.
    SIGTERM and SIGHUP call `leave` with the exit code; if the process is still there
    after PATIENCE_S, a thread calls `give_up`: a terminal that takes no output holds the
    event loop up. Signals that the platform lacks are left out.
    """
    loop = asyncio.get_running_loop()

    def soon(call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(call)

        return handle

    def end(number: int, frame: FrameType | None) -> None:
        code = 128 + number
        loop.call_soon_threadsafe(leave, code)
        watchdog = threading.Timer(PATIENCE_S, give_up, (code,))
        watchdog.daemon = True
        watchdog.start()

    # The loop's own way to handle signals is not there on Windows.
    handlers = {"SIGINT": soon(interrupt), "SIGCONT": soon(resume), "SIGTERM": end, "SIGHUP": end}
    with contextlib.ExitStack() as stack:
        for name, handler in handlers.items():
            number = getattr(signal, name, None)
            # nohup has SIGHUP ignored.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                stack.callback(signal.signal, number, signal.signal(number, handler))
        yield
