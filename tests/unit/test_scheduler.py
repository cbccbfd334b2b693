"""Whose turn it is: fairness, prefill beside rounds, short memory, and what is given back."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud_verifier import engine as engine_module
from cloud_verifier import scheduler as scheduler_module
from cloud_verifier.engine import Engine
from cloud_verifier.observe import SILENT, Observer, Round, Silent
from cloud_verifier.prefill import ALONE
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import LiveSession, Outbox
from specwire.cloud_session import CloudSession
from specwire.errors import TargetFault
from specwire.limits import Limits
from specwire.ports import Step
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from tests.support.drafter import Drafter, Stream, open_frame, persist, until
from tests.support.serving import serving, stub_for
from tests.support.tables import TableBackend, random_table
from tests.support.tiny_models import write_tiny_gguf

SIZE = 6
TABLE = random_table(SIZE, seed=3)
LIMITS = Limits(context=20_000)
PATIENCE_S = 30.0


class Clock:
    """A clock that only forwards move, so that times are exact on any machine."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Device(TableBackend):
    """A table on a device with little memory, whose time grows with the tokens it evaluates.

    base_s, token_s: of a forward and of each token in it. memory: tokens.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        base_s: float = 0.02,
        token_s: float = 0.001,
        memory: int = 1 << 30,
    ) -> None:
        super().__init__(TABLE, context=LIMITS.context)
        self.batches: list[list[Step]] = []
        self.failing = False
        self._clock, self._base_s, self._token_s, self._memory = clock, base_s, token_s, memory

    def fits(self, steps: Sequence[Step]) -> bool:
        held = {handle: len(tokens) for handle, tokens in self._sequences.items()}
        held.update({step.sequence: step.keep + len(step.tokens) for step in steps})
        return sum(held.values()) <= self._memory

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        if self.failing:
            raise RuntimeError("the device is gone")
        self.batches.append(list(steps))
        self._clock.now += self.time_of(steps)
        return super().forward(steps)

    def time_of(self, steps: Sequence[Step]) -> float:
        """What a forward of these steps takes, in seconds."""
        return self._base_s + self._token_s * sum(len(step.tokens) for step in steps)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (engine_module, scheduler_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


@contextlib.asynccontextmanager
async def running(backend: TableBackend, observer: Observer = SILENT) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(Engine(backend), LIMITS, observer)
    scheduler.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield scheduler
    finally:
        await scheduler.stop()


def attached(
    scheduler: Scheduler,
    prompt: Sequence[int],
    *,
    pacing: pb.Pacing = pb.PACING_RUN_AHEAD,
    max_tokens: int = 10_000,
    owner: str = "me",
) -> LiveSession:
    """A session that a stream is attached to."""
    request = SessionRequest(
        tuple(prompt),
        seed=1,
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0.0),
        pacing=pacing,
    )
    state = CloudSession(request, TableBackend(TABLE).vocabulary, LIMITS)
    session = scheduler.sessions.add(owner, state, b"")
    session.attach()
    scheduler.wake(session)
    return session


def greedy(last: int, count: int) -> list[int]:
    tokens = []
    for _ in range(count):
        last = int(TABLE[last].argmax())
        tokens.append(last)
    return tokens


def ask(scheduler: Scheduler, session: LiveSession, number: int) -> None:
    """Ask for one token at the frontier."""
    frontier = session.state.frontier
    session.state.receive(pb.Proposal(number=number, chain=number, start=frontier))
    scheduler.wake(session)


# -------------------------------------------------------------------- fairness


async def test_every_ready_session_is_in_every_forward(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        sessions = [attached(scheduler, [token], max_tokens=40) for token in range(5)]
        await until(lambda: all(session.state.ended for session in sessions))
    assert [len(batch) for batch in backend.batches] == [5] * 40


async def test_where_memory_is_short_those_who_waited_longest_go_first(clock: Clock) -> None:
    backend = Device(clock, memory=70)
    async with running(backend) as scheduler:
        sessions = [attached(scheduler, [t % SIZE] * 20, max_tokens=40) for t in range(7)]
        rounds: list[list[int]] = []

        def noted() -> bool:
            rounds.append([len(s.state.output) for s in sessions])
            return min(rounds[-1]) >= 25

        await until(noted, within_s=20)
        for session in sessions:
            last = session.state.request.prompt[-1]
            assert list(session.state.output) == greedy(last, len(session.state.output))
    # Three fit at a time and a part of another; nobody is more than a turn or two ahead.
    assert max(len(batch) for batch in backend.batches) <= 4
    assert max(max(counts) - min(counts) for counts in rounds) <= 2


@pytest.mark.parametrize(("memory", "others"), [(30, 1), (70, 2)])
async def test_a_client_with_many_sessions_takes_no_more_than_one_with_one(
    clock: Clock, memory: int, others: int
) -> None:
    """With room for one session the two take turns; with room for three, one is always in."""
    backend, ears = Device(clock, memory=memory), Ears()
    async with running(backend, ears) as scheduler:
        many = [attached(scheduler, [t % SIZE] * 20, max_tokens=9) for t in range(6)]
        one = attached(scheduler, [5] * 20, max_tokens=9, owner="other")
        await until(lambda: all(s.state.ended for s in [one, *many]), within_s=20)
    whose = [round.session_id == one.id for round in ears.rounds]
    until_done = whose[: len(whose) - whose[::-1].index(True)]
    assert until_done.count(True) == 9
    assert until_done.count(False) <= 9 * others


async def test_a_prompt_does_not_wait_for_all_those_of_another_client(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        many = [attached(scheduler, [t % 5] * 1_500, max_tokens=1) for t in range(6)]
        one = attached(scheduler, [5] * 1_500, max_tokens=1, owner="other")
        await until(lambda: all(s.state.ended for s in [one, *many]), within_s=20)
    last = max(index for index, batch in enumerate(backend.batches) if _holds(batch, 5))
    steps = [step for batch in backend.batches[: last + 1] for step in batch]
    assert sum(len(step.tokens) for step in steps) <= 2 * 1_500 + ALONE


async def test_long_prompts_that_do_not_fit_together_are_all_served(clock: Clock) -> None:
    """Each must be prefilled in parts, and drives out the others meanwhile."""
    backend = Device(clock, memory=2_000)
    async with running(backend) as scheduler:
        sessions = [attached(scheduler, [t] * 1_300, max_tokens=3) for t in range(4)]
        await until(lambda: all(s.state.ended for s in sessions), within_s=20)
        await until(lambda: backend.sequences == 0)
    assert [list(s.state.output) for s in sessions] == [greedy(t, 3) for t in range(4)]
    assert len(backend.batches) < 300


async def test_a_session_that_lost_its_cache_is_known_to_have(clock: Clock) -> None:
    backend = Device(clock, memory=40)
    async with running(backend) as scheduler:
        idle = attached(scheduler, [1] * 20, pacing=pb.PACING_WAIT)
        ask(scheduler, idle, 1)
        await until(lambda: len(idle.state.output) == 1)
        assert idle.cached == 20
        other = attached(scheduler, [2] * 30, max_tokens=1)
        await until(lambda: other.state.ended)
        assert idle.sequence is None
        assert idle.displaced
        ask(scheduler, idle, 2)
        await until(lambda: len(idle.state.output) == 2)
        assert list(idle.state.output) == greedy(1, 2)


async def test_idle_sessions_do_not_drive_each_other_out_for_ever(clock: Clock) -> None:
    backend = Device(clock, memory=50)
    async with running(backend) as scheduler:
        for token in range(5):
            attached(scheduler, [token] * 20, pacing=pb.PACING_WAIT)
        await until(lambda: len(backend.batches) > 0)
        await asyncio.sleep(0.1)
        assert len(backend.batches) <= 10


# ---------------------------------------------------------------- what is told


class Ears(Silent):
    """Notes forwards, by sessions and seconds, and rounds."""

    def __init__(self) -> None:
        self.forwards: list[tuple[int, float]] = []
        self.rounds: list[Round] = []

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        self.forwards.append((sessions, forward_s))

    def round_ended(self, round: Round) -> None:
        self.rounds.append(round)


async def test_those_put_off_are_not_counted_as_part_of_a_forward(clock: Clock) -> None:
    backend, ears = Device(clock, memory=70), Ears()
    async with running(backend, ears) as scheduler:
        sessions = [attached(scheduler, [t % SIZE] * 20, max_tokens=9) for t in range(7)]
        await until(lambda: all(s.state.ended for s in sessions), within_s=20)
    batches = backend.batches
    assert [count for count, _ in ears.forwards] == [len(batch) for batch in batches]
    assert [s for _, s in ears.forwards] == pytest.approx([backend.time_of(b) for b in batches])
    assert max(round.sessions for round in ears.rounds) == max(len(batch) for batch in batches) < 7


async def test_a_failed_forward_is_not_counted(clock: Clock) -> None:
    backend, ears = Device(clock), Ears()
    backend.failing = True
    async with running(backend, ears) as scheduler:
        session = attached(scheduler, [1])
        await until(lambda: session.outbox is None)
    assert ears.forwards == []


async def test_a_round_waits_from_its_first_proposal_on(clock: Clock) -> None:
    """Later proposals of the chain do not make the queue look shorter than it is."""
    ears = Ears()
    async with running(Device(clock), ears) as scheduler:
        session = attached(scheduler, [1], pacing=pb.PACING_WAIT)
        ask(scheduler, session, 1)
        clock.now += 5.0
        ask(scheduler, session, 2)
        await until(lambda: len(ears.rounds) == 1)
        clock.now += 3.0
        ask(scheduler, session, 3)
        await until(lambda: len(ears.rounds) == 2)
    assert [r.verdict.queue_us / 1e6 for r in ears.rounds] == pytest.approx([5.0, 0.0], abs=1e-3)
    forward_s = [s for _, s in ears.forwards]
    expected = [5.0 + forward_s[0], forward_s[1]]
    assert [r.ended - r.ready for r in ears.rounds] == pytest.approx(expected)


async def test_a_round_that_waits_for_its_prompt_waits_in_the_queue(clock: Clock) -> None:
    backend, ears = Device(clock), Ears()
    async with running(backend, ears) as scheduler:
        session = attached(scheduler, [4] * 1_200, max_tokens=2)
        await until(lambda: session.state.ended)
    parts = [backend.time_of(batch) for batch in backend.batches]
    waited = [r.verdict.queue_us / 1e6 for r in ears.rounds]
    assert waited == pytest.approx([sum(parts[:2]), 0.0], abs=1e-3)


# ---------------------------------------------------------------------- drafts


@pytest.mark.parametrize(("token_s", "examined"), [(0.0, 4.0), (0.05, 0.0)])
async def test_drafts_that_cost_everybody_more_than_they_bring_are_not_examined(
    clock: Clock, token_s: float, examined: float
) -> None:
    ears, wrong = Ears(), 0
    async with running(Device(clock, base_s=0.02, token_s=token_s), ears) as scheduler:
        wait = pb.PACING_WAIT
        sessions = [attached(scheduler, [1, i], pacing=wait) for i in range(4)]
        for number in range(1, 41):
            for session in sessions:
                proposal = pb.Proposal(number=number, chain=number, tokens=[wrong] * 4)
                proposal.start = session.state.frontier
                proposal.point.SetInParent()
                session.state.receive(proposal)
                scheduler.wake(session)
            await until(lambda: not any(session.state.has_work() for session in sessions))
    late = [r.verdict.evaluated for r in ears.rounds[-20:]]
    assert statistics.fmean(late) == pytest.approx(
        examined, abs=1.0
    )  # some are tried, now and then


# --------------------------------------------------------------------- prefill


async def test_decoding_sessions_have_a_round_in_every_forward_of_a_long_prefill(
    clock: Clock,
) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        decoding = [attached(scheduler, [token] * 20) for token in range(3)]
        await until(lambda: all(len(s.state.output) > 20 for s in decoding))
        before = [len(s.state.output) for s in decoding]
        first = len(backend.batches)
        long = attached(scheduler, [4] * 1_000, max_tokens=2)
        await until(lambda: long.state.ended)
        for session in decoding:
            session.state.close()
        rounds = [len(s.state.output) - n for s, n in zip(decoding, before, strict=True)]
    normal = [backend.time_of(batch) for batch in backend.batches[5:first]]
    mixed = [batch for batch in backend.batches[first:] if len(batch) > 3]
    assert len(mixed) > 5  # the prompt went in parts
    assert sum(len(step.tokens) for batch in mixed for step in batch) >= 1_000
    assert all(len(batch) == 4 for batch in mixed)  # nobody is left out beside a part
    assert min(rounds) >= len(mixed)
    # Under run-ahead a round takes as long as the forward that it is in.
    times = [backend.time_of(batch) for batch in mixed]
    assert np.percentile(times, 95) <= 3 * statistics.median(normal)


async def test_clients_between_two_proposals_are_counted_as_decoding(clock: Clock) -> None:
    """Under `wait` nobody has a round at hand just after a verdict: it comes in a moment."""
    backend = Device(clock)
    async with running(backend) as scheduler:
        decoding = [attached(scheduler, [t] * 20, pacing=pb.PACING_WAIT) for t in range(3)]
        stop = False

        async def talk(session: LiveSession) -> None:
            for number in range(1, 500):
                before = len(session.state.output)
                ask(scheduler, session, number)
                while len(session.state.output) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001)  # the way to the client and back
                if stop:
                    return

        talks = [asyncio.create_task(talk(session)) for session in decoding]
        await until(lambda: all(len(s.state.output) > 3 for s in decoding))
        first = len(backend.batches)
        long = attached(scheduler, [4] * 1_000, max_tokens=2)
        await until(lambda: bool(long.state.output), within_s=20)
        stop = True
        await asyncio.gather(*talks)
    parts = [max(len(step.tokens) for step in batch) for batch in backend.batches[first:]]
    assert max(parts) <= 100 < ALONE
    assert sum(part > 10 for part in parts) >= 10


async def test_a_prompt_alone_is_prefilled_in_large_parts(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        long = attached(scheduler, [4] * 1_200, max_tokens=1)
        await until(lambda: long.state.ended)
    assert [len(step.tokens) for batch in backend.batches for step in batch] == [512, 512, 176]


async def test_a_short_prompt_does_not_wait_for_a_long_one(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        talker = attached(scheduler, [1] * 10)
        await until(lambda: len(talker.state.output) > 3)
        long = attached(scheduler, [2] * 4_000, max_tokens=2)
        await until(lambda: long.cached > 200)
        short = attached(scheduler, [3] * 100, max_tokens=2)
        first = len(backend.batches)
        await until(lambda: short.state.ended)
        assert not long.state.output
        turns = [i for i, batch in enumerate(backend.batches[first:]) if _holds(batch, 3)]
        assert turns[-1] < 20
        talker.state.close()
        long.state.close()


def _holds(batch: Sequence[Step], token: int) -> bool:
    """Whether a part of the prompt that repeats `token` is in it."""
    return any(len(step.tokens) > 1 and set(step.tokens) == {token} for step in batch)


# -------------------------------------------------------------- giving it back


async def test_finished_and_dropped_sessions_give_their_sequences_back(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        ended = attached(scheduler, [1], max_tokens=2)
        dropped = attached(scheduler, [2])
        await until(lambda: ended.state.ended and len(dropped.state.output) > 2)
        scheduler.sessions.drop(dropped)
        await until(lambda: backend.sequences == 0)
        assert len(scheduler.sessions) == 1
        assert ended.sequence is None
        assert dropped.sequence is None


async def test_a_failed_forward_ends_streams_but_not_sessions(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        session = attached(scheduler, [1])
        await until(lambda: len(session.state.output) > 2)
        outbox = session.outbox
        assert outbox is not None
        backend.failing = True
        await until(lambda: session.outbox is None)
        with pytest.raises(TargetFault):
            await _drained(outbox)
        await until(lambda: backend.sequences == 0)
        frontier = session.state.frontier
        backend.failing = False
        session.attach()
        scheduler.wake(session)
        await until(lambda: session.state.frontier > frontier + 2)
        output = list(session.state.output)
        assert output == greedy(1, len(output))


async def _drained(outbox: Outbox) -> None:
    while await outbox.get() is not None:
        pass


async def test_a_drained_scheduler_begins_nothing(clock: Clock) -> None:
    backend = Device(clock)
    async with running(backend) as scheduler:
        session = attached(scheduler, [1])
        await until(lambda: len(session.state.output) > 2)
        await scheduler.drain()
        count = len(backend.batches)
        scheduler.wake(session)
        await asyncio.sleep(0.05)
        assert len(backend.batches) == count


# -------------------------------------------------------------- shared prompts


@pytest.fixture(scope="module")
def long_target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    from tests.support.serving import tiny_target

    path: Path = write_tiny_gguf(tmp_path_factory.mktemp("long") / "long.gguf", context=1024)
    return tiny_target(path)


async def test_a_prompt_known_already_costs_no_prefill_in_any_call(long_target: Any) -> None:
    prompt = [3 + (7 * i + i * i) % 200 for i in range(500)]

    def no_draft(ids: list[int], count: int) -> Any:
        return [], []

    frame = open_frame(prompt, max_tokens=4)
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(long_target.backend, long_target.encoder) as server,
        stub_for(server) as stub,
    ):
        first = Drafter(frame, no_draft)
        await persist(stub, first)
        second = Drafter(frame, no_draft)
        await persist(stub, second)
        third = await Stream(stub.Generate(frame)).rest()
        answer = await stub.Verify(
            pb.VerifyRequest(open=frame, proposal=pb.Proposal(number=1, chain=1, start=500))
        )
        usage = (await stub.Close(pb.CloseRequest(session_id=answer.opened.session_id))).usage
    assert first.finished is not None
    assert second.finished is not None
    assert first.output == second.output
    cached = [
        first.finished.usage.cached_prompt_tokens,
        second.finished.usage.cached_prompt_tokens,
        third[-1].finished.usage.cached_prompt_tokens,
        usage.cached_prompt_tokens,
    ]
    assert cached == [0, 496, 496, 496]
