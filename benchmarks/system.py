"""The whole system: real programs, both drafts, over emulated links, every way against streaming.

Verifier and edge have a core each, and a process each; the relay between them is this
process. Ways take turns, prompt after prompt, so that a machine that slows down slows all of
them, and each ratio is of one turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.pair import DRAFTS, PROMPTS, verifier
from edge_client import EdgeClient
from netsim.links.profiles import profile
from netsim.real import Measured, cores, generate, on_cores
from netsim.relay import Relay
from netsim.scenario import Way

LINKS = ("rtt-0", "rtt-20", "rtt-50", "rtt-100", "rtt-200", "rtt-400", "4g-weak", "3g", "leo")
QUICK_LINKS = ("rtt-50",)
DRAFTED = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO)
TEMPERATURES = (0.0, 0.7)
TOKENS = 64
QUICK_TOKENS = 16
PER_TOKEN_TOKENS = 8
"""Of the way that pays a round trip for each: all of them cost the same."""

Row = dict[str, Any]
Key = tuple[float, str | None, str]
"""Temperature, draft and way."""


def run(*, quick: bool = False) -> list[Row]:
    """One row for each link, temperature, draft and way; medians over the prompts."""
    cloud, edge = cores()
    task = {
        "cores": edge,
        "temperatures": TEMPERATURES[:1] if quick else TEMPERATURES,
        "prompts": list(PROMPTS)[:1] if quick else list(PROMPTS),
        "tokens": QUICK_TOKENS if quick else TOKENS,
    }
    rows: list[Row] = []
    with verifier(cloud) as address:
        for name in QUICK_LINKS if quick else LINKS:
            print(f"  over {name}", file=sys.stderr, flush=True)
            turns = asyncio.run(_over(address, name, task))
            rows += summary(name, turns)
    return rows


async def _over(address: str, link: str, task: Row) -> list[Row]:
    async with Relay(address, profile(link)) as relay:
        given = json.dumps({**task, "address": relay.address})
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.system"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        told, _ = await process.communicate(given.encode())
    if process.returncode != 0:
        raise RuntimeError(f"the edge over {link} failed with exit status {process.returncode}")
    return [json.loads(line) for line in told.splitlines()]


# ------------------------------------------------------------------ the edge's process


async def _edge(task: Row) -> AsyncIterator[Row]:
    """Every way in turn, once for each prompt and temperature."""
    address = task["address"]
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(EdgeClient(address, draft=spec, threads=1))
            for name, spec in DRAFTS.items()
        }
        for client in clients.values():  # loads the draft, connects, learns the link
            for temperature in task["temperatures"]:
                messages = [("user", next(iter(PROMPTS.values())))]
                await generate(
                    client, address, Way.AUTO, messages, tokens=24, temperature=temperature
                )
        for prompt in task["prompts"]:
            for temperature in task["temperatures"]:
                for draft, way in _ways():
                    measured = await generate(
                        clients[draft or next(iter(clients))],
                        address,
                        way,
                        [("user", PROMPTS[prompt])],
                        tokens=PER_TOKEN_TOKENS if way is Way.PER_TOKEN else task["tokens"],
                        temperature=temperature,
                    )
                    turn = {"prompt": prompt, "temperature": temperature}
                    yield {**turn, "draft": draft, "way": str(way), **_figures(measured)}


def _ways() -> Iterator[tuple[str | None, Way]]:
    yield None, Way.PER_TOKEN
    yield None, Way.STREAM
    for draft in DRAFTS:
        for way in DRAFTED:
            yield draft, way


def _figures(measured: Measured) -> Row:
    tokens = len(measured.token_ids)
    return {
        "tokens_per_s": measured.tokens_per_s,
        "ttft_s": measured.arrivals[0].at_s,
        "tokens_per_round_trip": tokens / measured.forwards,
        "forwards_per_token": measured.forwards / tokens,
        "bytes_up_per_token": measured.bytes_up / tokens,
        "bytes_down_per_token": measured.bytes_down / tokens,
        "alpha": measured.alpha,
    }


# --------------------------------------------------------------------------- what came


def summary(link: str, turns: Sequence[Row]) -> list[Row]:
    """Medians by temperature, draft and way, with the ratios of single turns to streaming's."""
    streamed = {
        (turn["prompt"], turn["temperature"]): turn["tokens_per_s"]
        for turn in turns
        if turn["way"] == Way.STREAM
    }
    groups: dict[Key, list[Row]] = defaultdict(list)
    for turn in turns:
        groups[turn["temperature"], turn["draft"], turn["way"]].append(turn)
    rows = []
    for (temperature, draft, way), found in groups.items():
        ratios = sorted(
            turn["tokens_per_s"] / streamed[turn["prompt"], temperature] for turn in found
        )
        alphas = [turn["alpha"] for turn in found if turn["alpha"] is not None]
        row: Row = {"link": link, "temperature": temperature, "draft": draft, "way": way}
        row["against_streaming"] = statistics.median(ratios)
        row["least"], row["most"] = ratios[0], ratios[-1]
        row["alpha"] = statistics.mean(alphas) if alphas else None
        for key in _figures_keys(found[0]):
            row[key] = statistics.median(turn[key] for turn in found)
        if way == Way.AUTO:
            row["best_fixed"], row["against_best"] = _against_best(groups, temperature, draft)
        rows.append(row)
    return rows


def _against_best(
    groups: Mapping[Key, Sequence[Row]], temperature: float, draft: str | None
) -> tuple[str, float]:
    """The fixed way, streaming among them, that `auto` does worst against, and how it does.

    That is the median of the ratios of single turns, as the prompts differ by more.
    """
    auto = groups[temperature, draft, Way.AUTO]
    against = {
        way: statistics.median(
            ours["tokens_per_s"] / theirs["tokens_per_s"]
            for ours, theirs in zip(auto, found, strict=True)
        )
        for (heat, drafted_by, way), found in groups.items()
        if heat == temperature and drafted_by in (None, draft) and way != Way.AUTO
    }
    worst = min(against, key=lambda way: against[way])
    return worst, against[worst]


def _figures_keys(turn: Row) -> list[str]:
    return [key for key in turn if key.endswith(("_s", "_per_token", "_per_round_trip"))]


def claims(rows: Sequence[Row]) -> list[Row]:
    """How `auto` does on each link: against streaming, and against the best fixed way."""
    return [
        {
            **{key: row[key] for key in ("link", "temperature", "draft")},
            "auto_against_streaming": row["against_streaming"],
            "best_fixed": row["best_fixed"],
            "auto_against_best": row["against_best"],
        }
        for row in rows
        if row["way"] == Way.AUTO
    ]


async def _tell(task: Row) -> None:
    async for row in _edge(task):
        print(json.dumps(row), flush=True)


def main() -> None:
    """The edge's process: reads what to measure, writes a line for each generation."""
    task = json.load(sys.stdin)
    with on_cores(task["cores"]):
        asyncio.run(_tell(task))


if __name__ == "__main__":
    main()
