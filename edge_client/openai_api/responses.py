"""The JSON objects that requests are answered with."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from edge_client.openai_api.logprobs import TokenEntry, chat_logprobs, completion_logprobs
from edge_client.result import Result
from specwire.v1 import verifier_pb2 as pb


def fingerprint(served: pb.DescribeResponse) -> str:
    """Changes when the model or the software that serves it does."""
    digest = hashlib.sha256(served.vocabulary.fingerprint)
    for part in (served.model, served.server_version):
        digest.update(part.encode() + b"\0")
    return f"fp_{digest.hexdigest()[:12]}"


def usage(results: Sequence[Result], choices: int) -> dict[str, Any]:
    """What a request took.

    Args:
        results: of all choices, in order of their index.
        choices: for each prompt, whose tokens count once. Tokens of the prompt that
            needed no prefill are those of the choice that found the fewest.
    """
    by_prompt = [results[i : i + choices] for i in range(0, len(results), choices)]
    prompt_tokens = sum(group[0].prompt_tokens for group in by_prompt)
    completion_tokens = sum(len(result.token_ids) for result in results)
    accepted = sum(result.counts.accepted for result in results)
    examined = sum(result.counts.examined for result in results)
    cached = sum(min(r.cached_prompt_tokens for r in group) for group in by_prompt)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": examined - accepted,
            "reasoning_tokens": 0,
            "audio_tokens": 0,
        },
    }


@dataclass
class ChoiceText:
    """A choice's whole output. entries: None if no log-probabilities were asked for."""

    text: str = ""
    finish_reason: str = ""
    entries: list[TokenEntry] | None = None


@dataclass(frozen=True)
class Answer:
    """What all objects of one answer have in common."""

    id: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> dict[str, Any]:
        """The beginning of an object of this kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


class Shape(Protocol):
    """The form of a route's answers."""

    prefix: str
    kind: str
    chunk_kind: str

    def opening(self) -> dict[str, Any] | None:
        """A choice's part of its first chunk, where one comes before the text."""

    def delta(self, text: str, entries: Sequence[TokenEntry] | None) -> dict[str, Any]:
        """A choice's part of a chunk with more of the text."""

    def closing(self) -> dict[str, Any]:
        """A choice's part of its last chunk."""

    def choice(self, whole: ChoiceText) -> dict[str, Any]:
        """A choice of an answer that comes at once."""


class ChatShape:
    """POST /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> dict[str, Any]:
        """The role."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"delta": delta, "logprobs": None}

    def delta(self, text: str, entries: Sequence[TokenEntry] | None) -> dict[str, Any]:
        """More text."""
        logprobs = None if entries is None else chat_logprobs(entries)
        return {"delta": {"content": text}, "logprobs": logprobs}

    def closing(self) -> dict[str, Any]:
        """Nothing more."""
        return {"delta": {}, "logprobs": None}

    def choice(self, whole: ChoiceText) -> dict[str, Any]:
        """The message."""
        logprobs = None if whole.entries is None else chat_logprobs(whole.entries)
        message = {"role": "assistant", "content": whole.text, "refusal": None}
        return {"message": message, "logprobs": logprobs}


class CompletionShape:
    """POST /v1/completions. In this route chunks look like whole answers."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def opening(self) -> None:
        """Nothing comes before the text."""

    def delta(self, text: str, entries: Sequence[TokenEntry] | None) -> dict[str, Any]:
        """More text."""
        logprobs = None if entries is None else completion_logprobs(entries)
        return {"text": text, "logprobs": logprobs}

    def closing(self) -> dict[str, Any]:
        """Nothing more."""
        return {"text": "", "logprobs": None}

    def choice(self, whole: ChoiceText) -> dict[str, Any]:
        """The text."""
        return self.delta(whole.text, whole.entries)


def shape_of(route: Literal["chat", "completions"]) -> Shape:
    """The shape of a route's answers."""
    return ChatShape() if route == "chat" else CompletionShape()


def answer_id(shape: Shape) -> str:
    """A random id, "chatcmpl-…" or "cmpl-…"."""
    return f"{shape.prefix}-{secrets.token_hex(12)}"


def model_object(name: str, created: int, served: pb.DescribeResponse) -> dict[str, Any]:
    """A model of GET /v1/models. max_model_len: tokens a session may hold."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "specwire",
        "max_model_len": served.limits.context,
    }
