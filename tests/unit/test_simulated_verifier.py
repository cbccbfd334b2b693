"""The simulated verifier, fed by hand."""

from __future__ import annotations

import simpy

from netsim.simulation import LIMITS
from netsim.times import Models
from netsim.verifier import PROMPT, VOCABULARY, Seat, Verifier, draft_token
from specwire.cloud_session import CloudSession
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

FIRST = len(PROMPT)


def test_drafts_that_a_later_chain_makes_useless_leave_nothing_to_examine() -> None:
    env = simpy.Environment()
    request = SessionRequest(
        prompt=PROMPT,
        seed=1,
        max_tokens=8,
        sampling=SamplingParams(temperature=0.0),
        mode=pb.VERIFICATION_MODE_COUPLED,
        pacing=pb.PACING_WAIT,
    )
    seat = Seat(CloudSession(request, VOCABULARY, LIMITS), lambda frames: None, prompt=0)
    verifier = Verifier(env, Models.constant(0.0, 1.0), 0, alone=True, trace=True)

    def receive(number: int, chain: int, start: int, *tokens: int) -> None:
        seat.session.receive(pb.Proposal(number=number, chain=chain, start=start, tokens=tokens))
        verifier.wake(seat)

    verifier.seat(seat)
    env.run(until=1.0)
    receive(1, 1, FIRST)
    env.run(until=3.0)
    assert [(work.start, work.tokens) for _, _, work in seat.verified] == [(FIRST, ())]

    receive(2, 2, FIRST + 1, draft_token(FIRST + 1, True))
    ready = [seat.ready]
    receive(3, 3, FIRST, draft_token(FIRST, False))
    assert [*ready, seat.ready] == [3.0, None]

    env.run(until=5.0)
    assert seat.forwards == 1
    receive(4, 4, FIRST + 1, draft_token(FIRST + 1, True))
    env.run(until=6.5)
    assert (seat.forwards, seat.session.frontier) == (2, FIRST + 3)
