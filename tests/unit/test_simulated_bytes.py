"""What the simulation counts on the wire, message by message."""

from __future__ import annotations

import pytest
import simpy

from netsim.acceptance import Acceptance
from netsim.calls import asked_bytes
from netsim.links import CALL_UP_BYTES, WINDOW_BYTES, LinkModel, wire_bytes
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.times import Models
from netsim.wire import wires
from specwire.v1 import verifier_pb2 as pb

LINK = LinkModel.symmetric(0.1)
HEADERS = LINK.up.header_bytes
PROMPT = 20


@pytest.mark.parametrize(("windows", "more"), [(True, WINDOW_BYTES), (False, 0)])
def test_flow_control_goes_with_the_first_message_after_one_from_the_other_end(
    windows: bool, more: int
) -> None:
    env = simpy.Environment()
    link = LINK.open()
    up, down = wires(env, link, windows=windows)
    arrived: list[str] = []
    up.send(100, arrived.append, "up")
    assert link.up.bytes == wire_bytes(100) + HEADERS
    down.send(100, arrived.append, "down")  # nothing is there yet
    assert link.down.bytes == wire_bytes(100) + HEADERS
    env.run()
    assert arrived == ["up", "down"]
    down.send(100, arrived.append, "down")
    down.send(100, arrived.append, "down")
    assert link.down.bytes == 3 * (wire_bytes(100) + HEADERS) + more


def ran(way: Way, tokens: int, gamma: int | None = None) -> tuple[int, int, int]:
    """Bytes up, messages up after the opening, and draft tokens."""
    models, agrees = Models.constant(0.01, 0.04), Acceptance.steady(1.0)
    scenario = Scenario(LINK, models, agrees, way, gamma=gamma, tokens=tokens, prompt=PROMPT)
    (run,) = simulate(scenario)
    return run.bytes_up, run.messages_up, run.proposed


def test_a_call_for_each_token_weighs_what_a_call_does() -> None:
    (few, calls, _), (many, more, _) = ran(Way.PER_TOKEN, 10), ran(Way.PER_TOKEN, 50)
    assert (calls, more) == (10, 50)
    asked = asked_bytes(b"s" * 16, pb.Proposal(number=5, chain=1, start=5))
    assert asked > CALL_UP_BYTES + 16
    assert (many - few) / 40 == pytest.approx(wire_bytes(asked) + HEADERS, abs=1)


def test_drafts_that_the_cloud_waits_for_bring_their_q() -> None:
    waited, messages, drafted = ran(Way.SYNC, 51, gamma=4)
    fewer, before, less = ran(Way.SYNC, 26, gamma=4)
    # number, chain, start and `continues` take some bytes, and each id two.
    proposal = 10 + (2 + 12) * 4
    assert (drafted - less) / (messages - before) == 4
    expected = wire_bytes(proposal + WINDOW_BYTES) + HEADERS
    assert (waited - fewer) / (messages - before) == pytest.approx(expected, abs=4)
