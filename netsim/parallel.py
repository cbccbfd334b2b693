"""Work spread over processes. Safe with every start method, and with a parent that is killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from specwire.errors import SpecwireError

T = TypeVar("T")
R = TypeVar("R")
_WORTH_TOKENS = 100_000
"""Some seconds of work for one process."""


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worth(jobs: int, tokens: int) -> int:
    """Processes for so many tokens to simulate: a few are done before another has begun."""
    return jobs if tokens > _WORTH_TOKENS else 1


def results(function: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Each task with its result, as they are done; in this process if `jobs` is 1.

    Args:
        function: of a module, so that another process can import it.
        tasks: taken as they are needed.
        jobs: processes.

    Raises:
        SpecwireError: a process was killed.
    """
    if jobs <= 1:
        for task in tasks:
            yield task, function(task)
        return
    pool = ProcessPoolExecutor(
        jobs,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
    )
    waiting: dict[Future[R], T] = {}
    left = iter(tasks)
    try:
        while True:
            for task in islice(left, 2 * jobs - len(waiting)):
                waiting[pool.submit(function, task)] = task
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise SpecwireError(
            "a process that simulated was killed, maybe for its memory; try fewer --jobs"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """In each process: Ctrl-C is the parent's affair, and without the parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
