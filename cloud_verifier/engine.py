"""One target forward for a batch of sessions, and the examination of their drafts.

The engine owns the backend and runs in one thread. It knows nothing of sessions
or frames: jobs go in, results come out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specwire.acceptance import (
    Examination,
    coupled_noise,
    examine_coupled,
    examine_rejection,
    rejection_noise,
)
from specwire.arrays import like, namespace
from specwire.cloud_session import Outcome, Work
from specwire.errors import SpecwireError
from specwire.ports import Step, TargetBackend
from specwire.qrow import stack_rows
from specwire.request import SessionRequest
from specwire.sampling import History, distribution, raw_logprobs
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One session's share of a forward.

    sequence: the backend's handle, None to begin one. keep: cached tokens that are committed.
    tokens: committed tokens that are not cached yet, at least one.
    work: the drafts to examine after them; None only fills the cache.
    history: of the first drafted position, for penalties.
    ready: when the job became ready, in seconds of time.perf_counter.
    """

    sequence: int | None
    keep: int
    tokens: Sequence[int]
    work: Work | None
    request: SessionRequest
    history: History | None
    ready: float


@dataclass(frozen=True)
class JobResult:
    """sequence: the backend's handle. cached: committed tokens now in its cache.

    A job with work has either outcome or error.
    """

    sequence: int | None
    cached: int
    outcome: Outcome | None = None
    error: SpecwireError | None = None


class Engine:
    """Runs jobs on a target backend. Every method belongs to the model thread."""

    def __init__(self, backend: TargetBackend) -> None:
        self._backend = backend

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens."""
        return self._backend.vocabulary

    def close(self, sequence: int) -> None:
        """Free a sequence."""
        self._backend.close(sequence)

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """One forward for all jobs; a fault of one session's row is that session's alone."""
        handles, fresh = [], []
        for job in jobs:
            if job.sequence is None:
                fresh.append(self._backend.open())
            handles.append(fresh[-1] if job.sequence is None else job.sequence)
        started = time.perf_counter()
        try:
            logits = self._backend.forward(
                [_step(job, handle) for job, handle in zip(jobs, handles, strict=True)]
            )
        except BaseException:
            for handle in fresh:
                self._backend.close(handle)
            raise
        timing = (started, int((time.perf_counter() - started) * 1e6))
        return [
            self._result(job, handle, rows, timing)
            for job, handle, rows in zip(jobs, handles, logits, strict=True)
        ]

    def _result(self, job: Job, sequence: int, logits: Any, timing: tuple[float, int]) -> JobResult:
        started, forward_us = timing
        cached = job.keep + len(job.tokens)
        if job.work is None:
            return JobResult(sequence, cached)
        try:
            examination = self._examine(job, job.work, logits)
        except SpecwireError as error:
            return JobResult(sequence, cached, error=error)
        accepted, token = int(examination.accepted), int(examination.token)
        outcome = Outcome(
            accepted=accepted,
            token=token,
            logprobs=self._logprobs(job, job.work, logits, accepted, token),
            queue_us=max(0, int((started - job.ready) * 1e6)),
            forward_us=forward_us,
        )
        return JobResult(sequence, cached + accepted, outcome)

    def _examine(self, job: Job, work: Work, logits: Any) -> Examination:
        request, count = job.request, len(work.tokens)
        p = distribution(
            logits,
            request.sampling,
            history=job.history,
            drafted=work.tokens,
            size=len(self.vocabulary),
            padding_ids=self.vocabulary.padding_ids,
        )
        tokens = like(list(work.tokens), p, "int64")
        if request.mode == pb.VERIFICATION_MODE_COUPLED:
            noise = coupled_noise(request.seed, work.start, count, p)
            return examine_coupled(p, tokens, noise)
        accept_noise, draw_noise = rejection_noise(request.seed, work.start, count)
        return examine_rejection(
            p,
            tokens,
            stack_rows(work.rows, len(self.vocabulary), p),
            like(accept_noise, p, "float64"),
            like(draw_noise, p, "float64"),
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


def _step(job: Job, sequence: int) -> Step:
    drafts = job.work.tokens if job.work is not None else ()
    return Step(
        sequence=sequence,
        keep=job.keep,
        tokens=[*job.tokens, *drafts],
        rows=len(drafts) + 1,
    )
