"""Measures the real system: `make bench`, or `make bench QUICK=1` for a look in between.

Each suite's results replace its earlier ones in benchmarks.json; the page and its pictures
are made from that file, so that one suite can be measured alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    capacity,
    edge,
    on_device,
    page,
    peers,
    q_codec,
    relay,
    service,
    sweep,
    system,
    theory,
    validation,
)
from benchmarks.environment import described
from benchmarks.results import Results, Row, Suite

SUITES: dict[str, Callable[..., list[Row]]] = {
    "system": system.run,
    "on_device": on_device.run,
    "q_codec": q_codec.run,
    "service": service.run,
    "edge": edge.run,
    "sweep": sweep.run,
    "relay": relay.run,
    "capacity": capacity.run,
    "theory": theory.run,
    "validation": validation.run,
    "peers": peers.run,
}
NOT_QUICK = ("peers", "validation")
"""Too long for a look in between."""
DOCS = Path(__file__).parent.parent / "docs"
QUICK = Path(__file__).parent.parent / "build" / "bench"


def main() -> None:
    """Measure what is asked for, and write it down."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--quick", action="store_true", help="less of everything, in minutes")
    parser.add_argument("--out", type=Path, help="folder (default: docs; quick: build/bench)")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in SUITES]
    if unknown:
        parser.error(f"no suite is called {unknown[0]!r}; there are {', '.join(SUITES)}")
    out: Path = args.out or (QUICK if args.quick else DOCS)
    out.mkdir(parents=True, exist_ok=True)
    results = Results.read(out / "benchmarks.json")
    usual = [name for name in SUITES if not (args.quick and name in NOT_QUICK)]
    for name in args.names or usual:
        print(f"{name} …", file=sys.stderr, flush=True)
        began = time.perf_counter()
        rows = SUITES[name](quick=args.quick)
        results.suites[name] = Suite(rows, described(), round(time.perf_counter() - began, 1))
        results.write(out / "benchmarks.json")
        print(f"\n{name}\n{page.aligned(rows)}", flush=True)
    page.write(results, out, quick=args.quick)
    print(f"\nwritten: {out / 'benchmarks.md'}", file=sys.stderr)


if __name__ == "__main__":
    main()
