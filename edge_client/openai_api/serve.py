"""`edge-client serve`: from settings to a running endpoint, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from edge_client import render
from edge_client.client import EdgeClient
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.openai_api.app import Endpoint, build_app
from edge_client.openai_api.settings import ServeSettings
from edge_client.openai_api.verifier import ONCE, Verifier
from edge_client.options import GenerateOptions, Mode
from specwire.errors import BadRequest, Draining, LinkError, ModelError, SpecwireError
from specwire.v1 import verifier_pb2 as pb

GRACE_S = 1
"""How long a stop waits for answers to end."""

CLOSE_S = 0.5
"""How long a stop waits for the client to close."""


def serve(
    client: EdgeClient,
    settings: ServeSettings,
    base: GenerateOptions,
    notify: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM. One line on standard output says when it is ready.

    Args:
        client: generates; closed at the end.
        settings: where to listen, and who may call.
        base: how to draft.
        notify: called with one line for a person: progress and what went wrong.

    Raises:
        SpecwireError: the address can't be used, or the verifier refuses this client.
    """
    with listening(settings) as listener:
        if settings.warning is not None:
            notify(f"warning: {settings.warning}")
        asyncio.run(_serve(client, settings, base, listener, notify))


async def _serve(
    client: EdgeClient,
    settings: ServeSettings,
    base: GenerateOptions,
    listener: socket.socket,
    notify: Callable[[str], None],
) -> None:
    try:
        weights = await _load(client, notify)
        draft = weights.name if weights is not None else None
        if client.copies_drafts:
            draft = "copied from the text"
        elif weights is None:
            base = replace(base, mode=Mode.STREAM)
        verifier = Verifier(client, weights.vocabulary if weights else None)
        served = await _meet(verifier, notify)
        endpoint = Endpoint(client, verifier, base, sessions=settings.sessions)
        app = build_app(
            endpoint,
            key=settings.key,
            host=settings.host,
            names=settings.names,
            origins=settings.origins,
        )
        server = _Server(app, _ready(listener, settings.server, served, draft))
        with _on_signals(lambda: _stop(server, endpoint)):
            await server.serve([listener])
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await client.aclose()


def _stop(server: uvicorn.Server, endpoint: Endpoint) -> None:
    endpoint.stop()
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn, but it says in our words when it is ready, and leaves signals to us."""

    def __init__(self, app: ASGIApp, ready: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="critical",  # what goes wrong is logged where it does
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        print(render.shown(self._ready, sys.stdout), flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: uvicorn would end the process with the signal that stopped it."""
        yield


async def _load(client: EdgeClient, notify: Callable[[str], None]) -> LlamaWeights | None:
    try:
        return await client.load_draft()
    except ModelError as error:
        notify(f"no draft ({error}): the target generates alone")
        return None


async def _meet(verifier: Verifier, notify: Callable[[str], None]) -> pb.DescribeResponse | None:
    """What the verifier serves; None if it can't be reached yet."""
    try:
        return await verifier.ask(ONCE)
    except (LinkError, Draining) as error:
        notify(f"{error}; requests will fail until it can be reached")
        return None


def _ready(
    listener: socket.socket,
    server: str,
    served: pb.DescribeResponse | None,
    draft: str | None,
) -> str:
    host, port = listener.getsockname()[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    model = served.model if served is not None else "not reached yet"
    drafts = f"draft {draft}" if draft is not None else "no draft"
    return f"ready on http://{where}/v1: verifier {server} ({model}), {drafts}"


@contextlib.contextmanager
def listening(settings: ServeSettings) -> Iterator[socket.socket]:
    """A socket bound to the address; it listens once the server runs.

    Raises:
        BadRequest: there is no such address.
        SpecwireError: it is taken, or may not be used.
    """
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadRequest(f"there is no address {settings.address}: {error}") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise SpecwireError(
                f"can't listen on {settings.address}: {error.strerror}; choose another --listen"
            ) from error
        yield listener


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the running loop at SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    before = {
        sig: signal.signal(sig, lambda *_: loop.call_soon_threadsafe(stop))
        for sig in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
