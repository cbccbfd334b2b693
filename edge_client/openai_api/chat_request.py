"""Reading the body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_client.openai_api.errors import invalid, unsupported
from edge_client.openai_api.fields import Fields, text, wrong_type
from edge_client.openai_api.request import (
    HARMLESS,
    SHARED,
    ApiRequest,
    Prompt,
    read_choices,
    read_model,
    read_options,
    read_streaming,
    read_top,
    refuse,
)
from edge_client.options import GenerateOptions
from specwire.limits import Limits

_NO_TOOLS = "the target is asked for text alone"

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "the target writes text"),
    "function_call": (("none", "auto"), _NO_TOOLS),
    "functions": (([],), _NO_TOOLS),
    "logit_bias": (({},), "single tokens can't be favoured"),
    "modalities": ((["text"], []), "the target writes text"),
    "moderation": ((), "nothing here moderates"),
    "prediction": ((), "the draft model predicts"),
    "reasoning_effort": (("none",), "the target does not reason apart from its text"),
    "response_format": (({"type": "text"},), "the output can't be held to a format"),
    "tool_choice": (("none", "auto"), _NO_TOOLS),
    "tools": (([],), _NO_TOOLS),
    "verbosity": (("medium",), "the target writes as it writes; say it in a message"),
    "web_search_options": ((), "nothing here searches"),
}

_KNOWN = (
    *SHARED, *HARMLESS, *_REFUSED,
    "logprobs", "max_completion_tokens", "messages", "parallel_tool_calls", "top_logprobs",
)  # fmt: skip

_ROLES = {"assistant": "assistant", "developer": "system", "system": "system", "user": "user"}
"""Roles that are taken, and what the target's template calls them."""

_IGNORED_IN_MESSAGES = ("annotations", "name", "refusal")
_ABSENT_IN_MESSAGES = ("audio", "function_call", "tool_calls")
_TEXT_PARTS = ("text", "input_text", "output_text")


def read_chat_request(
    values: Mapping[str, Any], base: GenerateOptions, limits: Limits
) -> ApiRequest:
    """The request that a JSON object holds.

    Args:
        values: the object.
        base: how to draft.
        limits: the verifier's.

    Raises:
        ApiError: a parameter is wrong, unknown or can't be served.
    """
    fields = Fields(values)
    fields.check_known(_KNOWN)
    model = read_model(fields)
    prompt = Prompt(messages=tuple(_read_messages(fields.get("messages"))))
    refuse(fields, _REFUSED)
    fields.flag("parallel_tool_calls")
    stream, include_usage = read_streaming(fields)
    most = [fields.integer(n, 1) for n in ("max_completion_tokens", "max_tokens")]
    return ApiRequest(
        "chat",
        model,
        (prompt,),
        read_options(
            fields,
            base,
            limits,
            max_tokens=min((m for m in most if m is not None), default=limits.context),
            logprobs=_read_logprobs(fields, limits),
        ),
        choices=read_choices(fields, 1),
        stream=stream,
        include_usage=include_usage,
    )


def _read_logprobs(fields: Fields, limits: Limits) -> int | None:
    wanted, top = fields.flag("logprobs"), read_top(fields, "top_logprobs", limits)
    if top is not None and not wanted:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    return (top or 0) if wanted else None


def _read_messages(value: object) -> list[tuple[str, str]]:
    if value is None:
        raise invalid("messages", "messages is missing", "missing_parameter")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array", value)
    if not value:
        raise invalid("messages", "messages is empty; send at least one")
    return [_read_message(f"messages[{i}]", message) for i, message in enumerate(value)]


def _read_message(where: str, value: object) -> tuple[str, str]:
    if not isinstance(value, Mapping):
        raise wrong_type(where, "an object", value)
    role = value.get("role")
    if role in ("function", "tool"):
        raise unsupported(f"{where}.role", f"{role!r} answers a tool call, and there are no tools")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(_ROLES)
        raise invalid(f"{where}.role", f"{where}.role must be one of {known}, not {role!r}")
    for name, item in value.items():
        if name in ("role", "content", *_IGNORED_IN_MESSAGES):
            continue
        if name not in _ABSENT_IN_MESSAGES:
            message = f"{where}.{name} is unknown; a message has a role and a content"
            raise invalid(f"{where}.{name}", message, "unknown_parameter")
        if item not in (None, []):
            raise unsupported(f"{where}.{name}", "a message holds text alone")
    return _ROLES[role], _read_content(f"{where}.content", value.get("content"))


def _read_content(where: str, value: object) -> str:
    if isinstance(value, list):
        return "".join(_read_part(f"{where}[{i}]", part) for i, part in enumerate(value))
    return text(where, value)


def _read_part(where: str, value: object) -> str:
    if not isinstance(value, Mapping):
        raise wrong_type(where, "an object", value)
    sort = value.get("type")
    if sort == "refusal":
        return text(f"{where}.refusal", value.get("refusal"))
    if sort not in _TEXT_PARTS:
        raise unsupported(where, f"a part of type {sort!r}; send parts of type 'text'")
    return text(f"{where}.text", value.get("text"))
