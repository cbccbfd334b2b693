"""The drafting thread: it drafts for every session in turn and never waits for the network."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge_client.draft.source import Drafted, DraftSource, interrupt

logger = logging.getLogger(__name__)

_USUAL = 2
"""Tokens evaluated for a draft token: the last one, and after a verdict the one before it."""


@dataclass(frozen=True)
class DraftEvents:
    """What a session hears, on its own event loop.

    token: (chain, draft, seconds it took; None where more was evaluated than usual).
    exhausted: (chain): the source has nothing more to give there.
    failed: the source broke; nothing more will come.
    """

    token: Callable[[int, Drafted, float | None], None]
    exhausted: Callable[[int], None]
    failed: Callable[[Exception], None]


@dataclass(eq=False)
class DraftRun:
    """One session's place in the drafting thread."""

    source: DraftSource
    events: DraftEvents
    loop: asyncio.AbstractEventLoop
    chain: int = 0
    prefix: list[int] = field(default_factory=list)
    stop: int = 0  # position up to which tokens are wanted
    closed: bool = False

    @property
    def wants(self) -> bool:
        """Whether there is something to draft."""
        return not self.closed and len(self.prefix) < self.stop


class DraftWorker:
    """One thread that evaluates draft models, a token at a time, fair between sessions.

    Methods may be called from any thread. The thread starts with the first
    session and is a daemon: it holds nothing that must survive the process.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._runs: list[DraftRun] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def open(self, source: DraftSource, events: DraftEvents) -> DraftRun:
        """Add a session of the running event loop."""
        run = DraftRun(source, events, asyncio.get_running_loop())
        with self._condition:
            if self._closing:
                raise RuntimeError("the draft worker is closed")
            self._runs.append(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="draft", daemon=True)
                self._thread.start()
        return run

    def aim(
        self, run: DraftRun, chain: int, prefix: Callable[[], Sequence[int]], stop: int
    ) -> None:
        """Draft `chain` up to position `stop`.

        A new chain begins after `prefix()`; one already under way just goes on, and
        its prefix is not asked for.
        """
        with self._condition:
            if chain != run.chain:
                run.chain, run.prefix = chain, list(prefix())
            run.stop = stop
            self._condition.notify()

    def rest(self, run: DraftRun) -> None:
        """Draft no more until the next `aim`."""
        with self._condition:
            run.stop = 0

    def close_run(self, run: DraftRun) -> None:
        """Forget a session; its source is closed once the thread has left it, which is soon."""
        with self._condition:
            run.closed = True
            self._condition.notify()
        interrupt(run.source)

    def close(self) -> None:
        """Forget all sessions and end the thread, which does not finish a prompt it is at."""
        with self._condition:
            self._closing = True
            runs = list(self._runs)
            for run in runs:
                run.closed = True
            self._condition.notify()
        for run in runs:
            interrupt(run.source)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._closing and not any(r.wants or r.closed for r in self._runs):
                    self._condition.wait()
                closed = [run for run in self._runs if run.closed]
                self._runs = [run for run in self._runs if not run.closed]
                if not closed and self._closing:
                    return
                run = next((r for r in self._runs if r.wants), None)
                if run is not None:
                    # To the end of the line: the next token is another session's turn.
                    self._runs.remove(run)
                    self._runs.append(run)
                    chain, prefix = run.chain, run.prefix
            for old in closed:
                _close_source(old)
            if run is not None:
                self._draft(run, chain, prefix)

    def _draft(self, run: DraftRun, chain: int, prefix: list[int]) -> None:
        started = time.perf_counter()
        try:
            drafted = run.source.next(prefix, chain)
        except Exception as error:
            interrupted = run.closed
            self.close_run(run)
            if not interrupted:
                _tell(run, run.events.failed, error)
            return
        seconds = time.perf_counter() - started
        with self._condition:
            if run.chain != chain:
                return  # the session went another way meanwhile
            if drafted is not None:
                prefix.append(drafted.token)
            else:
                run.stop = len(prefix)
        if drafted is not None:
            usual = drafted.fresh <= _USUAL
            _tell(run, run.events.token, chain, drafted, seconds if usual else None)
        else:
            _tell(run, run.events.exhausted, chain)


def _close_source(run: DraftRun) -> None:
    try:
        run.source.close()
    except Exception:
        # The thread must live on for the other sessions.
        logger.exception("a draft source could not be closed")


def _tell(run: DraftRun, callback: Callable[..., None], *args: object) -> None:
    try:
        run.loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        run.closed = True  # its event loop is gone, and the session with it
