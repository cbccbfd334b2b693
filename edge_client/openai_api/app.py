"""The routes of the endpoint, as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from edge_client.client import EdgeClient
from edge_client.openai_api.answers import answer_events, whole_answer
from edge_client.openai_api.chat_request import read_chat_request
from edge_client.openai_api.choices import Choices, Disconnected, Event
from edge_client.openai_api.completion_request import read_completion_request
from edge_client.openai_api.errors import ApiError, from_specwire, internal, stopping, unsupported
from edge_client.openai_api.event_stream import EventStream
from edge_client.openai_api.fields import parse_object
from edge_client.openai_api.guard import Guard
from edge_client.openai_api.logprobs import TokenNames
from edge_client.openai_api.request import ApiRequest
from edge_client.openai_api.responses import (
    Answer,
    answer_id,
    fingerprint,
    model_object,
    shape_of,
)
from edge_client.openai_api.verifier import Verifier
from edge_client.options import GenerateOptions
from specwire.errors import BadRequest, SpecwireError
from specwire.limits import Limits

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20

Reader: TypeAlias = Callable[[Mapping[str, Any], GenerateOptions, Limits], ApiRequest]
Handler: TypeAlias = Callable[[Request], Awaitable[ASGIApp]]


class Endpoint:
    """Answers requests by generating with an `EdgeClient`.

    Args:
        client: generates.
        verifier: what is known of the other end.
        base: how to draft; requests say the rest.
        sessions: most at a time, over all requests; further choices wait.
    """

    def __init__(
        self, client: EdgeClient, verifier: Verifier, base: GenerateOptions, *, sessions: int
    ) -> None:
        self._client = client
        self._verifier = verifier
        self._base = base
        self._slots = asyncio.Semaphore(sessions)
        self._running: set[Choices] = set()
        self._stopping = False
        self._created = int(time.time())

    def stop(self) -> None:
        """End all requests with an error that says why, and take no more."""
        self._stopping = True
        for choices in self._running:
            choices.fail(stopping())

    async def chat_completions(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        return await self._generate(request, read_chat_request)

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        return await self._generate(request, read_completion_request)

    async def models(self, request: Request) -> ASGIApp:
        """GET /v1/models."""
        served = await self._verifier.described()
        models = [model_object(served.model, self._created, served)]
        return JSONResponse({"object": "list", "data": models})

    async def model(self, request: Request) -> ASGIApp:
        """GET /v1/models/{id}."""
        name = request.path_params["id"]
        served = await self._verifier.serving(name)
        return JSONResponse(model_object(name, self._created, served))

    async def health(self, request: Request) -> ASGIApp:
        """GET /health: whether the verifier can be reached now."""
        try:
            await self._verifier.ask()
        except SpecwireError as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ok"})

    # ------------------------------------------------------------ generating

    async def _generate(self, request: Request, read: Reader) -> ASGIApp:
        values = parse_object(await read_body(request))
        limits = Limits.from_proto((await self._verifier.described()).limits)
        asked = read(values, self._base, limits)
        served = await self._verifier.serving(asked.model)
        names = self._verifier.names(served)
        echoes = _echoes(asked, names)
        shape = shape_of(asked.route)
        answer = Answer(answer_id(shape), served.model, fingerprint(served))
        choices = self._begin(asked, names, request.receive)
        close = self._closer(choices)
        try:
            if asked.stream:
                # What is refused must have its status, so the first event is waited for.
                events = await _begun(choices.events())
                pieces = answer_events(asked, shape, answer, events, echoes)
                return EventStream(pieces, close)
            body = await whole_answer(asked, shape, answer, choices.events(), echoes)
        except BaseException:
            await close()
            raise
        await close()
        return JSONResponse(body)

    def _begin(self, asked: ApiRequest, names: TokenNames, receive: Receive) -> Choices:
        if self._stopping:
            raise stopping()
        choices = Choices(self._client, asked, names, self._slots)
        choices.watch(lambda: _until_disconnected(receive))
        self._running.add(choices)
        return choices

    def _closer(self, choices: Choices) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            self._running.discard(choices)
            await choices.close()

        return close


def build_app(
    endpoint: Endpoint,
    *,
    key: str | None,
    host: str,
    names: Sequence[str],
    origins: Sequence[str],
) -> Starlette:
    """The application; arguments as those of `Guard`."""
    posts: dict[str, Handler] = {
        "/v1/chat/completions": endpoint.chat_completions,
        "/v1/completions": endpoint.completions,
    }
    gets: dict[str, Handler] = {
        "/v1/models": endpoint.models,
        "/v1/models/{id:path}": endpoint.model,
        "/health": endpoint.health,
    }
    middleware = [Middleware(Guard, key=key, host=host, names=names, origins=origins)]
    if origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # a named page may come from anywhere
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            *(
                Route(path, _answering(handler), methods=["POST"])
                for path, handler in posts.items()
            ),
            *(Route(path, _answering(handler), methods=["GET"]) for path, handler in gets.items()),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    return app


def _answering(handler: Handler) -> Handler:
    """A handler whose errors are answers."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except ApiError as error:
            return _error(error)
        except SpecwireError as error:
            return _error(from_specwire(error))
        except (ClientDisconnect, Disconnected):
            return Response(status_code=499)  # nobody reads it
        except Exception:
            logger.exception("a request failed")
            return _error(internal())

    return answer


def _error(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    call = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        headers = dict(error.headers or {})
        allowed = headers.get("Allow", "")
        message = f"{call} is not possible; the path takes {allowed}"
        return _error(ApiError(405, message, None, "method_not_allowed", headers=headers))
    if request.url.path.startswith("/v1/"):
        cure = f"there are {_routes(request.app)}"
    else:
        cure = "a client's base URL must end with /v1"
    return _error(ApiError(404, f"there is no {call}; {cure}", None, "unknown_url"))


def _routes(app: Starlette) -> str:
    routes = (route for route in app.routes if isinstance(route, Route))
    return ", ".join(
        f"{'POST' if 'POST' in (route.methods or ()) else 'GET'} {route.path_format}"
        for route in routes
    )


async def read_body(request: Request) -> bytes:
    """The body of a request.

    Raises:
        ApiError: it is larger than MAX_BODY_BYTES.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(
                413, f"the body is larger than {MAX_BODY_BYTES} bytes", None, "request_too_large"
            )
    return bytes(body)


def _echoes(asked: ApiRequest, names: TokenNames) -> list[str]:
    """The text that each prompt's choices begin with."""
    if not asked.echo:
        return [""] * len(asked.prompts)
    texts = []
    for prompt in asked.prompts:
        given = prompt.text_or_ids
        if given is not None and not isinstance(given, str):
            if names.vocabulary is None:
                raise unsupported("echo", "token ids can't be turned into text without a draft")
            try:
                names.vocabulary.check_ids(given, "prompt")
            except BadRequest as error:
                raise from_specwire(error, "prompt") from error
            given = names.vocabulary.decode(given).decode("utf-8", "replace")
        texts.append(given or "")
    return texts


async def _begun(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The same events, once the first is there."""
    first = await anext(events)

    async def all_of_them() -> AsyncIterator[Event]:
        yield first
        async for item in events:
            yield item

    return all_of_them()


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
