"""What was observed, beside the simulation of the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from netsim.acceptance import Acceptance
from netsim.links import LinkModel
from netsim.real import Measured
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.text import table
from netsim.times import Duration, Models
from netsim.validation.observed import Observed

OVERHEAD_S = 0.7e-3
"""Of a round outside the two models, both ends together, as benchmarks/service measures it."""
BETWEEN_DRAFTS_S = 0.25e-3
"""From a draft token to the next, for threads to hear of each other: 0.16 ms where nothing else
runs on the edge's core meanwhile, up to 0.39 where messages come and go."""
LUCK = 9
"""Simulations of each run, which differ in what the link loses and delays; odd, for a median."""


@dataclass(frozen=True)
class Comparison:
    """Tokens/s of one way over one link, simulated and measured, a pair for each run.

    by: what made the link: "relay" or "netem".
    """

    link: str
    by: str
    way: Way
    pairs: Sequence[tuple[float, float]]

    @property
    def simulated(self) -> float:
        """Median."""
        return statistics.median(simulated for simulated, _ in self.pairs)

    @property
    def measured(self) -> float:
        """Median."""
        return statistics.median(measured for _, measured in self.pairs)

    @property
    def disagreement(self) -> float:
        """How far the simulation is off, relative to what was measured; above 0: too fast.

        The median of the runs: what slows a run down does not count against the model.
        """
        return statistics.median(simulated / measured - 1 for simulated, measured in self.pairs)


def compare(link: LinkModel, by: str, observed: Iterable[Observed]) -> list[Comparison]:
    """One comparison for each way, in the order in which they were first observed."""
    items = list(observed)
    # A prompt is read once a run: what many tokens take is told by all of them together.
    together = [forward for item in items for forward in _forwards(item.measured)]
    times = forward_times(together) if together else None
    pairs: dict[Way, list[tuple[float, float]]] = {}
    for item in items:
        runs = pairs.setdefault(item.measured.way, [])
        runs.append((_simulated(item, link, times), item.measured.tokens_per_s))
    return [Comparison(link.name, by, way, runs) for way, runs in pairs.items()]


def _simulated(item: Observed, link: LinkModel, times: tuple[float, float, float] | None) -> float:
    """Tokens/s of the simulation, with the models' times and agreement as in that run.

    times: as `forward_times`, of all runs over that link.
    """
    real = item.measured
    drafted = [entry["draft_s"] for entry in real.record if "draft_s" in entry]
    verify, batch, extra = _forward_times(real)
    knew = _knew(real)
    models = Models(
        draft=Duration(statistics.mean(drafted) + BETWEEN_DRAFTS_S if drafted else 0.0),
        verify=Duration(verify),
        extra_s=extra,
        batch_s=batch,
        prefill_s=_prefill_s(real, verify, times),
        overhead_s=OVERHEAD_S,
    )
    scenario = Scenario(
        link,
        models,
        Acceptance(recorded=knew) if knew else Acceptance.steady(0.0),
        real.way,
        gamma=item.gamma,
        tokens=len(real.token_ids),
        prompt=real.prompt_tokens,
    )
    simulated = (simulate(replace(scenario, seed=seed))[0] for seed in range(LUCK))
    return statistics.median(run.tokens_per_s for run in simulated)


def _prefill_s(real: Measured, verify: float, times: tuple[float, float, float] | None) -> float:
    """Seconds of each prompt token, so that all of them take what those do that were read.

    That is what a forward takes longer with them than one that takes `verify`. The prompt's last
    token is the one that any forward has. Where there are others, there is a forward for them
    even if they cost nothing: something above 0 says so.
    """
    read = real.unread_tokens - 1
    if read < 1 or times is None:
        return 0.0
    alone, batch, extra = times
    return max(alone + batch + read * extra - verify, 1e-6) / real.prompt_tokens


def _forward_times(real: Measured) -> tuple[float, float, float]:
    forwards = _forwards(real)
    return forward_times(forwards) if forwards else (_streaming_s(real), 0.0, 0.0)


def _forwards(real: Measured) -> list[tuple[int, float]]:
    """Draft tokens and seconds of each."""
    return [
        (int(entry["evaluated"]), entry["verify_s"] + entry["queue_s"])
        for entry in real.record
        if "verify_s" in entry
    ]


def forward_times(forwards: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Seconds of a forward without drafts, those that any add, and those that each adds.

    Of those without drafts the mean, of the others the nearest line. Where only one kind was
    seen, or that line would begin below the mean, the nearest line through all.
    """
    plain = [seconds for count, seconds in forwards if not count]
    drafted = [(count, seconds) for count, seconds in forwards if count]
    if plain and drafted:
        verify = statistics.mean(plain)
        begins, extra = _line(drafted)
        if begins > verify:
            return verify, begins - verify, extra
    verify, extra = _line(forwards)
    return verify, 0.0, extra


def _line(forwards: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The line through draft tokens and seconds of forwards, by least squares.

    A draft token adds something, and not more than a forward with one token takes: of the
    lines for which both hold, the nearest. A few forwards, whose times vary by chance, may
    have a nearer one for which they don't.
    """
    counts, seconds = zip(*forwards, strict=True)
    mean = statistics.mean(seconds)
    if len(set(counts)) == 1:
        return mean, 0.0
    slope, verify = statistics.linear_regression(counts, seconds)
    if slope < 0:
        return mean, 0.0
    if slope > verify:  # the nearest then has the two equal: seconds are verify * (count + 1)
        verify = sum((n + 1) * s for n, s in forwards) / sum((n + 1) ** 2 for n, _ in forwards)
        return verify, verify
    return verify, slope


def _knew(real: Measured) -> list[bool]:
    """Whether the draft knew each output token. Where it was not asked, it is taken to have."""
    known = {
        int(entry["position"]): bool(entry["draft_knew"])
        for entry in real.record
        if "draft_knew" in entry
    }
    return [known.get(position, True) for position in range(len(real.token_ids))] if known else []


def _streaming_s(real: Measured) -> float:
    """Seconds of a forward, from the times between tokens of a stream."""
    times = [arrival.at_s for arrival in real.arrivals]
    return max((times[-1] - times[0]) / max(len(times) - 1, 1) - OVERHEAD_S, 0.0)


def told(found: Sequence[Comparison]) -> list[str]:
    """Lines for a person: a table, and what is furthest apart."""
    rows = [
        [
            item.link,
            item.by,
            str(item.way),
            f"{item.simulated:.2f}",
            f"{item.measured:.2f}",
            f"{item.disagreement:+.1%}",
        ]
        for item in found
    ]
    worst = max(found, key=lambda item: abs(item.disagreement))
    mean = statistics.mean(abs(item.disagreement) for item in found)
    summary = (
        f"tokens/s; furthest apart: {worst.way} over {worst.link} ({worst.by}), "
        f"{worst.disagreement:+.1%}; on average {mean:.1%}"
    )
    head = ["link", "by", "way", "simulated", "measured", "off by"]
    return [table(head, rows, left=3), "", summary]
