"""What netem is told of a link, and how a real run is simulated again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_client.policy.estimates import LinkEstimates
from netsim.acceptance import Acceptance
from netsim.links import Direction, LinkModel
from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.loss import Loss
from netsim.real import Arrival, Measured
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.times import Models
from netsim.validation.comparison import (
    BETWEEN_DRAFTS_S,
    Comparison,
    compare,
    forward_times,
    told,
)
from netsim.validation.namespaces import netem
from netsim.validation.observed import Observed


@pytest.mark.parametrize(
    ("direction", "words"),
    [
        (Direction(0.05), "delay 50000us limit 100000"),
        (
            Direction(0.02, Jitter(JitterKind.UNIFORM, 0.004)),
            "delay 24000us 4000us limit 100000",
        ),
        (
            Direction(0.02, Jitter(JitterKind.NORMAL, 0.004)),
            "delay 24000us 2000us distribution normal limit 100000",
        ),
        # 60 kB of queue and 12.5 kB under way, in packets of 1500 bytes.
        (
            Direction(0.1, rate_bit_s=1e6, queue_bytes=60_000),
            "delay 100000us rate 1000000bit limit 50",
        ),
        (Direction(loss=Loss(0.02)), "delay 0us loss random 2.000000% limit 100000"),
        (Direction(loss=Loss(1.0)), "delay 0us loss random 100.000000% limit 100000"),
        # In a stationary state 0.05 = enter / (enter + leave), and runs are 1 / leave = 4 long.
        (
            Direction(loss=Loss(0.05, 4)),
            "delay 0us loss gemodel 1.315789% 25.000000% limit 100000",
        ),
    ],
)
def test_a_direction_in_the_words_of_netem(direction: Direction, words: str) -> None:
    assert " ".join(netem(direction)) == words


@pytest.mark.parametrize(
    ("direction", "lacks"),
    [
        (Direction(outages=Gaps(every_s=20, last_s=8)), "outages"),
        (Direction(handovers=Gaps(every_s=15, last_s=0.1)), "handovers"),
        (Direction(jitter=Jitter(JitterKind.PARETO, 0.01)), "pareto jitter"),
    ],
)
def test_what_netem_has_nothing_like_is_said(direction: Direction, lacks: str) -> None:
    with pytest.raises(ValueError, match=lacks):
        netem(direction)


def record_of(scenario: Scenario, link: LinkEstimates | None = None) -> Observed:
    """A simulated session, told as a real one is: 10 ms drafts, 50 ms + 2 ms a draft token."""
    run = simulate(scenario, link=link)[0]
    knows = scenario.acceptance.draw(scenario.seed)
    record: list[dict[str, object]] = [
        {"draft_knew": knows(position, 0), "position": position, "place": 0}
        for position in range(scenario.tokens)
    ]
    record += [{"draft_s": 0.01 - BETWEEN_DRAFTS_S}] * 20
    record += [
        {"verify_s": 0.05 + 0.002 * count, "queue_s": 0.0, "evaluated": count, "examined": 1}
        for count in (0, 1, 2, 3, 4, 4, 4)
    ]
    measured = Measured(
        scenario.way,
        arrivals=[Arrival(at, "x", "accepted") for at in run.arrivals],
        token_ids=[1] * run.tokens,
        prompt_tokens=scenario.prompt,
        record=record,
    )
    return Observed(measured, scenario.gamma)


@pytest.mark.parametrize("way", [Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD])
def test_a_run_that_follows_the_model_is_simulated_alike(way: Way) -> None:
    link = LinkModel.symmetric(0.05)
    scenario = Scenario(
        link,
        Models.constant(0.01, 0.05, 0.002),
        Acceptance.steady(0.7),
        way,
        gamma=4,
        tokens=64,
    )
    (found,) = compare(link, "relay", [record_of(scenario)] * 3)
    assert found.way is way and len(found.pairs) == 3
    assert found.disagreement == pytest.approx(0.0, abs=0.02)


def test_the_end_of_a_prompt_that_the_verifier_has_to_read_is_simulated() -> None:
    # 21 tokens of it, which take 50 + 20 * 2 ms, where first drafts come after 40 ms.
    scenario = Scenario(
        LinkModel.symmetric(0.001),
        replace(Models.constant(0.01, 0.05, 0.002), prefill_s=0.001),
        Acceptance.steady(0.7),
        Way.SYNC,
        gamma=4,
        tokens=32,
        prompt=40,
    )
    observed = record_of(scenario)
    measured = replace(observed.measured, unread_tokens=21)
    (found,) = compare(scenario.link, "relay", [replace(observed, measured=measured)])
    (without,) = compare(scenario.link, "relay", [observed])
    assert found.disagreement == pytest.approx(0.0, abs=0.01)
    assert without.disagreement > 0.02


def test_streaming_is_timed_by_its_tokens() -> None:
    link = LinkModel.symmetric(0.1)
    arrivals = [Arrival(0.15 + 0.05 * i, "x", "run-ahead") for i in range(64)]
    measured = Measured(Way.STREAM, arrivals=arrivals, token_ids=[1] * 64, prompt_tokens=20)
    (found,) = compare(link, "relay", [Observed(measured, None)])
    assert found.disagreement == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("forwards", "verify", "extra"),
    [
        # As they are: 50 ms, and 2 ms for each draft token.
        ([(0, 0.050), (2, 0.054), (4, 0.058)], 0.050, 0.002),
        ([(4, 0.060), (4, 0.064)], 0.062, 0.0),
        ([(4, 0.062)], 0.062, 0.0),
        # By chance the longer took less: nothing is added, and their mean is what they take.
        ([(0, 0.066), (4, 0.058)], 0.062, 0.0),
        # By chance the shorter took next to nothing: a line through both begins below 0.
        ([(3, 0.010), (4, 0.060)], (4 * 0.010 + 5 * 0.060) / 41, (4 * 0.010 + 5 * 0.060) / 41),
    ],
)
def test_the_line_through_forwards_is_the_nearest_that_can_be(
    forwards: list[tuple[int, float]], verify: float, extra: float
) -> None:
    assert forward_times(forwards) == pytest.approx((verify, 0.0, extra))
    found = verify, extra

    def distance(verify: float, extra: float) -> float:
        return sum((verify + n * extra - s) ** 2 for n, s in forwards)

    nearest = distance(*found)
    for step in (1e-4, -1e-4):
        for base, add in ((found[0] + step, found[1]), (found[0], found[1] + step)):
            assert not 0 <= add <= base or distance(base, add) >= nearest


def test_what_any_draft_adds_to_a_forward_is_told_from_what_each_does() -> None:
    forwards = [(0, 0.040), (0, 0.042), (2, 0.068), (4, 0.070), (6, 0.072)]
    assert forward_times(forwards) == pytest.approx((0.041, 0.025, 0.001))


def test_what_is_told_names_the_furthest() -> None:
    near = Comparison("5g", "relay", Way.SYNC, [(10.0, 10.0), (9.9, 10.0), (30.0, 10.0)])
    far = Comparison("leo", "netem", Way.STREAM, [(8.0, 10.0)])
    assert near.disagreement == 0.0
    lines = "\n".join(told([near, far]))
    assert "furthest apart: stream over leo (netem), -20.0%; on average 10.0%" in lines
