"""Steering where draft and target share their cores: draft in turn, or not at all."""

from __future__ import annotations

import pytest

from edge_client.options import Mode
from edge_client.policy.estimates import LinkEstimates
from edge_client.policy.speed import Way
from edge_client.steering import PROBE_AFTER, Steering
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb

TARGET_S = 0.05


def link(draft_s: float, extra_s: float) -> LinkEstimates:
    """What is known after some rounds with and without drafts."""
    known = LinkEstimates(taking_turns=True)
    for _ in range(8):
        known.add_forward(0, TARGET_S)
        known.add_draft(draft_s)
        known.rtt.add(0.0005)
    for examined in (1, 2, 4) * 8:
        known.add_forward(examined, TARGET_S + examined * extra_s)
    return known


def begun(known: LinkEstimates, mode: Mode = Mode.AUTO) -> tuple[Steering, EdgeSession]:
    request = SessionRequest((1, 2), seed=1, max_tokens=500, pacing=pb.PACING_RUN_AHEAD)
    machine = EdgeSession(request, Drafting(gamma=0))
    steering = Steering(
        machine, mode=mode, gamma=None, window=None, limits=Limits(context=999), link=known
    )
    machine.on_opened(
        pb.Opened(
            session_id=b"s", prompt_length=2, frontier=2, max_frontier=502, committed={"start": 2}
        )
    )
    steering.opened()
    return steering, machine


def way(steering: Steering) -> Way:
    return steering.plan.way


def alone(steering: Steering, machine: EdgeSession, tokens: int) -> None:
    """The target writes by itself, as long as no draft is wanted."""
    for number in range(1, tokens + 1):
        verdict = pb.Verdict(
            number=number,
            start=machine.frontier,
            token=5,
            kind=pb.TOKEN_KIND_RUN_AHEAD,
            forward_us=int(TARGET_S * 1e6),
        )
        machine.on_verdict(verdict)
        steering.verdict(verdict, 0.0)
        if steering.plan.way is not Way.STREAM:
            return


def test_a_cheap_draft_is_used_in_turn() -> None:
    steering, machine = begun(link(draft_s=0.005, extra_s=0.002))
    assert way(steering) is Way.SYNC
    assert steering.plan.gamma >= 3
    proposal = machine.next_proposal()
    assert proposal is not None and proposal.pacing == pb.PACING_WAIT  # told at once


@pytest.mark.parametrize("draft_s", [0.005, 0.03])
def test_the_cost_without_drafts_is_measured_first(draft_s: float) -> None:
    steering, machine = begun(LinkEstimates(taking_turns=True))
    assert way(steering) is Way.STREAM
    alone(steering, machine, 20)
    assert way(steering) is Way.SYNC
    assert machine.frontier == 2 + 4


def test_a_draft_that_could_not_pay_is_not_tried_again() -> None:
    steering, machine = begun(link(draft_s=0.8 * TARGET_S, extra_s=0.4 * TARGET_S))
    alone(steering, machine, 5 * PROBE_AFTER)
    assert way(steering) is Way.STREAM


def test_a_draft_that_might_pay_is_tried_now_and_then() -> None:
    # It pays with nearly all accepted, and not with the four in five that are expected.
    steering, machine = begun(link(draft_s=0.75 * TARGET_S, extra_s=0.05 * TARGET_S))
    assert way(steering) is Way.STREAM
    alone(steering, machine, 5 * PROBE_AFTER)
    assert way(steering) is Way.SYNC
    assert machine.frontier == 2 + PROBE_AFTER


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD])
def test_a_fixed_mode_is_honoured(mode: Mode) -> None:
    steering, _ = begun(link(draft_s=0.8 * TARGET_S, extra_s=0.0), mode)
    assert str(steering.plan.way) == str(mode)
