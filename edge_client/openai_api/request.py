"""What both routes ask for in the same words: sampling, ends, streaming, how many choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from edge_client.openai_api.errors import invalid, unsupported
from edge_client.openai_api.fields import Fields, shown, text, wrong_type
from edge_client.options import GenerateOptions
from specwire.limits import Limits
from specwire.sampling import MAX_TOP_K, SamplingParams

ALIAS = "specwire"
"""Stands for whatever model the verifier serves."""

MAX_CHOICES = 128
"""Most choices of one request, over all its prompts."""

SEEDS = 1 << 64

SHARED = (
    "frequency_penalty", "max_tokens", "min_p", "model", "n", "presence_penalty",
    "repetition_penalty", "seed", "stop", "stream", "stream_options", "temperature", "top_k",
    "top_p",
)  # fmt: skip

HARMLESS = (
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
"""Taken and not looked at: they don't change what is generated."""

Messages: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prompt:
    """What one or more choices continue: exactly one of the two.

    text_or_ids: as `EdgeClient.stream` takes it. messages: (role, content) pairs.
    """

    text_or_ids: str | tuple[int, ...] | None = None
    messages: Messages | None = None


@dataclass(frozen=True)
class ApiRequest:
    """A request, checked.

    choices: how many for each prompt; choice j of a prompt has index prompt × choices + j.
    options: of the first choice; `options_of` gives those of the others.
    """

    route: Literal["chat", "completions"]
    model: str
    prompts: tuple[Prompt, ...]
    options: GenerateOptions
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False

    @property
    def prompt_param(self) -> str:
        """The parameter that holds the prompt."""
        return "messages" if self.route == "chat" else "prompt"

    def options_of(self, choice: int) -> GenerateOptions:
        """The options of a prompt's choice: each has a seed of its own, counted up."""
        if self.options.seed is None or choice == 0:
            return self.options
        return replace(self.options, seed=(self.options.seed + choice) % SEEDS)


def read_model(fields: Fields) -> str:
    """The model's name."""
    name = fields.text("model")
    if not name:
        raise invalid("model", "model is missing; say which model is meant", "missing_parameter")
    return name


def read_choices(fields: Fields, prompts: int) -> int:
    """n."""
    choices = fields.integer("n", 1, MAX_CHOICES) or 1
    if choices * prompts > MAX_CHOICES:
        raise invalid(
            "n", f"{prompts} prompts with n {choices} are more than {MAX_CHOICES} choices"
        )
    return choices


def read_streaming(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether usage comes with it."""
    stream, options = fields.flag("stream"), fields.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, Mapping):
        raise wrong_type("stream_options", "an object", options)
    if not stream:
        raise invalid("stream_options", "stream_options is for stream: true only")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            message = f"stream_options.{name} is unknown; there is include_usage"
            raise invalid(f"stream_options.{name}", message)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(f"stream_options.{name}", "a boolean", value)
    return stream, bool(options.get("include_usage"))


def read_options(
    fields: Fields, base: GenerateOptions, limits: Limits, *, max_tokens: int, logprobs: int | None
) -> GenerateOptions:
    """How to generate: `base` says how to draft, the request all that changes the text.

    `max_tokens` is cut to what the verifier can give.
    """
    temperature = fields.number("temperature", 0.0, 2.0, 1.0)
    top_p = fields.number("top_p", 0.0, 1.0, 1.0)
    sampling = SamplingParams(
        temperature=temperature if top_p else 0.0,  # top_p 0 leaves the likeliest token alone
        top_k=fields.integer("top_k", 0, MAX_TOP_K) or 0,
        top_p=top_p or 1.0,
        min_p=fields.number("min_p", 0.0, 1.0, 0.0),
        repetition_penalty=fields.number("repetition_penalty", 0.01, 100.0, 1.0),
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0, 0.0),
    )
    seed = fields.integer("seed", -SEEDS // 2, SEEDS - 1)
    return replace(
        base,
        sampling=sampling,
        max_tokens=min(max_tokens, limits.context, limits.max_tokens),
        stops=_read_stops(fields.get("stop"), limits),
        seed=None if seed is None else seed % SEEDS,
        logprobs=logprobs,
    )


def read_top(fields: Fields, name: str, limits: Limits) -> int | None:
    """How many likeliest tokens to tell of."""
    return fields.integer(name, 0, limits.logprobs)


def refuse(fields: Fields, refusals: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Refuse parameters that can't be served, unless their value asks for nothing.

    `refusals`: by name, the values that ask for nothing, and why others can't be served.
    """
    for name, (empty, why) in refusals.items():
        value = fields.get(name)
        if value is not None and value not in empty:
            raise unsupported(name, f"{why}; leave it out")


def _read_stops(value: object, limits: Limits) -> tuple[str, ...]:
    if value is None:
        return ()
    given = value if isinstance(value, list) else [value]
    if not isinstance(value, (list, str)):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(given) > limits.stops:
        raise invalid("stop", f"stop holds {len(given)} strings; the limit is {limits.stops}")
    stops = tuple(text("stop", item) for item in given)
    for stop in stops:
        if not stop:
            raise invalid("stop", "an empty stop string would stop at once; leave it out")
        if (size := len(stop.encode())) > limits.stop_bytes:
            raise invalid(
                "stop", f"the stop {shown(stop)} has {size} bytes; the limit is {limits.stop_bytes}"
            )
    return stops
