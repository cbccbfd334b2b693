"""What can be varied, and what a value of it makes of a scenario."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from netsim.catalogue import profile_named
from netsim.fields import nearest
from netsim.links import Direction, LinkModel, Loss
from netsim.links.table import LEAST_RATE_MBIT_S
from netsim.scenario import Scenario, Way
from netsim.text import plain
from netsim.times import Duration
from specwire.errors import BadRequest
from specwire.limits import Limits

Value: TypeAlias = "float | int | str | None"
"""Of an axis; None stands for "left to the policy" with γ, for "without limit" with a rate,
for "independent" with bursts of loss."""

MOST_CLIENTS = 1024
MOST_GAMMA = Limits(context=1).gamma
"""What the verifier takes: a longer proposal would not be what is simulated."""


@dataclass(frozen=True)
class Axis:
    """One thing to vary.

    one, help: what a value is, and several. apply: the scenario with this value. read: a
    value as a person writes it, checked.
    matters: the ways on which it has an influence; None for all. none: the word for None.
    """

    name: str
    one: str
    help: str
    read: Callable[[Any], Value]
    apply: Callable[[Scenario, Any], Scenario]
    matters: frozenset[Way] | None = None
    none: str = "auto"

    def shown(self, value: Value) -> str:
        """A value as one would write it."""
        return self.none if value is None else plain(value)


def _number(name: str, least: float, most: float, *, above: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise BadRequest(f"{name} must be a number, not {value!r}") from None
        if isinstance(value, bool) or not (least <= number <= most) or (above and number == least):
            lower = f"above {least:g}" if above else f"{least:g} or more"
            upper = f" and at most {most:.10g}" if math.isfinite(most) else " and finite"
            raise BadRequest(f"{name} must be {lower}{upper}, not {value}")
        return number

    return read


def _finite(name: str, *, above: bool = False) -> Callable[[Any], float]:
    return _number(name, 0.0, 1e9, above=above)


def _whole(value: Any) -> int | None:
    """A number of up to nine digits; None if it is none."""
    text = str(value).strip()
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _gamma(value: Any) -> int | None:
    if value in (None, "auto"):
        return None
    if (gamma := _whole(value)) is None or not 1 <= gamma <= MOST_GAMMA:
        raise BadRequest(
            f"gamma must be a whole number from 1 to {MOST_GAMMA}, or auto, not {value}"
        )
    return gamma


def _clients(value: Any) -> int:
    if (clients := _whole(value)) is None or not 1 <= clients <= MOST_CLIENTS:
        raise BadRequest(f"clients must be a whole number from 1 to {MOST_CLIENTS}, not {value}")
    return clients


def _rate(value: Any) -> float | None:
    if value in (None, "none"):
        return None
    return _number("rate_mbit_s", LEAST_RATE_MBIT_S, 1e9)(value)


def _burst(value: Any) -> float | None:
    return None if value in (None, "none") else _number("burst", 1.0, 1e6)(value)


def read_way(value: Any) -> str:
    """A way's name, checked."""
    if value not in set(Way):
        raise BadRequest(f"unknown way {str(value)!r}{nearest(str(value), Way)}")
    return str(Way(value))


def _read_profile(value: Any) -> str:
    return profile_named(str(value)).name


def _with_rtt(scenario: Scenario, rtt_ms: float) -> Scenario:
    return replace(scenario, link=scenario.link.with_rtt(rtt_ms / 1e3))


def _with_rate(scenario: Scenario, rate_mbit_s: float | None) -> Scenario:
    rate = None if rate_mbit_s is None else rate_mbit_s * 1e6
    return replace(scenario, link=_both(scenario.link, rate_bit_s=rate, trace=None))


def _with_loss(scenario: Scenario, loss: float) -> Scenario:
    """Bursts stay as long as they are, where independent loss of this share has shorter ones."""

    def way(of: Direction) -> Direction:
        burst = of.loss.burst
        keeps = burst is not None and burst * (1 - loss) > 1
        return replace(of, loss=Loss(loss, burst if keeps else None))

    link = scenario.link
    return replace(scenario, link=replace(link, up=way(link.up), down=way(link.down)))


def _with_burst(scenario: Scenario, burst: float | None) -> Scenario:
    link = scenario.link
    try:
        up, down = (replace(way, loss=Loss(way.loss.rate, burst)) for way in (link.up, link.down))
    except ValueError as error:
        raise BadRequest(f"{error}; give a longer burst, or less loss") from error
    return replace(scenario, link=replace(link, up=up, down=down))


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
        Axis(
            "rtt_ms",
            "its round trip in ms, with its jitter, which is scaled down where it is longer",
            "round trips in ms, with their jitter, which is scaled down where it is longer",
            _finite("rtt_ms"),
            _with_rtt,
        ),
        Axis(
            "rate_mbit_s",
            "rate of each direction in Mbit/s, or none",
            "rates of each direction in Mbit/s, or none",
            _rate,
            _with_rate,
            none="none",
        ),
        Axis(
            "loss",
            "share of packets lost",
            "shares of packets lost",
            _number("loss", 0.0, 0.9),
            _with_loss,
        ),
        Axis(
            "burst",
            "mean length of a run of lost packets, or none: independent loss",
            "mean lengths of a run of lost packets, or none: independent loss",
            _burst,
            _with_burst,
            none="none",
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


OF_LINKS = frozenset({"rtt_ms", "rate_mbit_s", "loss", "burst"})
"""What a profile says too."""


def matters(name: str, way: Way) -> bool:
    """Whether an axis has an influence on a way."""
    ways = AXES[name].matters
    return ways is None or way in ways


def apply(scenario: Scenario, values: Mapping[str, Value]) -> Scenario:
    """The scenario with these values of these axes.

    Raises:
        BadRequest: they don't go together.
    """
    for name, axis in AXES.items():
        if name in values:
            scenario = axis.apply(scenario, values[name])
    link = scenario.link
    if values.get("burst") and "loss" not in values and not (link.up.loss or link.down.loss):
        raise BadRequest(
            f"bursts of {values['burst']} packets mean nothing on link {link.name}, where none"
            " is lost; give a loss too"
        )
    return scenario


def axis(name: str) -> Axis:
    """The axis of this name.

    Raises:
        BadRequest: there is none.
    """
    if name not in AXES:
        raise BadRequest(f"{name!r} can't be varied{nearest(name, AXES)}")
    return AXES[name]
