"""What no link and no protocol allows, whatever the link, the models, the way and the luck."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from netsim.acceptance import Acceptance
from netsim.cloud_speculation import GAMMA
from netsim.links import Direction, Link, LinkModel, OneWay, Trace
from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.loss import Loss
from netsim.links.profiles import profiles
from netsim.links.trace import PACKET_BYTES
from netsim.scenario import Run, Scenario, Way
from netsim.simulation import LIMITS, simulate
from netsim.times import Duration, Models

_NO_GAPS = Gaps()
_EARLY_S = 1e-9
"""Of rounding."""


class Watched:
    """One direction of a link, and what went over it: when, how many bytes, when it arrived."""

    way: OneWay
    sent: list[tuple[float, int, float]]

    def __init__(self, way: OneWay) -> None:
        self.__dict__.update(way=way, sent=[])

    def send(self, now: float, size: int) -> float:
        """As the direction does."""
        arrives = self.way.send(now, size)
        self.sent.append((now, size, arrives))
        return float(arrives)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["way"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.way, name, value)


@dataclass(frozen=True)
class WatchedModel(LinkModel):
    """A link whose directions are watched each time it is opened."""

    opened: list[Link] = field(default_factory=list, compare=False, repr=False)

    def open(self, seed: int = 0, *, gaps_seed: int | None = None) -> Link:
        """As the link does."""
        link = super().open(seed, gaps_seed=gaps_seed)
        link.up, link.down = Watched(link.up), Watched(link.down)  # type: ignore[assignment]
        self.opened.append(link)
        return link


gaps = st.just(_NO_GAPS) | st.builds(
    Gaps, every_s=st.floats(0.2, 5.0), last_s=st.floats(0.02, 1.0), regular=st.booleans()
)
traces = st.lists(st.integers(0, 2000), min_size=1, max_size=60).map(
    lambda times: Trace((*sorted(times), max(times) + 1))
)
capacities = st.fixed_dictionaries({"rate_bit_s": st.none() | st.floats(2e4, 1e9)}) | (
    st.fixed_dictionaries({"trace": traces})
)


@st.composite
def directions(draw: st.DrawFn) -> Direction:
    return Direction(
        delay_s=draw(st.just(0.0) | st.floats(0.0, 0.4)),
        jitter=draw(st.builds(Jitter, st.sampled_from(JitterKind), st.floats(0.0, 0.05))),
        queue_bytes=draw(st.none() | st.integers(2000, 60_000)),
        loss=draw(st.builds(Loss, st.floats(0.0, 0.1), st.none() | st.floats(2.0, 6.0))),
        outages=draw(gaps),
        handovers=draw(gaps),
        **draw(capacities),
    )


links = st.builds(WatchedModel, st.just("drawn"), directions(), directions()) | st.sampled_from(
    profiles()
).map(lambda link: WatchedModel(link.name, link.up, link.down))
scenarios = st.builds(
    Scenario,
    links,
    st.builds(
        Models,
        draft=st.builds(Duration, st.floats(0.0005, 0.1), st.sampled_from([0.0, 0.3])),
        verify=st.builds(Duration, st.floats(0.002, 0.1)),
        extra_s=st.floats(0.0, 0.005),
    ),
    st.builds(Acceptance.steady, st.floats(0.0, 1.0)),
    st.sampled_from(Way),
    gamma=st.none() | st.integers(1, 12),
    tokens=st.integers(1, 40),
    prompt=st.integers(0, 200) | st.integers(0, 20_000),  # up to 28 segments
    clients=st.sampled_from([1, 1, 2, 4]),
    connect=st.booleans(),
    seed=st.integers(0, 1000),
)


def least_s(scenario: Scenario, count: int) -> float:
    """Before this the user can't have so many tokens."""
    link, models = scenario.link, scenario.models
    trip = link.up.delay_s + link.down.delay_s
    begun = 2 * trip if scenario.connect else 0.0
    forward = models.verify.mean
    # A forward yields at most its drafts and one token more.
    if scenario.way is Way.CLOUD:  # a prompt's has no drafts yet
        forwards = 1 + -(-(count - 1) // ((scenario.gamma or GAMMA) + 1))
    elif scenario.way in (Way.PER_TOKEN, Way.STREAM):
        forwards = count
    else:
        drafts = (scenario.gamma or LIMITS.gamma) if scenario.way is Way.SYNC else LIMITS.chain
        forwards = -(-count // (drafts + 1))
    if scenario.way in (Way.PER_TOKEN, Way.SYNC):  # the opening, then a round trip for each round
        return begun + trip + forwards * (trip + forward)
    return begun + trip + forwards * forward


def most_bytes(way: Direction, until: float) -> float:
    """What can have left a bottleneck by then."""
    if until < 0:
        return 0.0
    if way.trace is None:
        return until * way.rate_bit_s / 8 if way.rate_bit_s else float("inf")
    times = way.trace.times_ms
    turns, rest = divmod(until * 1e3 + 1e-3, times[-1])
    return PACKET_BYTES * (turns * len(times) + bisect.bisect_right(times, rest))


def check_messages(way: Direction, messages: list[tuple[float, int, float]]) -> None:
    """Each takes its time, none overtakes another, all of them fit through."""
    carried, last = 0, 0.0
    for now, size, arrives in messages:
        assert arrives >= max(now + way.delay_s - _EARLY_S, last)
        carried, last = carried + size, arrives
        assert carried <= most_bytes(way, arrives - way.delay_s + _EARLY_S) + 1e-3
        assert size <= most_bytes(way, arrives - way.delay_s - now + _EARLY_S) + 1e-3 or way.trace


@settings(max_examples=500, deadline=None)
@given(scenarios)
def test_no_token_comes_before_its_link_and_its_forwards_allow_it(scenario: Scenario) -> None:
    assert isinstance(scenario.link, WatchedModel)
    scenario.link.opened.clear()
    runs = simulate(scenario)
    assert len(runs) == len(scenario.link.opened) == scenario.clients
    for run, link in zip(runs, scenario.link.opened, strict=True):
        check_run(scenario, run)
        for direction, way in ((scenario.link.up, link.up), (scenario.link.down, link.down)):
            assert isinstance(way, Watched)
            assert way.sent
            check_messages(direction, way.sent)


def check_run(scenario: Scenario, run: Run) -> None:
    assert run.tokens == scenario.tokens
    assert run.arrivals == sorted(run.arrivals)
    for count, at in enumerate(run.arrivals, 1):
        assert at >= least_s(scenario, count) - _EARLY_S, count


@pytest.mark.parametrize("way", list(Way))
def test_the_bound_is_reached_where_nothing_else_costs_anything(way: Way) -> None:
    link = LinkModel.symmetric(0.1)
    scenario = Scenario(
        link,
        Models.constant(1e-6, 0.02),
        Acceptance.steady(1.0),
        way,
        gamma=4,
        tokens=30,
        prompt=0,
    )
    (run,) = simulate(scenario)
    least = least_s(scenario, 30)
    if way in (Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO):
        # Chains of any length count in the bound; proposals of four arrive one by one.
        assert least <= run.duration_s <= 0.1 + 30 * 0.02 + 0.1
    else:
        assert run.duration_s == pytest.approx(least, rel=0.02)
