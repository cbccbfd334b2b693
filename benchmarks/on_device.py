"""The on-device pair against llama.cpp's own decode loop: tokens a second after the first.

Ways take turns, run after run, so that what else the machine does meets all of them; the
best run of each counts, and the median is beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.pair import DRAFTS, PROMPTS, TARGET
from edge_client import EdgeClient, GenerateOptions, Mode, Result
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from edge_client.draft.threads import default_threads
from edge_client.local.prompt import llama_encoder
from specwire.sampling import SamplingParams
from tests.support.bare import bare_greedy

TOKENS = 96
RUNS = 5
OPTIONS = GenerateOptions(
    sampling=SamplingParams(temperature=0.0), max_tokens=TOKENS, mode=Mode.SYNC
)


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """One row for each prompt and way."""
    rows = []
    for threads in (1,) if quick else sorted({1, default_threads()}):
        alone = EdgeClient.local(TARGET, threads=threads, notify=print)
        small = EdgeClient.local(TARGET, draft=DRAFTS["small"], threads=threads, notify=print)
        with alone, small:
            for name, prompt in list(PROMPTS.items())[: 1 if quick else None]:
                rows += _rows(name, prompt, threads, alone, small, runs=1 if quick else RUNS)
    return rows


def _rows(
    name: str, prompt: str, threads: int, alone: EdgeClient, small: EdgeClient, *, runs: int
) -> list[dict[str, Any]]:
    path = resolve_model(TARGET, print)
    with LlamaWeights(path) as weights:
        ids = llama_encoder(weights).encode_chat([("user", prompt)])
    last: dict[str, Result] = {}

    def bare() -> float:
        tokens, seconds = bare_greedy(path, ids, TOKENS, threads=threads, context=512)
        return (len(tokens) - 1) / seconds

    def client(way: str, client: EdgeClient, options: GenerateOptions) -> Callable[[], float]:
        def measure() -> float:
            result = last[way] = client.generate(ids, options=options)
            return (len(result.token_ids) - 1) / (result.duration_s - result.ttft_s)

        return measure

    ways: dict[str, Callable[[], float]] = {
        "llama.cpp loop": bare,
        "local, no draft": client("local, no draft", alone, replace(OPTIONS, mode=Mode.STREAM)),
        "local, auto": client("local, auto", small, replace(OPTIONS, mode=Mode.AUTO)),
        "local, sync": client("local, sync", small, OPTIONS),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, measure in ways.items():
            speeds[way].append(measure())
    base = max(speeds["llama.cpp loop"])
    return [
        {
            "threads": threads,
            "prompt": name,
            "way": way,
            "best tokens/s": max(found),
            "median": statistics.median(found),
            "ratio of best": max(found) / base,
            "alpha": last[way].counts.alpha if way in last else None,
            "gamma": last[way].gamma if way in last else None,
        }
        for way, found in speeds.items()
    ]
