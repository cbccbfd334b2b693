"""Signals as calls on the event loop, where they can't meet code in the middle of something."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import partial


@contextlib.contextmanager
def handled(
    interrupt: Callable[[], None], leave: Callable[[int], None], resume: Callable[[], None]
) -> Iterator[None]:
    """Within this context SIGINT calls `interrupt`, and what asks for the end calls `leave`.

    `leave` gets the exit code. `resume` is called when a stopped process goes on. On
    Windows Ctrl-C keeps its usual meaning.
    """
    loop = asyncio.get_running_loop()
    handlers: dict[int, Callable[[], None]] = {signal.SIGINT: interrupt}
    if hasattr(signal, "SIGCONT"):
        handlers[signal.SIGCONT] = resume
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup has it ignored.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            handlers[number] = partial(leave, 128 + number)
    mine = []
    for number, handler in handlers.items():
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, handler)
            mine.append(number)
    try:
        yield
    finally:
        for number in mine:
            loop.remove_signal_handler(number)
