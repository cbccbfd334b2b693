"""The drafting thread: turns, superseded chains, closing, faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from edge_client.draft.source import Drafted
from edge_client.draft.worker import DraftEvents, DraftRun, DraftWorker
from tests.support.edge import until


class Source:
    """Drafts position numbers. With `gate` each token waits for one release of it."""

    def __init__(
        self,
        log: list[tuple[str, int]] | None = None,
        name: str = "",
        *,
        gate: threading.Semaphore | None = None,
        last: int = 10**9,
        fresh: Sequence[int] = (),
    ) -> None:
        self._log = log if log is not None else []
        self._name = name
        self._gate = gate
        self._last = last
        self._fresh = list(fresh)
        self.entered = threading.Semaphore(0)
        self.closed = 0

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        self.entered.release()
        self._log.append((self._name, len(prefix)))
        if self._gate is not None:
            assert self._gate.acquire(timeout=10)
        fresh = self._fresh.pop(0) if self._fresh else 1
        return Drafted(len(prefix), None, fresh=fresh) if len(prefix) <= self._last else None

    def close(self) -> None:
        self.closed += 1


class Heard:
    """What a session was told."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.exhausted: list[int] = []
        self.failures: list[Exception] = []
        self.threads: set[int] = set()
        self.timed: list[bool] = []
        self.events = DraftEvents(self._token, self.exhausted.append, self.failures.append)

    def _token(self, chain: int, drafted: Drafted, seconds: float | None) -> None:
        self.threads.add(threading.get_ident())
        self.tokens.append((chain, drafted.token))
        self.timed.append(seconds is not None)


@pytest.fixture
async def worker() -> AsyncIterator[DraftWorker]:
    worker = DraftWorker()
    yield worker
    await asyncio.to_thread(worker.close)


def open_run(worker: DraftWorker, source: Source) -> tuple[DraftRun, Heard]:
    heard = Heard()
    return worker.open(source, heard.events), heard


async def test_drafts_up_to_where_it_is_wanted(worker: DraftWorker) -> None:
    run, heard = open_run(worker, Source())
    worker.aim(run, 1, lambda: [7, 7], 5)
    await until(lambda: len(heard.tokens) == 3)
    assert heard.tokens == [(1, 2), (1, 3), (1, 4)]
    worker.aim(run, 1, lambda: pytest.fail("the chain is under way"), 6)
    await until(lambda: len(heard.tokens) == 4)
    await asyncio.sleep(0.05)
    assert heard.tokens[3:] == [(1, 5)]
    assert heard.threads == {threading.get_ident()}  # told on the session's own loop


async def test_the_time_of_a_token_that_needed_catching_up_tells_nothing(
    worker: DraftWorker,
) -> None:
    run, heard = open_run(worker, Source(fresh=[40, 1, 2, 3, 1]))
    worker.aim(run, 1, lambda: [0], 6)
    await until(lambda: len(heard.tokens) == 5)
    assert heard.timed == [False, True, True, False, True]


async def test_sessions_take_turns(worker: DraftWorker) -> None:
    log: list[tuple[str, int]] = []
    gate = threading.Semaphore(0)
    first, heard_first = open_run(worker, Source(log, "first", gate=gate))
    second, heard_second = open_run(worker, Source(log, "second", gate=gate))
    third, heard_third = open_run(worker, Source(log, "third", gate=gate))
    for run, stop in ((first, 40), (second, 40), (third, 10)):
        worker.aim(run, 1, lambda: [0], stop)
    gate.release(200)
    await until(
        lambda: (
            len(heard_first.tokens) == 39
            and len(heard_second.tokens) == 39
            and len(heard_third.tokens) == 9
        )
    )
    names = [name for name, _ in log]
    # The first may have been alone for one token before the others came.
    for turn in range(1, 25, 3):
        assert len(set(names[turn : turn + 3])) == 3, names[:30]
    for turn in range(31, 70, 2):
        assert set(names[turn : turn + 2]) == {"first", "second"}


async def test_a_superseded_chains_token_is_dropped(worker: DraftWorker) -> None:
    gate = threading.Semaphore(0)
    source = Source(gate=gate)
    run, heard = open_run(worker, source)
    worker.aim(run, 1, lambda: [0], 10)
    await asyncio.to_thread(source.entered.acquire)
    worker.aim(run, 2, lambda: [0] * 20, 22)  # while chain 1 is inside the model
    gate.release(10)
    await until(lambda: len(heard.tokens) == 2)
    await asyncio.sleep(0.05)
    assert heard.tokens == [(2, 20), (2, 21)]


async def test_exhaustion_is_told_once_and_ends_with_a_new_chain(worker: DraftWorker) -> None:
    log: list[tuple[str, int]] = []
    run, heard = open_run(worker, Source(log, last=3))
    worker.aim(run, 1, lambda: [0], 8)
    await until(lambda: bool(heard.exhausted))
    await asyncio.sleep(0.05)
    assert heard.exhausted == [1] and [t for _, t in heard.tokens] == [1, 2, 3]
    assert log[-1] == ("", 4) and len(log) == 4  # not asked again and again
    worker.aim(run, 2, lambda: [0, 0], 4)
    await until(lambda: len(heard.tokens) == 5)
    assert heard.tokens[3:] == [(2, 2), (2, 3)]


async def test_a_broken_source_ends_its_own_session_alone(worker: DraftWorker) -> None:
    class Broken(Source):
        def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
            raise OSError("gone")

    broken, other = Broken(), Source()
    run, heard = open_run(worker, broken)
    other_run, other_heard = open_run(worker, other)
    worker.aim(run, 1, lambda: [0], 5)
    worker.aim(other_run, 1, lambda: [0], 5)
    await until(lambda: len(other_heard.tokens) == 4 and bool(heard.failures))
    assert [str(error) for error in heard.failures] == ["gone"]
    await until(lambda: broken.closed == 1)
    worker.aim(run, 2, lambda: [0], 5)  # too late, and harmless
    worker.aim(other_run, 1, lambda: [0], 7)
    await until(lambda: len(other_heard.tokens) == 6)
    assert len(heard.failures) == 1 and heard.tokens == [] and other.closed == 0


async def test_a_source_that_can_not_be_closed_harms_no_other(worker: DraftWorker) -> None:
    class Sticky(Source):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    sticky, other = Sticky(), Source()
    run, _ = open_run(worker, sticky)
    other_run, heard = open_run(worker, other)
    worker.close_run(run)
    await until(lambda: sticky.closed == 1)
    worker.aim(other_run, 1, lambda: [0], 5)
    await until(lambda: len(heard.tokens) == 4)


async def test_closing_a_run_waits_for_nothing(worker: DraftWorker) -> None:
    gate = threading.Semaphore(0)
    source = Source(gate=gate)
    run, heard = open_run(worker, source)
    worker.aim(run, 1, lambda: [0], 10)
    await asyncio.to_thread(source.entered.acquire)
    worker.close_run(run)  # returns at once, though the thread is inside the model
    assert source.closed == 0  # and closes nothing under its feet
    gate.release(10)
    await until(lambda: source.closed == 1)
    await asyncio.sleep(0.05)
    assert len(heard.tokens) <= 1 and source.closed == 1


async def test_closing_the_worker_while_it_drafts() -> None:
    worker = DraftWorker()
    gate = threading.Semaphore(0)
    sources = [Source(gate=gate), Source()]
    run, _ = open_run(worker, sources[0])
    open_run(worker, sources[1])
    worker.aim(run, 1, lambda: [0], 10)
    await asyncio.to_thread(sources[0].entered.acquire)
    closing = asyncio.create_task(asyncio.to_thread(worker.close))
    await asyncio.sleep(0.05)
    assert not closing.done()  # the token it is at may end
    gate.release(10)
    await asyncio.wait_for(closing, 5)
    assert [source.closed for source in sources] == [1, 1]
    assert worker._thread is not None and not worker._thread.is_alive()
    await asyncio.to_thread(worker.close)  # again
    with pytest.raises(RuntimeError, match="closed"):
        open_run(worker, Source())


def test_a_worker_never_used_closes() -> None:
    worker = DraftWorker()
    worker.close()
    worker.close()
    assert worker._thread is None


def test_a_session_whose_loop_is_gone_is_forgotten() -> None:
    worker = DraftWorker()
    gate = threading.Semaphore(0)
    source = Source(gate=gate)

    async def begin() -> None:
        run, _ = open_run(worker, source)
        worker.aim(run, 1, lambda: [0], 10)
        await asyncio.to_thread(source.entered.acquire)

    asyncio.run(begin())
    gate.release(20)

    async def check() -> None:
        await until(lambda: source.closed == 1)
        run, heard = open_run(worker, Source())
        worker.aim(run, 1, lambda: [0], 3)
        await until(lambda: len(heard.tokens) == 2)

    asyncio.run(check())
    worker.close()
