"""Capacity: one real verifier, and more and more clients over emulated links.

A device of its own for each client is more than this machine has. So a client's draft
takes the time of one, asleep, and knows as much as one: it has the text from an earlier run,
and is wrong by chance. Everything else is real: the verifier and its model on one core, all
clients and the relay on the other.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from benchmarks.pair import PROMPTS
from edge_client import EdgeClient, GenerateOptions, Mode, Result
from edge_client.draft.source import Drafted, DraftSource
from netsim.links.profiles import profile
from netsim.real import cores, on_cores, verifier
from netsim.relay import Relay
from specwire.edge_session import EdgeSession
from specwire.qrow import point_row
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

LINK = "rtt-50"
CLIENTS = (1, 2, 4, 8, 16, 32)
WAYS = {
    "stream": Mode.STREAM,
    "wait (sync)": Mode.SYNC,
    "wait (pipeline)": Mode.PIPELINE,
    "run_ahead": Mode.RUN_AHEAD,
    "auto": Mode.AUTO,
}
DRAFT_S = 0.010
ALPHA = 0.8
TOKENS = 64
TEXTS = 8
"""Different prompts; further clients begin again with the first."""

Row = dict[str, Any]


class Device:
    """Drafts as a model on a device of its own would: so fast, and so well."""

    def __init__(self, text: Sequence[int], prompt: int, *, coupled: bool) -> None:
        self._text = text
        self._prompt = prompt
        self._coupled = coupled

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        time.sleep(DRAFT_S)
        position = len(prefix) - self._prompt
        if position >= len(self._text):
            return None
        knows = random.Random(f"{self._prompt} {position}").random() < ALPHA
        token = self._text[position] if knows else self._text[position] + 1
        return Drafted(token, None if self._coupled else point_row(token), ALPHA)

    def close(self) -> None:
        pass


def run(*, quick: bool = False) -> list[Row]:
    """One row for each number of clients and way."""
    cloud, edge = cores()
    task = {"clients": (3,) if quick else CLIENTS, "tokens": 12 if quick else TOKENS}
    with socket.create_server(("127.0.0.1", 0)) as free:
        task["metrics"] = metrics = free.getsockname()[1]
    with verifier(lambda line: None, on=cloud, metrics=metrics) as address:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.capacity"],
            input=json.dumps({**task, "address": address, "cores": edge}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- the clients' process


async def _measure(task: Row) -> None:
    async with Relay(task["address"], profile(LINK)) as relay:
        count = min(TEXTS, max(task["clients"]))
        texts = [await _text(relay.address, index, task["tokens"]) for index in range(count)]
        for clients in task["clients"]:
            for way, mode in WAYS.items():
                before = _forwards(task["metrics"])
                row = await _together(relay.address, clients, way, mode, texts)
                forwards = _forwards(task["metrics"]) - before
                row["forwards_per_token"] = forwards / row.pop("tokens")
                print(json.dumps(row), flush=True)


def _forwards(port: int) -> float:
    """Target forwards of the verifier until now, each once however many sessions were in it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(r"^specwire_forward_seconds_count(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError("the verifier's metrics tell of no forwards")
    return float(found[1])


def _prompt(index: int) -> str:
    prompts = list(PROMPTS.values())
    return f"{prompts[index % len(prompts)]} ({index // len(prompts) + 1})"


def _options(mode: Mode, tokens: int) -> GenerateOptions:
    return GenerateOptions(sampling=SamplingParams(temperature=0.0), max_tokens=tokens, mode=mode)


async def _text(address: str, index: int, tokens: int) -> list[int]:
    async with EdgeClient(address, draft=None) as client:
        result = await client.complete(
            messages=[("user", _prompt(index))], options=_options(Mode.STREAM, tokens)
        )
        return result.token_ids


async def _together(
    address: str, clients: int, way: str, mode: Mode, texts: Sequence[Sequence[int]]
) -> Row:
    """All clients at once, from before their openings to the last token."""
    began = time.perf_counter()
    results = await asyncio.gather(
        *(
            _one(address, index % len(texts), mode, texts[index % len(texts)])
            for index in range(clients)
        )
    )
    seconds = time.perf_counter() - began
    tokens = sum(len(result.token_ids) for result in results)
    times = sorted((r.duration_s - r.ttft_s) / max(len(r.token_ids) - 1, 1) for r in results)
    examined = sum(result.counts.examined for result in results)
    return {
        "clients": clients,
        "way": way,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "ms_per_token_p50": 1e3 * statistics.median(times),
        "ms_per_token_p95": 1e3 * times[min(int(0.95 * len(times)), len(times) - 1)],
        "alpha": sum(r.counts.accepted for r in results) / examined if examined else None,
    }


async def _one(address: str, index: int, mode: Mode, text: Sequence[int]) -> Result:
    async with EdgeClient(address, draft=None, drafts="lookup") as client:

        def source(weights: Any, machine: EdgeSession, options: GenerateOptions) -> DraftSource:
            coupled = machine.request.mode == pb.VERIFICATION_MODE_COUPLED
            return Device(text, len(machine.request.prompt), coupled=coupled)

        client._drafter.source = source  # type: ignore[method-assign]
        return await client.complete(
            messages=[("user", _prompt(index))], options=_options(mode, len(text))
        )


def main() -> None:
    """The clients' process: reads what to measure, writes a line for each row."""
    task = json.load(sys.stdin)
    with on_cores(task["cores"]):
        asyncio.run(_measure(task))


if __name__ == "__main__":
    main()
