"""One forward for many sessions: memory, eviction, and whose fault is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cloud_verifier.engine import Engine, Job, JobResult
from specwire.cloud_session import Work
from specwire.errors import Exhausted, TargetFault
from specwire.examination import examine
from specwire.ports import Step
from specwire.qrow import point_row
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from tests.support.tables import TableBackend, random_table

SIZE = 6
TABLE = random_table(SIZE, seed=3)
GREEDY = SamplingParams(temperature=0.0)


class Small(TableBackend):
    """A table whose cache holds so many tokens, and which may know a prefix already."""

    def __init__(self, memory: int, known: int = 0) -> None:
        super().__init__(TABLE, context=1000)
        self.memory = memory
        self.known = known
        self.failing = False
        self.steps: list[Sequence[Step]] = []

    def open(self, tokens: Sequence[int] = ()) -> int:
        handle = super().open(tokens)
        self._sequences[handle] = list(tokens[: min(self.known, len(tokens) - 1)])
        return handle

    def fits(self, steps: Sequence[Step]) -> bool:
        held = {handle: len(tokens) for handle, tokens in self._sequences.items()}
        held.update({step.sequence: step.keep + len(step.tokens) for step in steps})
        return sum(held.values()) <= self.memory

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        if self.failing:
            raise RuntimeError("out of memory, says the device")
        self.steps.append(steps)
        return super().forward(steps)


def greedy(last: int) -> int:
    return int(TABLE[last].argmax())


def job(
    ids: Sequence[int], *, sequence: int | None = None, keep: int = 0, drafts: Sequence[int] | None
) -> Job:
    """A job for a session whose committed tokens are `ids`; `drafts` None only fills the cache."""
    work = None
    if drafts is not None:
        work = Work(len(ids), 1, tuple(drafts), tuple(point_row(t) for t in drafts))
    return Job(
        sequence=sequence,
        prefix=ids if sequence is None else (),
        keep=keep,
        tokens=ids[keep:],
        work=work,
        request=SessionRequest(tuple(ids), seed=1, max_tokens=100, sampling=GREEDY),
        history=None,
        ready=0.0,
    )


def held(engine: Engine, ids: Sequence[int]) -> int:
    """The sequence of a session that has been served once."""
    (result,) = engine.run([job(ids, drafts=())]).results
    assert result.sequence is not None
    return result.sequence


def test_a_round_examines_drafts_and_says_what_is_cached() -> None:
    engine = Engine(Small(100))
    right = greedy(2)
    wrong = (greedy(right) + 1) % SIZE
    done = engine.run([job([1, 2], drafts=[right, wrong]), job([3], drafts=())])
    first, second = done.results
    assert first.outcome is not None
    assert second.outcome is not None
    assert (first.outcome.accepted, first.outcome.token) == (1, greedy(right))
    assert (second.outcome.accepted, second.outcome.token) == (0, greedy(3))
    assert (first.cached, second.cached) == (3, 1)
    assert (done.prefilled, done.rounds) == (1, 2)


def test_a_job_without_work_fills_the_cache_alone() -> None:
    engine = Engine(Small(100))
    done = engine.run([job([1, 2, 3, 4], drafts=None)])
    assert done.results == [JobResult(1, 4)]
    assert done.rounds == 0


@pytest.mark.parametrize("known", [0, 2, 3, 9])
def test_what_is_known_already_is_not_evaluated_again(known: int) -> None:
    backend = Small(100, known)
    engine = Engine(backend)
    (result,) = engine.run([job([1, 2, 3, 4], drafts=())]).results
    shared = min(known, 3)
    assert result.shared == shared
    assert [len(step.tokens) for step in backend.steps[0]] == [4 - shared]
    assert result.outcome is not None
    assert result.outcome.token == greedy(4)


def test_a_part_that_is_known_already_needs_no_forward() -> None:
    backend = Small(100, known=6)
    engine = Engine(backend)
    whole = [*range(6), 1, 2]
    part = Job(None, whole, 0, whole[:4], None, job(whole, drafts=None).request, None, 0.0)
    done = engine.run([part])
    assert done.results == [JobResult(1, 6, 6)]
    assert backend.steps == []
    assert done.prefilled == 0


# ---------------------------------------------------------------------- memory


def test_the_least_recently_used_lose_their_cache_first() -> None:
    backend = Small(30)
    engine = Engine(backend)
    one, two, three = (held(engine, [token] * 8) for token in (1, 2, 3))
    again = engine.run([job([1] * 9, sequence=one, keep=8, drafts=())])
    assert not again.evicted
    done = engine.run([job([4] * 10, drafts=())])
    assert done.evicted == {two}
    assert done.results[0].outcome is not None
    done = engine.run([job([5] * 20, drafts=())])
    assert done.evicted == {one, three}
    assert backend.sequences == 2


def test_the_last_jobs_are_put_off_and_fit_later() -> None:
    backend = Small(25)
    engine = Engine(backend)
    jobs = [job([token] * 10, drafts=()) for token in range(4)]
    done = engine.run(jobs)
    assert [r.put_off for r in done.results] == [False, False, True, True]
    assert [r.outcome is not None for r in done.results] == [True, True, False, False]
    assert [r.cached for r in done.results[2:]] == [0, 0]
    assert done.rounds == 2
    later = engine.run(
        [job([t] * 10, sequence=done.results[t].sequence, drafts=()) for t in (2, 3)]
    )
    assert [r.put_off for r in later.results] == [False, False]
    assert later.evicted == {r.sequence for r in done.results[:2]}


def test_a_session_with_nothing_to_evaluate_is_not_driven_out_by_those_behind_it() -> None:
    backend = Small(24, known=12)
    engine = Engine(backend)
    ids = [1] * 13
    known = Job(None, ids, 0, ids[:4], None, job(ids, drafts=None).request, None, 0.0)
    done = engine.run([known, job([2] * 13, drafts=())])
    assert done.results[0].cached == 12
    assert done.results[0].sequence is not None
    assert done.results[1].put_off


def test_a_session_larger_than_memory_fails_alone() -> None:
    backend = Small(20)
    engine = Engine(backend)
    jobs = [job([1] * 30, drafts=()), job([2] * 5, drafts=()), job([3] * 5, drafts=())]
    done = engine.run(jobs)
    assert isinstance(done.results[0].error, Exhausted)
    assert "KV memory" in str(done.results[0].error)
    assert [r.put_off for r in done.results[1:]] == [True, True]
    assert [r.error for r in done.results[1:]] == [None, None]
    if done.results[0].sequence is not None:  # the scheduler gives it back
        engine.close(done.results[0].sequence)
    later = engine.run(jobs[1:])
    assert all(r.outcome is not None for r in later.results)


# ---------------------------------------------------------------------- faults


def test_a_failed_forward_frees_what_was_begun_and_keeps_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Small(100)
    engine = Engine(backend)
    old = held(engine, [1, 2])
    backend.failing = True
    jobs = [job([1, 2, 3], sequence=old, keep=2, drafts=()), job([4], drafts=())]
    done = engine.run(jobs)
    assert [r.sequence for r in done.results] == [old, None]
    assert [r.cached for r in done.results] == [0, 0]
    assert all(isinstance(r.error, TargetFault) for r in done.results)
    assert done.results[0].error is not done.results[1].error  # each gets its own frontier
    assert backend.sequences == 1
    assert "out of memory" in caplog.text
    backend.failing = False
    again = engine.run(jobs)
    assert all(r.outcome is not None for r in again.results)


def test_who_was_evicted_for_a_forward_that_failed_is_told() -> None:
    backend = Small(20)
    engine = Engine(backend)
    old = held(engine, [1] * 15)
    backend.failing = True
    done = engine.run([job([2] * 15, drafts=())])
    assert done.evicted == {old}
    assert backend.sequences == 0


def test_a_failed_examination_frees_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Small(100)
    engine = Engine(backend)

    def broken(*_: Any) -> Any:
        raise ValueError("rows do not fit")

    monkeypatch.setattr("cloud_verifier.engine.examine", broken)
    done = engine.run([job([1], drafts=())])
    assert isinstance(done.results[0].error, TargetFault)
    assert backend.sequences == 0


def test_a_fault_of_one_row_is_that_sessions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Small(100)
    engine = Engine(backend)

    def picky(request: SessionRequest, *rest: Any) -> Any:
        if request.prompt[0] == 4:
            raise TargetFault("no numbers")
        return examine(request, *rest)

    monkeypatch.setattr("cloud_verifier.engine.examine", picky)
    done = engine.run([job([1], drafts=()), job([4], drafts=()), job([2], drafts=())])
    assert [r.error is None for r in done.results] == [True, False, True]
    assert [r.outcome is not None for r in done.results] == [True, False, True]
