"""What netem is told of a link, and how a real run is simulated again."""

from __future__ import annotations

import pytest

from netsim.acceptance import Acceptance
from netsim.links import Direction, LinkModel
from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.loss import Loss
from netsim.real import Arrival, Measured
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.times import Models
from netsim.validation.comparison import Comparison, compare, told
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


def record_of(scenario: Scenario) -> Observed:
    """A simulated session, told as a real one is: 10 ms drafts, 50 ms + 2 ms a draft token."""
    run = simulate(scenario)[0]
    knows = scenario.acceptance.draw(scenario.seed)
    record: list[dict[str, object]] = [
        {"draft_knew": knows(position, 0), "position": position, "place": 0}
        for position in range(scenario.tokens)
    ]
    record += [{"draft_s": 0.01}] * 20
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
    return Observed(measured, scenario.gamma, 0.0)


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


def test_streaming_is_timed_by_its_tokens() -> None:
    link = LinkModel.symmetric(0.1)
    arrivals = [Arrival(0.15 + 0.05 * i, "x", "run-ahead") for i in range(64)]
    measured = Measured(Way.STREAM, arrivals=arrivals, token_ids=[1] * 64, prompt_tokens=20)
    (found,) = compare(link, "relay", [Observed(measured, None, 0.0)])
    assert found.disagreement == pytest.approx(0.0, abs=0.02)


def test_what_is_told_names_the_furthest() -> None:
    near = Comparison("5g", "relay", Way.SYNC, [(10.0, 10.0), (9.9, 10.0), (30.0, 10.0)])
    far = Comparison("leo", "netem", Way.STREAM, [(8.0, 10.0)])
    assert near.disagreement == 0.0
    lines = "\n".join(told([near, far]))
    assert "furthest apart: stream over leo (netem), -20.0%; on average 10.0%" in lines
