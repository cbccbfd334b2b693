"""The whole system: real programs, both drafts, over emulated links, every way against streaming.

Verifier and edge have a core each, and a process each; the relay between them is this
process. Ways take turns, prompt after prompt, so that a machine that slows down slows all of
them, and each ratio is of one turn. After a round of everything, those take further turns, with
other prompts, of which it is not sure yet whether `auto` is as fast as it should be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.contest import Contender, Ratio, against, standing, undecided
from benchmarks.pair import DRAFTS, TEXTS, verifier
from edge_client import EdgeClient
from netsim.links.profiles import profile
from netsim.real import Measured, cores, generate, on_cores
from netsim.relay import Relay
from netsim.scenario import Way

LINKS = ("rtt-0", "rtt-20", "rtt-50", "rtt-100", "rtt-200", "rtt-400", "4g-weak", "3g", "leo")
QUICK_LINKS = ("rtt-50",)
UP_TO_200 = LINKS[:5]
"""Where drafts of the close model are to pay."""
DRAFTED = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO)
TEMPERATURES = (0.0, 0.7)
ROUNDS = len(TEXTS["chat"])
"""At most, each with a prompt of its own of every kind."""
TOKENS = 64
QUICK_TOKENS = 16
WARM_UP_TOKENS = 24
WARM_UP = [("user", "What is the capital of France, and what is it known for?")]
READ_TOKENS = 2
"""Of an answer that has both ends read a prompt, and tells hardly anything of it."""
PER_TOKEN_TOKENS = 8
"""Of the way that pays a round trip for each: all of them cost the same."""

Row = dict[str, Any]


def run(*, quick: bool = False) -> list[Row]:
    """One row for each link, temperature, draft and way; medians over the prompts."""
    cloud, edge = cores()
    task = {
        "cores": edge,
        "temperatures": TEMPERATURES[:1] if quick else TEMPERATURES,
        "kinds": list(TEXTS)[:1] if quick else list(TEXTS),
        "tokens": QUICK_TOKENS if quick else TOKENS,
        "rounds": 1 if quick else ROUNDS,
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
    """Every way in turn, once for each prompt and temperature; then what is undecided, again."""
    address = task["address"]
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(EdgeClient(address, draft=spec, threads=1))
            for name, spec in DRAFTS.items()
        }
        for client in clients.values():  # loads the draft, connects, learns the link
            for temperature in task["temperatures"]:
                await generate(
                    client,
                    address,
                    Way.AUTO,
                    WARM_UP,
                    tokens=WARM_UP_TOKENS,
                    temperature=temperature,
                )
        turns: list[Row] = []
        for number in range(task["rounds"]):
            contenders = undecided(turns) if turns else set(_all(task["temperatures"]))
            ways = [way for way in _all(task["temperatures"]) if way in contenders]
            for index, kind in enumerate(task["kinds"] if ways else ()):
                messages = [("user", TEXTS[kind][number])]
                for client in clients.values():
                    await generate(client, address, Way.SYNC, messages, tokens=READ_TOKENS)
                # To and fro: who goes first finds other caches than who follows.
                for temperature, draft, way in ways if (index + number) % 2 == 0 else ways[::-1]:
                    measured = await generate(
                        clients[draft or next(iter(clients))],
                        address,
                        Way(way),
                        messages,
                        tokens=PER_TOKEN_TOKENS if way == Way.PER_TOKEN else task["tokens"],
                        temperature=temperature,
                        seed=1 + number,
                    )
                    turn: Row = {"round": number, "prompt": kind, "temperature": temperature}
                    turn |= {"draft": draft, "way": way, "text": measured.text}
                    turns.append({**turn, **_figures(measured)})
                    yield turns[-1]


def _all(temperatures: Sequence[float]) -> Iterator[Contender]:
    for temperature in temperatures:
        yield temperature, None, Way.PER_TOKEN
        yield temperature, None, Way.STREAM
        for draft in DRAFTS:
            for way in DRAFTED:
                yield temperature, draft, way


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
    """By temperature, draft and way: medians of the round that all took part in.

    Of `auto` also how it does against the others, in all rounds.
    """
    first = [turn for turn in turns if turn["round"] == 0]
    streamed = {
        (turn["prompt"], turn["temperature"]): turn["tokens_per_s"]
        for turn in first
        if turn["way"] == Way.STREAM
    }
    groups: dict[Contender, list[Row]] = defaultdict(list)
    for turn in first:
        groups[turn["temperature"], turn["draft"], turn["way"]].append(turn)
    contest = against(turns)
    rows = []
    for (temperature, draft, way), found in groups.items():
        ratios = sorted(
            turn["tokens_per_s"] / streamed[turn["prompt"], temperature] for turn in found
        )
        alphas = [turn["alpha"] for turn in found if turn["alpha"] is not None]
        row: Row = {"link": link, "temperature": temperature, "draft": draft, "way": way}
        row["against_streaming"] = statistics.median(ratios)
        row["least"], row["most"] = ratios[0], ratios[-1]
        row["alpha"] = statistics.median(alphas) if alphas else None
        for name in _figures_keys(found[0]):
            row[name] = statistics.median(turn[name] for turn in found)
        if way == Way.AUTO and draft is not None:
            row["contest"] = _standing(contest[temperature, draft])
        rows.append(row)
    return rows


def _standing(others: Mapping[str, Ratio]) -> Row:
    """How `auto` does against streaming and the best of all other ways."""
    best = min(others, key=lambda way: others[way].mean)
    row: Row = {}
    for name, way in (("streaming", Way.STREAM), ("best", best)):
        ratio = others[way]
        row |= {
            **({"best": way} if name == "best" else {}),
            f"against_{name}": ratio.mean,
            f"{name}_low": ratio.low,
            f"{name}_high": ratio.high if ratio.high < math.inf else None,
            f"{name}_turns": ratio.turns,
        }
    row["reached"] = standing(others.values())
    return row


def _figures_keys(turn: Row) -> list[str]:
    return [key for key in turn if key.endswith(("_s", "_per_token", "_per_round_trip"))]


def claims(rows: Sequence[Row]) -> list[Row]:
    """How `auto` does on each link: against streaming, and against the best of all ways."""
    return [
        {**{key: row[key] for key in ("link", "temperature", "draft")}, **row["contest"]}
        for row in rows
        if "contest" in row
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
