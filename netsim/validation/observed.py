"""Real generations as the simulation is held against, measured by a process of its own.

That process can be put on other cores than the verifier and the relay, and into another
network namespace: `python -m netsim.validation.observed` reads a `Task` and writes what came
of it, both as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_client import EdgeClient
from edge_client.render import notice
from netsim.real import Arrival, Measured, check_drafts, generate, on_cores
from netsim.scenario import Way
from specwire.errors import SpecwireError

PROMPT = "Explain in a few sentences how a rainbow forms."
WARM_UP, WARM_UP_TOKENS = Way.SYNC, 16
"""The client's first answer: it learns from it what the policy needs, and is not compared."""


@dataclass(frozen=True)
class Task:
    """What to measure: every way in turn, `runs` times, over the link that leads to `address`."""

    address: str
    draft: str
    ways: tuple[Way, ...]
    gamma: int
    tokens: int
    runs: int
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Observed:
    """One generation. gamma: as it was asked for."""

    measured: Measured
    gamma: int | None


def observe(task: Task, *, inside: Sequence[str] = ()) -> list[Observed]:
    """Measure in a process of its own. inside: what its command is put behind.

    Raises:
        SpecwireError: it failed; the message has its words.
    """
    command = [*inside, sys.executable, "-m", "netsim.validation.observed"]
    done = subprocess.run(
        command, input=json.dumps(dataclasses.asdict(task)), capture_output=True, text=True
    )
    if done.returncode != 0:
        told = done.stderr.strip().splitlines()
        raise SpecwireError(f"measuring failed: {told[-1] if told else 'without a word'}")
    return [_read(item) for item in json.loads(done.stdout)]


def _read(item: dict[str, Any]) -> Observed:
    measured = dict(item["measured"])
    measured["way"] = Way(measured["way"])
    measured["arrivals"] = [Arrival(**arrival) for arrival in measured["arrivals"]]
    return Observed(Measured(**measured), item["gamma"])


async def _measure(task: Task) -> list[Observed]:
    messages = [("user", PROMPT)]
    found = []
    async with EdgeClient(task.address, draft=task.draft, threads=1, notify=notice) as client:
        # It loads the draft, connects, and has both ends read the prompt, which they remember.
        first = await generate(client, task.address, WARM_UP, messages, tokens=WARM_UP_TOKENS)
        check_drafts(task.draft, first)
        for seed in range(task.runs):
            for way in task.ways:
                gamma = None if way is Way.STREAM else task.gamma
                measured = await generate(
                    client,
                    task.address,
                    way,
                    messages,
                    tokens=task.tokens,
                    gamma=gamma,
                    seed=seed,
                )
                found.append(Observed(measured, gamma))
    return found


def main() -> int:
    """Measure what standard input asks for."""
    given = json.load(sys.stdin)
    ways = tuple(Way(way) for way in given.pop("ways"))
    task = Task(ways=ways, cores=tuple(given.pop("cores")), **given)
    try:
        with on_cores(task.cores):
            found = asyncio.run(_measure(task))
    except SpecwireError as error:
        print(error, file=sys.stderr)
        return 1
    json.dump([dataclasses.asdict(item) for item in found], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
