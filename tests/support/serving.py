"""Verifiers inside the test process, over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from cloud_verifier.backends.load import Target, load_target
from cloud_verifier.server import VerifierServer
from specwire.limits import Limits
from specwire.ports import PromptEncoder, TargetBackend
from specwire.v1 import verifier_pb2_grpc as rpc


@contextlib.asynccontextmanager
async def serving(
    backend: TargetBackend, encoder: PromptEncoder, limits: Limits | None = None, **more: Any
) -> AsyncIterator[VerifierServer]:
    """A running verifier on a free loopback port; `more` are arguments of `VerifierServer`."""
    server = VerifierServer(backend, encoder, listen="127.0.0.1:0", limits=limits, **more)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s=1.0)


@contextlib.asynccontextmanager
async def stub_for(server: VerifierServer) -> AsyncIterator[rpc.VerifierAsyncStub]:
    """A bare gRPC stub: no edge code."""
    async with grpc.aio.insecure_channel(
        server.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield rpc.VerifierStub(channel)


def tiny_target(path: Path) -> Target:
    """A target on a tiny GGUF file, float32 on the CPU."""
    return load_target(str(path), dtype="float32", device="cpu", threads=1)
