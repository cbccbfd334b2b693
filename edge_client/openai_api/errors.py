"""Errors as OpenAI's clients expect them: an HTTP status and one JSON object.

status  type                   code                      when
400     invalid_request_error  (by cause)                a value is wrong; `param` names it
401     invalid_request_error  invalid_api_key           no key, or a wrong one
403     invalid_request_error  host_not_allowed, …       a request that a web page smuggled in
404     invalid_request_error  model_not_found, …        another model, or another path
405     invalid_request_error  method_not_allowed
413     invalid_request_error  request_too_large
429     rate_limit_error       verifier_exhausted        try again later
500     server_error           internal_error            a fault of ours
502     server_error           verifier_unreachable, …   the verifier is not there, or refuses us
503     server_error           verifier_draining, …      the verifier or this endpoint stops
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specwire.errors import (
    BadRequest,
    Draining,
    Exhausted,
    LinkError,
    NotOwner,
    SpecwireError,
    Unauthenticated,
    Untrusted,
)

INVALID = "invalid_request_error"
CONTEXT_EXCEEDED = "context_length_exceeded"


@dataclass
class ApiError(Exception):
    """What a request is answered with instead of a result.

    param: the request's parameter that is wrong. headers: beside the usual ones.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    type: str = INVALID
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """The JSON object. A request's own words in it may hold what is no text."""
        return {
            "error": {
                "message": _sendable(self.message),
                "type": self.type,
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def invalid(param: str | None, message: str, code: str | None = "invalid_value") -> ApiError:
    """A 400 about one parameter."""
    return ApiError(400, message, param, code)


def unsupported(param: str, why: str) -> ApiError:
    """A 400 about a parameter that exists but can't be served."""
    return ApiError(400, f"{param} is not supported here: {why}", param, "unsupported_parameter")


def stopping() -> ApiError:
    """What running requests get when this endpoint stops."""
    return ApiError(503, "this endpoint is stopping", None, "shutting_down", "server_error")


def internal() -> ApiError:
    """What is told of a fault of ours; the details are in the log."""
    return ApiError(
        500, "an internal error of this endpoint; its log says more", None, "internal_error",
        "server_error",
    )  # fmt: skip


def from_specwire(error: SpecwireError, prompt_param: str | None = None) -> ApiError:
    """The answer that an error of the verifier, or of the way to it, leads to.

    `prompt_param` is "prompt" or "messages", where there is one. All else was checked
    before, so what the verifier finds wrong with a request is its prompt.
    """
    message = str(error)
    if isinstance(error, BadRequest):
        too_long = "shorten" in message  # the verifier's advice where a prompt is too long
        return invalid(prompt_param, message, CONTEXT_EXCEEDED if too_long else "invalid_value")
    later = {"retry-after": "1"}
    if isinstance(error, Exhausted):
        return ApiError(429, message, None, "verifier_exhausted", "rate_limit_error", later)
    if isinstance(error, Draining):
        return ApiError(503, message, None, "verifier_draining", "server_error", later)
    code = "verifier_failed"
    if isinstance(error, LinkError):
        code = "verifier_unreachable"
    elif isinstance(error, (NotOwner, Unauthenticated, Untrusted)):
        code = "verifier_refused"
    return ApiError(502, message, None, code, "server_error")
