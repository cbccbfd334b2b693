"""Whole sessions over the wire on a GGUF target in llama.cpp, and no torch anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from cloud_verifier.backends.load import Target, load_target
from specwire.limits import Limits
from specwire.ports import Step, TargetBackend
from specwire.qrow import QRow, point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, Stream, open_frame, persist
from tests.support.processes import run_python
from tests.support.serving import serving, stub_for
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

PROMPT = [40, 41, 42, 60, 61]
TOKENS = 40


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_gguf(folder / "tiny.gguf", chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def target(gguf_path: Path) -> Target:
    """Its memory holds 150 tokens: five sessions at once have to make room for each other."""
    whole = load_target(str(gguf_path), backend="llama_cpp", dtype="float32", threads=1)
    one: int = whole.backend.bytes_per_token  # type: ignore[attr-defined]
    return load_target(
        str(gguf_path), backend="llama_cpp", dtype="float32", threads=1, kv_memory=150 * one
    )


@pytest.fixture
async def stub(target: Target) -> AsyncIterator[rpc.VerifierAsyncStub]:
    limits = Limits(context=target.backend.context)
    async with serving(target.backend, target.encoder, limits) as server, stub_for(server) as made:
        yield made


def own_greedy(backend: TargetBackend, prompt: Sequence[int], count: int) -> list[int]:
    handle, new, keep, out = backend.open(), list(prompt), 0, list[int]()
    while len(out) < count:
        (rows,) = backend.forward([Step(handle, keep, new, 1)])
        keep += len(new)
        new = [int(np.asarray(rows)[-1].argmax())]
        out += new
    backend.close(handle)
    return out


async def plain(stub: rpc.VerifierAsyncStub, frame: pb.Open) -> list[int]:
    """The output without any draft."""
    frames = await Stream(stub.Generate(frame)).rest()
    return [f.verdict.token for f in frames if f.WhichOneof("kind") == "verdict"]


def half_right(truth: Sequence[int], seed: int) -> Any:
    """Drafts that follow `truth` and go wrong now and then, each picked with certainty."""
    rng = random.Random(seed)

    def draft(ids: list[int], count: int) -> tuple[list[int], list[QRow]]:
        at = len(ids) - len(PROMPT)
        tokens = [t if rng.random() < 0.8 else 50 for t in truth[at : at + count]]
        return tokens, [point_row(t) for t in tokens]

    return draft


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "mode": pb.VERIFICATION_MODE_COUPLED},
}


@pytest.mark.parametrize("mode", MODES)
async def test_drafts_change_nothing(
    stub: rpc.VerifierAsyncStub, target: Target, mode: str
) -> None:
    """Five sessions at once, each with its own seed and drafts."""
    frames = [
        open_frame(PROMPT, max_tokens=TOKENS, seed=seed, **MODES[mode]) for seed in range(1, 6)
    ]
    truths = [await plain(stub, frame) for frame in frames]
    if mode == "greedy":
        assert truths == [own_greedy(target.backend, PROMPT, TOKENS)] * 5
    else:
        assert len({tuple(truth) for truth in truths}) == 5
    drafters = [
        Drafter(frame, half_right(truth, seed))
        for seed, (frame, truth) in enumerate(zip(frames, truths, strict=True))
    ]
    await asyncio.gather(*(persist(stub, drafter) for drafter in drafters))
    assert [drafter.output for drafter in drafters] == truths


async def test_texts_and_messages_are_encoded_by_the_file(
    stub: rpc.VerifierAsyncStub, target: Target
) -> None:
    description = await stub.Describe(pb.DescribeRequest())
    assert description.vocabulary.fingerprint == target.backend.vocabulary.fingerprint
    for frame, ids in (
        (pb.Open(text="the end"), target.encoder.encode_text("the end")),
        (
            pb.Open(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])),
            target.encoder.encode_chat([("user", "hi")]),
        ),
    ):
        frame.protocol_version, frame.max_tokens = 1, 3
        stream = Stream(stub.Generate(frame))
        opened = await stream.opened()
        assert list(opened.prompt.ids) == ids
        await stream.rest()


_SERVE = """
import asyncio, sys
from cloud_verifier.backends.load import load_target
from specwire.v1 import verifier_pb2 as pb
from tests.support.drafter import Stream, open_frame
from tests.support.serving import serving, stub_for

async def main():
    target = load_target(sys.argv[1], backend="llama_cpp", threads=1)
    async with serving(target.backend, target.encoder) as server, stub_for(server) as stub:
        frames = await Stream(stub.Generate(open_frame([40, 41], max_tokens=8))).rest()
        print(sum(f.WhichOneof("kind") == "verdict" for f in frames))

asyncio.run(main())
print(sorted({"torch", "transformers", "gguf", "edge_client"} & set(sys.modules)))
"""


def test_a_session_is_served_without_torch(gguf_path: Path) -> None:
    result = run_python(_SERVE, gguf_path)
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("8\n[]\n", "")
