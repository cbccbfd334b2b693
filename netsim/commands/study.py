"""A scenario from a file, and the flags that say otherwise: for the commands that show one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from netsim import axes
from netsim.commands.flags import AXIS_FLAGS, at_least_one, first_seed
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
    """The study with what the flags say; a flag also ends the varying of the same.

    Where profiles are varied, a flag of the link is one value to vary, to hold for each.
    """
    given = {name: getattr(args, name) for name in AXIS_FLAGS}
    values = {name: axes.axis(name).read(v) for name, v in given.items() if v is not None}
    kept = {name: each for name, each in study.vary.items() if name not in values}
    late = {name: (values.pop(name),) for name in _after(kept) if name in values}
    vary = {name: (kept | late)[name] for name in axes.AXES if name in kept or name in late}
    ways = study.ways
    if args.way is not None:
        ways = edge_ways(tuple(word.strip() for word in args.way.split(",")))
    seeds = at_least_one("--seeds", args.seeds, len(study.seeds), most=MOST_SEEDS)
    first = first_seed(study.seeds[0] if args.seed is None else args.seed)
    base = replace(
        axes.apply(study.base, values),
        tokens=at_least_one("--tokens", args.tokens, study.base.tokens, most=MOST_TOKENS),
        seed=first,
    )
    return replace(study, base=base, vary=vary, ways=ways, seeds=tuple(range(first, first + seeds)))


def _after(vary: Mapping[str, object]) -> frozenset[str]:
    """Axes whose values would be lost, were they applied before what is varied."""
    if "profile" in vary:
        return axes.OF_LINKS
    return frozenset({"burst"}) if "loss" in vary else frozenset()
