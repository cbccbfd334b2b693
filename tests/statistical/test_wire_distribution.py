"""What comes over the wire is distributed as the target's own sampling, whatever is drafted.

Each test draws many sessions through the real service and compares their first
tokens with exact probabilities by a chi-square test of error probability 1e-6
(`tests.support.statistics`); seeds are fixed. The drafter draws with its own
generator, which shares nothing with the session's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specwire.codec import encode_dense
from specwire.limits import Limits
from specwire.ports import Step
from specwire.qrow import QRow, Truncation, coupled_draft, draft_row, draw_row, point_row
from specwire.sampling import SamplingParams, distribution
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, DraftFunction, open_frame, persist
from tests.support.serving import serving, stub_for, tiny_target
from tests.support.statistics import ERROR, chi_square_p
from tests.support.tables import LetterEncoder, TableBackend, exact_outputs, random_table
from tests.support.tiny_models import LETTERS, SPECIALS, write_tiny_gguf

pytestmark = pytest.mark.slow

SIZE = 5
TABLE = random_table(SIZE, seed=21, spread=1.2)
OTHER = TABLE + random_table(SIZE, seed=22, spread=0.8)
FIRST = 2
"""The prompt."""
LENGTH = 3
SESSIONS = 5_000
"""Of a test; each temperature meets five times as many.

With 124 degrees of freedom this notices, with probability 0.95, a distribution whose
relative error has a root mean square of 16 % (weighted by probability).
"""
AT_ONCE = 50


def frame_of(index: int, temperature: float, **fields: Any) -> pb.Open:
    # One token more than is looked at, so that a whole proposal fits.
    return open_frame([FIRST], temperature=temperature, seed=index, max_tokens=LENGTH + 1, **fields)


def by_rows(rows: Sequence[QRow], rng: np.random.Generator) -> DraftFunction:
    """Drafts drawn from one row for each last token."""

    def draft(ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
        tokens, used, last = [], [], ids[-1]
        for noise in rng.random(count):
            used.append(rows[last])
            last = draw_row(rows[last], noise)
            tokens.append(last)
        return tokens, used

    return draft


def honest(temperature: float) -> list[QRow]:
    params = SamplingParams(temperature=temperature)
    return [draft_row(row, params, Truncation(), size=SIZE) for row in OTHER]


def wrong(_: float) -> list[QRow]:
    """Only the two tokens that the target finds least likely, in equal parts."""
    return [QRow(np.sort(np.argsort(row)[:2]), np.array([0.5, 0.5])) for row in TABLE]


def constant(_: float) -> list[QRow]:
    return [point_row(3)] * SIZE


def uniform(_: float) -> list[QRow]:
    # 64 weights don't divide by five: nearly uniform, and exactly what is drawn from.
    return [QRow(np.arange(SIZE), np.array([13, 13, 13, 13, 12]) / 64)] * SIZE


@contextlib.asynccontextmanager
async def table_stub(backend: TableBackend) -> AsyncIterator[rpc.VerifierAsyncStub]:
    limits = Limits(context=16, sessions=2 * AT_ONCE)
    async with serving(backend, LetterEncoder(), limits) as server, stub_for(server) as stub:
        yield stub


async def sample(
    run: Callable[[int], Any], sessions: int, at_once: int = AT_ONCE
) -> Counter[tuple[int, ...]]:
    """Outputs of many sessions, some of them at the same time."""
    outputs: Counter[tuple[int, ...]] = Counter()
    numbers = iter(range(sessions))

    async def worker() -> None:
        for number in numbers:
            outputs[tuple(await run(number))] += 1

    await asyncio.gather(*(worker() for _ in range(at_once)))
    assert sum(outputs.values()) == sessions
    return outputs


def assert_lossless(outputs: Counter[tuple[int, ...]], temperature: float) -> None:
    expected = exact_outputs(TABLE, SamplingParams(temperature=temperature), FIRST, LENGTH)
    assert chi_square_p(outputs, expected) > ERROR


@dataclass
class Totals:
    """Draft tokens over all sessions."""

    examined: int = 0
    accepted: int = 0

    def add(self, drafter: Drafter) -> None:
        assert drafter.finished is not None
        self.examined += drafter.finished.usage.examined
        self.accepted += drafter.finished.usage.accepted


async def decoded(
    draft: DraftFunction, temperature: float, backend: TableBackend | None = None, **fields: Any
) -> tuple[Counter[tuple[int, ...]], Totals]:
    """First tokens of sessions over Decode."""
    totals = Totals()
    async with table_stub(backend or TableBackend(TABLE)) as stub:

        async def run(index: int) -> list[int]:
            drafter = Drafter(frame_of(index, temperature, **fields), draft)
            await persist(stub, drafter, eager=True)
            totals.add(drafter)
            return drafter.output[:LENGTH]

        return await sample(run, SESSIONS), totals


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("rows", [honest, wrong], ids=["another model", "always wrong"])
async def test_decode_is_lossless(rows: Callable[[float], list[QRow]], temperature: float) -> None:
    draft = by_rows(rows(temperature), np.random.default_rng(1))
    outputs, totals = await decoded(draft, temperature)
    assert_lossless(outputs, temperature)
    rate = totals.accepted / totals.examined
    assert (rate < 0.45) if rows is wrong else (0.3 < rate < 0.95)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
async def test_verify_is_lossless_for_a_draft_that_says_one_thing(temperature: float) -> None:
    draft = by_rows(constant(temperature), np.random.default_rng(2))
    async with table_stub(TableBackend(TABLE)) as stub:

        async def run(index: int) -> list[int]:
            return await by_verify(stub, Drafter(frame_of(index, temperature), draft))

        outputs = await sample(run, SESSIONS)
    assert_lossless(outputs, temperature)


async def by_verify(stub: rpc.VerifierAsyncStub, drafter: Drafter) -> list[int]:
    finished = False
    while not finished:
        request = pb.VerifyRequest(frontier=drafter.frontier, proposal=drafter.proposals()[0])
        if drafter.session_id:
            request.session_id = drafter.session_id
        else:
            request.open.CopyFrom(drafter.open)
        answer = await stub.Verify(request)
        drafter.session_id = drafter.session_id or answer.opened.session_id
        drafter.output.extend(answer.committed.tokens)
        drafter.sent = []
        finished = answer.HasField("finished")
    return drafter.output[:LENGTH]


@pytest.mark.parametrize(("temperature", "dense"), [(0.7, True), (1.3, False)])
async def test_decode_is_lossless_for_a_uniform_draft(temperature: float, dense: bool) -> None:
    draft = by_rows(uniform(temperature), np.random.default_rng(3))
    async with table_stub(TableBackend(TABLE)) as stub:

        async def run(index: int) -> list[int]:
            kind = DenseDrafter if dense else Drafter
            drafter = kind(frame_of(index, temperature), draft)
            await persist(stub, drafter, eager=True)
            return drafter.output[:LENGTH]

        outputs = await sample(run, SESSIONS)
    assert_lossless(outputs, temperature)


class DenseDrafter(Drafter):
    """Sends whole rows."""

    def proposals(self) -> list[pb.Proposal]:
        fresh = not self.sent
        frames = super().proposals()
        for frame in frames if fresh else []:
            row = np.zeros(SIZE, np.float32)
            row[:] = uniform(0.0)[0].probs
            frame.ClearField("sparse")
            encode_dense(frame, [row] * len(frame.tokens))
        return frames


class Slow(TableBackend):
    """Slow enough that drafts arrive while the cloud decodes ahead."""

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(0.004)
        return super().forward(steps)


async def test_running_ahead_is_lossless() -> None:
    # Which drafts are examined depends on time here; the distribution does not.
    temperature = 0.7
    draft = by_rows(honest(temperature), np.random.default_rng(4))
    outputs, totals = await decoded(draft, temperature, Slow(TABLE), pacing=pb.PACING_RUN_AHEAD)
    assert_lossless(outputs, temperature)
    assert totals.examined > SESSIONS / 20


async def test_coupled_decoding_is_lossless() -> None:
    temperature = 1.3
    params = SamplingParams(temperature=temperature)
    totals = Totals()
    async with table_stub(TableBackend(TABLE)) as stub:

        async def run(index: int) -> list[int]:
            def draft(ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
                tokens, last = [], ids[-1]
                for position in range(len(ids), len(ids) + count):
                    last = coupled_draft(
                        OTHER[last], params, seed=index, position=position, size=SIZE
                    )
                    tokens.append(last)
                return tokens, []

            drafter = Drafter(
                frame_of(index, temperature, mode=pb.VERIFICATION_MODE_COUPLED), draft
            )
            await persist(stub, drafter, eager=True)
            totals.add(drafter)
            return drafter.output[:LENGTH]

        outputs = await sample(run, SESSIONS)
    assert_lossless(outputs, temperature)
    assert 0.3 < totals.accepted / totals.examined < 0.95


def test_the_comparison_notices_a_wrong_distribution() -> None:
    rng = np.random.default_rng(5)
    expected = exact_outputs(TABLE, SamplingParams(temperature=0.7), FIRST, LENGTH)
    biased = exact_outputs(TABLE, SamplingParams(temperature=0.8), FIRST, LENGTH)
    outcomes = list(expected)
    for source, right in ((expected, True), (biased, False)):
        drawn = rng.choice(len(outcomes), SESSIONS, p=list(source.values()))
        counts = Counter(outcomes[i] for i in drawn)
        assert (chi_square_p(counts, expected) > ERROR) is right


TINY_SESSIONS = 1_500
"""On the transformers model. Its two tokens fill fewer than 80 cells: this notices, with
probability 0.95, only a relative error of 28 % root mean square. It is a coarse check that
the real model's rows meet the right positions; the fine one is made on tables."""


async def test_a_transformers_target_is_sampled_without_loss(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write_tiny_gguf(tmp_path / "letters.gguf", vocabulary=LETTERS, sharpness=1.5)
    target = tiny_target(path)
    vocabulary = target.backend.vocabulary
    assert len(vocabulary) == len(SPECIALS) + len(LETTERS)
    prompt, temperature = [4, 7, 5], 0.9
    params = SamplingParams(temperature=temperature)
    expected = direct_distribution(path, prompt, params, len(vocabulary))
    rng = np.random.default_rng(6)
    logits = random_table(len(vocabulary), seed=7, spread=1.0)
    logits[:, : len(SPECIALS)] = -20.0
    rows = [draft_row(row, params, Truncation(), size=len(vocabulary)) for row in logits]
    draft = by_rows(rows, rng)
    totals = Totals()
    limits = Limits(context=64, sessions=2 * AT_ONCE)
    async with serving(target.backend, target.encoder, limits) as server, stub_for(server) as stub:

        async def run(index: int) -> list[int]:
            frame = open_frame(prompt, temperature=temperature, seed=index, max_tokens=3)
            drafter = Drafter(frame, draft)
            await persist(stub, drafter, eager=True)
            totals.add(drafter)
            return drafter.output[:2]

        outputs = await sample(run, TINY_SESSIONS, at_once=16)
    assert chi_square_p(outputs, expected) > ERROR
    assert totals.accepted > TINY_SESSIONS / 10


def direct_distribution(
    path: Path, prompt: list[int], params: SamplingParams, size: int
) -> dict[tuple[int, ...], float]:
    """Of the next two tokens, by whole forwards through transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, token] for token in range(size)])
        rows = model(ids).logits.numpy()
    first = distribution(rows[:1, len(prompt) - 1], params, size=size)[0]
    second = distribution(rows[:, len(prompt)], params, size=size)
    pairs = itertools.product(range(size), repeat=2)
    return {(a, b): float(first[a] * second[a, b]) for a, b in pairs}
