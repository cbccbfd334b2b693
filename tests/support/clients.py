"""Crowds of clients that speak the bare protocol: with scripted drafts, cut at random, killed.

As a program it is one client that never stops by itself, to be killed:

    python -m tests.support.clients HOST:PORT wait|run_ahead
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from specwire.qrow import QRow, point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Cut, Drafter, Scissors, Stream, converse, open_frame, persist

ROOT = Path(__file__).resolve().parents[2]

COUPLED = pb.VERIFICATION_MODE_COUPLED
REJECTION = pb.VERIFICATION_MODE_REJECTION
WAIT = pb.PACING_WAIT
RUN_AHEAD = pb.PACING_RUN_AHEAD

SHARE = 40 / 64
"""q of a scripted draft token; another token has the rest."""


@dataclass(frozen=True)
class Kind:
    """How a session is run. Its text depends on seed, prompt and script alone.

    That holds for rejection under `wait` only, where it is the same drafts that are
    examined however often the stream is cut.
    """

    name: str
    temperature: float
    mode: pb.VerificationMode = REJECTION
    pacing: pb.Pacing = WAIT
    sparse: bool = False
    parts: int = 1


KINDS = (
    Kind("greedy", 0.0),
    Kind("greedy, run ahead", 0.0, pacing=RUN_AHEAD),
    Kind("greedy, two in flight", 0.0, parts=2),
    Kind("coupled", 0.8, COUPLED),
    Kind("coupled, run ahead", 0.8, COUPLED, RUN_AHEAD, parts=2),
    Kind("rejection", 0.7),
    Kind("rejection, sparse", 0.9, sparse=True),
    Kind("rejection, sparse, two in flight", 0.9, sparse=True, parts=2),
)


@dataclass(frozen=True)
class Script:
    """What a client drafts at each position, whatever came before.

    truth: the text that another run of the session had, from position `start` on; a
    share `right` of the drafts is taken from there, the others are random.
    """

    seed: int
    low: int
    high: int
    sparse: bool = False
    start: int = 0
    truth: Sequence[int] = ()
    right: float = 0.7

    def _token(self, position: int) -> int:
        rng = random.Random(f"{self.seed} {position}")
        index = position - self.start
        if 0 <= index < len(self.truth) and rng.random() < self.right:
            return self.truth[index]
        return rng.randrange(self.low, self.high)

    def _row(self, position: int, token: int) -> QRow:
        if not self.sparse:
            return point_row(token)
        shift = random.Random(f"{self.seed} other {position}").randrange(1, self.high - self.low)
        other = self.low + (token - self.low + shift) % (self.high - self.low)
        ids = sorted((token, other))
        probs = [SHARE if i == token else 1 - SHARE for i in ids]
        return QRow(np.array(ids, np.int64), np.array(probs))

    def draft(self, ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
        """Draft tokens after `ids`, as a `DraftFunction`."""
        positions = range(len(ids), len(ids) + count)
        tokens = [self._token(p) for p in positions]
        return tokens, [self._row(p, t) for p, t in zip(positions, tokens, strict=True)]


@dataclass(frozen=True)
class Member:
    """One client of a crowd: what it asks for, and what it drafts."""

    kind: Kind
    prompt: Sequence[int]
    script: Script
    max_tokens: int
    gamma: int = 3

    @property
    def seed(self) -> int:
        """Of session and script."""
        return self.script.seed

    def drafter(self) -> Drafter:
        """A new client; every one of the same member asks for the same."""
        key = random.Random(f"key {self.seed}").randbytes(16)
        frame = open_frame(
            self.prompt,
            temperature=self.kind.temperature,
            mode=self.kind.mode,
            pacing=self.kind.pacing,
            max_tokens=self.max_tokens,
            seed=self.seed,
            open_key=key,
        )
        return Drafter(frame, self.script.draft, gamma=self.gamma, parts=self.kind.parts)


def crowd(
    size: int, *, low: int, high: int, max_tokens: int, seed: int = 0, prompt: int = 0
) -> list[Member]:
    """`size` members that differ in everything; ids are drawn from low … high−1.

    prompt: tokens of each prompt; 0 draws a few for each.
    """
    rng = random.Random(seed)
    members = []
    for index in range(size):
        kind = KINDS[index % len(KINDS)]
        length = prompt or rng.randrange(1, 40)
        ids = [rng.randrange(low, high) for _ in range(length)]
        script = Script(seed * 1000 + index, low, high, kind.sparse, start=length)
        members.append(Member(kind, ids, script, max_tokens, gamma=1 + index % 5))
    return members


async def with_truth(stub: rpc.VerifierAsyncStub, member: Member) -> Member:
    """The member with most drafts right: those that plain streaming gives."""
    frame = member.drafter().open
    frame.open_key = b""
    truth = [
        f.verdict.token
        for f in await Stream(stub.Generate(frame)).rest()
        if f.WhichOneof("kind") == "verdict"
    ]
    return replace(member, script=replace(member.script, truth=truth))


async def alone(stub: rpc.VerifierAsyncStub, member: Member) -> list[int]:
    """The text of a member whom nobody and nothing disturbs."""
    drafter = member.drafter()
    drafter.open.open_key = b""
    await persist(stub, drafter)
    return drafter.output


async def disturbed(
    stub: rpc.VerifierAsyncStub, drafter: Drafter, rng: random.Random, *, cuts: int = 8
) -> int:
    """Run a session whose stream breaks at random, `cuts` times at most; how often it did."""
    done = 0
    while drafter.finished is None:
        at = rng.randrange(1, 14) if done < cuts else 0
        drafter.reopens = rng.random() < 0.3
        with contextlib.suppress(Cut):
            await converse(
                stub,
                drafter,
                Scissors(at),
                copies=rng.choice((1, 1, 2)),
                echoes=rng.random() < 0.2,
                linger_s=rng.choice((0.0, 0.0, 0.005)),
            )
        done += drafter.finished is None
        assert done < cuts + 40, "the session makes no progress"
    return done


# ------------------------------------------------------------- in processes


@dataclass
class Pack:
    """Client processes that have had a verdict each."""

    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def kill(self) -> None:
        """kill −9 all of them."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
        for process in self.processes:
            await process.wait()


@contextlib.asynccontextmanager
async def pack_of(size: int, address: str, within_s: float = 60.0) -> AsyncIterator[Pack]:
    """`size` processes in the middle of their rounds, every other one running ahead."""
    pack = Pack()
    paths = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    try:
        async with asyncio.timeout(within_s):
            for index in range(size):
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.support.clients", address),
                    ("wait", "run_ahead")[index % 2],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": paths},
                    stdout=asyncio.subprocess.PIPE,
                )
                pack.processes.append(process)
            for process in pack.processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"going\n"
        yield pack
    finally:
        await pack.kill()


async def _never_stop(address: str, pacing: pb.Pacing) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = rpc.VerifierStub(channel).Decode()
        frame = open_frame([os.getpid() % 4, 1], max_tokens=100_000, pacing=pacing)
        await call.write(pb.EdgeFrame(open=frame))
        frontier, told = (await call.read()).opened.frontier, False
        for number in range(1, 100_000):
            draft = pb.Proposal(
                number=number, chain=number, start=frontier, tokens=[1, 2, 3], point=pb.PointQ()
            )
            await call.write(pb.EdgeFrame(proposal=draft))
            verdict = (await call.read()).verdict
            frontier = verdict.start + verdict.accepted + verdict.HasField("token")
            if not told:
                print("going", flush=True)
                told = True


if __name__ == "__main__":
    asyncio.run(_never_stop(sys.argv[1], RUN_AHEAD if sys.argv[2] == "run_ahead" else WAIT))
