"""A verifier process: model thread, event loop, gRPC server, health and reflection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cloud_verifier.engine import Engine
from cloud_verifier.malformed import MalformedInterceptor
from cloud_verifier.observe import SILENT, Observer
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.security import Access, AuthInterceptor
from cloud_verifier.service import VerifierService
from specwire.errors import BadRequest
from specwire.limits import Limits
from specwire.ports import PromptEncoder, TargetBackend
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Verifier"].full_name

# Clients may ping every 10 s, with or without a call, so that they notice a dead
# link soon; by default gRPC would answer that with GOAWAY too_many_pings.
KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # By its own name, for gRPC gives an unanswered ping a minute otherwise.
    ("grpc.http2.ping_timeout_ms", 10_000),
)


_DRAIN_SHARE = 0.8
"""Of the grace time, for running rounds; the rest is for telling clients."""


class VerifierServer:
    """Serves one target. Use as an async context manager, or `start` and `stop`.

    access: who may call, and whether over TLS; None lets anyone in, in plain text.
    """

    def __init__(
        self,
        backend: TargetBackend,
        encoder: PromptEncoder,
        *,
        listen: str = "127.0.0.1:0",
        limits: Limits | None = None,
        access: Access | None = None,
        observer: Observer = SILENT,
    ) -> None:
        self.limits = limits or Limits(context=backend.context)
        self._listen = listen
        self._access = access or Access()
        self._observer = observer
        self._scheduler = Scheduler(Engine(backend), self.limits, observer)
        self._service = VerifierService(
            backend,
            encoder,
            self._scheduler,
            self.limits,
            access=self._access,
            observer=observer,
        )
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.address = ""
        """host:port, once started."""

    @property
    def sessions(self) -> int:
        """Sessions kept at the moment."""
        return len(self._scheduler.sessions)

    @property
    def attached(self) -> int:
        """Sessions that a stream or call is attached to."""
        return self._scheduler.sessions.attached

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            BadRequest: the address can't be used.
        """
        closed = self._access.closed
        server = grpc.aio.server(
            interceptors=[
                *([AuthInterceptor(self._access, self._observer)] if closed else []),
                MalformedInterceptor(SERVICE_NAME, self._observer),
            ],
            options=(
                *KEEPALIVE,
                ("grpc.max_receive_message_length", self.limits.message_bytes),
                ("grpc.so_reuseport", 0),
            ),
        )
        rpc.add_VerifierServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if not closed:  # strangers need not learn what else is here
            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        host = self._listen.rpartition(":")[0]
        try:
            if self._access.tls is None:
                port = server.add_insecure_port(self._listen)
            else:
                port = server.add_secure_port(self._listen, self._access.tls.credentials())
        except RuntimeError as error:
            raise BadRequest(
                f"can't listen on {self._listen!r}: the address is in use, not of this machine, "
                "or not of the form HOST:PORT"
            ) from error
        self._server = server
        self._scheduler.start(self._fail)
        self._reaper = asyncio.create_task(self._drop_idle(), name="reaper")
        await server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.address = f"{host}:{port}"

    def _fail(self) -> None:
        """Nothing works any more: say so to health checks and clients, and take no new ones."""
        self._service.refuse_new()
        self._service.dismiss()
        self._ending = asyncio.create_task(self._health.enter_graceful_shutdown())

    async def stop(self, grace_s: float = 5.0) -> None:
        """Say that this server is going, finish running rounds, tell open streams, and stop.

        `grace_s`: what is still open after this many seconds is cut off.
        """
        if self._server is None:
            return
        until = time.monotonic() + grace_s
        await self._health.enter_graceful_shutdown()
        self._service.refuse_new()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._scheduler.drain(), grace_s * _DRAIN_SHARE)
        self._service.dismiss()
        await self._server.stop(max(until - time.monotonic(), 0.0))
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self._scheduler.stop()
        self._server = None

    async def wait(self) -> None:
        """Wait until the server has stopped."""
        if self._server is not None:
            await self._server.wait_for_termination()

    async def _drop_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self.limits.idle_s / 4, 10.0))
            self._scheduler.sessions.drop_idle(time.monotonic())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
