"""`netsim demo`: the real programs over an emulated link, one way after another."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_client import EdgeClient
from edge_client.render import notice, shown, wants_colour
from netsim.catalogue import profile_named
from netsim.commands.flags import at_least_one
from netsim.links import LinkModel
from netsim.live import TokenLines
from netsim.picture import check_picture, draw
from netsim.real import (
    Measured,
    check_draft,
    check_drafts,
    cores,
    generate,
    on_cores,
    verifier,
)
from netsim.relay import Relay
from netsim.scenario import Way
from specwire.errors import SpecwireError

PROMPT = "Explain in a few sentences how a rainbow forms."
DRAFT = "builtin:smollm2"
WAYS = {
    Way.PER_TOKEN: "a call for each token",
    Way.STREAM: "the cloud alone, streaming",
    Way.AUTO: "the edge drafts, the cloud verifies",
}

_BYTES = """\
payload: the protocol's messages alone. on the wire: with HTTP/2, TCP and IP, as the emulated link
counts them; TLS, which netsim run includes, would add 22 bytes a message."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `netsim demo`."""
    parser.add_argument(
        "--profile", default="4g-weak", metavar="NAME", help="of the link (default: %(default)s)"
    )
    parser.add_argument("--draft", default=DRAFT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--prompt", default=PROMPT, help="a user's message to the built-in model")
    parser.add_argument("--max-tokens", type=int, default=80, help="default: %(default)s")
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("specwire-demo.svg"),
        metavar="FILE",
        help="where to draw what happened, SVG or PNG (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Show it; returns the exit code.

    Raises:
        BadRequest: an argument won't do; nothing has been played then.
        SpecwireError: a program failed.
    """
    model = _checked(args)
    cloud, edge = cores()
    try:
        with verifier(_tell, on=cloud) as address, on_cores(edge):
            measured = asyncio.run(_compare(address, model, args))
    except RuntimeError as error:
        raise SpecwireError(str(error)) from error
    print(f"\n{shown(measured[-1].text, sys.stdout)}")
    print(table(measured, model))
    draw(measured, model, args.picture)
    notice(f"picture: {args.picture}")
    return 0


def _checked(args: argparse.Namespace) -> LinkModel:
    """The link, if all arguments will do to the end."""
    model = profile_named(args.profile)
    at_least_one("--max-tokens", args.max_tokens, 1)
    check_draft(args.draft)
    check_picture(args.picture)
    return model


def _tell(line: str) -> None:
    notice(f"cloud: {line}")


async def _compare(address: str, model: LinkModel, args: argparse.Namespace) -> Sequence[Measured]:
    messages = [("user", args.prompt)]
    async with (
        Relay(address, model, seed=1) as relay,
        EdgeClient(relay.address, draft=args.draft, threads=1, notify=notice) as client,
    ):
        # The first request of all pays for loading and warming up; no way of these shall.
        notice(f"link: {model.name}, round trip {model.rtt_s * 1e3:.0f} ms")
        first = await generate(client, relay.address, Way.AUTO, [("user", "Hello")], tokens=24)
        check_drafts(args.draft, first)
        found = []
        for way, title in WAYS.items():
            print(f"\n── {title} ──", flush=True)
            lines = TokenLines(
                sys.stdout, colour=wants_colour(sys.stdout), terminal=sys.stdout.isatty()
            )
            before = relay.stats()
            measured = await generate(
                client, relay.address, way, messages, tokens=args.max_tokens, watch=lines.write
            )
            after = relay.stats()
            measured.wire_up = after["wire_up"] - before["wire_up"]
            measured.wire_down = after["wire_down"] - before["wire_down"]
            found.append(measured)
    return found


def _per_forward(measured: Measured) -> str:
    # After a lost link it is not known how many forwards what was missed took.
    return f"{len(measured.token_ids) / measured.forwards:.2f}" if measured.forwards else "–"


def _alpha(measured: Measured) -> str:
    return "–" if measured.alpha is None else f"{measured.alpha:.0%}"


def table(measured: Sequence[Measured], model: LinkModel) -> str:
    """All ways side by side, and what to make of it."""
    rows = [
        ["", *(WAYS[m.way] for m in measured)],
        ["seconds", *(f"{m.duration_s:.2f}" for m in measured)],
        ["first token, s", *(f"{m.arrivals[0].at_s:.2f}" for m in measured)],
        ["tokens/s", *(f"{m.tokens_per_s:.1f}" for m in measured)],
        ["tokens a forward", *(_per_forward(m) for m in measured)],
        ["draft tokens accepted", *(_alpha(m) for m in measured)],
        ["payload up, down, B", *(f"{m.bytes_up}, {m.bytes_down}" for m in measured)],
        ["on the wire, B", *(f"{m.wire_up}, {m.wire_down}" for m in measured)],
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    by_way = {m.way: m for m in measured}
    edge, stream, calls = by_way[Way.AUTO], by_way[Way.STREAM], by_way[Way.PER_TOKEN]
    same = len({tuple(m.token_ids) for m in measured}) == 1
    gain = stream.duration_s / edge.duration_s
    words = "faster than" if gain > 1 else "slower than"
    link = f"{model.name} (round trip {model.rtt_s * 1e3:.0f} ms)"
    said = (
        f"Over {link} edge speculation is {gain:.2f}× as fast as streaming ({words} what a good "
        f"cloud does without it),\nand {calls.duration_s / edge.duration_s:.1f}× as fast as a call "
        f"for each token.\nThe texts are {'the same' if same else 'NOT the same'}, token for token."
    )
    return "\n".join(["", *lines, "", _BYTES, "", said])
