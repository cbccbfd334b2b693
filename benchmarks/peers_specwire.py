"""The process in which specwire generates: the edge of a verifier, or a pair on this device.

llama.cpp's own loop is here too, for it has the same library and the same prompt.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.pair import TARGET
from benchmarks.peers_worker import Ask, Row, serve
from edge_client import EdgeClient
from netsim.real import generate
from netsim.scenario import Way
from tests.support.bare import bare_greedy

LOOP = "plain loop"


def load(task: Row) -> Ask:
    """Take drafts by name, the threads of each model, and a verifier's address if there is one."""
    address, threads = task.get("address"), task["threads"]

    def client(draft: str | None) -> EdgeClient:
        if address is None:
            return EdgeClient.local(TARGET, draft=draft, threads=threads)
        return EdgeClient(address, draft=draft, threads=threads)

    clients = {None: client(None), **{name: client(path) for name, path in task["drafts"].items()}}
    runner = asyncio.Runner()

    def ask(task: Row) -> list[float]:
        if task["what"] == LOOP:
            return _loop(task, threads)
        messages = [("user", task["prompt"])]
        way, tokens = Way(task["what"]), task["tokens"]
        measured = runner.run(
            generate(clients[task["draft"]], address or "", way, messages, tokens=tokens)
        )
        return [arrival.at_s for arrival in measured.arrivals]

    return ask


def _loop(task: Row, threads: int) -> list[float]:
    path, count = Path(task["target"]), task["tokens"]
    tokens, seconds = bare_greedy(path, task["ids"], count, threads=threads, context=512)
    return [seconds * n / (len(tokens) - 1) for n in range(len(tokens))]


if __name__ == "__main__":
    serve(load)
