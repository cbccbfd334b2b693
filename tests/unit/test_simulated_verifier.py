"""The simulated verifier, fed by hand."""

from __future__ import annotations

from dataclasses import replace

import simpy

from netsim.simulation import LIMITS
from netsim.times import Models
from netsim.verifier import PROMPT, VOCABULARY, Seat, Verifier, draft_token
from specwire.cloud_session import CloudSession
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

FIRST = len(PROMPT)


class Hands:
    """A verifier whose forwards take a second, and sessions at it that are fed by hand."""

    def __init__(self, models: Models | None = None, *, alone: bool = True) -> None:
        self.env = simpy.Environment()
        models = models or Models.constant(0.0, 1.0)
        self.verifier = Verifier(self.env, models, 0, alone=alone, trace=True)
        self.sent: list[pb.CloudFrame] = []

    def seat(self, pacing: pb.Pacing, prompt: int = 0) -> Seat:
        request = SessionRequest(
            prompt=PROMPT,
            seed=1,
            max_tokens=8,
            sampling=SamplingParams(temperature=0.0),
            mode=pb.VERIFICATION_MODE_COUPLED,
            pacing=pacing,
        )
        seat = Seat(CloudSession(request, VOCABULARY, LIMITS), self.sent.extend, prompt)
        self.verifier.seat(seat)
        return seat

    def propose(self, seat: Seat, number: int, chain: int, start: int, *tokens: int) -> None:
        seat.session.receive(pb.Proposal(number=number, chain=chain, start=start, tokens=tokens))
        self.verifier.wake(seat)


def test_drafts_that_a_later_chain_makes_useless_leave_nothing_to_examine() -> None:
    hands = Hands()
    seat = hands.seat(pb.PACING_WAIT)
    hands.env.run(until=1.0)
    hands.propose(seat, 1, 1, FIRST)
    hands.env.run(until=3.0)
    assert [(work.start, work.tokens) for _, _, work in seat.verified] == [(FIRST, ())]

    hands.propose(seat, 2, 2, FIRST + 1, draft_token(FIRST + 1, True))
    ready = [seat.ready]
    hands.propose(seat, 3, 3, FIRST, draft_token(FIRST, False))
    assert [*ready, seat.ready] == [3.0, None]

    hands.env.run(until=5.0)
    assert seat.forwards == 1
    hands.propose(seat, 4, 4, FIRST + 1, draft_token(FIRST + 1, True))
    hands.env.run(until=6.5)
    assert (seat.forwards, seat.session.frontier) == (2, FIRST + 3)


def test_where_drafts_are_waited_for_the_prompt_is_read_before_and_they_wait_for_that() -> None:
    hands = Hands(replace(Models.constant(0.0, 1.0), prefill_s=0.1))
    seat = hands.seat(pb.PACING_WAIT, prompt=10)
    hands.env.run(until=0.5)
    hands.propose(seat, 1, 1, FIRST, draft_token(FIRST, True))
    hands.env.run(until=4.0)
    assert (seat.reading, seat.forwards) == ((0.0, 2.0), 1)
    assert [(began, ended) for began, ended, _ in seat.verified] == [(2.0, 3.0)]
    (verdict,) = (frame.verdict for frame in hands.sent)
    assert (verdict.queue_us, verdict.forward_us) == (1_500_000, 1_000_000)


def test_a_cloud_that_does_not_wait_reads_the_prompt_in_its_first_round() -> None:
    hands = Hands(replace(Models.constant(0.0, 1.0), prefill_s=0.1))
    seat = hands.seat(pb.PACING_RUN_AHEAD, prompt=10)
    hands.env.run(until=3.5)
    assert seat.reading is None
    assert [(began, ended) for began, ended, _ in seat.verified] == [(0.0, 2.0), (2.0, 3.0)]


def test_a_prompt_that_is_known_takes_no_forward() -> None:
    hands = Hands()
    seat = hands.seat(pb.PACING_WAIT, prompt=10)
    hands.env.run(until=0.5)
    hands.propose(seat, 1, 1, FIRST)
    hands.env.run(until=2.0)
    assert seat.reading is None
    assert [(began, ended) for began, ended, _ in seat.verified] == [(0.5, 1.5)]


def test_a_prompt_is_read_beside_the_rounds_of_others() -> None:
    hands = Hands(replace(Models.constant(0.0, 1.0), prefill_s=0.1), alone=False)
    decoding = hands.seat(pb.PACING_RUN_AHEAD)
    hands.env.run(until=0.5)
    waiting = hands.seat(pb.PACING_WAIT, prompt=10)
    hands.env.run(until=3.5)
    assert waiting.reading == (1.0, 3.0)
    assert [(began, ended) for began, ended, _ in decoding.verified] == [(0.0, 1.0), (1.0, 3.0)]
