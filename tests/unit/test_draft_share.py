"""Whose draft tokens a forward examines: learnt from what one costs, fair to all sessions."""

from __future__ import annotations

import itertools
import math

import pytest

from cloud_verifier.draft_share import Accepted, DraftShare
from specwire.formulas import expected_tokens

BASE_S = 0.05


def learnt(token_s: float, tokens: tuple[int, ...] = (8, 16, 24, 40)) -> DraftShare:
    """After forwards of a device on which each token adds so much."""
    share = DraftShare()
    for count in tokens * 10:
        share.learn(count, BASE_S + token_s * count)
    return share


def product(sessions: list[tuple[int, float]], drafts: tuple[int, ...], token_s: float) -> float:
    """Of all sessions' speeds, as a logarithm."""
    forward_s = BASE_S + token_s * (len(sessions) + sum(drafts))
    pairs = zip(sessions, drafts, strict=True)
    return sum(math.log(expected_tokens(alpha, n) / forward_s) for (_, alpha), n in pairs)


def test_all_is_examined_where_a_token_costs_nothing() -> None:
    assert learnt(0.0).of([(8, 0.1), (3, 0.9)]) == [8, 3]


def test_all_is_examined_while_nothing_is_known() -> None:
    assert DraftShare().of([(8, 0.5), (2, 0.5)]) == [8, 2]


def test_a_session_that_is_alone_has_all_its_drafts_examined() -> None:
    share = learnt(0.05)
    assert share.of([(8, 0.1)]) == [8]
    assert share.of([(8, 0.1)], others=1) == [0]


@pytest.mark.parametrize("token_s", [0.0005, 0.002, 0.005, 0.02])
def test_the_product_of_all_speeds_is_as_good_as_any_other_choice(token_s: float) -> None:
    sessions = [(3, 0.95), (3, 0.6), (0, 0.9), (2, 0.3)]
    chosen = learnt(token_s).of(sessions)
    choices = itertools.product(*(range(count + 1) for count, _ in sessions))
    best = max(product(sessions, drafts, token_s) for drafts in choices)
    # One token at a time, and a cost learnt with a leaning to nothing: next to the best.
    assert product(sessions, tuple(chosen), token_s) > best - 0.02


def test_the_more_share_a_forward_the_fewer_drafts_each_may_have() -> None:
    share = learnt(0.004)
    counts = [share.of([(8, 0.8)] * sessions)[0] for sessions in (2, 4, 8, 32)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 3
    assert counts[-1] <= 1


def test_prompts_in_the_forward_and_sessions_that_wait_for_theirs_count() -> None:
    share = learnt(0.004)
    sessions = [(8, 0.8)] * 4
    assert sum(share.of(sessions, others=12)) < sum(share.of(sessions))
    # Where a forward is long anyway, a draft token adds less to it.
    assert sum(share.of(sessions, others=12, fixed=64)) > sum(share.of(sessions, others=12))


def test_what_is_examined_anyway_is_and_counts_as_part_of_the_forward() -> None:
    share = learnt(0.002)
    (kept, *others) = share.of([(8, None), (8, 0.8), (8, 0.8)])
    assert kept == 8
    assert others == share.of([(8, 0.8), (8, 0.8)], others=1, fixed=8 + 1)
    assert share.of([(3, None), (0, None)]) == [3, 0]


def test_what_was_never_tried_is_tried_a_little_at_a_time() -> None:
    share = DraftShare()
    for _ in range(5):
        share.learn(32, 0.2)
    first = share.of([(8, 0.8)] * 32)
    assert sum(first) == 32
    share.learn(64, 10.0)
    assert sum(share.of([(8, 0.8)] * 32)) == 0


def test_prompts_in_all_forwards_do_not_keep_drafts_out() -> None:
    share = DraftShare()
    share.learn(5, 0.05)
    for _ in range(3):
        share.learn(200, 0.3, prefilled=190)
    assert sum(share.of([(4, 0.8)] * 12, others=1, fixed=100)) == 48


def test_what_was_dear_once_is_tried_again_later() -> None:
    share = learnt(1.0)
    assert sum(share.of([(8, 0.8)] * 4)) == 0
    for _ in range(100):
        share.learn(4, BASE_S)
    assert sum(share.of([(8, 0.8)] * 4)) > 0


def test_acceptance_follows_what_was_seen_lately() -> None:
    seen = Accepted()
    assert seen.alpha == pytest.approx(0.8)
    seen.add(0, 0)
    assert seen.alpha == pytest.approx(0.8)
    for _ in range(40):
        seen.add(4, 4)
    assert seen.alpha > 0.98
    for _ in range(60):
        seen.add(1, 0)
    assert seen.alpha < 0.2
    for _ in range(500):  # none was examined: it may have changed
        seen.add(0, 0)
    assert seen.alpha == pytest.approx(0.8, abs=0.05)
