"""What no link and no protocol allows, whatever the link, the models, the way and the luck."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from netsim.acceptance import Acceptance
from netsim.links import Direction, LinkModel
from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.loss import Loss
from netsim.links.profiles import profiles
from netsim.scenario import Run, Scenario, Way
from netsim.simulation import LIMITS, simulate
from netsim.times import Duration, Models

_NO_GAPS = Gaps()
_EARLY_S = 1e-9
"""Of rounding."""

gaps = st.just(_NO_GAPS) | st.builds(
    Gaps, every_s=st.floats(0.2, 5.0), last_s=st.floats(0.02, 1.0), regular=st.booleans()
)
directions = st.builds(
    Direction,
    delay_s=st.floats(0.0, 0.4),
    jitter=st.builds(Jitter, st.sampled_from(JitterKind), st.floats(0.0, 0.05)),
    rate_bit_s=st.none() | st.floats(2e4, 1e9),
    loss=st.builds(Loss, st.floats(0.0, 0.1), st.none() | st.floats(2.0, 6.0)),
    outages=gaps,
    handovers=gaps,
)
links = st.builds(LinkModel, st.just("drawn"), directions, directions) | st.sampled_from(profiles())
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
    prompt=st.integers(0, 200),
    seed=st.integers(0, 1000),
)


def least_s(scenario: Scenario, run: Run, count: int) -> float:
    """Before this the user can't have so many tokens."""
    link, models = scenario.link, scenario.models
    trip = link.up.delay_s + link.down.delay_s
    # A forward yields at most its drafts and one token more.
    drafts = (scenario.gamma or 4) if scenario.way is Way.CLOUD else LIMITS.chain
    if scenario.way is Way.SYNC:
        drafts = scenario.gamma or LIMITS.gamma
    forwards = count if scenario.way in (Way.PER_TOKEN, Way.STREAM) else -(-count // (drafts + 1))
    forward = models.verify.mean
    if scenario.way in (Way.PER_TOKEN, Way.SYNC):  # the opening, then a round trip for each round
        return trip + forwards * (trip + forward)
    return trip + forwards * forward


@settings(max_examples=300, deadline=None)
@given(scenarios)
def test_no_token_comes_before_its_link_and_its_forwards_allow_it(scenario: Scenario) -> None:
    (run,) = simulate(scenario)
    assert run.tokens == scenario.tokens
    assert run.arrivals == sorted(run.arrivals)
    for count, at in enumerate(run.arrivals, 1):
        assert at >= least_s(scenario, run, count) - _EARLY_S, count
    # What came and went must have fitted through, but for what a timeout or ending sends late.
    for used, way in ((run.bytes_up, scenario.link.up), (run.bytes_down, scenario.link.down)):
        assert used > 0
        if way.rate_bit_s is not None and not way.loss and scenario.way is Way.STREAM:
            assert run.duration_s >= (used - 1500) * 8 / way.rate_bit_s - _EARLY_S


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
    least = least_s(scenario, run, 30)
    if way in (Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO):
        # Chains of any length count in the bound; proposals of four arrive one by one.
        assert least <= run.duration_s <= 0.1 + 30 * 0.02 + 0.1
    else:
        assert run.duration_s == pytest.approx(least, rel=0.02)
