"""From what was measured to what will run, how fast, and what would have to change. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_client.options import WAYS, Mode
from edge_client.policy.choice import DRAFTING_GAIN, Plan, choose
from edge_client.policy.speed import Conditions, Way, expected_speed
from edge_client.policy.threshold import last_good
from edge_client.steering import MOST_GAMMA

TYPICAL_ALPHA = 0.7
"""Acceptance rate of a fair draft, to say what one would have to be like."""


@dataclass(frozen=True)
class Advice:
    """What to expect.

    plans: the best of each way, by its name. chosen: what will run. streaming: tokens/s
    without drafts. pays: whether drafting promises more than that. needed: each of these
    alone would make it pay.
    """

    plans: dict[Way, Plan]
    chosen: Plan
    streaming: float
    pays: bool
    why: str
    needed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "tokens_per_s": {str(way): round(plan.speed, 3) for way, plan in self.plans.items()},
            "way": str(self.chosen.way),
            "gamma": self.chosen.gamma,
            "window": self.chosen.window,
            "drafting_pays": self.pays,
            "why": self.why,
            "needed": list(self.needed),
        }


def advise(
    at: Conditions, mode: Mode, *, gamma: int | None, most_gamma: int, most_window: int
) -> Advice:
    """What will run with a draft.

    Args:
        at: what was measured.
        mode: what the user asked for.
        gamma: the user's: with a fixed mode this, with `auto` at most this.
        most_gamma: the verifier takes no longer proposal.
        most_window: nor more draft tokens beyond the frontier.
    """
    longest = max(1, min(gamma or MOST_GAMMA, most_gamma, most_window))
    plans = {
        way: choose(at, ways=[way], most_gamma=longest, most_window=max(1, most_window))
        for way in Way
    }
    streaming = plans[Way.STREAM].speed
    best = max((plans[way] for way in Way if way is not Way.STREAM), key=lambda plan: plan.speed)
    pays = best.speed >= streaming * DRAFTING_GAIN
    if mode is Mode.STREAM:
        chosen, why = plans[Way.STREAM], "--mode stream asks for no drafts"
    elif mode is Mode.AUTO:
        chosen = choose(at, ways=WAYS[mode], most_gamma=longest, most_window=max(1, most_window))
        why = _reason(chosen, plans)
    else:
        way = Way(str(mode))
        chosen, why = plans[way], f"--mode {mode} asks for it"
        if gamma is not None:
            window = longest if way is Way.SYNC else max(1, most_window)
            speed = expected_speed(way, longest, at, window=window)
            chosen = Plan(way, longest, window, speed=speed)
    needed = () if pays else _needed(at, longest, most_window)
    return Advice(plans, chosen, streaming, pays, why, needed)


def advise_without(at: Conditions, why: str, *, most_gamma: int, most_window: int) -> Advice:
    """What will run without a draft; `at` is with one that takes no time, and is not there."""
    plan = Plan(Way.STREAM, 0, 1, speed=expected_speed(Way.STREAM, 0, at))
    longest = max(1, min(MOST_GAMMA, most_gamma, most_window))

    def pays(draft_s: float) -> bool:
        return _pays(replace(at, draft_s=draft_s), longest, most_window)

    slowest = last_good(pays, 1e-6, 10.0)
    needed: tuple[str, ...] = ()
    if slowest is not None:
        wanted = (
            f"a draft of the target's family that needs at most {_ms(slowest)} a token, "
            f"if it agrees with the target {at.alphas[0]:.0%} of the time"
        )
        needed = (wanted,)
    return Advice({Way.STREAM: plan}, plan, plan.speed, False, why, needed)


def _reason(chosen: Plan, plans: dict[Way, Plan]) -> str:
    streaming = plans[Way.STREAM].speed
    if chosen.way is Way.STREAM:
        return "auto: no way to draft promises clearly more than plain streaming"
    return (
        f"auto: {chosen.way} with {chosen.gamma} draft tokens a proposal promises most, "
        f"{chosen.speed / streaming:.2f}× plain streaming"
    )


def _pays(at: Conditions, longest: int, most_window: int) -> bool:
    drafting = [way for way in Way if way is not Way.STREAM]
    plan = choose(at, ways=drafting, most_gamma=longest, most_window=max(1, most_window))
    return plan.speed >= expected_speed(Way.STREAM, 0, at) * DRAFTING_GAIN


def _needed(at: Conditions, longest: int, most_window: int) -> tuple[str, ...]:
    """What alone would make drafting pay, all else as it is."""

    def with_alpha(alpha: float) -> bool:
        return _pays(replace(at, alphas=(alpha,)), longest, most_window)

    def with_draft(draft_s: float) -> bool:
        return _pays(replace(at, draft_s=draft_s), longest, most_window)

    def with_rtt(rtt_s: float) -> bool:
        return _pays(replace(at, rtt_s=rtt_s), longest, most_window)

    found: list[str] = []
    # The threshold search wants what pays first.
    alpha = last_good(lambda miss: with_alpha(1 - miss), 0.0, 1 - mean(at.alphas))
    if alpha is not None:
        found.append(
            f"an acceptance rate of {1 - alpha:.2f} or more instead of {mean(at.alphas):.2f} "
            "(a draft closer to the target)"
        )
    draft_s = last_good(with_draft, 1e-6, at.draft_s)
    if draft_s is not None:
        found.append(
            f"at most {_ms(draft_s)} a draft token instead of {_ms(at.draft_s)} "
            "(a smaller draft, or a faster device)"
        )
    rtt_s = last_good(with_rtt, 0.0, at.rtt_s)
    if rtt_s is not None:
        found.append(
            f"a round trip of at most {_ms(rtt_s)} instead of {_ms(at.rtt_s)} "
            "(a verifier that is nearer)"
        )
    return tuple(found)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
