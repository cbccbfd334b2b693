"""The process in which specwire generates: the edge of a verifier, or a pair on this device.

llama.cpp's own loop is here too, for it has the same library and the same prompt.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

from benchmarks.pair import TARGET
from benchmarks.peers_worker import Ask, Row, serve
from edge_client import EdgeClient
from netsim.real import generate
from netsim.scenario import Way
from tests.support.bare import bare_greedy

LOOP = "plain loop"


def load(task: Row) -> Ask:
    """Take drafts by name, the threads of each model, and a verifier's address if there is one.

    What is asked for is loaded when it first is: threads that another model left behind are a
    burden to llama.cpp's.
    """
    address, threads = task.get("address"), task["threads"]

    @cache
    def client(name: str | None) -> EdgeClient:
        draft = None if name is None else task["drafts"][name]
        if address is None:
            return EdgeClient.local(TARGET, draft=draft, threads=threads)
        return EdgeClient(address, draft=draft, threads=threads)

    runner = asyncio.Runner()

    def ask(asked: Row) -> list[float]:
        if asked["what"] == LOOP:
            return _loop(asked, threads)
        messages = [("user", asked["prompt"])]
        way, tokens = Way(asked["what"]), asked["tokens"]
        measured = runner.run(
            generate(client(asked["draft"]), address or "", way, messages, tokens=tokens)
        )
        return [arrival.at_s for arrival in measured.arrivals]

    return ask


def _loop(task: Row, threads: int) -> list[float]:
    path, count = Path(task["target"]), task["tokens"]
    tokens, seconds = bare_greedy(path, task["ids"], count, threads=threads, context=512)
    return [seconds * n / (len(tokens) - 1) for n in range(len(tokens))]


if __name__ == "__main__":
    serve(load)
