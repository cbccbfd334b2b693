"""The ways of a scenario beside each other, over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from netsim import parallel
from netsim.progress import Progress
from netsim.scenario import Run, Scenario, Way
from netsim.scenario_file import BASELINES
from netsim.simulation import simulate

SAME = 0.02
"""Ways whose times differ by less than this share are called equally fast."""


@dataclass(frozen=True)
class Load:
    """How clients that share a verifier fare together. Times in seconds.

    tokens_per_s: of all of them, from the first opening to the last token. token_p50_s …:
    percentiles over the sessions of the mean time of a token after the first. ttft_…: of the
    time to the first. pause_p99_s: of the times between tokens that did not come together.
    """

    tokens_per_s: float
    token_p50_s: float
    token_p95_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    pause_p99_s: float

    @classmethod
    def of(cls, runs: Sequence[Run], clients: int) -> Load:
        """Of whole groups of so many clients."""
        groups = [runs[i : i + clients] for i in range(0, len(runs), clients)]
        tokens = sum(run.tokens for run in runs)
        each = sorted(run.token_s for run in runs)
        first = sorted(run.ttft_s for run in runs)
        apart = np.concatenate([np.diff(run.arrivals) for run in runs])
        pauses = sorted(apart[apart > 0].tolist())
        return cls(
            tokens_per_s=tokens / sum(max(run.duration_s for run in group) for group in groups),
            token_p50_s=_percentile(each, 0.5),
            token_p95_s=_percentile(each, 0.95),
            ttft_p50_s=_percentile(first, 0.5),
            ttft_p95_s=_percentile(first, 0.95),
            pause_p99_s=_percentile(pauses or [0.0], 0.99),
        )


@dataclass(frozen=True)
class Figures:
    """What one way takes, over all its runs. Times in seconds.

    runs: sessions simulated; one is enough where nothing is random. duration_s, ttft_s:
    means. p10_s, p90_s: percentiles of the duration. tokens_per_s: all tokens over all
    time. tokens_per_round_trip: over the messages that the edge sent after the opening;
    None where it sent none. bytes_up, bytes_down: on the wire, a token. forwards: of the
    target, a token; one that several sessions share counts once. alpha: accepted of examined
    draft tokens; None where none was examined. ways: share of the tokens that came while each
    way was in force, where the policy chose. load: of all clients together.
    """

    way: Way
    runs: int
    duration_s: float
    p10_s: float
    p90_s: float
    ttft_s: float
    tokens_per_s: float
    tokens_per_round_trip: float | None
    bytes_up: float
    bytes_down: float
    forwards: float
    alpha: float | None
    ways: Mapping[str, float]
    load: Load

    @classmethod
    def of(cls, way: Way, runs: Sequence[Run], clients: int = 1) -> Figures:
        """Of at least one run; those of clients that shared a verifier follow each other."""
        tokens = sum(run.tokens for run in runs)
        durations = sorted(run.duration_s for run in runs)
        messages = sum(run.messages_up for run in runs)
        examined = sum(run.examined for run in runs)
        spoke = way not in (Way.STREAM, Way.CLOUD) and messages
        ways: dict[str, float] = {}
        for run in runs:
            for name, count in run.ways.items():
                ways[name] = ways.get(name, 0.0) + count / tokens
        return cls(
            way=way,
            runs=len(runs),
            duration_s=statistics.fmean(durations),
            p10_s=_percentile(durations, 0.1),
            p90_s=_percentile(durations, 0.9),
            ttft_s=statistics.fmean(run.ttft_s for run in runs),
            tokens_per_s=tokens / sum(durations),
            tokens_per_round_trip=tokens / messages if spoke else None,
            bytes_up=sum(run.bytes_up for run in runs) / tokens,
            bytes_down=sum(run.bytes_down for run in runs) / tokens,
            forwards=sum(run.share for run in runs) / tokens,
            alpha=sum(run.accepted for run in runs) / examined if examined else None,
            ways=ways if way is Way.AUTO else {},
            load=Load.of(runs, clients),
        )

    @property
    def baseline(self) -> bool:
        """Whether it drafts nothing on the edge."""
        return self.way in BASELINES

    def to_json(self) -> dict[str, Any]:
        """Plain values; documented in docs/simulate.md."""
        return {
            "way": str(self.way),
            "baseline": self.baseline,
            "runs": self.runs,
            "time_s": round(self.duration_s, 6),
            "time_p10_s": round(self.p10_s, 6),
            "time_p90_s": round(self.p90_s, 6),
            "ttft_s": round(self.ttft_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 4),
            "tokens_per_round_trip": _rounded(self.tokens_per_round_trip),
            "bytes_up_per_token": round(self.bytes_up, 3),
            "bytes_down_per_token": round(self.bytes_down, 3),
            "forwards_per_token": round(self.forwards, 5),
            "alpha": _rounded(self.alpha),
            "load": {name: round(value, 6) for name, value in asdict(self.load).items()},
            "auto_ways": {name: round(share, 4) for name, share in sorted(self.ways.items())},
        }


@dataclass(frozen=True)
class Comparison:
    """All ways of one scenario, baselines first.

    clients: that share the verifier.
    """

    figures: tuple[Figures, ...]
    clients: int = 1

    def __getitem__(self, way: Way) -> Figures:
        return next(item for item in self.figures if item.way is way)

    @property
    def edge(self) -> tuple[Figures, ...]:
        """Those that draft on the edge."""
        return tuple(item for item in self.figures if not item.baseline)

    @property
    def best_edge(self) -> Figures | None:
        """The fastest of those."""
        return min(self.edge, key=lambda item: item.duration_s, default=None)

    def speedup(self, way: Way, over: Way) -> float:
        """How many times as fast as another way; below 1 is slower."""
        return self[over].duration_s / self[way].duration_s

    def losers(self) -> tuple[Figures, ...]:
        """Edge ways that are slower than streaming."""
        return tuple(item for item in self.edge if self.speedup(item.way, Way.STREAM) < 1 - SAME)

    def to_json(self) -> dict[str, Any]:
        """Plain values; documented in docs/simulate.md."""
        rows = []
        for item in self.figures:
            row = item.to_json()
            row["speedup_over"] = {
                str(over): round(self.speedup(item.way, over), 4) for over in BASELINES
            }
            rows.append(row)
        return {
            "ways": rows,
            "slower_than_streaming": [str(item.way) for item in self.losers()],
        }


def compare(
    scenarios: Sequence[Scenario], ways: Iterable[Way], seeds: Sequence[int], jobs: int = 1
) -> list[Comparison]:
    """The baselines and these ways in each scenario, with each seed, over several processes."""
    every = tuple(dict.fromkeys((*BASELINES, *ways)))
    tasks = [
        (index, replace(scenario, way=way), seeds)
        for index, scenario in enumerate(scenarios)
        for way in every
    ]
    work = sum(len(seeds) * scenario.tokens * scenario.clients for _, scenario, _ in tasks)
    jobs = parallel.worth(min(jobs, len(tasks)), work)
    found: dict[tuple[int, Way], Figures] = {}
    progress = Progress(len(tasks), what="cases")
    try:
        for (index, scenario, _), figures in parallel.results(_figures, tasks, jobs):
            found[index, scenario.way] = figures
            progress.add(1)
    finally:
        progress.end()
    return [
        Comparison(tuple(found[index, way] for way in every), scenario.clients)
        for index, scenario in enumerate(scenarios)
    ]


def _figures(task: tuple[int, Scenario, Sequence[int]]) -> Figures:
    _, scenario, seeds = task
    if _certain(scenario):
        seeds = seeds[:1]
    runs = [run for seed in seeds for run in simulate(replace(scenario, seed=seed))]
    return Figures.of(scenario.way, runs, scenario.clients)


def _certain(scenario: Scenario) -> bool:
    """Whether nothing is random, so that every seed gives the same."""
    verify, link = scenario.models.verify, scenario.link
    constant = not (verify.spread or verify.recorded) and link.up.plain and link.down.plain
    return constant and scenario.way in (Way.PER_TOKEN, Way.STREAM)


def _percentile(values: Sequence[float], share: float) -> float:
    return values[round(share * (len(values) - 1))]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
