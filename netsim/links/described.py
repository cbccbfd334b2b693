"""A link in words: its name where that says all, and what differs from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from netsim.links.direction import Direction
from netsim.links.gaps import Gaps
from netsim.links.link import LinkModel
from netsim.links.profiles import profile

NOTHING = LinkModel.symmetric(0.0)


def described(link: LinkModel, *, varied: Collection[str] = ()) -> str:
    """Such as "4g-weak, with round trip 20 ms, 1 Mbit/s".

    varied: axes (rtt_ms, rate_mbit_s, loss, burst) of which nothing is to be said.
    """
    named = _named(link.name)
    usual = named or NOTHING
    words = [] if "rtt_ms" in varied else [f"round trip {link.rtt_s * 1e3:.4g} ms"]
    tellers = dict(_TELLERS)
    if "burst" in varied:
        tellers["loss"] = partial(_loss, bursts=False)
    differs = [_told(link, usual, tell) for axis, tell in tellers.items() if axis not in varied]
    words += [each for each in differs if each]
    changed = any(differs) or abs(link.rtt_s - usual.rtt_s) > 1e-9
    with_ = "with " if named is not None and changed else ""
    return f"{link.name}, {with_}{', '.join(words)}" if words else link.name


def _named(name: str) -> LinkModel | None:
    if name.endswith(".toml"):
        return None
    try:
        return profile(name)
    except ValueError:
        return None


def _told(link: LinkModel, usual: LinkModel, tell: Callable[[Direction], str]) -> str:
    up, down = tell(link.up), tell(link.down)
    if (up, down) == (tell(usual.up), tell(usual.down)):
        return ""
    return up if up == down else f"{up} up, {down} down"


def _jitter(way: Direction) -> str:
    if not way.jitter:
        return "no jitter"
    return f"{way.jitter.kind} jitter of {way.jitter.mean_s * 1e3:.4g} ms"


def _rate(way: Direction) -> str:
    if way.trace is not None:
        return f"trace {way.trace.name} ({way.trace.mean_bit_s / 1e6:.3g} Mbit/s on average)"
    return "no limit of rate" if way.rate_bit_s is None else f"{way.rate_bit_s / 1e6:.4g} Mbit/s"


def _queue(way: Direction) -> str:
    if way.queue_bytes is None:
        return "an endless queue"
    return f"a queue of {way.queue_bytes / 1e3:.4g} kB"


def _loss(way: Direction, *, bursts: bool = True) -> str:
    if not way.loss:
        return "no loss"
    told = f"{way.loss.rate * 100:.4g} % lost"
    return f"{told} in bursts of {way.loss.burst:.4g}" if bursts and way.loss.burst else told


def _gaps(gaps: Gaps, what: str) -> str:
    if gaps.every_s is not None:
        return f"{what} of {gaps.last_s:.4g} s every {gaps.every_s:.4g} s"
    return f"{len(gaps.fixed)} {what} at given times" if gaps.fixed else f"no {what}"


_TELLERS: Mapping[str, Callable[[Direction], str]] = {
    "rate_mbit_s": _rate,
    "queue": _queue,
    "jitter": _jitter,
    "loss": _loss,
    "outages": lambda way: _gaps(way.outages, "outages"),
    "handovers": lambda way: _gaps(way.handovers, "handovers"),
}
"""By the axis that varies it, or by another word."""
