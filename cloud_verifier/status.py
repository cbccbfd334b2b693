"""How errors leave the service: one status for each kind, with machine-readable detail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from specwire.errors import DETAIL_KEY, SpecwireError

logger = logging.getLogger(__name__)


@asynccontextmanager
async def reporting(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn what is raised inside into the call's status.

    Our own errors carry theirs. Anything else is a fault of the service: the
    client learns that much, the log holds the rest.
    """
    try:
        yield
    except SpecwireError as error:
        detail = error.detail().SerializeToString()
        await context.abort(error.status, str(error), ((DETAIL_KEY, detail),))
    except Exception as error:
        if isinstance(error, grpc.aio.AbortError):
            raise
        logger.exception("a call failed unexpectedly")
        await context.abort(
            grpc.StatusCode.INTERNAL, "the verifier failed unexpectedly; see its log"
        )
