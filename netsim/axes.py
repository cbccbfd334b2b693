"""What can be varied, and what a value of it makes of a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from netsim.catalogue import profile_named
from netsim.fields import nearest
from netsim.links import LinkModel, Loss
from netsim.scenario import Scenario, Way
from netsim.times import Duration
from specwire.errors import BadRequest

Value: TypeAlias = "float | int | str | None"
"""Of an axis; None stands for "left to the policy" with γ, for "without limit" with a rate."""

MOST_CLIENTS = 1024


@dataclass(frozen=True)
class Axis:
    """One thing to vary.

    one, help: what a value is, and several. apply: the scenario with this value. read: a
    value as a person writes it, checked.
    matters: the ways on which it has an influence; None for all.
    """

    name: str
    one: str
    help: str
    read: Callable[[Any], Value]
    apply: Callable[[Scenario, Any], Scenario]
    matters: frozenset[Way] | None = None


def _number(name: str, least: float, most: float, *, above: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadRequest(f"{name} must be a number, not {value!r}") from None
        if isinstance(value, bool) or not (least <= number <= most) or (above and number == least):
            lower = f"above {least:g}" if above else f"{least:g} or more"
            upper = f" and at most {most:g}" if math.isfinite(most) else " and finite"
            raise BadRequest(f"{name} must be {lower}{upper}, not {value}")
        return number

    return read


def _finite(name: str, *, above: bool = False) -> Callable[[Any], float]:
    return _number(name, 0.0, 1e9, above=above)


def _gamma(value: Any) -> int | None:
    if value in (None, "auto"):
        return None
    if isinstance(value, bool) or not str(value).strip().isdigit() or not 1 <= int(value) <= 64:
        raise BadRequest(f"gamma must be a whole number from 1 to 64, or auto, not {value}")
    return int(value)


def _clients(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdigit() or not 1 <= int(text) <= MOST_CLIENTS:
        raise BadRequest(f"clients must be a whole number from 1 to {MOST_CLIENTS}, not {value}")
    return int(text)


def _rate(value: Any) -> float | None:
    return None if value in (None, "none") else _finite("rate_mbit_s", above=True)(value)


def read_way(value: Any) -> str:
    """A way's name, checked."""
    if value not in set(Way):
        raise BadRequest(f"unknown way {str(value)!r}{nearest(str(value), Way)}")
    return str(Way(value))


def _read_profile(value: Any) -> str:
    return profile_named(str(value)).name


def with_rtt(scenario: Scenario, rtt_ms: float) -> Scenario:
    """Half of it in each direction, jitter at its average included; all else stays."""
    link = scenario.link
    ways = [
        replace(way, delay_s=max(rtt_ms / 2e3 - way.jitter.average_s, 0.0))
        for way in (link.up, link.down)
    ]
    return replace(scenario, link=replace(link, up=ways[0], down=ways[1]))


def _with_rate(scenario: Scenario, rate_mbit_s: float | None) -> Scenario:
    rate = None if rate_mbit_s is None else rate_mbit_s * 1e6
    return replace(scenario, link=_both(scenario.link, rate_bit_s=rate, trace=None))


def _with_loss(scenario: Scenario, loss: float) -> Scenario:
    return replace(scenario, link=_both(scenario.link, loss=Loss(loss)))


def _both(link: LinkModel, **values: Any) -> LinkModel:
    return replace(link, up=replace(link.up, **values), down=replace(link.down, **values))


def _with_alpha(scenario: Scenario, alpha: float) -> Scenario:
    acceptance = replace(scenario.acceptance, alphas=(alpha,), hard=None, recorded=())
    return replace(scenario, acceptance=acceptance)


def _with_draft(scenario: Scenario, draft_ms: float) -> Scenario:
    models = scenario.models
    spread = models.draft.spread
    return replace(scenario, models=replace(models, draft=Duration(draft_ms / 1e3, spread)))


def _with_verify(scenario: Scenario, verify_ms: float) -> Scenario:
    models = scenario.models
    spread = models.verify.spread
    return replace(scenario, models=replace(models, verify=Duration(verify_ms / 1e3, spread)))


_SPECULATES = frozenset(set(Way) - {Way.PER_TOKEN, Way.STREAM})

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            "profile",
            "the link: see netsim profiles",
            "link profiles",
            _read_profile,
            lambda scenario, name: replace(scenario, link=profile_named(name)),
        ),
        Axis("rtt_ms", "its round trip in ms", "round trips in ms", _finite("rtt_ms"), with_rtt),
        Axis(
            "rate_mbit_s",
            "rate of each direction in Mbit/s, or none",
            "rates of each direction in Mbit/s, or none",
            _rate,
            _with_rate,
        ),
        Axis(
            "loss",
            "share of packets lost",
            "shares of packets lost",
            _number("loss", 0.0, 0.9),
            _with_loss,
        ),
        Axis(
            "verify_ms",
            "a target forward in ms",
            "target forwards in ms",
            _finite("verify_ms", above=True),
            _with_verify,
        ),
        Axis(
            "alpha",
            "acceptance rate",
            "acceptance rates",
            _number("alpha", 0.0, 1.0),
            _with_alpha,
            _SPECULATES,
        ),
        Axis(
            "gamma",
            "draft tokens a proposal, or auto",
            "draft tokens a proposal, or auto",
            _gamma,
            lambda scenario, gamma: replace(scenario, gamma=gamma),
            _SPECULATES,
        ),
        Axis(
            "draft_ms",
            "a draft token in ms",
            "draft tokens in ms",
            _finite("draft_ms"),
            _with_draft,
            _SPECULATES,
        ),
        Axis(
            "clients",
            "clients that share the verifier",
            "numbers of clients that share the verifier",
            _clients,
            lambda scenario, clients: replace(scenario, clients=clients),
        ),
        Axis(
            "way",
            "way the tokens come",
            "ways the tokens come",
            read_way,
            lambda scenario, way: replace(scenario, way=Way(way)),
        ),
    )
}
"""In the order in which they are applied: a profile first, what changes it after."""


def matters(name: str, way: Way) -> bool:
    """Whether an axis has an influence on a way."""
    ways = AXES[name].matters
    return ways is None or way in ways


def apply(scenario: Scenario, values: Mapping[str, Value]) -> Scenario:
    """The scenario with these values of these axes."""
    for name, axis in AXES.items():
        if name in values:
            scenario = axis.apply(scenario, values[name])
    return scenario


def axis(name: str) -> Axis:
    """The axis of this name.

    Raises:
        BadRequest: there is none.
    """
    if name not in AXES:
        raise BadRequest(f"{name!r} can't be varied{nearest(name, AXES)}")
    return AXES[name]
