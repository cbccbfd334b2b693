"""`cloud-verifier serve`: everything put together, from settings to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator

from cloud_verifier.backends.load import Target, load_target
from cloud_verifier.logs import RoundLog, notice
from cloud_verifier.metrics import Metrics, MetricsEndpoint
from cloud_verifier.observe import Observer, all_of
from cloud_verifier.security import Access
from cloud_verifier.server import VerifierServer
from cloud_verifier.settings import Settings
from cloud_verifier.tls import ServerTls, TlsFiles
from cloud_verifier.tracing import traces_to
from specwire.errors import BadRequest
from specwire.limits import Limits

logger = logging.getLogger(__name__)

_OVERTIME_S = 2.0
"""After the grace time, before the process leaves a forward behind."""


def access_of(settings: Settings) -> Access:
    """Who may call, from the files that the settings name.

    Raises:
        BadRequest: a file can't be used.
    """
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))
    return Access(
        token_file=settings.tokens,
        tls=tls,
        client_certificates=settings.tls_client_ca is not None,
    )


def limits_of(settings: Settings, context: int) -> Limits:
    """What is announced to clients; `context` is the target's, in tokens."""
    return Limits(
        context=context,
        gamma=settings.gamma,
        chain=max(256, 4 * settings.gamma),
        message_bytes=settings.message_bytes,
        sessions=settings.sessions,
        idle_s=settings.idle_s,
        sessions_per_client=settings.sessions_per_client or 0,
        prompt=settings.max_prompt or 0,
        requests_per_s=settings.requests_per_s or 0.0,
    )


def load(settings: Settings) -> Target:
    """The target model.

    Raises:
        ModelError: it can't be loaded.
    """
    return load_target(
        settings.model,
        backend=settings.backend,
        dtype=settings.dtype,
        device=settings.device,
        context=settings.context,
        kv_memory=settings.kv_memory,
        quantization=settings.quantization,
        threads=settings.threads,
        progress=notice,
    )


async def serve(
    settings: Settings, target: Target, access: Access, reload: threading.Event
) -> None:
    """Serve until SIGTERM or SIGINT, then stop within the grace time. SIGHUP reloads files.

    `reload`: set if SIGHUP came before.

    Raises:
        BadRequest: an address can't be used.
    """
    async with _signals(access) as stop:
        if reload.is_set():
            _reload(access)
        await _serve(settings, target, access, stop)


async def _serve(settings: Settings, target: Target, access: Access, stop: asyncio.Event) -> None:
    with _watching(settings, target) as (observer, metrics):
        server = VerifierServer(
            target.backend,
            target.encoder,
            listen=settings.listen,
            limits=limits_of(settings, target.backend.context),
            access=access,
            observer=observer,
        )
        if metrics is not None:
            metrics.watch_sessions(lambda: server.sessions, lambda: server.attached)
        await server.start()
        print(
            f"ready on {server.address}: {target.backend.name}, "
            f"{len(target.backend.vocabulary)} tokens, context {target.backend.context}",
            flush=True,
        )
        await stop.wait()
        notice("stopping: open sessions can be resumed elsewhere")
        _leave_after(settings.grace_s + _OVERTIME_S)
        await server.stop(settings.grace_s)


@contextlib.contextmanager
def _watching(settings: Settings, target: Target) -> Iterator[tuple[Observer, Metrics | None]]:
    """Metrics, traces and the log, as far as they are asked for."""
    observers: list[Observer] = []
    metrics = None
    with contextlib.ExitStack() as stack:
        if settings.log_level == "debug":
            observers.append(RoundLog())
        if settings.metrics is not None:
            metrics = Metrics()
            metrics.describe(target.backend.name)
            pool = getattr(target.backend, "pool", None)
            if pool is not None:
                metrics.watch_blocks(pool)
            endpoint = MetricsEndpoint(settings.metrics, metrics)
            stack.callback(endpoint.close)
            notice(f"metrics on http://{endpoint.address}/metrics")
            observers.append(metrics)
        if settings.otel_endpoint is not None:
            traces = traces_to(settings.otel_endpoint)
            stack.callback(traces.close)
            observers.append(traces)
        yield all_of(observers), metrics


@contextlib.asynccontextmanager
async def _signals(access: Access) -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set; SIGHUP reads tokens and certificates again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: stop.set, signal.SIGTERM: stop.set}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = lambda: _reload(access)
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield stop
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _reload(access: Access) -> None:
    try:
        access.reload()
    except BadRequest as error:
        logger.error("reload: %s; what was in force stays", error)
    else:
        notice("reloaded tokens and certificates")


def _leave_after(seconds: float) -> None:
    """End the process even if a target forward, or a receiver of traces, does not answer."""

    def leave() -> None:
        notice("the grace time is over: leaving what still runs behind")
        os._exit(0)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
