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

from specwire.acceptance import (
    Examination,
    accepts,
    coupled_noise,
    examine_coupled,
    examine_greedy,
    examine_rejection,
    rejection_noise,
    target_token,
)
from specwire.arrays import like, namespace
from specwire.cloud_session import Outcome, Work
from specwire.errors import Exhausted, SpecwireError, TargetFault
from specwire.ports import Step, TargetBackend
from specwire.qrow import stack_rows
from specwire.request import SessionRequest
from specwire.sampling import History, distribution, greedy_tokens, raw_logprobs
from specwire.v1 import verifier_pb2 as pb
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

    prefilled: committed tokens evaluated, but for the last of each round. rounds: drafts,
    possibly empty, that were examined.
    """

    results: Sequence[JobResult]
    evicted: frozenset[int]
    forward_s: float
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
            try:
                examination = self._examine(turn.job, turn.job.work, rows)
            except SpecwireError as error:
                outcomes[turn.sequence] = error
            else:
                examined.append((turn, turn.job.work, rows, examination))
        decided = _to_host([examination for *_, examination in examined])
        for (turn, work, rows, _), (accepted, token) in zip(examined, decided, strict=True):
            outcomes[turn.sequence] = Outcome(
                accepted=accepted,
                token=token,
                logprobs=self._logprobs(turn.job, work, rows, accepted, token),
                queue_us=_microseconds(started - turn.job.ready),
                forward_us=_microseconds(forward_s),
            )
        return outcomes

    def _examine(self, job: Job, work: Work, logits: Any) -> Examination:
        request = job.request
        tokens = like(list(work.tokens), logits, "int64")
        seed, start, n = request.seed, work.start, len(work.tokens)
        if request.sampling.greedy:
            return examine_greedy(self._greedy(job, work, logits), tokens)
        coupled = request.mode == pb.VERIFICATION_MODE_COUPLED
        if str(logits.device) == "cpu":
            by_row = self._coupled_by_row if coupled else self._rejection_by_row
            return by_row(job, work, logits)
        p = self._p(job, work.tokens, logits)
        if coupled:
            return examine_coupled(p, tokens, coupled_noise(seed, start, n, p))
        accept_noise, draw_noise = (like(u, p, "float64") for u in rejection_noise(seed, start, n))
        q = stack_rows(work.rows, len(self.vocabulary), p)
        return examine_rejection(p, tokens, q, accept_noise, draw_noise)

    # On the host, rows of p after the first rejection need not be made.

    def _coupled_by_row(self, job: Job, work: Work, logits: Any) -> Examination:
        none = like([], logits, "int64")
        token = none
        for i in range(len(work.tokens) + 1):
            p = self._p(job, work.tokens[:i], logits[i : i + 1])
            noise = coupled_noise(job.request.seed, work.start + i, 0, p)
            _, token = examine_coupled(p, none, noise)
            if i == len(work.tokens) or token != work.tokens[i]:
                break
        return Examination(like(i, logits, "int64"), token)

    def _rejection_by_row(self, job: Job, work: Work, logits: Any) -> Examination:
        n = len(work.tokens)
        accept_noise, draw_noise = rejection_noise(job.request.seed, work.start, n)
        for i in range(n + 1):
            p = self._p(job, work.tokens[:i], logits[i : i + 1])
            q = stack_rows(work.rows[i : i + 1], len(self.vocabulary), p)
            tokens = like(list(work.tokens[i : i + 1]), p, "int64")
            if not accepts(p, tokens, q, like(accept_noise[i : i + 1], p, "float64")).all():
                break
        token = target_token(
            p[0], q.ids.ravel(), q.probs.ravel(), like(draw_noise[i], p, "float64")
        )
        return Examination(like(i, p, "int64"), token)

    def _p(self, job: Job, drafted: Sequence[int], logits: Any) -> Any:
        """p of the last len(logits) positions that `drafted` leads to."""
        history = job.history
        before = len(drafted) - len(logits) + 1
        if history is not None and before > 0:
            history = History(history.prompt, [*history.output, *drafted[:before]])
        return distribution(
            logits,
            job.request.sampling,
            history=history,
            drafted=drafted[max(before, 0) :],
            size=len(self.vocabulary),
            padding_ids=self.vocabulary.padding_ids,
        )

    def _greedy(self, job: Job, work: Work, logits: Any) -> Any:
        return greedy_tokens(
            logits,
            job.request.sampling,
            history=job.history,
            drafted=work.tokens,
            size=len(self.vocabulary),
            padding_ids=self.vocabulary.padding_ids,
        )

    def _logprobs(
        self, job: Job, work: Work, logits: Any, accepted: int, token: int
    ) -> list[pb.TokenLogprobs]:
        top = job.request.logprobs
        if top is None or token < 0:
            return []
        table = raw_logprobs(logits[: accepted + 1], len(self.vocabulary))
        xp = namespace(table)
        committed = [*work.tokens[:accepted], token]
        result = []
        for row, id_ in zip(table, committed, strict=True):
            best = xp.argsort(-row)[:top].tolist() if top else []
            result.append(
                pb.TokenLogprobs(
                    logprob=float(row[id_]),
                    top_ids=best,
                    top_logprobs=[float(row[i]) for i in best],
                )
            )
        return result


def _microseconds(seconds: float) -> int:
    # As the protocol's 32 bits hold them.
    return min(max(0, int(seconds * 1e6)), (1 << 32) - 1)


def _to_host(examinations: Sequence[Examination]) -> list[tuple[int, int]]:
    if not examinations:
        return []
    xp = namespace(examinations[0].accepted)
    pairs = [xp.stack([e.accepted, e.token]) for e in examinations]
    return [(int(accepted), int(token)) for accepted, token in xp.stack(pairs).tolist()]
