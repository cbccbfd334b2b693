"""Ends of the text: ids, logprobs, text and counts stop together, with drafts or without."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specwire.qrow import point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, Stream, open_frame, persist, point, until
from tests.support.serving import serving, stub_for, tiny_target
from tests.support.tables import LetterEncoder, TableBackend, table_vocabulary

pytestmark = pytest.mark.wire

SIZE = 6
END = 5
CYCLE = "bcdeabcdeabcdeabcde"
"""What greedy decoding says after "a"."""


def cycle_table(end_after: int | None = None) -> np.ndarray:
    """a → b → c → d → e → a, and now and then something else; one letter may be followed by f."""
    table = np.random.default_rng(2).normal(scale=0.5, size=(SIZE, SIZE)).astype(np.float32)
    for token in range(END):
        table[token, END if token == end_after else (token + 1) % END] = 4.0
    return table


def ids_of(letters: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in letters]


@pytest.fixture
def backend() -> TableBackend:
    return TableBackend(cycle_table(), end_ids=frozenset({END}))


@pytest.fixture
async def stub(backend: TableBackend) -> AsyncIterator[rpc.VerifierAsyncStub]:
    async with serving(backend, LetterEncoder()) as server, stub_for(server) as made:
        yield made


def right(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
    """Drafts that go on through any end."""
    tokens = ids_of((CYCLE * 2)[len(ids) - 1 : len(ids) - 1 + count])
    return tokens, [point_row(t) for t in tokens]


def committed_logprobs(drafter: Drafter) -> list[float]:
    return [entry.logprob for verdict in drafter.verdicts for entry in verdict.logprobs]


STOPS: dict[str, tuple[Sequence[str], str, int]] = {
    "one token": (["d"], "bcd", 0),
    "spanning tokens": (["de"], "bcde", 0),
    "over a round's end": (["deab"], "bcdeab", 0),
    "the first to end wins": (["eabc", "cd"], "bcd", 1),
    "the longest of those that end together": (["d", "bcd"], "bcd", 1),
    "at the first token": (["b"], "b", 0),
    "repeated": (["abcdea"], "bcdeabcdea", 0),
    "never": (["ca"], CYCLE[:17], -1),
}


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("name", STOPS)
async def test_a_stop_string_ends_ids_logprobs_and_counts_together(
    stub: rpc.VerifierAsyncStub, backend: TableBackend, name: str, gamma: int
) -> None:
    stops, letters, index = STOPS[name]
    frame = open_frame([0], max_tokens=17, stops=stops, logprobs=2, return_text=True)
    drafter = Drafter(frame, right, gamma)
    await persist(stub, drafter)
    finished = drafter.finished
    assert finished is not None
    assert drafter.output == ids_of(letters)
    assert len(committed_logprobs(drafter)) == len(letters) == finished.usage.output_tokens
    assert b"".join(v.text for v in drafter.verdicts) == letters.encode()
    if index < 0:
        assert finished.reason == pb.FINISH_REASON_LENGTH
        assert not finished.HasField("stop_index")
    else:
        assert finished.reason == pb.FINISH_REASON_STOP_STRING
        assert finished.stop_index == index
    usage = finished.usage
    assert usage.accepted + sum(v.HasField("token") for v in drafter.verdicts) == len(letters)
    assert usage.accepted == sum(v.accepted for v in drafter.verdicts)
    assert usage.examined == usage.accepted  # all drafts were right, those after the end not seen
    await until(lambda: backend.sequences == 0)


async def test_logprobs_are_those_of_the_target_with_and_without_drafts(
    stub: rpc.VerifierAsyncStub, backend: TableBackend
) -> None:
    exact = backend.table - np.log(np.exp(backend.table).sum(axis=1, keepdims=True))
    letters = [0, *ids_of(CYCLE[:12])]
    expected = [float(exact[a, b]) for a, b in itertools.pairwise(letters)]
    for gamma in (0, 1, 3, 8):
        for temperature in (0.0, 1e-3):
            frame = open_frame([0], max_tokens=12, logprobs=3, temperature=temperature)
            drafter = Drafter(frame, right, gamma)
            await persist(stub, drafter)
            assert drafter.output == letters[1:]
            assert committed_logprobs(drafter) == pytest.approx(expected, abs=1e-3)
            entries = [entry for verdict in drafter.verdicts for entry in verdict.logprobs]
            for entry, before, token in zip(entries, letters, letters[1:], strict=False):
                best = np.argsort(-exact[before])[:3]
                assert list(entry.top_ids) == best.tolist()
                assert list(entry.top_logprobs) == pytest.approx(exact[before][best], abs=1e-3)
                assert entry.top_ids[0] == token


async def test_logprobs_of_sampled_text_do_not_show_the_sampling(
    stub: rpc.VerifierAsyncStub, backend: TableBackend
) -> None:
    exact = backend.table - np.log(np.exp(backend.table).sum(axis=1, keepdims=True))
    sampling = pb.Sampling(temperature=1.5, top_k=4)
    frame = open_frame([0], sampling=sampling, seed=4, max_tokens=20, logprobs=0)
    drafter = Drafter(frame, right, gamma=3)
    await persist(stub, drafter)
    path = [0, *drafter.output]
    expected = [float(exact[a, b]) for a, b in itertools.pairwise(path)]
    assert committed_logprobs(drafter) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 3


async def test_logprobs_and_text_come_again_with_resume(stub: rpc.VerifierAsyncStub) -> None:
    frame = open_frame([0], max_tokens=12, logprobs=1, return_text=True)
    whole = Drafter(frame, right, gamma=3)
    await persist(stub, whole)
    stream = Stream.decode(stub)
    await stream.send(pb.Resume(protocol_version=1, session_id=whole.session_id, frontier=1 + 5))
    committed = (await stream.opened()).committed
    assert list(committed.tokens) == whole.output[5:]
    assert [e.logprob for e in committed.logprobs] == committed_logprobs(whole)[5:]
    assert committed.text == CYCLE[5:12].encode()
    assert await stream.finished() == whole.finished


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("gamma", [0, 1, 5])
async def test_an_end_token_within_accepted_drafts_is_the_last(position: int, gamma: int) -> None:
    # The text is a … and then the end; the draft goes on after it.
    backend = TableBackend(cycle_table(end_after=position), end_ids=frozenset({END}))
    text = [*range(1, position + 1), END]

    def draft(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
        tokens = [*text, 2, 3, 4, 0, 1, 2][len(ids) - 1 : len(ids) - 1 + count]
        return tokens, [point_row(t) for t in tokens]

    async with serving(backend, LetterEncoder()) as server, stub_for(server) as stub:
        frame = open_frame([0], max_tokens=20, logprobs=0, return_text=True)
        drafter = Drafter(frame, draft, gamma)
        await persist(stub, drafter)
        assert drafter.output == text
        assert len(committed_logprobs(drafter)) == len(text)
        finished = drafter.finished
        assert finished is not None
        assert finished.reason == pb.FINISH_REASON_END_TOKEN
        assert finished.frontier == 1 + len(text)
        assert finished.usage.output_tokens == len(text)
        assert not drafter.verdicts[-1].HasField("token") or gamma < 5
        # A proposal for the time after the end changes nothing.
        answer = await stub.Verify(
            pb.VerifyRequest(
                session_id=drafter.session_id,
                frontier=drafter.frontier,
                proposal=point(90, 90, drafter.frontier, [1]),
            )
        )
        assert answer.finished == finished and not answer.committed.tokens


async def test_text_is_that_of_the_ids_though_tokens_end_within_characters(
    tiny_gguf: Path,
) -> None:
    pytest.importorskip("torch")
    target = tiny_target(tiny_gguf)
    vocabulary = target.backend.vocabulary
    rng = np.random.default_rng(1)
    prompt = target.encoder.encode_text("héllo 你好 🙂👍🏽 नमस्ते 한국어")
    high = [i for i, piece in enumerate(vocabulary.pieces) if piece and piece[0] >= 0x80]

    def draft(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
        tokens = rng.choice(high, count).tolist()
        return tokens, [point_row(t) for t in tokens]

    async with serving(target.backend, target.encoder) as server, stub_for(server) as stub:
        texts = []
        for gamma in (0, 1, 3, 8):
            frame = open_frame(
                prompt,
                temperature=2.0,
                seed=5,
                mode=pb.VERIFICATION_MODE_COUPLED,
                max_tokens=40,
                return_text=True,
            )
            drafter = Drafter(frame, draft, gamma)
            await persist(stub, drafter)
            text = b"".join(verdict.text for verdict in drafter.verdicts)
            assert text == vocabulary.decode(drafter.output)
            texts.append(text)
        assert len(set(texts)) == 1
        assert "\ufffd" in texts[0].decode(errors="replace")  # characters were indeed cut


def test_the_cycle_is_what_the_table_says() -> None:
    table, last, letters = cycle_table(), 0, []
    for _ in CYCLE:
        last = int(table[last].argmax())
        letters.append(last)
    assert table_vocabulary(SIZE).decode(letters) == CYCLE.encode()
