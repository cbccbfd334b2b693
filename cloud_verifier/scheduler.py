"""Decides what the model thread does next: rounds that are ready, and prefill between them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cloud_verifier.draft_share import DraftShare
from cloud_verifier.engine import Engine, Job, JobResult, RunResult
from cloud_verifier.logs import about
from cloud_verifier.observe import SILENT, Observer, Round
from cloud_verifier.prefill import ALONE, PrefillShare
from cloud_verifier.sessions import LiveSession, SessionTable
from specwire.cloud_session import Work
from specwire.errors import SpecwireError, TargetFault
from specwire.limits import Limits
from specwire.sampling import History
from specwire.v1 import verifier_pb2 as pb

logger = logging.getLogger(__name__)

_LATELY_S = 2.0
"""Who had a verdict less than this ago is likely to send its next drafts soon."""


@dataclass
class _Share:
    """What a session gets of a forward.

    prefill: tokens to be cached before the round, or instead of one. work: the round's.
    """

    session: LiveSession
    prefill: int
    examines: bool
    work: Work | None = None

    @property
    def at_hand(self) -> tuple[int, float | None]:
        """The draft tokens that could be examined, and how often they are accepted.

        None in place of that where all are examined, whatever they cost: a call gets one
        verdict, and where the text follows drafts it must not follow the load.
        """
        session = self.session
        whole = session.calls or session.state.follows_drafts
        return session.state.drafts_at_hand, None if whole else session.drafts.alpha


class Scheduler:
    """Feeds the engine from the session table.

    Sessions and their state belong to the event loop; the engine belongs to one
    thread. Between them go jobs and results, both immutable.
    """

    def __init__(self, engine: Engine, limits: Limits, observer: Observer = SILENT) -> None:
        self.sessions = SessionTable(limits, self._release)
        self._engine = engine
        self._observer = observer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="target")
        self._wake = asyncio.Event()
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self._prefill = PrefillShare()
        self._drafts = DraftShare()
        self._turns = itertools.count(1)

    def start(self, on_failure: Callable[[], None] = lambda: None) -> None:
        """Begin to run rounds, on the running event loop.

        `on_failure` is called if that ends by a fault, which only an error in this
        software can be: no round will run any more.
        """

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                logger.critical("the scheduler has failed", exc_info=task.exception())
                on_failure()

        self._task = asyncio.create_task(self._run(), name="scheduler")
        self._task.add_done_callback(ended)

    async def drain(self) -> None:
        """Begin no forward any more; return when the verdicts of the last one are delivered."""
        self._draining = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Let the round in the model thread end, and run no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    def wake(self, session: LiveSession) -> None:
        """Say that a session may have become ready."""
        _note_waiting(session)
        self._wake.set()

    def idle(self, session: LiveSession) -> bool:
        """Whether nothing more will come for a session without another frame."""
        return not session.running and not session.state.has_work()

    async def _run(self) -> None:
        while not self._draining:
            batch = self._collect()
            if not batch:
                await self._wake.wait()
                self._wake.clear()
                continue
            done = await self._forward([job for _, job in batch])
            if done.sessions:
                self._observer.forward_ended(done.sessions, done.forward_s)
            self._forget_evicted(done.evicted)
            for (session, job), result in zip(batch, done.results, strict=True):
                self._finish(session, job, result, done.sessions)

    async def _forward(self, jobs: list[Job]) -> RunResult:
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._thread, self._engine.run, jobs)
        self._prefill.learn(done.forward_s, prefilled=done.prefilled, rounds=done.rounds)
        if done.rounds:
            self._drafts.learn(done.evaluated, done.forward_s, prefilled=done.prefilled)
        return done

    def _forget_evicted(self, handles: frozenset[int]) -> None:
        if handles:
            for session in self.sessions:
                if session.sequence in handles:
                    session.sequence, session.cached = None, 0
                    session.displaced = True

    def _collect(self) -> list[tuple[LiveSession, Job]]:
        """Every session that is ready, as far as there is prefill to share out."""
        ready = [s for s in self.sessions if s.outbox is not None and not s.state.ended]
        budget = self._prefill.tokens if self._in_conversation(ready) else ALONE
        chosen: list[_Share] = []
        wanting = self._in_turn(ready)
        for session in wanting:
            missing = max(self._missing(session), 0)
            examines = missing <= max(budget, 0) and session.state.has_work()
            if examines or (missing > 0 and budget > 0):
                prefill = missing if examines else min(missing, budget)
                chosen.append(_Share(session, prefill, examines))
                budget -= prefill
        rounds = [share for share in chosen if share.examines]
        drafts = self._drafts.of(
            [share.at_hand for share in rounds],
            others=len(wanting) - len(rounds),
            fixed=sum(share.prefill for share in chosen),
        )
        for share, most in zip(rounds, drafts, strict=True):
            share.work = share.session.state.next_work(most)
        for share in chosen:
            share.session.running = True
        return [(share.session, _job(share)) for share in chosen]

    def _in_turn(self, ready: list[LiveSession]) -> list[LiveSession]:
        """Those that want something, in the order in which room is given.

        First one session of each client, then a second of each, and so on: whoever has
        many takes no more from the others than who has one. Among clients, and among the
        sessions of one, those come first that have waited longest for their turn.
        """
        latest: Counter[str] = Counter()
        for session in self.sessions:
            latest[session.owner] = max(latest[session.owner], session.turn)
        before: Counter[str] = Counter()
        places = []
        for session in sorted(filter(self._wants, ready), key=lambda s: s.turn):
            places.append((before[session.owner], latest[session.owner], session))
            before[session.owner] += 1
        return [session for *_, session in sorted(places, key=lambda place: place[:2])]

    def _wants(self, session: LiveSession) -> bool:
        # What was driven out is rebuilt when it is needed: idle sessions that rebuilt theirs
        # at once would drive each other out for ever.
        return session.state.has_work() or (self._missing(session) > 0 and not session.displaced)

    def _in_conversation(self, ready: list[LiveSession]) -> bool:
        """Whether a session has a round to run, or may have one before a forward ends."""
        lately = time.perf_counter() - _LATELY_S
        return any(
            self._missing(s) <= 0 and (s.state.has_work() or s.ready_since > lately) for s in ready
        )

    def _missing(self, session: LiveSession) -> int:
        # The last committed token is evaluated in the round itself.
        return session.state.frontier - 1 - session.cached

    def _finish(self, session: LiveSession, job: Job, result: JobResult, batch: int) -> None:
        session.running = False
        session.sequence, session.cached = result.sequence, result.cached
        if session.state.ended:  # closed while the model ran
            self._release(session)
            return
        if result.put_off:
            session.state.abandon_work()
            session.displaced = True
            return
        session.state.note_shared_prompt(result.shared)
        # Where memory is short, prefill that went to the back of the queue between its
        # parts could lose the first before it comes to the last, for ever.
        if job.work is not None or not session.displaced:
            session.turn = next(self._turns)
            session.displaced = False
        try:
            self._apply(session, job, result, batch)
        except Exception:
            # A fault of ours ends this session's stream, not everybody's rounds.
            logger.exception("a round could not be completed")
            self._fail(session, TargetFault("the verifier failed unexpectedly; see its log"))
        session.waiting = session.waiting and job.work is None
        _note_waiting(session)
        self._settle(session)

    def _apply(self, session: LiveSession, job: Job, result: JobResult, batch: int) -> None:
        if result.error is not None:
            self._fail(session, result.error)
        elif job.work is not None and result.outcome is not None:
            try:
                frames = session.state.complete(job.work, result.outcome, time.perf_counter())
            except SpecwireError as error:
                self._fail(session, error)
                return
            session.deliver(frames)
            self._tell(session, job, frames, batch)

    def _tell(
        self, session: LiveSession, job: Job, frames: list[pb.CloudFrame], batch: int
    ) -> None:
        ended = time.perf_counter()
        for frame in frames:
            if frame.WhichOneof("kind") == "verdict":
                session.drafts.add(frame.verdict.examined, frame.verdict.accepted)
                self._observer.round_ended(
                    Round(session.id, frame.verdict, job.ready, ended, batch)
                )
        self._tell_stale(session)

    def _tell_stale(self, session: LiveSession) -> None:
        fresh = session.state.stale - session.stale_told
        if fresh > 0:
            session.stale_told = session.state.stale
            self._observer.drafts_stale(fresh)

    def _settle(self, session: LiveSession) -> None:
        if session.state.ended:
            self._release(session)
            usage = session.state.usage()
            logger.info(
                "session ended",
                extra=about(
                    session.id,
                    rounds=usage.rounds,
                    output_tokens=usage.output_tokens,
                    examined=usage.examined,
                    accepted=usage.accepted,
                ),
            )
        elif session.half_closed and session.outbox is not None and self.idle(session):
            session.outbox.end()

    def _fail(self, session: LiveSession, error: SpecwireError) -> None:
        error.frontier = session.state.frontier
        session.state.abandon_work()
        session.cached = 0
        self._release(session)
        if session.outbox is not None:
            session.outbox.fail(error)
            session.detach(session.outbox)

    def _release(self, session: LiveSession) -> None:
        """Give the session's cache back; the session itself may stay."""
        self._tell_stale(session)
        if session.sequence is not None and not session.running:
            self._thread.submit(self._engine.close, session.sequence)
            session.sequence = None
            session.cached = 0


def _job(share: _Share) -> Job:
    session, state, work = share.session, share.session.state, share.work
    keep = min(session.cached, state.frontier - 1)
    # The last committed token is evaluated in the round itself.
    stop = keep + share.prefill if work is None else state.frontier
    return Job(
        sequence=session.sequence,
        prefix=state.committed(0, state.frontier) if session.sequence is None else (),
        keep=keep,
        tokens=state.committed(keep, stop),
        work=work,
        request=state.request,
        history=_history(session, work),
        ready=session.ready_since,
    )


def _note_waiting(session: LiveSession) -> None:
    """A round that waits already goes on waiting, whatever came since."""
    if not session.waiting:
        session.ready_since = time.perf_counter()
        session.waiting = session.state.has_work()


def _history(session: LiveSession, work: Work | None) -> History | None:
    request = session.state.request
    if work is None or not request.sampling.penalises:
        return None
    return History(request.prompt, tuple(session.state.output))
