"""Frames sent again and streams cut anywhere: the text is that of the undisturbed run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.qrow import QRow, point_row
from specwire.v1 import verifier_pb2 as pb
from tests.support.drafter import (
    Cut,
    Drafter,
    Scissors,
    Stream,
    converse,
    open_frame,
    persist,
    until,
)
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire

SIZE = 6
TABLE = random_table(SIZE, seed=4)
PROMPT = [2, 0, 5]
OUTPUT = 11
SEED = 20
_RNG = np.random.default_rng(118)
SCRIPT = _RNG.integers(0, SIZE, 64).tolist()
"""The draft token of each position, whatever came before; some are accepted in every mode."""
OTHERS = [int((t + _RNG.integers(1, SIZE)) % SIZE) for t in SCRIPT]

CUTS: dict[str, dict[str, Any]] = {
    "cancelled": {},
    "cancelled late": {"linger_s": 0.01},  # the server has answered, nobody has read it
    "channel closed": {"cancels": False},
}


def scripted(row: Callable[[int], QRow]) -> Any:
    def draft(ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
        positions = range(len(ids), len(ids) + count)
        return [SCRIPT[p] for p in positions], [row(p) for p in positions]

    return draft


def _sparse(position: int) -> QRow:
    ids = sorted((SCRIPT[position], OTHERS[position]))
    share = 40 / 64
    probs = [share if i == SCRIPT[position] else 1 - share for i in ids]
    return QRow(np.array(ids, np.int64), np.array(probs))


def _one(position: int) -> QRow:
    return point_row(SCRIPT[position])


@dataclass(frozen=True)
class Case:
    """A way to run the session. With scripted drafts and `wait`, all are deterministic.

    So are greedy and coupled with `run_ahead`: there it depends on time which
    drafts are examined, but not what is committed.
    """

    temperature: float = 0.7
    row: Callable[[int], QRow] = _one
    mode: pb.VerificationMode = pb.VERIFICATION_MODE_REJECTION
    pacing: pb.Pacing = pb.PACING_WAIT
    parts: int = 1

    def drafter(self, **fields: Any) -> Drafter:
        frame = open_frame(
            PROMPT,
            temperature=self.temperature,
            mode=self.mode,
            pacing=self.pacing,
            max_tokens=OUTPUT,
            seed=SEED,
            open_key=bytes(range(16)),
            **fields,
        )
        return Drafter(frame, scripted(self.row), gamma=3, parts=self.parts)


COUPLED = pb.VERIFICATION_MODE_COUPLED
RUN_AHEAD = pb.PACING_RUN_AHEAD
CASES = {
    "point": Case(),
    "sparse": Case(row=_sparse),
    "two proposals in flight": Case(row=_sparse, parts=2),
    "greedy": Case(temperature=0.0),
    "coupled": Case(mode=COUPLED),
    "greedy, run ahead": Case(temperature=0.0, pacing=RUN_AHEAD),
    "coupled, run ahead": Case(mode=COUPLED, pacing=RUN_AHEAD),
    "coupled, run ahead, two in flight": Case(mode=COUPLED, pacing=RUN_AHEAD, parts=2),
}


@contextlib.asynccontextmanager
async def verifier() -> AsyncIterator[tuple[VerifierServer, TableBackend]]:
    backend = TableBackend(TABLE)
    async with serving(backend, LetterEncoder(), Limits(context=64, gamma=3)) as server:
        yield server, backend


async def undisturbed(case: Case) -> tuple[list[int], int]:
    """Output ids and the number of frames both ways."""
    async with verifier() as (server, _), stub_for(server) as stub:
        drafter, counter = case.drafter(), Scissors()
        with contextlib.suppress(Cut):
            await converse(stub, drafter, counter)
        await persist(stub, drafter)
        assert len(drafter.output) == OUTPUT
        return drafter.output, counter.count


async def test_the_cases_differ_and_meet_accepted_and_rejected_drafts() -> None:
    outputs = {}
    for name in ("point", "sparse", "greedy", "coupled"):
        async with verifier() as (server, _), stub_for(server) as stub:
            drafter = CASES[name].drafter()
            await persist(stub, drafter)
            kinds = {verdict.kind for verdict in drafter.verdicts}
            assert pb.TOKEN_KIND_CORRECTION in kinds
            assert sum(verdict.accepted for verdict in drafter.verdicts) > 0
            outputs[name] = tuple(drafter.output)
    assert len(set(outputs.values())) >= 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [{"copies": 3}, {"echoes": True}], ids=["thrice", "all again"])
async def test_frames_sent_again_change_nothing(name: str, options: dict[str, Any]) -> None:
    case = CASES[name]
    expected, _ = await undisturbed(case)
    async with verifier() as (server, backend), stub_for(server) as stub:
        drafter = case.drafter()
        await persist(stub, drafter, **options)
        assert drafter.output == expected
        assert drafter.finished is not None
        assert drafter.finished.usage.output_tokens == OUTPUT
        await until(lambda: backend.sequences == 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reopens", [False, True], ids=["Resume", "Open again"])
@pytest.mark.parametrize("how", CUTS)
async def test_a_stream_cut_after_any_frame_goes_on(name: str, reopens: bool, how: str) -> None:
    case = CASES[name]
    expected, frames = await undisturbed(case)
    for cut in range(1, frames + 1):
        async with verifier() as (server, _):
            drafter = case.drafter()
            drafter.reopens = reopens
            await cut_once(server, drafter, cut, **CUTS[how])
            async with stub_for(server) as stub:
                await persist(stub, drafter)
            assert drafter.output == expected, f"cut after frame {cut}"
            assert server.sessions == 1
            assert drafter.finished is not None
            assert drafter.finished.reason == pb.FINISH_REASON_LENGTH


async def cut_once(server: VerifierServer, drafter: Drafter, cut: int, **how: Any) -> None:
    async with stub_for(server) as stub:
        with contextlib.suppress(Cut):
            await converse(stub, drafter, Scissors(cut), **how)


@pytest.mark.parametrize("name", CASES)
async def test_a_stream_cut_after_every_frame_in_turn_goes_on(name: str) -> None:
    case = CASES[name]
    expected, _ = await undisturbed(case)
    async with verifier() as (server, _), stub_for(server) as stub:
        drafter = case.drafter()
        for at in [2, 3, 1, 4, 2, 1, 3, 5] * 3:
            if drafter.finished is None:
                with contextlib.suppress(Cut):
                    await converse(stub, drafter, Scissors(at))
        await persist(stub, drafter)
        assert drafter.output == expected


@pytest.mark.parametrize("name", CASES)
async def test_a_session_is_rebuilt_on_another_server(name: str) -> None:
    case = CASES[name]
    expected, frames = await undisturbed(case)
    for cut in range(1, frames + 1):
        async with verifier() as (first, _), verifier() as (second, _):
            drafter = case.drafter()
            async with stub_for(first) as stub:
                with contextlib.suppress(Cut):
                    await converse(stub, drafter, Scissors(cut))
            drafter.finished = None
            drafter.rebuild()
            async with stub_for(second) as stub:
                await persist(stub, drafter)
            assert drafter.output == expected, f"cut after frame {cut}"


async def test_a_rebuilt_session_counts_what_was_committed_elsewhere() -> None:
    expected, _ = await undisturbed(CASES["greedy"])
    async with verifier() as (server, _), stub_for(server) as stub:
        stream = Stream.decode(stub)
        frame = CASES["greedy"].drafter(committed=pb.TokenIds(ids=expected[:4])).open
        await stream.send(frame)
        opened = await stream.opened()
        assert (opened.prompt_length, opened.frontier) == (len(PROMPT), len(PROMPT) + 4)
        assert list(opened.committed.tokens) == expected[:4]
        assert opened.max_frontier == len(PROMPT) + OUTPUT
        await stream.cancel()


async def test_a_seed_chosen_by_the_cloud_is_kept() -> None:
    async with verifier() as (server, _), stub_for(server) as stub:
        frame = open_frame(PROMPT, temperature=1.0, max_tokens=4, open_key=b"k" * 16)
        seeds, ids = set(), set()
        for _ in range(3):
            stream = Stream.decode(stub)
            await stream.send(frame)
            opened = await stream.opened()
            seeds.add(opened.seed)
            ids.add(opened.session_id)
            await stream.cancel()
        other = open_frame(PROMPT, temperature=1.0, max_tokens=4, open_key=b"l" * 16)
        different = (await stub.Verify(pb.VerifyRequest(open=other))).opened
        assert len(seeds) == len(ids) == 1
        assert different.session_id not in ids
        assert different.seed not in seeds
