"""One target forward for a batch of sessions, and the examination of their drafts.

The engine owns the backend and runs in one thread. It knows nothing of sessions
or frames: jobs go in, results come out.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specwire.acceptance import Examination
from specwire.arrays import namespace
from specwire.cloud_session import Outcome, Work
from specwire.errors import Exhausted, SpecwireError, TargetFault
from specwire.examination import examine, round_logprobs
from specwire.ports import Step, TargetBackend
from specwire.request import SessionRequest
from specwire.sampling import History
from specwire.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One session's share of a forward.

    sequence: the backend's handle, None to begin one. prefix: all committed tokens, if
    one is begun. keep: cached tokens that are committed. tokens: committed tokens to be
    cached after them, at least one. work: the drafts to examine then; None only fills
    the cache. history: of the first drafted position, for penalties. ready: when the
    job became ready, in seconds of time.perf_counter.
    """

    sequence: int | None
    prefix: Sequence[int]
    keep: int
    tokens: Sequence[int]
    work: Work | None
    request: SessionRequest
    history: History | None
    ready: float


@dataclass(frozen=True)
class JobResult:
    """What became of a job.

    sequence: the backend's handle, None if it has none (any more). cached: committed
    tokens now in its cache. shared: tokens that were at hand when it was begun. A job
    with work has an outcome or an error, unless it was put off: then memory was short,
    and it is to be tried again.
    """

    sequence: int | None
    cached: int
    shared: int = 0
    outcome: Outcome | None = None
    error: SpecwireError | None = None
    put_off: bool = False


@dataclass(frozen=True)
class RunResult:
    """Results in the order of the jobs, and the handles that lost their cache to them.

    sessions: that took part in the forward; those put off, or with nothing to evaluate, did
    not. evaluated: tokens, of all of them. prefilled: committed ones among these, but for the
    last of each round. rounds: drafts, possibly empty, that were examined.
    """

    results: Sequence[JobResult]
    evicted: frozenset[int]
    forward_s: float
    sessions: int = 0
    evaluated: int = 0
    prefilled: int = 0
    rounds: int = 0


@dataclass
class _Turn:
    """A job on its way through the engine."""

    job: Job
    sequence: int
    shared: int
    step: Step | None  # None: everything asked for was at hand
    put_off: bool = False
    error: SpecwireError | None = None

    @property
    def admitted(self) -> bool:
        """Whether it keeps its cache in this forward, in which it may have nothing to do."""
        return not self.put_off and self.error is None

    @property
    def active(self) -> bool:
        """Whether it takes part in the forward."""
        return self.step is not None and self.admitted


class Engine:
    """Runs jobs on a target backend. Every method belongs to the model thread."""

    def __init__(self, backend: TargetBackend) -> None:
        self._backend = backend
        self._recent: OrderedDict[int, None] = OrderedDict()  # handles, least recent first

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens."""
        return self._backend.vocabulary

    def close(self, sequence: int) -> None:
        """Free a sequence."""
        self._recent.pop(sequence, None)
        self._backend.close(sequence)

    def run(self, jobs: Sequence[Job]) -> RunResult:
        """One forward for all jobs for which there is memory. Raises nothing.

        Where it is short, sequences that take no part lose their cache, the least
        recently used first, and then the last jobs are put off. A fault of one
        session's row is that session's alone; one of the whole forward is every job's.
        """
        turns: list[_Turn] = []
        evicted: set[int] = set()
        try:
            turns.extend(self._begin(job) for job in jobs)
            self._make_room(turns, evicted)
            active = [turn for turn in turns if turn.active]
            started = time.perf_counter()
            steps = [turn.step for turn in active if turn.step is not None]
            logits = self._backend.forward(steps) if steps else []
            forward_s = time.perf_counter() - started
            outcomes = self._examine_all(active, logits, started, forward_s)
        except Exception as error:
            return self._failed(jobs, turns, evicted, error)
        return RunResult(
            [self._result(turn, outcomes.get(turn.sequence), evicted) for turn in turns],
            frozenset(evicted),
            forward_s,
            sessions=len(steps),
            evaluated=sum(len(step.tokens) for step in steps),
            prefilled=sum(len(step.tokens) - step.rows for step in steps),
            rounds=sum(turn.job.work is not None for turn in active),
        )

    def _failed(
        self, jobs: Sequence[Job], turns: Sequence[_Turn], evicted: set[int], error: Exception
    ) -> RunResult:
        """Nobody got anything. What was begun here is freed, what was evicted is told."""
        fault = error if isinstance(error, SpecwireError) else None
        if fault is None:
            logger.error("the target forward failed for %d sessions", len(jobs), exc_info=error)
            fault = TargetFault("the target model failed; see the verifier's log")
        for turn in turns:
            if turn.job.sequence is None:
                self.close(turn.sequence)
        kept = [None if job.sequence in evicted else job.sequence for job in jobs]
        results = [JobResult(sequence, 0, error=copy.copy(fault)) for sequence in kept]
        return RunResult(results, frozenset(evicted), 0.0)

    def _begin(self, job: Job) -> _Turn:
        sequence, shared = job.sequence, 0
        if sequence is None:
            sequence = self._backend.open(job.prefix)
            shared = self._backend.cached(sequence)
        self._recent[sequence] = None
        self._recent.move_to_end(sequence)
        keep = max(job.keep, shared)
        tokens = job.tokens[keep - job.keep :]
        drafts = job.work.tokens if job.work is not None else ()
        step = Step(sequence, keep, [*tokens, *drafts], len(drafts) + 1) if tokens else None
        return _Turn(job, sequence, shared, step)

    def _make_room(self, turns: Sequence[_Turn], evicted: set[int]) -> None:
        while True:
            steps = [turn.step for turn in turns if turn.step is not None and turn.active]
            if self._backend.fits(steps):
                return
            admitted = [turn for turn in turns if turn.admitted]
            kept = {turn.sequence for turn in admitted}
            victim = next((h for h in self._recent if h not in kept), None)
            if victim is not None:
                self.close(victim)
                evicted.add(victim)
            elif len(admitted) > 1:
                admitted[-1].put_off = True
            else:  # the others may fit without it
                admitted[0].error = Exhausted(
                    "the cache memory is too small for even one session of this length; "
                    "serve with more KV memory or a smaller context"
                )

    def _result(
        self, turn: _Turn, outcome: Outcome | SpecwireError | None, evicted: set[int]
    ) -> JobResult:
        gone = turn.sequence in evicted
        sequence = None if gone else turn.sequence
        if turn.put_off:
            cached = 0 if gone else max(turn.job.keep, turn.shared)
            return JobResult(sequence, cached, turn.shared, put_off=True)
        if turn.error is not None:
            return JobResult(sequence, 0, turn.shared, error=turn.error)
        cached = max(turn.job.keep + len(turn.job.tokens), turn.shared)
        if gone:
            return JobResult(None, 0, turn.shared)
        if isinstance(outcome, SpecwireError):
            return JobResult(sequence, cached, turn.shared, error=outcome)
        accepted = outcome.accepted if outcome is not None else 0
        return JobResult(sequence, cached + accepted, turn.shared, outcome)

    def _examine_all(
        self, turns: Sequence[_Turn], logits: Sequence[Any], started: float, forward_s: float
    ) -> dict[int, Outcome | SpecwireError]:
        """Outcomes by sequence. What is decided crosses to the host together, in the end."""
        outcomes: dict[int, Outcome | SpecwireError] = {}
        examined = []
        for turn, rows in zip(turns, logits, strict=True):
            if turn.job.work is None:
                continue
            job, work = turn.job, turn.job.work
            try:
                examination = examine(job.request, work, rows, job.history, self.vocabulary)
            except SpecwireError as error:
                outcomes[turn.sequence] = error
            else:
                examined.append((turn, work, rows, examination))
        decided = _to_host([examination for *_, examination in examined])
        for (turn, work, rows, _), outcome in zip(examined, decided, strict=True):
            accepted, token = outcome
            outcomes[turn.sequence] = Outcome(
                accepted=accepted,
                token=token,
                logprobs=round_logprobs(
                    turn.job.request, work, rows, outcome, len(self.vocabulary)
                ),
                queue_us=_microseconds(started - turn.job.ready),
                forward_us=_microseconds(forward_s),
            )
        return outcomes


def _microseconds(seconds: float) -> int:
    # As the protocol's 32 bits hold them.
    return min(max(0, int(seconds * 1e6)), (1 << 32) - 1)


def _to_host(examinations: Sequence[Examination]) -> list[tuple[int, int]]:
    if not examinations:
        return []
    xp = namespace(examinations[0].accepted)
    pairs = [xp.stack([e.accepted, e.token]) for e in examinations]
    return [(int(accepted), int(token)) for accepted, token in xp.stack(pairs).tolist()]
