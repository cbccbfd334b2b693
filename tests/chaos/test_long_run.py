"""2 000 short sessions in a row leave nothing behind: no memory, no blocks, no graphs."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from cloud_verifier.backends.packed import PackedBackend
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.clients import crowd
from tests.support.drafter import open_frame, persist, point, until
from tests.support.serving import serving, stub_for, tiny_target

SESSIONS = 2_000
WARM = 600
EVERY = 50
GROWTH_BYTES = 2_000
"""A session may leave this much, in the mean: less than the smallest object of one weighs,
more than the noise of an allocator that works in pages."""

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


async def by_calls(stub: rpc.VerifierAsyncStub, index: int) -> None:
    """A session of two calls, over at the second, and left without a Close."""
    prompt = [3 + (index * 7 + i) % 200 for i in range(20)]
    opening = pb.VerifyRequest(open=open_frame(prompt, max_tokens=2), proposal=point(1, 1, 20, []))
    answer = await stub.Verify(opening)
    request = pb.VerifyRequest(
        session_id=answer.opened.session_id,
        frontier=answer.frontier,
        proposal=point(2, 2, answer.frontier, [7]),
    )
    assert (await stub.Verify(request)).HasField("finished")


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
async def test_memory_is_flat_over_2000_sessions(tiny_gguf: Path) -> None:
    target = tiny_target(tiny_gguf)
    backend = target.backend
    assert isinstance(backend, PackedBackend)
    limits = Limits(context=256, sessions=64)
    members = crowd(8, low=3, high=200, max_tokens=4, seed=4, prompt=20)
    sizes = []
    async with asyncio.timeout(120), serving(backend, target.encoder, limits) as server:
        async with stub_for(server) as stub:
            for index in range(SESSIONS):
                if index % 4:
                    await by_calls(stub, index)
                else:
                    drafter = members[index // 4 % len(members)].drafter()
                    drafter.open.open_key = b""
                    await persist(stub, drafter)
                if index >= WARM and index % EVERY == 0:
                    gc.collect()
                    sizes.append(resident_bytes())
                assert server.sessions <= limits.sessions
        await until(lambda: backend.pool.used == 0)
    slope = float(np.polyfit(np.arange(len(sizes)) * EVERY, sizes, 1)[0])
    assert slope < GROWTH_BYTES, f"{slope:.0f} bytes a session"
    kept = list(backend._layers.values())
    assert kept
    for layer in kept:
        assert layer.keys is not None and layer.values is not None
        assert not layer.keys.requires_grad and layer.keys.grad_fn is None
        assert not layer.values.requires_grad and layer.values.grad_fn is None
    graphs = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.grad_fn is not None]
    assert graphs == []
