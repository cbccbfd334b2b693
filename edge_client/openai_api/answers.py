"""From what happens to the choices to the answer, at once or piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from edge_client.openai_api.choices import Disconnected, End, Event, Piece
from edge_client.openai_api.errors import ApiError
from edge_client.openai_api.event_stream import DONE, event
from edge_client.openai_api.request import ApiRequest
from edge_client.openai_api.responses import Answer, ChoiceText, Shape, usage
from edge_client.result import Result


async def whole_answer(
    request: ApiRequest,
    shape: Shape,
    answer: Answer,
    events: AsyncIterator[Event],
    echoes: Sequence[str],
) -> dict[str, Any]:
    """The answer as one object.

    `echoes`: the text each prompt's choices begin with.
    """
    texts = [ChoiceText(text) for text in echoes for _ in range(request.choices)]
    if request.options.logprobs is not None:
        for choice in texts:
            choice.entries = []
    results: dict[int, Result] = {}
    async for item in events:
        choice = texts[item.index]
        if isinstance(item, End):
            choice.finish_reason = item.finish_reason
            results[item.index] = item.result
        else:
            choice.text += item.text
            if choice.entries is not None:
                choice.entries.extend(item.entries or ())
    return {
        **answer.head(shape.kind),
        "choices": [
            {"index": i, **shape.choice(choice), "finish_reason": choice.finish_reason}
            for i, choice in enumerate(texts)
        ],
        "usage": usage([results[i] for i in range(len(texts))], request.choices),
    }


async def answer_events(
    request: ApiRequest,
    shape: Shape,
    answer: Answer,
    events: AsyncIterator[Event],
    echoes: Sequence[str],
) -> AsyncIterator[bytes]:
    """The answer as server-sent events; an error on the way is the last of them."""
    chunks = _Chunks(request, shape, answer, echoes)
    results: dict[int, Result] = {}
    try:
        async for item in events:
            if isinstance(item, End):
                results[item.index] = item.result
            yield chunks.of(item)
    except ApiError as error:
        yield event(error.body())
    except Disconnected:
        pass
    else:
        if request.include_usage:
            ordered = [results[i] for i in range(len(results))]
            yield chunks.with_usage(usage(ordered, request.choices))
        yield DONE


class _Chunks:
    """Encodes what happens as chunks of one answer."""

    def __init__(
        self, request: ApiRequest, shape: Shape, answer: Answer, echoes: Sequence[str]
    ) -> None:
        self._shape = shape
        self._echoes = echoes
        self._choices = request.choices
        self._opened: set[int] = set()
        self._head = answer.head(shape.chunk_kind)
        self._tail: dict[str, Any] = {"usage": None} if request.include_usage else {}

    def of(self, item: Event) -> bytes:
        """One event or, where a choice begins, more."""
        opening = b"" if item.index in self._opened else self._open(item.index)
        if isinstance(item, Piece):
            return opening + self._chunk(item.index, self._shape.delta(item.text, item.entries))
        return opening + self._chunk(item.index, self._shape.closing(), item.finish_reason)

    def with_usage(self, numbers: dict[str, Any]) -> bytes:
        """The last chunk, which has no choices."""
        return event({**self._head, "choices": [], "usage": numbers})

    def _open(self, index: int) -> bytes:
        self._opened.add(index)
        echo = self._echoes[index // self._choices]
        parts = [self._shape.opening(), self._shape.delta(echo, None) if echo else None]
        return b"".join(self._chunk(index, part) for part in parts if part is not None)

    def _chunk(self, index: int, part: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": index, **part, "finish_reason": finish_reason}
        return event({**self._head, "choices": [choice], **self._tail})
