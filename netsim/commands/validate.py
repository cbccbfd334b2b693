"""`netsim validate`: the same answers simulated and measured, and how far they are apart.

The real programs run over the relay and, as root on Linux, over the kernel's netem; the
simulation runs over the same link models, with the models' times as they were then. What
is further off than the limit is measured once more: something else may have been at work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Sequence
from functools import partial

from edge_client.render import notice
from netsim.axes import MOST_GAMMA
from netsim.catalogue import profile_named
from netsim.commands.flags import at_least_one
from netsim.links import LinkModel
from netsim.real import check_draft, cores, verifier
from netsim.relay import Relay
from netsim.scenario import Way
from netsim.validation.comparison import Comparison, compare, told
from netsim.validation.namespaces import ADDRESSES, Cable, Unavailable
from netsim.validation.observed import Observed, Task, observe
from specwire.errors import BadRequest, SpecwireError

PROFILES = ("ethernet", "wifi-good", "5g", "4g-good", "4g-weak", "leo")
WAYS = (Way.STREAM, Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD)
DRAFT = "builtin:smollm2-q2"
GAMMA = 4
BY = ("relay", "netem")

LEAST_ROUNDS = 3
"""The first round holds the prompt and is not timed; two more make the shortest comparison."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        help=f"of a link; repeat (default: {', '.join(PROFILES)})",
    )
    parser.add_argument("--draft", default=DRAFT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--gamma", type=int, default=GAMMA, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=48, help="default: %(default)s")
    parser.add_argument(
        "--runs", type=int, default=3, help="medians are of so many (default: %(default)s)"
    )
    parser.add_argument(
        "--by",
        choices=(*BY, "both"),
        default="both",
        help="what makes the link; netem takes root on Linux, and both means netem where it is "
        "to be had (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=10.0,
        help="percent of disagreement that fails (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Compare; returns 1 if a way over a link is further off than the limit.

    Raises:
        BadRequest: an argument won't do; nothing has been measured then.
        SpecwireError: something could not be measured.
    """
    at_least_one("--runs", args.runs, 3)
    at_least_one("--gamma", args.gamma, GAMMA, most=MOST_GAMMA)
    if args.max_tokens < (least := LEAST_ROUNDS * (args.gamma + 1)):
        raise BadRequest(
            f"--max-tokens must be {least} or more with --gamma {args.gamma}, not "
            f"{args.max_tokens}: fewer rounds tell nothing of a forward's time"
        )
    if not 0 <= args.limit < math.inf:
        raise BadRequest(f"--limit must be 0 percent or more and finite, not {args.limit:g}")
    links = [profile_named(name) for name in args.profile or PROFILES]
    check_draft(args.draft)
    found: list[Comparison] = []
    if args.by != "netem":
        found += _over_relay(links, args)
    if args.by != "relay":
        found += _over_netem(links, args)
    if not found:
        raise SpecwireError("nothing could be measured")
    if args.json:
        print(json.dumps({"compared": [_row(item) for item in found]}))
    else:
        print("\n".join(told(found)))
    return int(any(_too_far(item, args) for item in found))


def _over_relay(links: Sequence[LinkModel], args: argparse.Namespace) -> list[Comparison]:
    cloud, _ = cores()
    found = []
    with verifier(lambda line: notice(f"cloud: {line}"), on=cloud) as address:
        for link in links:
            found += _measured(link, "relay", args, partial(_relayed, address, link, args))
    return found


def _measured(
    link: LinkModel, by: str, args: argparse.Namespace, measure: Callable[[], list[Observed]]
) -> list[Comparison]:
    """Compare; once more with twice as many runs where a way is too far off."""
    observed = measure()
    found = compare(link, by, observed)
    if any(_too_far(item, args) for item in found):
        found = compare(link, by, [*observed, *measure()])
    for item in found:
        notice(
            f"{item.link} ({item.by}), {item.way}: {item.simulated:.1f} simulated, "
            f"{item.measured:.1f} measured"
        )
    return found


def _too_far(item: Comparison, args: argparse.Namespace) -> bool:
    return bool(abs(item.disagreement) > args.limit / 100)


def _relayed(address: str, link: LinkModel, args: argparse.Namespace) -> list[Observed]:
    async def relayed() -> list[Observed]:
        async with Relay(address, link) as relay:
            return await asyncio.to_thread(observe, _task(relay.address, args))

    return asyncio.run(relayed())


def _over_netem(links: Sequence[LinkModel], args: argparse.Namespace) -> list[Comparison]:
    found: list[Comparison] = []
    for link in links:
        try:
            cable = Cable(link)
        except ValueError as error:
            notice(f"{link.name} is not measured by netem: {error}")
            continue
        try:
            with cable:
                found += _measured(link, "netem", args, partial(_cabled, cable, args))
        except Unavailable as error:
            if args.by == "netem":
                raise
            notice(f"nothing is measured by netem: {error}")
            return found
    return found


def _cabled(cable: Cable, args: argparse.Namespace) -> list[Observed]:
    cloud, _ = cores()
    listen = f"{ADDRESSES['cloud']}:0"
    where = cable.inside("cloud")
    with verifier(lambda line: None, on=cloud, listen=listen, inside=where) as address:
        return observe(_task(address, args), inside=cable.inside("edge"))


def _task(address: str, args: argparse.Namespace) -> Task:
    _, edge = cores()
    return Task(address, args.draft, WAYS, args.gamma, args.max_tokens, args.runs, tuple(edge))


def _row(item: Comparison) -> dict[str, object]:
    return {
        "link": item.link,
        "by": item.by,
        "way": str(item.way),
        "simulated_tokens_per_s": item.simulated,
        "measured_tokens_per_s": item.measured,
        "disagreement": item.disagreement,
        "runs": [list(pair) for pair in item.pairs],
    }
