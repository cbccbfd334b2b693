"""`netsim sweep`: many scenarios over all cores, into a file; a killed one goes on."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

from netsim import axes, parallel
from netsim.commands.flags import AXIS_FLAGS, add_jobs, at_least_one, first_seed
from netsim.progress import Progress
from netsim.scenario import Way
from netsim.scenario_file import BASELINES, MOST_TOKENS, default_study, find_study
from netsim.sweep import output
from netsim.sweep.conclusion import conclusion
from netsim.sweep.grid import Chunk, Grid, Point, work
from netsim.sweep.journal import Journal
from netsim.sweep.values import read_values
from specwire.errors import BadRequest

EXIT_INTERRUPTED = 130
MOST_POINTS = 2_000_000
_CHUNK = 32
"""Points that a process works off at a time: about half a second, so that little is lost."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--scenario",
        metavar="NAME",
        help="where all else comes from: a TOML file, whose [vary] is taken too, or the name of "
        "one that comes along (see netsim run --list)",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="ends in .csv or .parquet"
    )
    group = parser.add_argument_group(
        "what is varied", "Lists and ranges with both ends: 0,20,50:200:50"
    )
    for name, flags in AXIS_FLAGS.items():
        group.add_argument(*flags, dest=name, metavar="LIST", help=axes.AXES[name].help)
    group.add_argument(
        "--way", metavar="LIST",
        help=f"of {', '.join(Way)}; or all, or edge (default: the scenario's and the baselines, "
        "or all)",
    )  # fmt: skip
    group.add_argument(
        "--seeds", type=int, metavar="N", help="runs of each (default: the scenario's, or 1)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the first of them")
    parser.add_argument("--tokens", type=int, metavar="N", help="output tokens (default: 256)")
    parser.add_argument("--fresh", action="store_true", help="begin anew, forget a killed sweep")
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Work it off."""
    grid = grid_of(args)
    jobs = at_least_one("--jobs", args.jobs, parallel.cores())
    output.check(args.out)
    points = list(grid.points())
    began = time.monotonic()
    path = args.out.with_name(args.out.name + ".journal")
    with Journal(path, grid.key, len(points), fresh=args.fresh) as journal:
        before = journal.done
        if before:
            _say(f"going on: {before} of {len(points)} scenarios are done")
        try:
            _work_off(grid, points, journal, jobs)
        except KeyboardInterrupt:
            _say(
                f"interrupted with {journal.done} of {len(points)} scenarios done; "
                "the same command goes on from there"
            )
            return EXIT_INTERRUPTED
        rows = [row for row in journal.rows if row is not None]
        output.write(args.out, grid.columns, rows)
        journal.remove()
    took = time.monotonic() - began
    print(f"{len(rows)} rows in {args.out}, in {took:.1f} s")
    print("\n".join(conclusion(grid, rows)))
    return 0


def grid_of(args: argparse.Namespace) -> Grid:
    """What the arguments ask for."""
    study = find_study(args.scenario) if args.scenario else default_study()
    vary = dict(study.vary)
    for name in AXIS_FLAGS:
        if (text := getattr(args, name)) is not None:
            vary[name] = read_values(axes.axis(name), text)
    ways = (*BASELINES, *study.ways)
    if args.way is not None:
        ways = tuple(Way(str(way)) for way in read_values(axes.axis("way"), args.way))
    default = len(study.seeds) if args.scenario else 1
    count = at_least_one("--seeds", args.seeds, default, most=MOST_POINTS)
    first = first_seed(study.seeds[0] if args.seed is None else args.seed)
    seeds = range(first, first + count)
    tokens = at_least_one("--tokens", args.tokens, study.base.tokens, most=MOST_TOKENS)
    grid = Grid(replace(study.base, tokens=tokens), _ordered(vary), ways, tuple(seeds))
    if grid.largest > MOST_POINTS:
        raise BadRequest(
            f"that is {grid.largest} scenarios, and {MOST_POINTS} are the most; vary less at once"
        )
    _check_losses(grid)
    return grid


def _check_losses(grid: Grid) -> None:
    """Before any of it is simulated: a loss may be too much for a mean burst."""
    names = [name for name in ("profile", "loss", "burst") if name in grid.vary]
    for values in product(*(grid.vary[name] for name in names)):
        axes.apply(grid.base, dict(zip(names, values, strict=True)))


def _ordered(vary: dict[str, tuple[axes.Value, ...]]) -> dict[str, tuple[axes.Value, ...]]:
    return {name: vary[name] for name in axes.AXES if name in vary}


def _work_off(grid: Grid, points: list[Point], journal: Journal, jobs: int) -> None:
    left = len(points) - journal.done
    jobs = parallel.worth(jobs, left * grid.base.tokens * grid.base.clients)
    chunk = max(1, min(_CHUNK, left // (16 * jobs)))
    chunks = [
        Chunk(grid.base, grid.names, places.start, points[places.start : places.stop])
        for places in journal.missing(chunk)
    ]
    progress = Progress(len(points), journal.done)
    try:
        for worked, rows in parallel.results(work, chunks, min(jobs, max(len(chunks), 1))):
            journal.add(worked.first, rows)
            progress.add(len(rows))
    finally:
        progress.end()


def _say(line: str) -> None:
    print(f"netsim sweep: {line}", file=sys.stderr)
