"""Less cache memory than sessions need: everyone is served, in turn, and with the right text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("torch")

from cloud_verifier.backends.load import load_target
from cloud_verifier.backends.packed import PackedBackend
from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.ports import PromptEncoder, Step
from specwire.v1 import verifier_pb2 as pb
from tests.support.clients import Member, alone, crowd, with_truth
from tests.support.drafter import Drafter, Stream, converse, open_frame, persist, point, until
from tests.support.serving import serving, stub_for
from tests.support.tiny_models import SPECIALS, write_tiny_gguf

CONTEXT = 2048


@pytest.fixture(scope="module")
def long_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("memory") / "long.gguf", context=CONTEXT)


class Counting:
    """The backend of a small memory, and how many forwards it has run."""

    def __init__(self, backend: PackedBackend, encoder: PromptEncoder) -> None:
        self.backend = backend
        self.encoder = encoder
        self.forwards = 0
        self.largest = 0
        self._forward = backend.forward
        backend.forward = self._counted  # type: ignore[method-assign]

    def _counted(self, steps: Sequence[Step]) -> list[Any]:
        self.forwards += 1
        self.largest = max(self.largest, len(steps))
        return self._forward(steps)


def loaded(path: Path, *, context: int, tokens: int | None = None) -> Counting:
    """A target with cache memory for so many tokens; None for plenty."""
    memory = None
    if tokens is not None:
        probe = load_target(str(path), dtype="float32", device="cpu", threads=1, context=16)
        assert isinstance(probe.backend, PackedBackend)
        memory = tokens * probe.backend.bytes_per_token
    target = load_target(
        str(path), dtype="float32", device="cpu", threads=1, context=context, kv_memory=memory
    )
    assert isinstance(target.backend, PackedBackend)
    return Counting(target.backend, target.encoder)


async def texts_alone(path: Path, members: Sequence[Member]) -> tuple[list[Member], list[Any]]:
    """The members with drafts that are mostly right, and the text each gets with ample memory."""
    ample = loaded(path, context=CONTEXT)
    async with serving(ample.backend, ample.encoder) as server, stub_for(server) as stub:
        members = [await with_truth(stub, member) for member in members]
        return members, [await alone(stub, member) for member in members]


def longest_wait(counting: Counting, drafter: Drafter) -> list[int]:
    """Where to read, in the end, how many forwards a drafter waited at most between two turns."""
    draft, waits = drafter.draft, [0]
    last = counting.forwards

    def noted(ids: list[int], count: int) -> Any:
        nonlocal last
        waits[0] = max(waits[0], counting.forwards - last)
        last = counting.forwards
        return draft(ids, count)

    drafter.draft = noted
    return waits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "prompt", "memory", "most_wait"),
    [
        pytest.param(12, 100, 3 * 128, 60, id="3 of 12"),
        pytest.param(4, 1200, 2000, 80, id="one long prompt of 4, longer than a part"),
    ],
)
async def test_everyone_finishes_with_the_right_text_and_nobody_starves(
    long_gguf: Path, sessions: int, prompt: int, memory: int, most_wait: int
) -> None:
    small = loaded(long_gguf, context=1300 if prompt > 1000 else 128, tokens=memory)
    members = crowd(sessions, low=len(SPECIALS), high=250, max_tokens=14, prompt=prompt)
    async with asyncio.timeout(60):
        members, expected = await texts_alone(long_gguf, members)
        async with serving(small.backend, small.encoder) as server, stub_for(server) as stub:
            drafters = [member.drafter() for member in members]
            waits = [longest_wait(small, drafter) for drafter in drafters]
            await asyncio.gather(*(persist(stub, drafter) for drafter in drafters))
            assert [d.output for d in drafters] == expected
            await until(lambda: small.backend.pool.used == 0)
    assert max(wait[0] for wait in waits) <= most_wait
    assert small.largest < sessions  # memory was short indeed


@pytest.mark.slow
async def test_idle_sessions_lose_their_cache_and_speak_again(long_gguf: Path) -> None:
    small = loaded(long_gguf, context=128, tokens=3 * 128)
    members = crowd(12, low=len(SPECIALS), high=250, max_tokens=12, seed=2, prompt=100)
    members = [m for m in members if m.kind.pacing == pb.PACING_WAIT]
    async with asyncio.timeout(60):
        members, expected = await texts_alone(long_gguf, members)
        async with serving(small.backend, small.encoder) as server, stub_for(server) as stub:
            drafters = [member.drafter() for member in members]
            # Each in turn has a few rounds, so that it holds a cache, and falls silent.
            for drafter in drafters:
                stream = Stream.decode(stub)
                await stream.send(drafter.first())
                drafter.take(pb.CloudFrame(opened=await stream.opened()))
                drafter.sent = []
                drafter.number, drafter.chain = 1, 1
                await stream.send(pb.Proposal(number=1, chain=1, start=drafter.frontier))
                drafter.take(pb.CloudFrame(verdict=await stream.verdict()))
                await stream.cancel()
            kept = [s.sequence for s in server._scheduler.sessions]
            assert len(kept) == len(drafters)
            assert kept[0] is None  # the first to speak has had to make room
            assert kept[-1] is not None
            for drafter in drafters:
                await converse(stub, drafter)
    for member, drafter, text in zip(members, drafters, expected, strict=True):
        if member.kind.mode == pb.VERIFICATION_MODE_COUPLED or member.kind.temperature == 0.0:
            assert drafter.output == text, member.kind.name
        else:  # the first token came without a draft: another text, as good
            assert len(drafter.output) == len(text)


async def refused(server: VerifierServer, prompt: int) -> Any:
    async with stub_for(server) as stub:
        stream = Stream.decode(stub)
        await stream.send(open_frame([3 + i % 200 for i in range(prompt)], max_tokens=0))
        await stream.send(point(1, 1, prompt, [5, 6]))
        return await stream.failure()


async def test_a_prompt_that_memory_can_never_hold_is_refused_at_once(long_gguf: Path) -> None:
    small = loaded(long_gguf, context=CONTEXT, tokens=96)
    assert small.backend.context == 96
    async with asyncio.timeout(30), serving(small.backend, small.encoder) as server:
        failure = await refused(server, 96)
        assert failure.status is grpc.StatusCode.INVALID_ARGUMENT
        assert "96" in failure.message
        assert server.sessions == 0
    assert small.forwards == 0


async def test_a_session_that_outgrows_memory_fails_alone(long_gguf: Path) -> None:
    """Limits that promise more than there is: the operator's mistake is told to that client."""
    small = loaded(long_gguf, context=CONTEXT, tokens=96)
    limits = Limits(context=512)
    beside = crowd(1, low=len(SPECIALS), high=250, max_tokens=20, seed=3, prompt=30)
    async with asyncio.timeout(30):
        (member,), (text,) = await texts_alone(long_gguf, beside)
        async with serving(small.backend, small.encoder, limits) as server, stub_for(server) as st:
            drafter = member.drafter()
            failure, _ = await asyncio.gather(refused(server, 200), persist(st, drafter))
            assert failure.code == pb.ERROR_CODE_EXHAUSTED
            assert "memory is too small" in failure.message
            assert drafter.output == text
            await until(lambda: small.backend.pool.used == 0)
