"""kill −9, of clients and of the verifier, in the middle of rounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_verifier.server import VerifierServer
from edge_client import EdgeClient, Mode, Result, Verification
from specwire.limits import Limits
from specwire.ports import Step
from tests.support.clients import ROOT, pack_of
from tests.support.drafter import until
from tests.support.edge import asking
from tests.support.serving import serving
from tests.support.tables import LetterEncoder, TableBackend, random_table
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

PACK = 20
IDLE_S = 1.5


class Slow(TableBackend):
    """A table that takes 3 ms a forward, so that kills come in the middle of one."""

    def __init__(self) -> None:
        super().__init__(random_table(6, seed=8), context=200_000)

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(0.003)
        return super().forward(steps)


@pytest.mark.slow
async def test_killed_clients_leave_nothing_behind() -> None:
    backend = Slow()
    limits = Limits(context=backend.context, idle_s=IDLE_S)
    async with (
        asyncio.timeout(90),
        serving(backend, LetterEncoder(), limits) as server,
        pack_of(PACK, server.address) as pack,
    ):
        await until(lambda: server.attached == PACK)
        before = backend.forwards
        await until(lambda: backend.forwards > before + 5)
        await pack.kill()
        killed = time.monotonic()
        await until(lambda: server.attached == 0, within_s=2.0)
        assert server.sessions == PACK  # a client may come back within the idle time
        last = backend.forwards
        await asyncio.sleep(0.3)
        assert backend.forwards <= last + 1
        await until(lambda: server.sessions == 0, within_s=2 * IDLE_S)
        assert time.monotonic() - killed > 0.9 * IDLE_S
        await until(lambda: backend.sequences == 0)


async def test_a_killed_client_does_not_hold_up_the_others() -> None:
    backend = Slow()
    limits = Limits(context=backend.context, idle_s=IDLE_S)
    async with (
        asyncio.timeout(60),
        serving(backend, LetterEncoder(), limits) as server,
        pack_of(3, server.address) as pack,
    ):
        victim, *others = pack.processes
        victim.kill()
        await victim.wait()
        await until(lambda: server.attached == 2, within_s=2.0)
        turns = {s.id: s.turn for s in server._scheduler.sessions if s.outbox is not None}
        await until(lambda: _all_moved(server, turns))
        assert all(process.returncode is None for process in others)


def _all_moved(server: VerifierServer, turns: dict[bytes, int]) -> bool:
    now = {s.id: s.turn for s in server._scheduler.sessions}
    return all(now[id_] > turn + 10 for id_, turn in turns.items())


# ------------------------------------------------------- a killed verifier

TOKENS = 150
AT_TOKEN = 20
PROMPT = "A long tale"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "verification": Verification.COUPLED},
}
MODES = (Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("kills")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    write_tiny_gguf(target, chat_template=CHAT_TEMPLATE, context=512)
    write_tiny_gguf(draft, chat_template=CHAT_TEMPLATE, context=512, noise=0.1)
    return target, draft


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def verifier(model: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`cloud-verifier serve` on that port, ready."""
    paths = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cloud_verifier.cli", "serve", "--model", str(model)),
        *("--listen", f"127.0.0.1:{port}", "--dtype", "float32", "--device", "cpu"),
        *("--threads", "1"),
        env={**os.environ, "PYTHONPATH": paths},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"ready on ")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass
class Gate:
    """Where a generation waits, so that nobody is done before the verifier is killed."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        self.reached.set()
        await self.open.wait()


async def generate(
    address: str, draft: Path, mode: Mode, rule: str, gate: Gate | None = None
) -> tuple[Result, str]:
    """A generation, and the text as it was streamed; it waits at the gate on its way."""
    async with EdgeClient(address, draft=str(draft), threads=1, notify=lambda line: None) as client:
        stream = client.stream(PROMPT, options=asking(TOKENS, mode=mode, **RULES[rule]))
        texts = []
        async for token in stream:
            texts.append(token.text)
            if gate is not None and len(texts) == AT_TOKEN:
                await gate.wait()
        return stream.result, "".join(texts)


@pytest.mark.slow
async def test_clients_go_on_with_a_restarted_verifier(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    port = free_port()
    address = f"127.0.0.1:{port}"
    cases = [(mode, rule) for mode in MODES for rule in RULES]
    async with asyncio.timeout(170):
        async with verifier(target, port) as first:
            undisturbed = {
                rule: (await generate(address, draft, Mode.STREAM, rule))[0] for rule in RULES
            }
            gates = [Gate() for _ in cases]
            running = [
                asyncio.create_task(generate(address, draft, mode, rule, gate))
                for (mode, rule), gate in zip(cases, gates, strict=True)
            ]
            await asyncio.gather(*(gate.reached.wait() for gate in gates))
            for gate in gates:
                gate.open.set()
            await asyncio.sleep(0.005)
            first.kill()
            await first.wait()
        async with verifier(target, port):
            results = await asyncio.gather(*running)
    for (mode, rule), (result, text) in zip(cases, results, strict=True):
        expected = undisturbed[rule]
        assert list(result.token_ids) == list(expected.token_ids), (mode, rule)
        assert text == result.text == expected.text
        # Under run-ahead all the rest may have been on its way already.
        assert result.reconnections >= (mode is not Mode.RUN_AHEAD)
