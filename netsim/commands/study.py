"""A scenario from a file, and the flags that say otherwise: for the commands that show one."""

from __future__ import annotations

import argparse
from dataclasses import replace

from netsim import axes
from netsim.commands.flags import AXIS_FLAGS, at_least_one
from netsim.scenario import EDGE
from netsim.scenario_file import MOST_SEEDS, MOST_TOKENS, Study, edge_ways


def add_changes(parser: argparse.ArgumentParser) -> None:
    """The flags that stand in for what a scenario's file says."""
    group = parser.add_argument_group("instead of what the scenario says")
    for name, flags in AXIS_FLAGS.items():
        group.add_argument(*flags, dest=name, metavar="VALUE", help=axes.AXES[name].one)
    group.add_argument(
        "--way", metavar="LIST", help=f"edge ways, of {', '.join(EDGE)}; baselines always come"
    )
    group.add_argument("--tokens", type=int, metavar="N", help="output tokens")
    group.add_argument("--seeds", type=int, metavar="N", help="runs of each way")
    group.add_argument("--seed", type=int, metavar="N", help="the first of them")


def changed(study: Study, args: argparse.Namespace) -> Study:
    """The study with what the flags say; a flag also ends the varying of the same."""
    given = {name: getattr(args, name) for name in AXIS_FLAGS}
    values = {name: axes.axis(name).read(v) for name, v in given.items() if v is not None}
    vary = {name: each for name, each in study.vary.items() if name not in values}
    ways = study.ways
    if args.way is not None:
        ways = edge_ways(tuple(word.strip() for word in args.way.split(",")))
    seeds = at_least_one("--seeds", args.seeds, len(study.seeds), most=MOST_SEEDS)
    first = study.seeds[0] if args.seed is None else args.seed
    base = replace(
        axes.apply(study.base, values),
        tokens=at_least_one("--tokens", args.tokens, study.base.tokens, most=MOST_TOKENS),
        seed=first,
    )
    return replace(study, base=base, vary=vary, ways=ways, seeds=tuple(range(first, first + seeds)))
