"""The choices of one request, generated side by side and told of as one series of events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from edge_client.client import EdgeClient
from edge_client.openai_api.errors import ApiError, from_specwire, internal
from edge_client.openai_api.logprobs import LogprobTrail, TokenEntry, TokenNames
from edge_client.openai_api.request import ApiRequest, Prompt
from edge_client.options import GenerateOptions
from edge_client.result import Result, Token
from specwire.errors import SpecwireError

logger = logging.getLogger(__name__)

MOST_WAITING = 64
"""Events that may wait for a slow reader before generating waits too."""


class Disconnected(Exception):
    """Whoever asked has gone; nobody reads the answer."""


@dataclass(frozen=True)
class Piece:
    """More text of a choice. entries: None if no log-probabilities were asked for."""

    index: int
    text: str
    entries: list[TokenEntry] | None


@dataclass(frozen=True)
class End:
    """The end of a choice."""

    index: int
    finish_reason: str
    result: Result


Event: TypeAlias = Piece | End


class Choices:
    """Generates every choice of a request, each in a session of its own.

    Guarantees: `close` ends all sessions that still run, and the verifier is told; `fail`
    makes `events` raise at once, whatever the choices do.

    Args:
        client: generates.
        request: what was asked for.
        names: of tokens, for log-probabilities.
        slots: bounds the sessions of all requests together; further choices wait.
    """

    def __init__(
        self, client: EdgeClient, request: ApiRequest, names: TokenNames, slots: asyncio.Semaphore
    ) -> None:
        self._client = client
        self._request = request
        self._names = names
        self._slots = slots
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue(MOST_WAITING)
        self._error: Exception | None = None
        self._tasks = [
            asyncio.create_task(self._work(p * request.choices + j, prompt, request.options_of(j)))
            for p, prompt in enumerate(request.prompts)
            for j in range(request.choices)
        ]
        self._watcher: asyncio.Task[None] | None = None

    async def events(self) -> AsyncIterator[Event]:
        """What happens, until every choice has ended.

        Raises:
            ApiError: a choice failed, or `fail` was called.
            Disconnected: see `fail`.
        """
        left = len(self._tasks)
        while left:
            event = await self._queue.get()
            if isinstance(event, Exception):
                raise event
            left -= isinstance(event, End)
            yield event

    def fail(self, error: Exception) -> None:
        """End everything; who reads the events gets `error` instead of what is left."""
        if self._error is not None:
            return
        self._error = error
        for task in self._tasks:
            task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(error)

    def watch(self, gone: Callable[[], Awaitable[None]]) -> None:
        """Fail with `Disconnected` once `gone()` returns."""

        async def wait() -> None:
            await gone()
            self.fail(Disconnected())

        self._watcher = asyncio.create_task(wait())

    async def close(self) -> None:
        """End what still runs."""
        tasks = [*self._tasks, *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, index: int, prompt: Prompt, options: GenerateOptions) -> None:
        try:
            async with self._slots:
                await self._generate(index, prompt, options)
        except SpecwireError as error:
            self.fail(from_specwire(error, self._request.prompt_param))
        except ApiError as error:
            self.fail(error)
        except Exception:
            logger.exception("a request failed")
            self.fail(internal())

    async def _generate(self, index: int, prompt: Prompt, options: GenerateOptions) -> None:
        stream = self._client.stream(prompt.text_or_ids, messages=prompt.messages, options=options)
        trail = LogprobTrail(self._names) if options.logprobs is not None else None
        tokens = cast("AsyncGenerator[Token, None]", aiter(stream))
        async with contextlib.aclosing(tokens):
            async for token in tokens:
                entries = trail.add(token) if trail is not None else None
                if token.text or entries:
                    await self._queue.put(Piece(index, token.text, entries))
        result = stream.result
        if trail is not None and (entries := trail.finish(by_stop_string=self._by_stop(result))):
            await self._queue.put(Piece(index, "", entries))
        await self._queue.put(End(index, _finish_reason(result), result))

    def _by_stop(self, result: Result) -> bool:
        # An end token is "stop" as well, and does not cut text off.
        ended = bool(result.token_ids) and result.token_ids[-1] in self._names.end_ids
        return result.finish_reason == "stop" and not ended


def _finish_reason(result: Result) -> str:
    if result.finish_reason in ("stop", "length"):
        return result.finish_reason
    raise ApiError(
        502, "the verifier closed the session before the text was done", None,
        "verifier_failed", "server_error",
    )  # fmt: skip
