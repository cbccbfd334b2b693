"""Tokens that a round trip yields, beside the theory for the acceptance rates that were seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.pair import DRAFTS, PROMPTS, verifier
from benchmarks.results import Row
from edge_client import EdgeClient, GenerateOptions, Mode
from netsim.real import cores, on_cores
from specwire.formulas import expected_tokens, expected_tokens_by_position
from specwire.sampling import SamplingParams

GAMMA = 4
TOKENS, QUICK_TOKENS = 96, 24


def run(*, quick: bool = False) -> list[Row]:
    """One row for each draft and temperature, synchronous with γ 4."""
    cloud, edge = cores()
    with verifier(cloud) as address, on_cores(edge):
        return asyncio.run(_measured(address, quick=quick))


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
                theory = expected_tokens_by_position(alphas)
                rows.append(
                    {
                        "draft": draft,
                        "temperature": temperature,
                        "rounds": rounds,
                        "alpha": alpha,
                        "tokens_per_round": tokens / rounds,
                        "theory_by_position": theory,
                        "against_theory": tokens / rounds / theory,
                        "theory_of_one_alpha": expected_tokens(alpha, GAMMA),
                    }
                )
    return rows


def _summed(columns: Sequence[Sequence[int]]) -> list[int]:
    """By position, of which not all have as many."""
    length = max(len(column) for column in columns)
    return [sum(column[i] for column in columns if i < len(column)) for i in range(length)]
