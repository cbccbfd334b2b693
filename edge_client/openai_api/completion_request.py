"""Reading the body of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_client.openai_api.errors import invalid, unsupported
from edge_client.openai_api.fields import Fields, shown, text, wrong_type
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

DEFAULT_MAX_TOKENS = 16
"""What this route has always meant where nothing is said."""

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "logit_bias": (({},), "single tokens can't be favoured"),
    "suffix": (("",), "the target can't write between two texts"),
}

_KNOWN = (*SHARED, *HARMLESS, *_REFUSED, "best_of", "echo", "logprobs", "prompt")


def read_completion_request(
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
    prompts = _read_prompts(fields.get("prompt"))
    refuse(fields, _REFUSED)
    stream, include_usage = read_streaming(fields)
    choices = read_choices(fields, len(prompts))
    best_of = fields.integer("best_of", 1)
    if best_of is not None and best_of != choices:
        raise unsupported("best_of", "every choice made is returned; best_of can only equal n")
    echo, logprobs = fields.flag("echo"), read_top(fields, "logprobs", limits)
    if echo and logprobs is not None:
        raise unsupported("echo", "with logprobs it would need those of the prompt")
    max_tokens = fields.integer("max_tokens", 1) or DEFAULT_MAX_TOKENS
    return ApiRequest(
        "completions",
        model,
        prompts,
        read_options(fields, base, limits, max_tokens=max_tokens, logprobs=logprobs),
        choices=choices,
        stream=stream,
        include_usage=include_usage,
        echo=echo,
    )


def _read_prompts(value: object) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if value is None:
        raise invalid("prompt", "prompt is missing", "missing_parameter")
    if isinstance(value, str):
        return (_read_prompt("prompt", value),)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, token ids, or an array of either", value)
    if value and _is_id(value[0]):
        return (_read_prompt("prompt", value),)
    prompts = tuple(_read_prompt(f"prompt[{i}]", item) for i, item in enumerate(value))
    if not prompts:
        raise invalid("prompt", "prompt is an empty array; send at least one token")
    return prompts


def _read_prompt(where: str, value: object) -> Prompt:
    if isinstance(value, str):
        if not value:
            raise invalid("prompt", f"{where} is empty; send at least one token")
        return Prompt(text_or_ids=text(where, value))
    if not isinstance(value, list):
        raise wrong_type(where, "a string or token ids", value)
    if not value:
        raise invalid("prompt", f"{where} is empty; send at least one token")
    for i, item in enumerate(value):
        if not _is_id(item):
            raise wrong_type(f"{where}[{i}]", "a token id", item)
        if not 0 <= item < 1 << 32:
            raise invalid(where, f"{where}[{i}] is {shown(item)}, which is no token id")
    return Prompt(text_or_ids=tuple(value))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
