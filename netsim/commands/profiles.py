"""`netsim profiles`: the links that have a name."""

from __future__ import annotations

import argparse
import json
from typing import Any

from netsim.links import Direction, LinkModel, profiles
from netsim.text import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """List them."""
    if args.json:
        print(json.dumps({"profiles": [_to_json(link) for link in profiles()]}, ensure_ascii=False))
        return 0
    rows = [
        (
            link.name,
            f"{link.rtt_s * 1e3:g}",
            _rate(link.up),
            _rate(link.down),
            _of_both(link, _jitter),
            _of_both(link, _loss),
            _gaps(link),
        )
        for link in profiles()
    ]
    head = ("name", "RTT ms", "up Mbit/s", "down Mbit/s", "jitter ms", "loss %", "silent")
    print(table(head, rows))
    print("\nrtt-N is a round trip of N ms and nothing else. Where the figures are from:")
    width = max(len(link.name) for link in profiles())
    for link in profiles():
        print(f"  {link.name:<{width}}  {link.source}")
    return 0


def _rate(way: Direction) -> str:
    if way.trace is not None:
        return f"{way.trace.mean_bit_s / 1e6:.3g} (trace)"
    return "–" if way.rate_bit_s is None else f"{way.rate_bit_s / 1e6:g}"


def _jitter(way: Direction) -> str:
    return f"{way.jitter.average_s * 1e3:g}" if way.jitter else "–"


def _loss(way: Direction) -> str:
    return f"{way.loss.rate * 100:g}" if way.loss else "–"


def _of_both(link: LinkModel, tell: Any) -> str:
    up, down = tell(link.up), tell(link.down)
    return str(up) if up == down else f"{up} / {down}"


def _gaps(link: LinkModel) -> str:
    found = []
    for name in ("handovers", "outages"):
        gaps = getattr(link.up, name)
        if gaps.every_s is not None:
            found.append(f"{gaps.last_s:g} s every {gaps.every_s:g} s")
    return ", ".join(found) or "–"


def _to_json(link: LinkModel) -> dict[str, Any]:
    return {
        "name": link.name,
        "source": link.source,
        "rtt_ms": round(link.rtt_s * 1e3, 3),
        "up": _direction(link.up),
        "down": _direction(link.down),
    }


def _direction(way: Direction) -> dict[str, Any]:
    return {
        "delay_ms": round(way.delay_s * 1e3, 3),
        "jitter": str(way.jitter.kind),
        "jitter_ms": round(way.jitter.mean_s * 1e3, 3),
        "rate_mbit_s": None if way.rate_bit_s is None else way.rate_bit_s / 1e6,
        "queue_bytes": way.queue_bytes,
        "loss": way.loss.rate,
        "loss_burst": way.loss.mean_burst if way.loss else None,
        "handover_every_s": way.handovers.every_s,
        "outage_every_s": way.outages.every_s,
        "trace": way.trace.name if way.trace else None,
    }
