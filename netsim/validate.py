"""`netsim validate`: the same answers simulated and measured, and how far they are apart.

What goes into the simulation is measured without a link first: times of both models, and
which tokens the draft knew. Then the real programs run over the relay, and the
simulation over the same link models.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client import EdgeClient
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.policy.estimates import LinkEstimates
from edge_client.render import notice
from netsim.acceptance import Acceptance
from netsim.links import LinkModel
from netsim.links.profiles import profile
from netsim.real import Measured, cores, generate, on_cores, verifier
from netsim.relay import Relay
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.times import Duration, Models
from specwire.errors import SpecwireError

PROFILES = ("ethernet", "wifi-good", "5g", "4g-good", "4g-weak", "leo")
WAYS = (Way.STREAM, Way.SYNC, Way.RUN_AHEAD)
PROMPT = "Explain in a few sentences how a rainbow forms."
DRAFT = "builtin:smollm2-q2"
GAMMA = 4
OVERHEAD_S = 0.7e-3
"""Of a round outside the two models, both ends together, as benchmarks/service measures it."""


@dataclass(frozen=True)
class Comparison:
    """Tokens/s of one way over one link, simulated and measured."""

    link: str
    way: Way
    simulated: float
    measured: float

    @property
    def disagreement(self) -> float:
        """How far the simulation is off, relative to what was measured; above 0: too fast."""
        return self.simulated / self.measured - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `netsim validate`."""
    parser.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        help=f"of a link; repeat (default: {', '.join(PROFILES)})",
    )
    parser.add_argument("--draft", default=DRAFT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=48, help="default: %(default)s")
    parser.add_argument(
        "--runs", type=int, default=3, help="medians are of so many (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=10.0,
        help="percent of disagreement that fails (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Compare; returns 1 if a way over a link is further off than the limit."""
    models = [profile(name) for name in args.profile or PROFILES]
    cloud, edge = cores()
    try:
        with verifier(lambda line: notice(f"cloud: {line}"), on=cloud) as address, on_cores(edge):
            found = asyncio.run(
                compare(address, models, draft=args.draft, tokens=args.max_tokens, runs=args.runs)
            )
    except (SpecwireError, RuntimeError) as error:
        print(f"netsim validate: {error}", file=sys.stderr)
        return 1
    print(table(found))
    worst = max(found, key=lambda item: abs(item.disagreement))
    print(
        f"\nfurthest apart: {worst.way} over {worst.link}, {worst.disagreement:+.1%}; "
        f"mean {statistics.mean(abs(item.disagreement) for item in found):.1%}"
    )
    return int(abs(worst.disagreement) > args.limit / 100)


async def compare(
    address: str, links: Sequence[LinkModel], *, draft: str, tokens: int, runs: int
) -> list[Comparison]:
    """Every way over every link, measured `runs` times in turn, and simulated as often."""
    messages = [("user", PROMPT)]
    found = []
    for link in links:
        by_way: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for turn in range(runs):
            async with (
                Relay(address, link, seed=turn) as relay,
                EdgeClient(relay.address, draft=draft, threads=1, notify=notice) as client,
            ):
                await generate(client, relay.address, Way.AUTO, messages, tokens=16)
                for way in WAYS:
                    gamma = GAMMA if way in (Way.SYNC, Way.RUN_AHEAD) else None
                    real = await generate(
                        client, relay.address, way, messages, tokens=tokens, gamma=gamma
                    )
                    simulated = _simulated(real, link, turn, client, gamma)
                    by_way[way].append((simulated, real.tokens_per_s))
        for way, pairs in by_way.items():
            simulated, measured = (statistics.median(side) for side in zip(*pairs, strict=True))
            found.append(Comparison(link.name, way, simulated, measured))
            notice(f"{link.name}, {way}: {simulated:.1f} simulated, {measured:.1f} measured")
    return found


_draft_prefill: dict[int, float] = {}


def _simulated(
    real: Measured, link: LinkModel, seed: int, client: EdgeClient, gamma: int | None
) -> float:
    """Tokens/s of the simulation of what was just measured, with the same times."""
    times = LinkEstimates()
    for item in real.record:
        if "verify_s" in item:
            times.add_forward(int(item["evaluated"]), item["verify_s"] + item["queue_s"])
    knew = [bool(item["draft_knew"]) for item in real.record if "draft_knew" in item]
    drafted = [item["draft_s"] for item in real.record if "draft_s" in item]
    verify, extra = times.forward_times() or (_streaming_s(real), 0.0)
    prompt = real.prompt_tokens
    models = Models(
        draft=Duration(statistics.mean(drafted)) if drafted else Duration(0.0),
        verify=Duration(verify),
        extra_s=extra,
        draft_prefill_s=_prefill_s(client, prompt) / prompt if drafted else 0.0,
        overhead_s=OVERHEAD_S,
    )
    scenario = Scenario(
        link,
        models,
        Acceptance(recorded=knew) if knew else Acceptance.steady(0.0),
        real.way,
        gamma=gamma,
        tokens=len(real.token_ids),
        prompt=prompt,
        seed=seed,
    )
    return simulate(scenario)[0].tokens_per_s


def _streaming_s(real: Measured) -> float:
    """Seconds of a forward, from the times between tokens of a stream."""
    times = [arrival.at_s for arrival in real.arrivals]
    return (times[-1] - times[0]) / (len(times) - 1) - OVERHEAD_S


def _prefill_s(client: EdgeClient, prompt: int) -> float:
    """Seconds until the draft has read a prompt of so many tokens, its context included."""
    if prompt not in _draft_prefill:
        weights = client._drafter.load()
        began = time.perf_counter()
        with LlamaDraft(weights, context=prompt + 256, threads=1) as draft:
            draft.logits_after([1000 + i for i in range(prompt)])
        _draft_prefill[prompt] = time.perf_counter() - began
    return _draft_prefill[prompt]


def table(found: Sequence[Comparison]) -> str:
    """One line for each link and way."""
    lines = [f"{'link':<12}{'way':<12}{'simulated':>11}{'measured':>11}{'off by':>9}"]
    lines += [
        f"{item.link:<12}{item.way:<12}{item.simulated:>11.2f}{item.measured:>11.2f}"
        f"{item.disagreement:>+9.1%}"
        for item in found
    ]
    return "\n".join(lines)
