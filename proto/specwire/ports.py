"""What the cores ask of the outside: a target to evaluate and a draft to take tokens from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specwire.vocabulary import Vocabulary


@dataclass(frozen=True)
class Step:
    """One sequence's share of a target forward.

    The first `keep` cached tokens of `sequence` stay, the rest is forgotten;
    then `tokens` (at least one) are evaluated after them. `rows` is how many
    of the last tokens need logits (1 … len(tokens)).
    """

    sequence: int
    keep: int
    tokens: Sequence[int]
    rows: int


class TargetBackend(Protocol):
    """A target model with a cache for several sequences. One thread owns it."""

    @property
    def name(self) -> str:
        """Name of the model, for people and logs."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens in id order. Logits may be wider; the padding is never drawn."""

    @property
    def context(self) -> int:
        """Most tokens that a sequence may hold."""

    def open(self, tokens: Sequence[int] = ()) -> int:
        """Start a sequence that will begin with `tokens`; returns its handle.

        Where a beginning of them is at hand from another sequence, it is cached
        already: ask `cached`. The last of `tokens` never is.
        """

    def cached(self, sequence: int) -> int:
        """How many tokens the sequence holds."""

    def fits(self, steps: Sequence[Step]) -> bool:
        """Whether there is cache memory for a forward of these steps."""

    def forward(self, steps: Sequence[Step]) -> list[Any]:
        """Evaluate a ragged batch, each sequence at most once.

        Returns one array for each step, shape (rows, width) with width ≥
        len(vocabulary), float32 or wider, numpy or torch.
        """

    def close(self, sequence: int) -> None:
        """Forget a sequence. Unknown handles are ignored."""


class PromptEncoder(Protocol):
    """The target's tokenizer and chat template, which are authoritative."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""

    @property
    def chat_template_digest(self) -> bytes:
        """SHA-256 of the chat template's text; empty if there is none."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of a prompt in plain text, with the model's BOS rule applied once."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of (role, content) messages through the chat template, ready for an answer."""


class DraftModel(Protocol):
    """A draft model's evaluation state for one sequence. One thread uses it at a time."""

    @property
    def context(self) -> int:
        """Most tokens that it can hold."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens evaluated so far."""

    @property
    def fresh(self) -> int:
        """Tokens that the last `logits_after` had to evaluate."""

    def logits_after(self, tokens: Sequence[int]) -> Any:
        """Next-token logits after `tokens`, float32 numpy, shape (width,).

        Evaluates only what differs from the tokens evaluated before. The array
        is valid until the next call.
        """

    def stop(self) -> None:
        """Let nothing begin any more; a call in another thread stops early. Close it then."""

    def close(self) -> None:
        """Free what it holds, or give it back to where it came from."""
