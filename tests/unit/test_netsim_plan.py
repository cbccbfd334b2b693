"""What a plan says must be what the speed model says, at both sides of each threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_client.policy.choice import DRAFTING_GAIN, choose
from edge_client.policy.speed import Conditions, Way, expected_speed
from edge_client.policy.threshold import last_good
from netsim.planning import DRAFTING, LONGEST_S, plan

LOSES = Conditions(alphas=(0.7,), draft_s=0.020, verify_s=0.030, rtt_s=0.2, message_s=1e-3)
PAYS = Conditions(
    alphas=(0.8,), draft_s=0.008, verify_s=0.050, extra_s=0.001, rtt_s=0.03, message_s=1e-3
)


def pays(at: Conditions) -> bool:
    best = choose(at, ways=DRAFTING, most_gamma=16, most_window=1 << 20)
    return best.speed >= expected_speed(Way.STREAM, 0, at) * DRAFTING_GAIN


def with_value(at: Conditions, name: str, value: float) -> Conditions:
    if name == "acceptance rate":
        return replace(at, alphas=(value,))
    key = {"draft token": "draft_s", "round trip": "rtt_s", "target forward": "verify_s"}[name]
    changes: dict[str, Any] = {key: value / 1e3}
    return replace(at, **changes)


@pytest.mark.parametrize("at", [LOSES, PAYS], ids=["loses", "pays"])
def test_each_threshold_is_where_the_speed_model_changes_its_mind(at: Conditions):
    found = plan(at)
    assert found.pays == pays(at) == (at is PAYS)
    checked = 0
    for each in found.thresholds:
        if each.value is None or each.value >= LONGEST_S * 1e3:
            continue
        better = each.value * (1.001 if each.at_least else 0.999)
        worse = each.value * (0.99 if each.at_least else 1.01)
        assert pays(with_value(at, each.name, min(better, 1.0) if each.unit == "" else better))
        assert not pays(with_value(at, each.name, worse))
        # The threshold lies on the way from here to where it is otherwise.
        better_now = (each.value > each.now) == each.at_least
        assert better_now != found.pays
        checked += 1
    assert checked >= 3


def test_what_auto_would_run_is_the_fastest_way():
    found = plan(PAYS)
    assert found.chosen.speed == max(each.speed for each in found.plans.values())
    assert plan(LOSES).chosen.way is Way.STREAM


def test_the_baselines_are_the_closed_forms():
    found = plan(LOSES, cloud_draft_s=0.0)
    speeds = {str(way): value for way, value in found.baselines.items()}
    assert speeds["per-token"] == pytest.approx(1 / 0.230)
    assert speeds["stream"] == pytest.approx(1 / 0.030)
    # Drafts that cost nothing: the longest is best, and 1/(1 − α) tokens a forward the limit.
    assert found.cloud_gamma == 16
    assert speeds["cloud"] == pytest.approx((1 - 0.7**17) / 0.3 / 0.030)


def test_last_good_finds_the_border_from_either_side():
    assert last_good(lambda x: x <= 3.25, 0, 10) == pytest.approx(3.25)
    assert last_good(lambda x: x >= 3.25, 10, 0) == pytest.approx(3.25)
    assert last_good(lambda x: True, 0, 10) == 10
    assert last_good(lambda x: False, 0, 10) is None
