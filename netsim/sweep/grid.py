"""The points of a sweep: every combination that makes a difference."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from netsim import axes
from netsim.comparison import Figures
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from specwire import __version__

RESULTS = (
    "time_s",
    "ttft_s",
    "tokens_per_s",
    "tokens_per_round_trip",
    "bytes_up_per_token",
    "bytes_down_per_token",
    "forwards_per_token",
    "alpha_seen",
    "all_tokens_per_s",
    "token_p95_s",
)
"""Columns after those of what is varied. Where there are several clients: means of them, but
for the last two, which are the tokens/s of all together and a percentile over them."""

Point: TypeAlias = "tuple[axes.Value, ...]"
Row: TypeAlias = "list[float | int | str | None]"


@dataclass(frozen=True)
class Grid:
    """What a sweep goes through.

    vary: values by axis, "way" not among them. ways, seeds: at least one each.
    """

    base: Scenario
    vary: Mapping[str, tuple[axes.Value, ...]]
    ways: tuple[Way, ...]
    seeds: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What a point consists of."""
        return (*self.vary, "way", "seed")

    @property
    def columns(self) -> tuple[str, ...]:
        """What a row consists of."""
        return (*self.names, *RESULTS)

    @property
    def largest(self) -> int:
        """No more points than this, and seldom much fewer."""
        count = len(self.ways) * len(self.seeds)
        for values in self.vary.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[Point]:
        """In order. What has no influence on a way is None there, and not repeated."""
        names = list(self.vary)
        firsts = tuple(values[0] for values in self.vary.values())
        idle = {
            way: [i for i, name in enumerate(names) if not axes.matters(name, way)]
            for way in self.ways
        }
        for values in product(*self.vary.values()):
            for way in self.ways:
                if any(values[i] != firsts[i] for i in idle[way]):
                    continue
                shown = [None if i in idle[way] else value for i, value in enumerate(values)]
                for seed in self.seeds:
                    yield (*shown, str(way), seed)

    @property
    def key(self) -> str:
        """Tells one sweep from another, so that only the same one is gone on with."""
        traces = [
            way.trace.times_ms for way in (self.base.link.up, self.base.link.down) if way.trace
        ]
        whole = (__version__, self.base, traces, dict(self.vary), self.ways, self.seeds)
        return hashlib.sha256(repr(whole).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Chunk:
    """Points for one process to work off: those of a grid from place `first` on."""

    base: Scenario
    names: tuple[str, ...]
    first: int
    points: list[Point]


def work(chunk: Chunk) -> list[Row]:
    """Simulate them."""
    return [_row(chunk.base, chunk.names, point) for point in chunk.points]


def _row(base: Scenario, names: Sequence[str], point: Point) -> Row:
    values = dict(zip(names, point, strict=True))
    seed, way = int(str(values.pop("seed"))), Way(str(values["way"]))
    wanted = {name: value for name, value in values.items() if axes.matters(name, way)}
    scenario = replace(axes.apply(base, wanted), seed=seed)
    found = Figures.of(way, simulate(scenario), scenario.clients)
    results = (
        found.duration_s,
        found.ttft_s,
        found.tokens_per_s,
        found.tokens_per_round_trip,
        found.bytes_up,
        found.bytes_down,
        found.forwards,
        found.alpha,
        found.load.tokens_per_s,
        found.load.token_p95_s,
    )
    return [*point, *(None if value is None else round(value, 6) for value in results)]
