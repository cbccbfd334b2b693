"""Single rounds over the wire: where a draft is wrong decides the verdict, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specwire.ports import Step, TargetBackend
from specwire.qrow import point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, Stream, open_frame, persist, point, proposal
from tests.support.serving import serving, stub_for, tiny_target
from tests.support.tables import LetterEncoder, TableBackend, random_table
from tests.support.tiny_models import LETTERS, write_tiny_gguf

pytestmark = pytest.mark.wire

MODES = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "mode": pb.VERIFICATION_MODE_COUPLED, "seed": 11},
}


@pytest.fixture(scope="module")
def letters_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    return write_tiny_gguf(folder / "letters.gguf", vocabulary=LETTERS)


@pytest.fixture(params=["table", "transformers"])
async def stub(
    request: pytest.FixtureRequest, letters_gguf: Path
) -> AsyncIterator[rpc.VerifierAsyncStub]:
    """A verifier of each kind; both know the ids 3 … 8."""
    if request.param == "table":
        backend: TargetBackend = TableBackend(random_table(12, seed=1))
        encoder: Any = LetterEncoder()
    else:
        pytest.importorskip("torch")
        target = tiny_target(letters_gguf)
        backend, encoder = target.backend, target.encoder
    async with serving(backend, encoder) as server, stub_for(server) as made:
        yield made


async def plain(stub: rpc.VerifierAsyncStub, frame: pb.Open) -> list[int]:
    """The output without any draft."""
    stream = Stream(stub.Generate(frame))
    return [f.verdict.token for f in await stream.rest() if f.WhichOneof("kind") == "verdict"]


def spoiled(truth: Sequence[int], position: int) -> list[int]:
    """The right tokens, but for one."""
    tokens = list(truth)
    if position < len(tokens):
        tokens[position] = 3 + (tokens[position] - 2) % 6
    return tokens


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gamma", [1, 4])
async def test_a_wrong_token_at_each_position(
    stub: rpc.VerifierAsyncStub, mode: str, gamma: int
) -> None:
    # One prompt token: the first draft rejected at the first position leaves a cache of one.
    prompt = [5]
    total = sum(position + 1 for position in range(gamma + 1))
    frame = open_frame(prompt, max_tokens=total + gamma, **MODES[mode])
    truth = await plain(stub, frame)
    assert len(truth) == total + gamma
    stream = Stream.decode(stub)
    await stream.send(frame)
    opened = await stream.opened()
    at = 0
    for position in range(gamma + 1):
        drafts = spoiled(truth[at : at + gamma], position)
        number, start = position + 1, len(prompt) + at
        if mode == "coupled":
            await stream.send(proposal(number, number, start, drafts))
        else:
            await stream.send(point(number, number, start, drafts))
        verdict = await stream.verdict()
        right = position == gamma
        assert verdict.accepted == position
        assert verdict.token == truth[at + position]
        assert verdict.kind == (pb.TOKEN_KIND_BONUS if right else pb.TOKEN_KIND_CORRECTION)
        assert verdict.examined == (gamma if right else position + 1)
        assert verdict.evaluated == gamma
        assert (verdict.number, verdict.chain, verdict.start) == (number, number, start)
        assert verdict.proposal == number
        at += position + 1
    await stream.cancel()
    answer = await stub.Close(pb.CloseRequest(session_id=opened.session_id))
    assert answer.usage.rounds == gamma + 1
    assert answer.usage.accepted == sum(range(gamma + 1))
    assert answer.usage.examined == sum(range(1, gamma + 1)) + gamma
    assert answer.usage.output_tokens == total


async def test_an_empty_proposal_asks_for_one_token(stub: rpc.VerifierAsyncStub) -> None:
    frame = open_frame([3, 4], max_tokens=3)
    truth = await plain(stub, frame)
    stream = Stream.decode(stub)
    await stream.send(frame)
    await stream.opened()
    for i, token in enumerate(truth):
        await stream.send(pb.Proposal(number=i + 1, chain=1, start=2 + i))
        verdict = await stream.verdict()
        assert (verdict.token, verdict.kind) == (token, pb.TOKEN_KIND_RUN_AHEAD)
        assert (verdict.examined, verdict.accepted, verdict.chain) == (0, 0, 0)
    finished = await stream.finished()
    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert finished.usage.rounds == finished.usage.output_tokens == 3


async def test_greedy_text_is_the_same_for_every_gamma(stub: rpc.VerifierAsyncStub) -> None:
    rng = np.random.default_rng(5)
    truth = await plain(stub, open_frame([3, 8, 4], max_tokens=30))

    def draft(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
        right = truth[len(ids) - 3 : len(ids) - 3 + count]
        tokens = [t if rng.random() < 0.8 else int(rng.integers(3, 9)) for t in right]
        return tokens, [point_row(t) for t in tokens]

    for gamma in (0, 1, 4, 8):
        drafter = Drafter(open_frame([3, 8, 4], max_tokens=30), draft, gamma)
        await persist(stub, drafter)
        assert drafter.output == truth, gamma


class Watched:
    """A backend that lets others catch up and notes how many steps each forward had."""

    def __init__(self, inner: TargetBackend) -> None:
        self._inner = inner
        self.batches: list[int] = []
        self.name, self.vocabulary, self.context = inner.name, inner.vocabulary, inner.context
        self.open, self.cached, self.close = inner.open, inner.cached, inner.close
        self.fits = inner.fits

    def forward(self, steps: Sequence[Step]) -> list[Any]:
        time.sleep(0.003)  # the model thread's: the event loop goes on
        self.batches.append(len(steps))
        return self._inner.forward(steps)


async def test_neighbours_in_the_batch_change_nothing(tiny_gguf: Path) -> None:
    pytest.importorskip("torch")
    target = tiny_target(tiny_gguf)
    backend = Watched(target.backend)
    size = len(backend.vocabulary)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, size, length).tolist() for length in (3, 17, 64, 5, 40, 3, 17)]
    probe_prompt = rng.integers(3, size, 9).tolist()

    def wild(count: int) -> Any:
        def draft(ids: list[int], _: int) -> tuple[list[int], list[Any]]:
            tokens = [(ids[-1] * 7 + i) % (size - 3) + 3 for i in range(count)]
            return tokens, [point_row(t) for t in tokens]

        return draft

    async with serving(backend, target.encoder) as server, stub_for(server) as stub:

        async def probe(neighbours: int) -> Drafter:
            probe = Drafter(open_frame(probe_prompt, max_tokens=16, logprobs=0), wild(3))
            others = [
                Drafter(open_frame(prompts[i % 7], max_tokens=24), wild((0, 1, 5)[i % 3]))
                for i in range(neighbours)
            ]
            await asyncio.gather(*(persist(stub, d) for d in [*others, probe]))
            return probe

        alone = await probe(0)
        assert max(backend.batches) == 1
        assert len(alone.output) == 16
        for neighbours in (1, 3, 15):
            backend.batches.clear()
            crowded = await probe(neighbours)
            assert max(backend.batches) > 1
            assert crowded.output == alone.output
            assert logprobs(crowded) == pytest.approx(logprobs(alone), abs=1e-4)


def logprobs(drafter: Drafter) -> list[float]:
    return [entry.logprob for verdict in drafter.verdicts for entry in verdict.logprobs]
