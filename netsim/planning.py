"""Which way and γ on a link, what to expect, and what would have to change. Pure.

All from the policy's own speed model (`edge_client.policy.speed`), which knows times and
acceptance rates: of a link the round trip alone. A simulation beside it tells of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edge_client.policy import choice, speed
from edge_client.policy.choice import GAMMAS, Plan
from edge_client.policy.speed import Conditions
from edge_client.policy.threshold import last_good
from edge_client.steering import MOST_GAMMA
from netsim.scenario import Way
from specwire.formulas import expected_tokens_by_position
from specwire.limits import Limits

LONGEST_S = 10.0
"""Nobody looks for thresholds beyond."""
DRAFTING = (speed.Way.SYNC, speed.Way.PIPELINE, speed.Way.RUN_AHEAD)


@dataclass(frozen=True)
class Threshold:
    """A value at which drafting begins or ceases to pay, all else as it is.

    value, now: in the unit. None as a value: within reason there is none. at_least: whether
    it pays from the value upwards, instead of downwards. advice: what brings it about.
    """

    name: str
    unit: str
    now: float
    value: float | None
    at_least: bool
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "now": round(self.now, 6),
            "value": None if self.value is None else round(self.value, 6),
            "pays": "from" if self.at_least else "up to",
        }


@dataclass(frozen=True)
class Planned:
    """What to do, and why.

    plans: the best of each edge way and of streaming. baselines: tokens/s. cloud_gamma:
    with which cloud-side speculation is fastest. chosen: what auto settles on. pays: whether
    that drafts: a way promises more than streaming, by the margin that auto asks for.
    thresholds: what alone would change that.
    """

    at: Conditions
    plans: dict[speed.Way, Plan]
    baselines: dict[Way, float]
    cloud_gamma: int
    chosen: Plan
    pays: bool
    thresholds: tuple[Threshold, ...]

    @property
    def best(self) -> Plan:
        """The fastest way that drafts."""
        return max((self.plans[way] for way in DRAFTING), key=lambda plan: plan.speed)


def plan(
    at: Conditions,
    *,
    cloud_draft_s: float | None = None,
    most_gamma: int = MOST_GAMMA,
    most_window: int | None = None,
) -> Planned:
    """The plan under these conditions.

    Args:
        at: what is known of models and link.
        cloud_draft_s: a draft token's time in the cloud; None for the edge's.
        most_gamma: no proposal may be longer.
        most_window: no chain may reach further; None for what verifiers allow.
    """
    window = Limits(context=1 << 20).chain if most_window is None else most_window

    def best_of(*ways: speed.Way, under: Conditions = at) -> Plan:
        return choice.choose(under, ways=ways, most_gamma=most_gamma, most_window=window)

    def auto(under: Conditions) -> Plan:
        ways = (speed.Way.STREAM, speed.Way.RUN_AHEAD, speed.Way.PIPELINE, speed.Way.SYNC)
        return best_of(*ways, under=under)

    def pays(under: Conditions) -> bool:
        return auto(under).way is not speed.Way.STREAM

    plans = {way: best_of(way) for way in speed.Way}
    cloud_gamma, cloud = _in_cloud(at, at.draft_s if cloud_draft_s is None else cloud_draft_s)
    baselines = {
        Way.PER_TOKEN: 1 / (at.rtt_s + at.verify_s),
        Way.STREAM: plans[speed.Way.STREAM].speed,
        Way.CLOUD: cloud,
    }
    thresholds = tuple(_thresholds(at, pays))
    return Planned(at, plans, baselines, cloud_gamma, auto(at), pays(at), thresholds)


def _in_cloud(at: Conditions, draft_s: float) -> tuple[int, float]:
    """γ and tokens/s of speculation with the draft beside the target, one after the other."""

    def tokens_per_s(gamma: int) -> float:
        tokens = expected_tokens_by_position([at.alpha(index) for index in range(gamma)])
        return tokens / (gamma * (draft_s + at.extra_s) + at.verify_s)

    best = max(GAMMAS, key=tokens_per_s)
    return best, tokens_per_s(best)


def _thresholds(at: Conditions, pays: Callable[[Conditions], bool]) -> list[Threshold]:
    """For α, draft, round trip and target: where drafting begins or ceases to pay."""
    paying = pays(at)
    mean = sum(at.alphas) / len(at.alphas)

    def find(now: float, better: float, worse: float, apply: Callable[[float], Conditions]) -> (
        float | None
    ):  # fmt: skip
        """From what pays best towards what pays least, the last value that pays."""
        good, bad = (now, worse) if paying else (better, now)
        return last_good(lambda value: pays(apply(value)), good, bad)

    def ms(value: float | None) -> float | None:
        return None if value is None else value * 1e3

    alpha = find(mean, 1.0, 0.0, lambda value: replace(at, alphas=(value,)))
    draft = find(at.draft_s, 1e-6, LONGEST_S, lambda value: replace(at, draft_s=value))
    rtt = find(at.rtt_s, 0.0, LONGEST_S, lambda value: replace(at, rtt_s=value))
    verify = find(at.verify_s, LONGEST_S, 1e-4, lambda value: replace(at, verify_s=value))
    return [
        Threshold("acceptance rate", "", mean, alpha, True, "a draft closer to the target"),
        Threshold("draft token", "ms", at.draft_s * 1e3, ms(draft), False, "a faster draft"),
        Threshold("round trip", "ms", at.rtt_s * 1e3, ms(rtt), False, "a nearer verifier"),
        Threshold("target forward", "ms", at.verify_s * 1e3, ms(verify), True, "a larger target"),
    ]
