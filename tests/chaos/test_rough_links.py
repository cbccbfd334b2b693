"""Sessions of real clients over a link that cuts, stalls, goes dead and slows down at random."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from edge_client import EdgeClient, Mode, Result, Token, Verification
from edge_client import link as link_module
from specwire.ports import Step
from tests.support.edge import VerifierThread, asking, tiny_verifier
from tests.support.rough_link import RoughLink
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

TOKENS = 220
PROMPT = "A long tale"
CUTS = 300
MODES = (Mode.AUTO, Mode.RUN_AHEAD, Mode.PIPELINE, Mode.SYNC)
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "verification": Verification.COUPLED},
    "rejection": {"temperature": 0.8, "verification": Verification.REJECTION},
}


class Paced:
    """A backend whose forwards take 3 ms at least, so that cuts come in the middle of a text."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(0.003)
        result: list[np.ndarray] = self._backend.forward(steps)
        return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rough")
    more: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "context": 512}
    write_tiny_gguf(folder / "target.gguf", **more)
    write_tiny_gguf(folder / "draft.gguf", noise=0.1, **more)
    return folder


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        verifier.stop()
        verifier.backend = Paced(verifier.backend)
        verifier.start()
        yield verifier


@pytest.fixture(scope="module")
def undisturbed(verifier: VerifierThread) -> dict[str, Result]:
    with EdgeClient(verifier.address) as client:
        return {
            name: client.generate(PROMPT, options=asking(TOKENS, mode=Mode.STREAM, **rule))
            for name, rule in RULES.items()
        }


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead links are noticed in half a second, and waits between attempts are short."""
    from edge_client import retry

    fast = {
        "grpc.keepalive_time_ms": 300,
        "grpc.keepalive_timeout_ms": 500,
        "grpc.http2.ping_timeout_ms": 500,
        "grpc.min_reconnect_backoff_ms": 1000,
        "grpc.initial_reconnect_backoff_ms": 20,
        "grpc.max_reconnect_backoff_ms": 100,
    }
    options = tuple((name, fast.get(name, value)) for name, value in link_module._OPTIONS)
    monkeypatch.setattr(link_module, "_OPTIONS", options)
    monkeypatch.setattr(link_module, "CONNECT_S", 1.0)
    quick = retry.RetryPolicy(attempts=60, total_s=60.0, first_s=0.02, longest_s=0.2)
    monkeypatch.setattr(retry, "RESUME", quick)
    monkeypatch.setattr(retry, "CONNECT", quick)


@dataclass
class Storm:
    """What happens to a link, by a seed: each time after some progress, or some time."""

    seed: int
    heard: int = 0  # tokens so far, so that a slow machine makes progress between two faults
    faults: Counter[str] = field(default_factory=Counter)

    async def blow(self, link: RoughLink) -> None:
        rng = random.Random(self.seed)
        while True:
            before = self.heard
            await asyncio.sleep(rng.uniform(0.005, 0.06))
            for _ in range(40):
                if self.heard > before:
                    break
                await asyncio.sleep(0.01)
            kind = rng.choices(["cut", "stall", "dead", "slow"], [20, 2, 0.6, 1])[0]
            self.faults[kind] += kind not in ("cut", "dead") or link.open > 0
            if kind == "cut":
                link.cut()
            elif kind == "dead":
                link.half_open()
            elif kind == "stall":
                link.stall()
                await asyncio.sleep(rng.uniform(0.01, 0.15))
                link.flow()
            else:
                link.pause_s, link.piece = rng.uniform(0.001, 0.01), rng.choice([64, 512, 4096])
                await asyncio.sleep(rng.uniform(0.05, 0.2))
                link.pause_s, link.piece = 0.0, 4096


@dataclass
class Told:
    """A session as its reader saw it."""

    result: Result
    tokens: list[Token]
    storm: Storm
    cuts: int


async def weathered(
    address: str, draft: Path, mode: Mode, rule: str, seed: int, *, tail: bool
) -> Told:
    storm, tokens = Storm(seed), list[Token]()
    async with (
        RoughLink(address) as link,
        EdgeClient(link.address, draft=str(draft), threads=1, notify=lambda _: None) as client,
    ):
        options = replace(asking(TOKENS, mode=mode, gamma=3, **RULES[rule]), offline_tail=tail)
        stream = client.stream(PROMPT, options=options)
        blowing = asyncio.create_task(storm.blow(link))
        try:
            async for token in stream:
                tokens.append(token)
                storm.heard = len(tokens)
        finally:
            blowing.cancel()
            link.flow()
        return Told(stream.result, tokens, storm, link.cuts)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
async def test_hundreds_of_cuts_change_nothing(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result]
) -> None:
    """Nothing lost, nothing doubled; where the seed decides, the very same text."""
    cases = list(itertools.product(MODES, RULES, (False, True)))
    room = asyncio.Semaphore(6)

    async def one(index: int, mode: Mode, rule: str, tail: bool) -> Told:
        async with room:
            return await weathered(
                verifier.address, folder / "draft.gguf", mode, rule, index, tail=tail
            )

    told: list[Told] = []
    async with asyncio.timeout(200):
        for turn in range(6):
            told += await asyncio.gather(
                *(one(100 * turn + i, *case) for i, case in enumerate(cases))
            )
            if sum(each.cuts for each in told) >= CUTS:
                break
    for (mode, rule, tail), each in zip(itertools.cycle(cases), told, strict=False):
        where = (mode, rule, tail, each.storm.seed)
        result, expected = each.result, undisturbed[rule]
        ids = [token.id for token in each.tokens if token.id is not None]
        positions = [token.position for token in each.tokens if token.id is not None]
        first = result.prompt_tokens
        assert positions == list(range(first, first + TOKENS)), where
        assert ids == list(result.token_ids), where
        assert "".join(token.text for token in each.tokens) == result.text, where
        assert result.finish_reason == "length", where
        assert sum(result.origins.values()) == TOKENS, where
        if rule != "rejection":
            assert ids == list(expected.token_ids), where
            assert result.text == expected.text, where
    faults = sum((each.storm.faults for each in told), Counter[str]())
    cuts = sum(each.cuts for each in told)
    print(f"{len(told)} sessions, {cuts} cuts, {dict(faults)}")
    assert cuts >= CUTS
    assert faults["dead"] and faults["stall"] and faults["slow"]
    assert {each.result.reconnections > 0 for each in told} == {True}
    # What the verifier remembers of each is what its reader saw.
    remembered = verifier.run(_outputs(verifier))
    for each in told:
        assert tuple(each.result.token_ids) in remembered
    assert verifier.unended == 0


async def _outputs(verifier: VerifierThread) -> set[tuple[int, ...]]:
    assert verifier._server is not None
    return {tuple(s.state.output) for s in verifier._server._scheduler.sessions}
