from __future__ import annotations

import itertools
import random

import pytest

from edge_client.policy.choice import GAMMAS, Plan, choose
from edge_client.policy.estimates import Agreement, Average, LinkEstimates, conditions
from edge_client.policy.speed import Conditions, Way, expected_speed
from specwire.formulas import expected_tokens, synchronous_time

DRAWN = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD)


def at(alpha: float, *, draft: float = 0.01, verify: float = 0.05, **more: float) -> Conditions:
    return Conditions([alpha], draft, verify, **more)


# ── expected speeds ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_synchronous_speed_is_the_closed_form(alpha: float, gamma: int) -> None:
    seconds = synchronous_time(1000, alpha, gamma, rtt_s=0.1, draft_s=0.01, verify_s=0.05)
    speed = expected_speed(Way.SYNC, gamma, at(alpha, rtt_s=0.1))
    assert speed == pytest.approx(1000 / seconds)


def test_streaming_does_not_depend_on_link_or_draft() -> None:
    assert expected_speed(Way.STREAM, 0, at(0.9, rtt_s=5.0, draft=3.0)) == pytest.approx(20.0)


@pytest.mark.parametrize("way", [Way.PIPELINE, Way.RUN_AHEAD])
def test_a_perfect_draft_is_bound_by_the_slower_of_drafting_and_verifying(way: Way) -> None:
    assert expected_speed(way, 8, at(1.0, draft=0.02)) == pytest.approx(50, rel=0.1)
    # Drafts at no cost: every forward examines a window of what is under way.
    assert expected_speed(way, 8, at(1.0, draft=1e-6), window=8) <= (8 + 1) / 0.05 * 1.01


@pytest.mark.parametrize("gamma", [1, 4])
def test_a_draft_that_is_never_right_costs_run_ahead_nothing(gamma: int) -> None:
    assert expected_speed(Way.RUN_AHEAD, gamma, at(0.0)) == pytest.approx(20.0)
    waiting = expected_speed(Way.PIPELINE, gamma, at(0.0, rtt_s=0.1))
    assert waiting == pytest.approx(1 / (gamma * 0.01 + 0.1 + 0.05))


@pytest.mark.parametrize("way", DRAWN)
@pytest.mark.parametrize("alpha", [0.2, 0.7, 0.97])
def test_a_longer_way_is_never_faster(way: Way, alpha: float) -> None:
    speeds = [
        expected_speed(way, 4, at(alpha, rtt_s=rtt, extra_s=0.001))
        for rtt in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
    ]
    # The last forwards of a span fall where they fall: within 3 %.
    assert all(b <= a * 1.03 for a, b in itertools.pairwise(speeds))


@pytest.mark.parametrize("rtt", [0.0, 0.05, 0.2, 2.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
def test_run_ahead_is_never_slower_than_streaming(rtt: float, alpha: float) -> None:
    for gamma in GAMMAS:
        speed = expected_speed(Way.RUN_AHEAD, gamma, at(alpha, rtt_s=rtt))
        assert speed >= 20.0 * (1 - 1e-9)


def test_alpha_by_position_is_used_by_position() -> None:
    falling = Conditions([0.9, 0.1], 0.01, 0.05)
    assert expected_speed(Way.SYNC, 1, falling) == pytest.approx(1.9 / 0.06)
    assert expected_speed(Way.SYNC, 2, falling) == pytest.approx(1.99 / 0.07)


# ── the choice ───────────────────────────────────────────────────────────────────────


def the_choice(known: Conditions, **more: object) -> Plan:
    arguments = {"ways": tuple(Way), "most_gamma": 16, "most_window": 256, **more}
    return choose(known, **arguments)  # type: ignore[arg-type]


def test_the_best_gamma_of_synchronous_drafting_is_found() -> None:
    known = at(0.7, rtt_s=0.02)
    plan = the_choice(known, ways=[Way.SYNC])
    best = max(range(1, 17), key=lambda g: expected_tokens(0.7, g) / (g * 0.01 + 0.07))
    assert plan.gamma == best


@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize("rtt", [0.0, 0.3])
def test_no_more_than_the_most_is_chosen(most: int, rtt: float) -> None:
    assert the_choice(at(0.95, rtt_s=rtt), most_gamma=most).gamma <= most
    assert the_choice(at(0.95, rtt_s=rtt), ways=[Way.SYNC], most_gamma=most).gamma <= most


def test_a_useless_draft_is_left_out() -> None:
    for rtt in (0.0, 0.1, 0.4):
        assert the_choice(at(0.02, rtt_s=rtt)).way is Way.STREAM


def test_a_draft_as_slow_as_the_target_is_left_out() -> None:
    assert the_choice(at(0.9, draft=0.06, rtt_s=0.1)).way is Way.STREAM


def test_a_far_cloud_is_not_made_to_wait() -> None:
    assert the_choice(at(0.8, rtt_s=0.2)).way is Way.RUN_AHEAD


def test_a_plan_stays_until_another_is_clearly_better() -> None:
    known = at(0.7)
    best = the_choice(known)
    rival = max(
        (the_choice(known, ways=[way]) for way in DRAWN if way is not best.way),
        key=lambda plan: plan.speed,
    )
    close = best.speed < rival.speed * 1.03
    kept = the_choice(known, current=rival)
    assert (kept.way is rival.way) == close
    worse = the_choice(known, ways=[Way.SYNC], most_gamma=1)
    assert worse.speed < best.speed / 1.03
    assert the_choice(known, current=worse).way is best.way


def test_there_must_be_a_way() -> None:
    with pytest.raises(ValueError, match="no way"):
        the_choice(at(0.5), ways=[])


# ── estimates ────────────────────────────────────────────────────────────────────────


def test_an_average_is_plain_at_first_and_forgets_later() -> None:
    average = Average(0.1)
    assert average.value is None
    for value in (1.0, 2.0, 3.0):
        average.add(value)
    assert average.value == pytest.approx(2.0)
    for _ in range(200):
        average.add(10.0)
    assert average.value == pytest.approx(10.0, rel=1e-3)


def test_the_cost_of_a_token_in_a_forward_is_learnt() -> None:
    link, rng = LinkEstimates(), random.Random(1)
    assert link.forward_times() is None
    for _ in range(64):
        count = rng.randrange(9)
        link.add_forward(count, 0.050 + 0.002 * count + rng.gauss(0, 0.001))
    times = link.forward_times()
    assert times is not None
    assert times[0] == pytest.approx(0.050, rel=0.05)
    assert times[1] == pytest.approx(0.0, abs=0.002)
    assert times[2] == pytest.approx(0.002, rel=0.3)


def test_what_the_first_draft_token_costs_is_learnt_apart_from_further_ones() -> None:
    link = LinkEstimates()

    def forward(count: int, slower: float = 1.0) -> None:
        link.add_forward(count, slower * (0.040 + (0.025 + 0.001 * count) * (count > 0)))

    for count in (0, 1, 2, 4, 8, 16) * 8:
        forward(count)
    times = link.forward_times()
    assert times == pytest.approx((0.040, 0.025, 0.001), rel=0.05)
    # Where drafts are waited for none comes without, and the others tell of those too.
    for count in (1, 2, 4, 8, 16) * 20:
        forward(count, slower=2.0)
        times = link.forward_times()
    assert times is not None
    assert times[0] + times[1] == pytest.approx(0.130, rel=0.05)
    assert times[0] == pytest.approx(0.080, rel=0.25)  # some of both times is compared
    assert times[2] == pytest.approx(0.002, rel=0.05)


def test_forwards_that_take_no_time_are_taken_as_they_are() -> None:
    link = LinkEstimates()
    for count in (0, 1, 4) * 8:
        link.add_forward(count, 0.0)
    assert link.forward_times() == (0.0, 0.0, 0.0)


def test_one_forward_that_was_held_up_tilts_nothing() -> None:
    link = LinkEstimates()
    for _ in range(20):
        link.add_forward(4, 0.05)
    link.add_forward(8, 30.0)
    times = link.forward_times()
    assert times is not None and times[0] + times[1] + 4 * times[2] < 0.07


def test_a_draft_token_that_was_held_up_counts_little() -> None:
    link = LinkEstimates()
    for _ in range(50):
        link.add_draft(0.01)
    link.add_draft(60.0)
    assert link.draft.value is not None and link.draft.value < 0.013


def test_agreement_is_learnt_by_place() -> None:
    agreement, rng = Agreement(), random.Random(2)
    for _ in range(400):
        for place, alpha in enumerate((0.9, 0.6, 0.3)):
            right = rng.random() < alpha
            agreement.add(place, 0.5, right)
            if not right:
                break
    alphas = agreement.alphas()
    # About 100 tokens are remembered, 45 of them of the first place: three deviations.
    assert alphas[0] == pytest.approx(0.9, abs=0.15)
    assert alphas[0] > alphas[1] > alphas[2]


def test_a_sure_draft_is_believed_as_far_as_it_was_right() -> None:
    agreement, rng = Agreement(), random.Random(3)
    assert agreement.chance(0.95) > agreement.chance(0.1)
    for _ in range(300):
        agreement.add(0, 0.95, rng.random() < 0.9)
        agreement.add(0, 0.3, rng.random() < 0.2)
    assert agreement.chance(0.95) > 0.75
    assert agreement.chance(0.3) < 0.45


def test_a_text_that_changes_is_noticed() -> None:
    agreement = Agreement()
    for _ in range(200):
        agreement.add(0, 0.5, True)
    assert agreement.alpha > 0.95
    for _ in range(100):
        agreement.add(0, 0.5, False)
    assert agreement.alpha < 0.5


def test_nothing_is_chosen_before_enough_is_known() -> None:
    link = LinkEstimates()
    assert conditions(link, Agreement()) is None
    link.add_forward(0, 0.05)
    link.add_draft(0.01)
    assert conditions(link, Agreement()) is None
    link.add_rtt(0.1)
    known = conditions(link, Agreement())
    assert known is not None and known.rtt_s == 0.1 and known.alpha(99) == pytest.approx(0.8)


def test_a_verdict_that_something_delayed_makes_no_long_round_trip() -> None:
    link = LinkEstimates()
    link.add_rtt(0.0)
    link.add_rtt(5.0)
    assert link.rtt.value is not None and link.rtt.value < 0.02
    for _ in range(50):
        link.add_rtt(0.2)
    assert link.rtt.value == pytest.approx(0.2, rel=0.05)  # where it lasts it is believed
