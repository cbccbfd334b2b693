"""The cloud of a simulation: one target, which examines all that is ready in one forward."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import simpy

from cloud_verifier.draft_share import Accepted, DraftShare
from netsim.times import Models
from specwire.cloud_session import CloudSession, Outcome, Work
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

_FIRST, _SIZE = 1000, 64
"""Tokens that occur: as on most real texts, their ids take two bytes."""
_NAMES = [f"t{i}" for i in range(_FIRST + _SIZE)]
VOCABULARY = Vocabulary(_NAMES, [name.encode() for name in _NAMES], frozenset())
PROMPT = (1,)
"""Of every session; how long it is said to be only counts in time."""


def target_token(position: int) -> int:
    """The target's token at an absolute position."""
    return _FIRST + position * 7 % _SIZE


def draft_token(position: int, knows: bool) -> int:
    """The draft's token there: the target's, or another one."""
    return _FIRST + (position * 7 + (not knows)) % _SIZE


@dataclass(eq=False)
class Seat:
    """One session at the verifier.

    send: takes frames that leave for the edge. prompt: its length in tokens. forwards: rounds
    of its own in them. share: of those forwards, each divided among the sessions in it. ready:
    since when there is work for the next forward; None while there is none. reading: from when
    to when its prompt was read in a forward that had no round of its own, if it was.
    """

    session: CloudSession
    send: Callable[[list[pb.CloudFrame]], None]
    prompt: int
    ready: float | None = None
    forwards: int = 0
    share: float = 0.0
    reading: tuple[float, float] | None = None
    verified: list[tuple[float, float, Work]] = field(default_factory=list)
    drafts: Accepted = field(default_factory=Accepted)


class Verifier:
    """Runs forwards one after the other, each with every session that has work.

    A prompt that takes time is read as soon as its session is there, in one forward with
    whatever is ready then, be it a round of the same session or nothing else.

    alone: only one session will ever be seated, so that nothing is shared out.
    trace: note each forward in `Seat.verified` or `Seat.reading`.
    """

    def __init__(
        self, env: simpy.Environment, models: Models, seed: int, *, alone: bool, trace: bool
    ) -> None:
        self._env = env
        self._models = models
        self._verify = models.verify.sampler(random.Random(f"verify {seed}"))
        self._alone = alone
        self._trace = trace
        self._seats: list[Seat] = []
        self._unread: list[Seat] = []
        self._share = DraftShare()
        self._idle: simpy.Event | None = None
        env.process(self._run())

    def seat(self, seat: Seat) -> None:
        """Take a session in."""
        self._seats.append(seat)
        if self._models.prefill_s and seat.prompt:
            self._unread.append(seat)
        self.wake(seat)

    def wake(self, seat: Seat) -> None:
        """Something arrived for a session."""
        if not seat.session.has_work():
            seat.ready = None  # what arrived showed that what was there is of no use
        elif seat.ready is None:
            seat.ready = self._env.now
        if self._idle is not None and (seat.ready is not None or self._unread):
            idle, self._idle = self._idle, None
            idle.succeed()

    def _batch(self, unread: list[Seat], prompts: int) -> list[tuple[Seat, Work]]:
        seats = [seat for seat in self._seats if seat.ready is not None]
        if len(seats) == 1 and not unread:  # nothing to share out; as nearly always, so it is quick
            (seat,) = seats
            work = seat.session.next_work()
            return [] if work is None else [(seat, work)]
        drafts = self._share.of(
            [(s.session.drafts_at_hand, s.drafts.alpha) for s in seats],
            others=sum(seat.ready is None for seat in unread),
            fixed=prompts,
        )
        works = [
            (seat, seat.session.next_work(most)) for seat, most in zip(seats, drafts, strict=True)
        ]
        return [(seat, work) for seat, work in works if work is not None]

    def _run(self) -> Generator[simpy.Event, None, None]:
        env = self._env
        while True:
            unread = self._unread
            if unread:  # once a session
                self._unread = []
            prompts = sum(seat.prompt for seat in unread) if unread else 0
            batch = self._batch(unread, prompts)
            if not batch and not unread:
                self._idle = env.event()
                yield self._idle
                continue
            seconds = self._seconds(batch, prompts)
            began = env.now
            alone = [seat for seat in unread if seat.ready is None] if self._trace else ()
            yield env.timeout(seconds)
            for seat in alone:
                seat.reading = began, env.now
            for seat, work in batch:
                seat.forwards += 1
                seat.share += 1 / len(batch)
                if self._trace:
                    seat.verified.append((began, env.now, work))
                queue = began - (began if seat.ready is None else seat.ready)
                outcome = _examine(work, seconds, queue)
                frames = seat.session.complete(work, outcome, env.now)
                if not self._alone:
                    verdict = frames[0].verdict
                    seat.drafts.add(verdict.examined, verdict.accepted)
                seat.send(frames)
                seat.ready = env.now if seat.session.has_work() else None
                if seat.session.ended:
                    self._seats.remove(seat)

    def _seconds(self, batch: list[tuple[Seat, Work]], prompts: int) -> float:
        """How long a forward takes with so many prompt tokens, and learn from it."""
        models = self._models
        drafts = sum([len(work.tokens) for _, work in batch])
        seconds = self._verify() + models.overhead_s + prompts * models.prefill_s
        if batch:
            seconds += models.further_s(len(batch), drafts)
            if not self._alone:
                tokens = len(batch) + drafts + prompts
                self._share.learn(tokens, seconds, prefilled=prompts)
        return max(seconds, 0.0)


def _examine(work: Work, seconds: float, queue: float) -> Outcome:
    accepted, start = 0, work.start
    for token in work.tokens:
        if token != target_token(start + accepted):
            break
        accepted += 1
    return Outcome(
        accepted,
        target_token(start + accepted),
        queue_us=int(queue * 1e6),
        forward_us=int(seconds * 1e6),
    )
