"""Bytes that are no message, in calls with a single request.

gRPC reads such a request before the service sees it, and answers UNKNOWN if that
fails. Here reading never fails: the error takes the request's place, and is raised
where all other errors of a call are turned into a status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from cloud_verifier.observe import Observer
from cloud_verifier.status import reporting

Context = grpc.aio.ServicerContext[Any, Any]


class MalformedInterceptor(grpc.aio.ServerInterceptor):
    """Answers malformed requests of one service with INVALID_ARGUMENT."""

    def __init__(self, service: str, observer: Observer) -> None:
        self._prefix = f"/{service}/"
        self._observer = observer
        self._made: dict[str, Any] = {}  # tolerant handlers, by method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, made tolerant if it takes a single request."""
        handler = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        method = str(details.method)
        if not method.startswith(self._prefix):
            return handler
        if method not in self._made:
            self._made[method] = self._wrap(handler)
        return self._made[method]

    def _wrap(self, handler: Any) -> Any:
        read = _tolerant(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream), read, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler.unary_unary), read, handler.response_serializer
        )

    def _unary(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any, context: Context) -> Any:
            if isinstance(request, DecodeError):
                await self._refuse(request, context)
            return await method(request, context)

        return call

    def _stream(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            if isinstance(request, DecodeError):
                await self._refuse(request, context)
            async for response in method(request, context):
                yield response

        return call

    async def _refuse(self, error: DecodeError, context: Context) -> None:
        async with reporting(context, self._observer):
            raise error


def _tolerant(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def tolerant(raw: bytes) -> Any:
        try:
            return read(raw)
        except DecodeError as error:
            return error

    return tolerant
