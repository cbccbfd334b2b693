"""All that a report shows, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from netsim import axes
from netsim.comparison import SAME, Comparison, compare
from netsim.links import profiles
from netsim.scenario import EDGE, Run, Scenario, Way
from netsim.scenario_file import Study
from netsim.simulation import simulate

TRACED = (Way.STREAM, Way.SYNC, Way.RUN_AHEAD)
MAPPED = (Way.SYNC, Way.AUTO)
FIXED = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD)
RTTS_MS = (0, 10, 20, 40, 60, 100, 150, 200, 300, 400)
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True)
class ReportData:
    """What was simulated.

    compared: the scenario itself. traced: one run of some ways, with its spans. by_profile:
    the same models and drafts on each link that has a name. mapped: over RTTS_MS, then
    ALPHAS. by_gamma: over GAMMAS.
    """

    study: Study
    compared: Comparison
    traced: dict[Way, Run]
    by_profile: dict[str, Comparison]
    mapped: tuple[tuple[Comparison, ...], ...]
    by_gamma: dict[int, Comparison]

    def lost(self, way: Way) -> list[str]:
        """Link profiles on which a way is slower than streaming."""
        return [
            name
            for name, found in self.by_profile.items()
            if found.speedup(way, Way.STREAM) < 1 - SAME
        ]

    def break_even(self, way: Way) -> dict[float, int | None]:
        """For each α the longest round trip of the map, in ms, up to which a way saves time."""
        found: dict[float, int | None] = {}
        for column, alpha in enumerate(ALPHAS):
            longest = None
            for row, rtt_ms in enumerate(RTTS_MS):
                if self.mapped[row][column].speedup(way, Way.STREAM) <= 1 + SAME:
                    break
                longest = rtt_ms
            found[alpha] = longest
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "title": self.study.title,
            "scenario": self.compared.to_json(),
            "profiles": {name: found.to_json() for name, found in self.by_profile.items()},
            "break_even": {
                "rtt_ms": list(RTTS_MS),
                "alpha": list(ALPHAS),
                **{
                    str(way): [
                        [round(cell.speedup(way, Way.STREAM), 4) for cell in row]
                        for row in self.mapped
                    ]
                    for way in MAPPED
                },
            },
            "gamma": {str(gamma): found.to_json() for gamma, found in self.by_gamma.items()},
        }


def gather(study: Study, jobs: int) -> ReportData:
    """Simulate all of it."""
    base, seeds = study.base, study.seeds
    few = seeds[:4]
    links = profiles()
    on_links = compare([replace(base, link=link) for link in links], EDGE, few, jobs)
    by_gamma = compare([replace(base, gamma=gamma) for gamma in GAMMAS], FIXED, seeds, jobs)
    return ReportData(
        study,
        compare([base], EDGE, seeds, jobs)[0],
        {way: _traced(base, way) for way in TRACED},
        {link.name: found for link, found in zip(links, on_links, strict=True)},
        _map(base, few, jobs),
        dict(zip(GAMMAS, by_gamma, strict=True)),
    )


def _traced(base: Scenario, way: Way) -> Run:
    return simulate(replace(base, way=way), trace=True)[0]


def _map(base: Scenario, seeds: Sequence[int], jobs: int) -> tuple[tuple[Comparison, ...], ...]:
    points = [
        axes.apply(base, {"rtt_ms": float(rtt_ms), "alpha": alpha})
        for rtt_ms in RTTS_MS
        for alpha in ALPHAS
    ]
    found = compare(points, MAPPED, seeds, jobs)
    width = len(ALPHAS)
    return tuple(tuple(found[row * width : (row + 1) * width]) for row in range(len(RTTS_MS)))
