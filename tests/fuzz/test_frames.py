"""More than 100 000 malformed frames through the real servicer: each is refused or harmless."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.fuzz.frames import Fuzzer, pick
from tests.fuzz.servicer import LIMITS, NEVER, SIZE, Calls, Verifier, load, seeds
from tests.support.drafter import open_frame, point
from tests.support.serving import serving
from tests.support.tables import LetterEncoder, TableBackend, random_table

EXAMPLES = 370
CALLS = 300
"""Of an example; a call takes one frame or several."""
FRAMES = 100_000
OVER_SOCKETS = 3_000
PATIENCE_S = 30.0
MEMORY_BYTES = 64 << 20


class Probe:
    """A session of somebody else, one token at a time: its text must stay what it is."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._id = b""
        self._last = 0
        self._frontier = self._number = 0

    async def step(self) -> None:
        """One more token, which must be the target's."""
        if not self._id or self._frontier >= 40:
            opening = pb.VerifyRequest(open=open_frame([1, 2]))
            answer = await self._verifier.call("Verify", [opening.SerializeToString()])
            assert answer.opened is not None, answer.message
            self._id, self._frontier, self._number = answer.opened.session_id, 2, 0
            self._last = 2
        self._number += 1
        ask = point(self._number, self._number, self._frontier, [])
        request = pb.VerifyRequest(session_id=self._id, frontier=self._frontier, proposal=ask)
        answer = await self._verifier.call("Verify", [request.SerializeToString()])
        (response,) = answer.frames
        expected = int(self._verifier.backend.table[self._last].argmax())
        assert list(response.committed.tokens) == [expected]
        self._last, self._frontier = expected, self._frontier + 1
        if self._frontier >= 40:
            closing = pb.CloseRequest(session_id=self._id)
            await self._verifier.call("Close", [closing.SerializeToString()])


class Attack:
    """A run of calls from a seed, on sessions that it opens itself."""

    def __init__(self, verifier: Verifier, seed: int) -> None:
        self._verifier = verifier
        self._fuzz = Fuzzer(seed, SIZE)
        self._rng = random.Random(f"attack {seed}")
        self._sessions: dict[bytes, tuple[int, bool]] = {}  # frontier, coupled
        self._number = itertools.count(1)
        self.malformed = 0
        self.calls: Calls = []

    async def run(self, calls: int, probe: Probe) -> None:
        for index in range(calls):
            if index % 50 == 0:
                await probe.step()
            async with asyncio.timeout(PATIENCE_S):
                await pick(
                    self._rng,
                    (
                        (5.0, self._verify),
                        (3.0, self._decode),
                        (1.0, self._open),
                        (0.3, self._generate),
                        (0.4, self._close),
                    ),
                )
            if len(self._sessions) > 20:
                await self._close_one()
        while self._sessions:
            await self._close_one()
        await probe.step()

    async def _call(self, method: str, frames: Sequence[Message], bad: Sequence[bool]) -> Any:
        raw = [
            self._fuzz.garble(frame.SerializeToString())
            if wrong and self._rng.random() < 0.2
            else frame.SerializeToString()
            for frame, wrong in zip(frames, bad, strict=True)
        ]
        self.calls.append((method, raw))
        answer = await self._verifier.call(method, raw)
        self.malformed += sum(bad[: answer.taken])
        opened = answer.opened
        if opened is not None:
            known = self._sessions.get(opened.session_id, (0, self._rng.random() < 0.3))
            self._sessions[opened.session_id] = (opened.frontier, known[1])
        return answer

    def _target(self) -> tuple[bytes, int, bool]:
        if not self._sessions:
            return b"nobody", 1, False
        session_id = self._rng.choice(list(self._sessions))
        return session_id, *self._sessions[session_id]

    def _proposals(self, frontier: int, coupled: bool, count: int) -> list[tuple[Message, bool]]:
        made: list[tuple[Message, bool]] = []
        for _ in range(count):
            frame = self._fuzz.proposal(frontier, next(self._number), coupled=coupled)
            wrong = self._rng.random() < 0.85
            if wrong:
                self._fuzz.mutate(frame)
            made.append((frame, wrong))
        return made

    async def _verify(self) -> None:
        session_id, frontier, coupled = self._target()
        ((proposal, wrong),) = self._proposals(frontier, coupled, 1)
        assert isinstance(proposal, pb.Proposal)
        request = pb.VerifyRequest(session_id=session_id, frontier=frontier, proposal=proposal)
        if self._rng.random() < 0.3:
            self._fuzz.mutate(request)
            wrong = True
        answer = await self._call("Verify", [request], [wrong])
        for response in answer.frames:
            if session_id in self._sessions:
                self._sessions[session_id] = (response.frontier, coupled)

    async def _decode(self) -> None:
        session_id, frontier, coupled = self._target()
        if self._rng.random() < 0.6:
            resume = pb.Resume(protocol_version=1, session_id=session_id, frontier=frontier)
            first, wrong = pb.EdgeFrame(resume=resume), False
        else:
            first, wrong = pb.EdgeFrame(open=self._fuzz.open()), False
            frontier = len(first.open.ids.ids)
            coupled = first.open.mode == pb.VERIFICATION_MODE_COUPLED
        if self._rng.random() < 0.3:
            self._fuzz.mutate(first)
            wrong = True
        frames: list[Message] = [first]
        bad = [wrong]
        for proposal, strange in self._proposals(frontier, coupled, self._rng.randrange(1, 5)):
            assert isinstance(proposal, pb.Proposal)
            frame = pb.EdgeFrame(proposal=proposal)
            if self._rng.random() < 0.1:
                self._fuzz.mutate(frame)
                strange = True
            frames.append(frame)
            bad.append(strange)
        answer = await self._call("Decode", frames, bad)
        for frame in answer.frames:
            if frame.WhichOneof("kind") == "verdict" and session_id in self._sessions:
                end = frame.verdict.start + frame.verdict.accepted + frame.verdict.HasField("token")
                self._sessions[session_id] = (end, coupled)

    async def _open(self) -> None:
        request = pb.VerifyRequest(open=self._fuzz.open())
        wrong = self._rng.random() < 0.8
        if wrong:
            self._fuzz.mutate(request.open if self._rng.random() < 0.8 else request)
        await self._call("Verify", [request], [wrong])

    async def _generate(self) -> None:
        frame = self._fuzz.open()
        self._fuzz.mutate(frame)
        await self._call("Generate", [frame], [True])

    async def _close(self) -> None:
        request = pb.CloseRequest(session_id=self._target()[0])
        self._fuzz.mutate(request)
        await self._call("Close", [request], [True])

    async def _close_one(self) -> None:
        session_id, _ = self._sessions.popitem()
        await self._verifier.call(
            "Close", [pb.CloseRequest(session_id=session_id).SerializeToString()]
        )


def resident_bytes() -> int:
    """Memory of this process; 0 where it can't be told."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


@pytest.mark.slow
def test_100_000_malformed_frames_do_no_harm() -> None:
    totals: Counter[str] = Counter()
    statuses: Counter[grpc.StatusCode] = Counter()
    memory: list[int] = []

    async def example(seed: int) -> None:
        async with Verifier() as verifier:
            probe, attack = Probe(verifier), Attack(verifier, seed)
            try:
                await attack.run(CALLS, probe)
            except BaseException:
                for method, raw in attack.calls[-3:]:
                    print(method, [item.hex() for item in raw], file=sys.stderr)
                raise
            assert len(verifier.scheduler.sessions) <= LIMITS.sessions
            verifier.scheduler.sessions.drop_idle(float("inf"))
            assert len(verifier.scheduler.sessions) == 0
        assert verifier.backend.sequences == 0
        totals["malformed"] += attack.malformed
        statuses.update(verifier.statuses)
        memory.append(resident_bytes())

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64 - 1))
    def attack(seed: int) -> None:
        asyncio.run(example(seed))

    attack()
    for seed in range(2_000):  # hypothesis may have repeated itself
        if totals["malformed"] >= FRAMES:
            break
        asyncio.run(example(seed))
    assert totals["malformed"] >= FRAMES
    # They reach every part: all refusals that a request can earn, and rounds too.
    for status in ("OK", "INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND", "FAILED_PRECONDITION"):
        assert statuses[grpc.StatusCode[status]] > 500, statuses
    assert memory[-1] - memory[len(memory) // 5] < MEMORY_BYTES


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in seeds()])
async def test_what_once_found_a_fault_finds_none(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), Verifier() as verifier:
        probe = Probe(verifier)
        await probe.step()
        for method, raw in load(path):
            await verifier.call(method, raw)
            await probe.step()


# ---------------------------------------------------------------- over sockets


async def over_the_wire(channel: Any, method: str, raw: Sequence[bytes]) -> Any:
    """The status of a call of raw bytes."""
    path = f"/specwire.v1.Verifier/{method}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            if method == "Decode":
                async for _ in channel.stream_stream(path)(iter(raw)):
                    pass
            elif method == "Generate":
                async for _ in channel.unary_stream(path)(raw[0]):
                    pass
            else:
                await channel.unary_unary(path)(raw[0])
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.slow
async def test_garbage_over_a_socket_does_no_harm() -> None:
    backend = TableBackend(random_table(SIZE, seed=5), context=LIMITS.context)
    fuzz, sent = Fuzzer(99, SIZE), 0
    refused: Counter[grpc.StatusCode] = Counter()
    async with (
        asyncio.timeout(120),
        serving(backend, LetterEncoder(), LIMITS) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        while sent < OVER_SOCKETS:
            calls: Calls = []
            for _ in range(20):
                opening = pb.EdgeFrame(open=fuzz.open())
                frame = pb.EdgeFrame(proposal=fuzz.proposal(2, 1, coupled=False))
                fuzz.mutate(frame)
                raw = [opening.SerializeToString(), fuzz.garble(frame.SerializeToString())]
                calls.append(("Decode", raw if fuzz.rng.random() < 0.7 else raw[1:]))
                calls.append(("Decode", [fuzz.rng.randbytes(fuzz.rng.randrange(200))]))
            statuses = await asyncio.gather(*(over_the_wire(channel, *call) for call in calls))
            sent += len(calls)
            for code, details in statuses:
                assert code not in NEVER, details
                refused[code] += 1
            server._scheduler.sessions.drop_idle(float("inf"))
        probe = open_frame([1, 2], max_tokens=5)
        expected, last = [], 2
        for _ in range(5):
            last = int(backend.table[last].argmax())
            expected.append(last)
        frames = [frame async for frame in rpc.VerifierStub(channel).Generate(probe)]
    assert [f.verdict.token for f in frames if f.WhichOneof("kind") == "verdict"] == expected
    assert refused[grpc.StatusCode.INVALID_ARGUMENT] > OVER_SOCKETS / 2


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in seeds("garbled-*")])
async def test_bytes_that_are_no_message_are_refused_in_every_call(path: Path) -> None:
    backend = TableBackend(random_table(SIZE, seed=5), context=LIMITS.context)
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(backend, LetterEncoder(), LIMITS) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        for method, raw in load(path):
            code, _ = await over_the_wire(channel, method, raw)
            assert code is grpc.StatusCode.INVALID_ARGUMENT


# --------------------------------------------------------------------- prompts


async def test_prompts_of_any_text_are_encoded_or_refused(tiny_gguf: Path) -> None:
    """With a real tokenizer and chat template, which the table's verifier lacks."""
    pytest.importorskip("torch")
    from tests.support.serving import tiny_target

    target = tiny_target(tiny_gguf)
    fuzz = Fuzzer(17, len(target.backend.vocabulary))
    rng = fuzz.rng
    async with asyncio.timeout(90), Verifier(target.backend, target.encoder) as verifier:
        for _ in range(600):
            frame = pb.Open(protocol_version=1, max_tokens=1)
            if rng.random() < 0.3:
                frame.text = _text(rng)
            else:
                for _ in range(rng.randrange(4)):
                    frame.chat.messages.add(role=_text(rng)[:9], content=_text(rng))
            if rng.random() < 0.2:
                fuzz.mutate(frame)
            raw = frame.SerializeToString()
            if rng.random() < 0.3:
                raw = fuzz.garble(raw)
            answer = await verifier.call("Generate", [raw])
            if answer.opened is not None:
                request = pb.CloseRequest(session_id=answer.opened.session_id)
                await verifier.call("Close", [request.SerializeToString()])
    for status in ("OK", "INVALID_ARGUMENT"):
        assert verifier.statuses[grpc.StatusCode[status]] > 100, verifier.statuses


def _text(rng: random.Random) -> str:
    pieces = [
        *("a", " ", "\n", "\0", "é", "🙂", "你", "\u200d", "\ufeff", "\U0010ffff", "<|im_end|>"),
        *("<|im_start|>assistant\n", "{{ 1/0 }}", "{% raw %}", "[PAD300]", "the", "\x7f" * 9),
        *("user", "system", "assistant"),
    ]
    return "".join(rng.choices(pieces, k=rng.choice((0, 1, 2, 5, 40))))
