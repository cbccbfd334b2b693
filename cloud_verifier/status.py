"""How errors leave the service: one status for each kind, with machine-readable detail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from cloud_verifier.observe import SILENT, Observer
from specwire.errors import DETAIL_KEY, BadRequest, SpecwireError

logger = logging.getLogger(__name__)


@asynccontextmanager
async def reporting(
    context: grpc.aio.ServicerContext[Any, Any], observer: Observer = SILENT
) -> AsyncIterator[None]:
    """Turn what is raised inside into the call's status, and tell the observer of it.

    Our own errors carry theirs, and bytes that are no message are the client's
    fault. Anything else is a fault of the service: the client learns that much,
    the log holds the rest.
    """
    try:
        yield
    except SpecwireError as error:
        observer.refused(error)
        await _abort(context, error)
    except DecodeError:
        garbage = BadRequest("what was sent is no message of the protocol")
        observer.refused(garbage)
        await _abort(context, garbage)
    except Exception as error:
        if isinstance(error, grpc.aio.AbortError):
            raise
        logger.exception("a call failed unexpectedly")
        fault = SpecwireError("the verifier failed unexpectedly; see its log")
        observer.refused(fault)
        await context.abort(fault.status, str(fault))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: SpecwireError) -> None:
    detail = error.detail().SerializeToString()
    await context.abort(error.status, str(error), ((DETAIL_KEY, detail),))
