"""While the model or a tokenizer is busy, the rest of the verifier answers."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_verifier.metrics import Metrics, MetricsEndpoint
from specwire.ports import Step
from specwire.v1 import verifier_pb2 as pb
from tests.support.drafter import open_frame
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table

BUSY_S = 0.8
EVERY_S = 0.1
ANSWERED_S = 0.25


class Slow(TableBackend):
    """Each forward takes a long prompt's time."""

    def __init__(self) -> None:
        super().__init__(random_table(5, seed=6), context=64)

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(BUSY_S)
        return super().forward(steps)


class SlowEncoder(LetterEncoder):
    def encode_text(self, text: str) -> list[int]:
        time.sleep(BUSY_S)
        return super().encode_text(text)


async def answer_times(
    ask: Callable[[], Awaitable[object]], busy: asyncio.Future[Any]
) -> list[float]:
    """Seconds of each answer while something is busy."""
    times = []
    while not busy.done():
        begun = time.monotonic()
        await ask()
        times.append(time.monotonic() - begun)
        await asyncio.sleep(EVERY_S)
    return times


async def test_health_and_metrics_answer_during_forwards_and_tokenizing() -> None:
    metrics = Metrics()
    endpoint = MetricsEndpoint("127.0.0.1:0", metrics)
    url = f"http://{endpoint.address}/metrics"

    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=5) as answer:
            content: bytes = answer.read()
        return content

    async with (
        asyncio.timeout(60),
        serving(Slow(), SlowEncoder(), observer=metrics) as server,
        stub_for(server) as stub,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="specwire.v1.Verifier")
        await health.Check(request)  # connected
        await asyncio.to_thread(read)

        async def generate(frame: pb.Open) -> int:
            return len([answer async for answer in stub.Generate(frame)])

        frames = [open_frame([1, 2], max_tokens=2), pb.Open(text="abc", max_tokens=2)]
        frames[1].protocol_version = 1
        busy = asyncio.ensure_future(asyncio.gather(*map(generate, frames)))
        times = await asyncio.gather(
            answer_times(lambda: health.Check(request), busy),
            answer_times(lambda: asyncio.to_thread(read), busy),
        )
        assert await busy == [4, 4]
    endpoint.close()
    for some in times:
        assert len(some) > 2 * BUSY_S / (EVERY_S + ANSWERED_S)
        assert np.percentile(some, 95) < ANSWERED_S
