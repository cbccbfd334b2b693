"""Tokens that a round trip yields, beside the theory.

The simulation draws every token by itself, as the theory has it, and is held to its one α. Of
the real pair the rates by place are its own, so that the two agree is no surprise; how far one
α is from them tells how far real texts are from independent tokens.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from benchmarks.pair import DRAFTS, PROMPTS, verifier
from benchmarks.results import Row
from edge_client import EdgeClient, GenerateOptions, Mode
from netsim.acceptance import Acceptance
from netsim.links import LinkModel
from netsim.real import cores, on_cores
from netsim.scenario import Scenario, Way
from netsim.simulation import simulate
from netsim.times import Models
from specwire.formulas import expected_tokens, expected_tokens_by_position
from specwire.sampling import SamplingParams

SIMULATED = "simulated"
GAMMA = 4
TOKENS, QUICK_TOKENS = 96, 24


def run(*, quick: bool = False) -> list[Row]:
    """Synchronous rounds: simulated ones, and those of each draft at each temperature."""
    rows = [
        _simulated(alpha, gamma, tokens=4_000 if quick else 80_000)
        for alpha, gamma in itertools.product((0.9, 0.7, 0.5), (4, 7))
    ]
    cloud, edge = cores()
    with verifier(cloud) as address, on_cores(edge):
        return rows + asyncio.run(_measured(address, quick=quick))


def _simulated(alpha: float, gamma: int, *, tokens: int) -> Row:
    scenario = Scenario(
        LinkModel.symmetric(0.1),
        Models.constant(0.01, 0.05),
        Acceptance.steady(alpha),
        Way.SYNC,
        gamma=gamma,
        tokens=tokens,
    )
    (run,) = simulate(scenario)
    a_round, theory = run.tokens / run.forwards, expected_tokens(alpha, gamma)
    return {
        "draft": SIMULATED,
        "gamma": gamma,
        "rounds": run.forwards,
        "alpha": alpha,
        "tokens_per_round": a_round,
        "theory_of_one_alpha": theory,
        "against_it": a_round / theory,
    }


async def _measured(address: str, *, quick: bool) -> list[Row]:
    prompts = list(PROMPTS.values())[: 1 if quick else None]
    rows = []
    for draft, spec in DRAFTS.items():
        async with EdgeClient(address, draft=spec, threads=1) as client:
            for temperature in (0.7,) if quick else (0.0, 0.7):
                options = GenerateOptions(
                    sampling=SamplingParams(temperature=temperature),
                    max_tokens=QUICK_TOKENS if quick else TOKENS,
                    mode=Mode.SYNC,
                    gamma=GAMMA,
                    seed=1,
                )
                results = [
                    await client.complete(messages=[("user", prompt)], options=options)
                    for prompt in prompts
                ]
                tokens = sum(len(result.token_ids) for result in results)
                counts = [result.counts for result in results]
                rounds = sum(each.rounds for each in counts)
                examined = _summed([each.examined_by_position for each in counts])
                accepted = _summed([each.accepted_by_position for each in counts])
                alphas = [a / e for a, e in zip(accepted, examined, strict=True)]
                alpha = sum(accepted) / sum(examined)
                theory = expected_tokens(alpha, GAMMA)
                rows.append(
                    {
                        "draft": draft,
                        "gamma": GAMMA,
                        "temperature": temperature,
                        "rounds": rounds,
                        "alpha": alpha,
                        "tokens_per_round": tokens / rounds,
                        "theory_of_one_alpha": theory,
                        "against_it": tokens / rounds / theory,
                        "theory_by_place": expected_tokens_by_position(alphas),
                    }
                )
    return rows


def _summed(columns: Sequence[Sequence[int]]) -> list[int]:
    """By position, of which not all have as many."""
    length = max(len(column) for column in columns)
    return [sum(column[i] for column in columns if i < len(column)) for i in range(length)]
