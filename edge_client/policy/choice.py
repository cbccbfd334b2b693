"""The choice: which way, how many tokens in a proposal, and how far ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_client.policy.speed import Conditions, Way, expected_speed

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
SWITCH_GAIN = 1.03
"""A change of plan must promise this much more: estimates are never so exact."""
DRAFTING_GAIN = 1.02
"""Drafts must promise this much more than none, for what they cost a battery and a link."""
WAITING_GAIN = 1.03
"""Drafts that the cloud waits for must promise this much more than others:
where an estimate is wrong, a late draft holds up everything."""
AS_GOOD = 0.985
"""Of the best speed: where verdicts are not waited for, longer proposals that promise so much
are taken, for each costs both ends and a radio some work."""
_LONGEST_WINDOW = 96


@dataclass(frozen=True)
class Plan:
    """How to go on.

    gamma: most draft tokens in a proposal; 0 with `Way.STREAM`.
    window: most draft tokens beyond the frontier.
    stop_below: send what there is once its last token is less likely than this to be
        committed; 0 fills every proposal.
    speed: expected tokens/s.
    """

    way: Way
    gamma: int
    window: int
    stop_below: float = 0.0
    speed: float = 0.0


def choose(
    conditions: Conditions,
    *,
    ways: Iterable[Way],
    most_gamma: int,
    most_window: int,
    exactly: bool = False,
    current: Plan | None = None,
) -> Plan:
    """The plan that promises most, of these ways.

    Args:
        conditions: what is known of models and link.
        ways: to choose from, at least one; where two promise the same, the first.
        most_gamma: no proposal may be longer; at least 1.
        exactly: every proposal is to be that long.
        most_window: no chain may reach further beyond the frontier.
        current: the plan in force, which stays unless another is clearly better.
    """
    best: Plan | None = None
    for way in ways:
        plan = _best_of(way, _gammas(way, most_gamma, exactly), conditions, most_window)
        if best is None or _worth(plan) > _worth(best) * (1 + 1e-9):
            best = plan
    if best is None:
        raise ValueError("there is no way to choose from")
    if current is not None and (current.way, current.gamma) != (best.way, best.gamma):
        kept = _best_of(current.way, (current.gamma,), conditions, most_window)
        # Drafts that promise nothing are given up at once.
        gain = 1.0 if best.way is Way.STREAM else SWITCH_GAIN
        if _worth(best) < _worth(kept) * gain:
            return kept
    return best


def _worth(plan: Plan) -> float:
    if plan.way is Way.STREAM:
        return plan.speed * DRAFTING_GAIN
    return plan.speed / (WAITING_GAIN if plan.way is Way.PIPELINE else 1.0)


def _gammas(way: Way, most: int, exactly: bool) -> Sequence[int]:
    if way is Way.STREAM:
        return (0,)
    if exactly:
        return (most,)
    return [gamma for gamma in GAMMAS if gamma < most] + [most]


def _best_of(way: Way, gammas: Sequence[int], at: Conditions, most_window: int) -> Plan:
    """The plan of one way; `gammas` grow."""
    if way is Way.STREAM:
        return Plan(way, 0, 1, speed=expected_speed(way, 0, at))
    waited_for = way is Way.SYNC
    windows = gammas if waited_for else [_window(gamma, at, most_window) for gamma in gammas]
    speeds = [
        expected_speed(way, gamma, at, window=window)
        for gamma, window in zip(gammas, windows, strict=True)
    ]
    fastest = max(speeds)
    if waited_for:
        index = speeds.index(fastest)
    else:
        index = max(i for i, speed in enumerate(speeds) if speed >= AS_GOOD * fastest)
    speed = speeds[index]
    # A further draft token pays as long as it brings more, in tokens, than the time for it
    # brings otherwise. While verdicts are under way that time costs nothing.
    marginal = (at.draft_s + at.extra_s) * speed if waited_for else at.extra_s * speed
    return Plan(way, gammas[index], windows[index], min(marginal, 0.95), speed)


def _window(gamma: int, at: Conditions, most: int) -> int:
    """Enough tokens to keep drafting until a verdict is back, but not beyond hope."""
    needed = int((at.rtt_s + 2 * at.verify_s) / at.draft_s) + 2 * gamma
    return max(min(needed, _LONGEST_WINDOW, max(at.hopeful, 2 * gamma), most), gamma)
