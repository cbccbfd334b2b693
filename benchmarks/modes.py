"""Speed of each mode against plain streaming, over loopback, with the real pair.

Edge and cloud have a core each. Modes take turns (A B C, A B C …), so that a
machine that slows down slows all of them; the ratios are of one turn each.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from typing import Any

from benchmarks.pair import DRAFTS, PROMPTS, cores, verifier
from edge_client import EdgeClient, GenerateOptions, Mode, Result
from specwire.sampling import SamplingParams

MODES = (Mode.STREAM, Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD, Mode.AUTO)


def run(*, turns: int = 3, max_tokens: int = 64) -> list[dict[str, Any]]:
    """One row for each draft, temperature and mode."""
    cloud, edge = cores()
    rows = []
    with verifier(cloud) as address:
        os.sched_setaffinity(0, edge)
        for draft, spec in DRAFTS.items():
            for temperature in (0.0, 0.7):
                rows += asyncio.run(_draft(address, draft, spec, temperature, turns, max_tokens))
    return rows


async def _draft(
    address: str, draft: str, spec: str, temperature: float, turns: int, max_tokens: int
) -> list[dict[str, Any]]:
    results: dict[Mode, list[Result]] = {mode: [] for mode in MODES}
    ratios: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    async with EdgeClient(address, draft=spec, threads=1) as client:
        await client.complete("Hello", options=GenerateOptions(max_tokens=2))
        for turn in range(turns):
            for prompt in PROMPTS.values():
                for mode in MODES:
                    options = GenerateOptions(
                        sampling=SamplingParams(temperature=temperature),
                        max_tokens=max_tokens,
                        mode=mode,
                        seed=turn,
                    )
                    result = await client.complete(messages=[("user", prompt)], options=options)
                    results[mode].append(result)
                    baseline = results[Mode.STREAM][-1].tokens_per_s
                    ratios[mode].append(result.tokens_per_s / baseline)
    return [
        {
            "draft": draft,
            "temperature": temperature,
            "mode": str(mode),
            "tokens_per_s": statistics.median(r.tokens_per_s for r in results[mode]),
            "against_streaming": statistics.median(ratios[mode]),
            "ttft_s": statistics.median(r.ttft_s for r in results[mode]),
            "alpha": _alpha(results[mode]),
            "tokens_per_forward": sum(len(r.token_ids) for r in results[mode])
            / sum(r.counts.rounds for r in results[mode]),
        }
        for mode in MODES
    ]


def _alpha(results: list[Result]) -> float | None:
    examined = sum(r.counts.examined for r in results)
    return sum(r.counts.accepted for r in results) / examined if examined else None
