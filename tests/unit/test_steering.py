"""Steering at work: both state machines, a policy between them, and drafts that come and go."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from edge_client.options import GenerateOptions, Mode
from edge_client.policy.choice import Plan
from edge_client.policy.estimates import LinkEstimates
from edge_client.policy.speed import Way
from edge_client.steering import Steering
from specwire.cloud_session import CloudSession, Outcome
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.qrow import point_row
from specwire.request import SessionRequest, read_open
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from tests.support.tables import table_vocabulary

SIZE = 16
LIMITS = Limits(context=4096)
TOKENS = 400
TARGET_S, EXTRA_S, DRAFT_S, RTT_S = 0.05, 0.004, 0.002, 0.001


def target_token(position: int) -> int:
    return position * 7 % SIZE


class Pair:
    """A session at both ends, the edge steered, played until nothing can happen any more.

    draft: the draft's token at a position; None where it has nothing to say.
    """

    def __init__(
        self,
        mode: Mode,
        draft: Callable[[int], int | None],
        *,
        window: int | None = None,
        taking_turns: bool = False,
    ) -> None:
        options = GenerateOptions(
            mode=mode, max_tokens=TOKENS, sampling=SamplingParams(temperature=0.0)
        )
        self.draft = draft
        self.drafting = True
        self.opening = pb.Open(
            protocol_version=1,
            ids={"ids": [1, 2]},
            seed=1,
            sampling=options.sampling.to_proto(),
            max_tokens=TOKENS,
            mode=options.rule,
            pacing=options.pacing,
        )
        self.now = 0.0
        self.longest = self.furthest = 0  # draft tokens in a proposal, and beyond the frontier
        self.link = LinkEstimates(taking_turns=taking_turns)
        self.edge = EdgeSession(self._request(self.opening), Drafting(gamma=0))
        self.steering = Steering(
            self.edge,
            mode=mode,
            gamma=None,
            window=window,
            limits=LIMITS,
            link=self.link,
        )
        self.restart(self.opening)

    @staticmethod
    def _request(frame: pb.Open) -> SessionRequest:
        vocabulary = table_vocabulary(SIZE, frozenset())
        return read_open(frame, [1, 2], seed=1, vocabulary=vocabulary, limits=LIMITS)

    def restart(self, frame: pb.Open) -> None:
        """A verifier that knows nothing is told of the session."""
        self.cloud = CloudSession(self._request(frame), table_vocabulary(SIZE, frozenset()), LIMITS)
        self.edge.on_opened(self.cloud.opened(b"session", "table", with_prompt=False))
        self.steering.opened()

    def lose_draft(self) -> None:
        self.drafting = False
        self.steering.draft_lost()

    def step(self) -> bool:
        """One thing happens; False if nothing can."""
        while (proposal := self.edge.next_proposal()) is not None:
            self.steering.sent(proposal, self.now)
            self.longest = max(self.longest, len(proposal.tokens))
            self.furthest = max(self.furthest, len(self.edge.drafted))
            self.cloud.receive(proposal, self.now)
        if (wanted := self.edge.draft_wanted()) is not None and self.drafting:
            self.now += DRAFT_S
            token = self.draft(wanted.start)
            if token is None:
                self.edge.draft_exhausted(wanted.chain)
                self.steering.exhausted()
            else:
                chance = self.steering.drafted(0.9, DRAFT_S)
                self.edge.add_draft(wanted.chain, token, point_row(token), chance=chance)
            return True
        work = self.cloud.next_work()
        if work is None:
            return False
        right = [target_token(work.start + i) for i in range(len(work.tokens) + 1)]
        agreed = np.array(work.tokens, int) == np.array(right[:-1], int)
        accepted = int(np.logical_and.accumulate(agreed).sum())
        forward = TARGET_S + len(work.tokens) * EXTRA_S
        self.now += forward + RTT_S
        outcome = Outcome(accepted, right[accepted], forward_us=round(forward * 1e6))
        for frame in self.cloud.complete(work, outcome, self.now - RTT_S):
            if frame.HasField("verdict"):
                self.edge.on_verdict(frame.verdict)
                self.steering.verdict(frame.verdict, self.now)
            else:
                self.edge.on_finished(frame.finished)
        return True

    def play(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until the session has ended, or `until` says so; nobody may wait for ever."""
        while self.edge.finished is None and not until():
            assert self.step(), f"both ends wait at {self.edge.frontier}"


@pytest.mark.parametrize("taking_turns", [False, True])
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD])
@pytest.mark.parametrize("at", [2, 40])
def test_a_draft_that_fails_is_not_waited_for(mode: Mode, taking_turns: bool, at: int) -> None:
    pair = Pair(mode, target_token, taking_turns=taking_turns)
    pair.play(lambda: pair.edge.frontier >= at)
    pair.lose_draft()
    pair.play()
    assert pair.steering.plan.way is Way.STREAM and pair.edge.drafting.gamma == 0
    assert pair.edge.pacing == pb.PACING_RUN_AHEAD


def test_a_session_rebuilt_before_the_cloud_heard_that_it_may_wait_goes_on() -> None:
    silent = False
    pair = Pair(Mode.SYNC, lambda position: None if silent else target_token(position))
    pair.play(lambda: pair.edge.frontier >= 40)
    silent = True
    pair.play(lambda: pair.cloud.pacing == pb.PACING_RUN_AHEAD)
    # The draft speaks again; the cloud would hear of it with the next proposal.
    pair.steering.drafted(0.9, DRAFT_S)
    frame = pair.edge.rebuild_frame(pair.opening)
    assert frame.pacing == pb.PACING_WAIT
    pair.restart(frame)
    pair.play()


def test_a_session_resumed_while_it_is_unknown_what_the_cloud_heard_goes_on() -> None:
    silent = False
    pair = Pair(Mode.SYNC, lambda position: None if silent else target_token(position))
    pair.play(lambda: pair.edge.frontier >= 40)
    silent = True
    # That the cloud is to run ahead is sent, and lost with the link.
    pair.play(lambda: pair.edge.pacing == pb.PACING_RUN_AHEAD)
    while pair.edge.next_proposal() is not None:
        pass
    pair.edge.on_opened(pair.cloud.resumed(pair.edge.frontier, b"session", "table"))
    pair.steering.opened()
    pair.steering.drafted(0.9, DRAFT_S)
    pair.play()


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.PIPELINE])
def test_what_a_draft_token_adds_to_a_forward_is_learnt_whatever_is_rejected(mode: Mode) -> None:
    wrong = random.Random(1)
    pair = Pair(mode, lambda position: (target_token(position) + (wrong.random() < 0.4)) % SIZE)
    pair.steering.record = []
    pair.play()
    forward, batch, extra = pair.link.forward_times() or (0.0, 0.0, 0.0)
    assert forward + batch == pytest.approx(TARGET_S, rel=0.1)
    assert extra == pytest.approx(EXTRA_S, rel=0.5)  # little is believed of it at first
    rounds = [item for item in pair.steering.record if "verify_s" in item]
    times = [TARGET_S + item["evaluated"] * EXTRA_S for item in rounds]
    assert [item["verify_s"] for item in rounds] == pytest.approx(times)


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD])
def test_no_more_than_the_window_is_under_way(mode: Mode) -> None:
    pair = Pair(mode, target_token, window=2)
    pair.play()
    assert pair.longest <= 2 and pair.furthest <= 2


def test_a_text_begins_with_what_earlier_ones_taught() -> None:
    link = LinkEstimates()
    link.add_draft(0.01)
    link.add_rtt(0.3)
    for count in (0, 4):
        link.add_forward(count, 0.03)

    def first() -> Plan:
        request = SessionRequest((1, 2), 1, 400, SamplingParams(temperature=0.0))
        machine = EdgeSession(request, Drafting(gamma=0))
        mode, limits = Mode.AUTO, LIMITS
        steering = Steering(machine, mode=mode, gamma=None, window=None, limits=limits, link=link)
        return steering.plan

    def taught(agreed: bool, times: int) -> Plan:
        for _ in range(times):
            link.alpha.add(float(agreed))
        return first()

    assert first().way is Way.RUN_AHEAD  # nothing is known of the draft, and it costs no time
    assert taught(False, 300).way is Way.STREAM
    assert taught(True, 300).way is Way.RUN_AHEAD
