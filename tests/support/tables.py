"""Targets and drafts that are tables: exact, instant, and small enough to enumerate.

Each is a small real implementation of its port. The next token's logits depend
on the last token alone, so the exact distribution of any output can be summed up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from specwire.errors import BadRequest
from specwire.ports import Step
from specwire.sampling import SamplingParams, distribution
from specwire.vocabulary import Vocabulary


def table_vocabulary(size: int, end_ids: frozenset[int] = frozenset()) -> Vocabulary:
    """Tokens a, b, c, …"""
    names = [chr(ord("a") + i) for i in range(size)]
    return Vocabulary(names, [name.encode() for name in names], end_ids)


def random_table(size: int, seed: int, spread: float = 1.5) -> np.ndarray:
    """(size, size) float32: row t holds the logits after token t."""
    return np.random.default_rng(seed).normal(scale=spread, size=(size, size)).astype(np.float32)


class TableBackend:
    """A TargetBackend whose model is a table."""

    def __init__(
        self,
        table: np.ndarray,
        *,
        context: int = 256,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.table = table
        self.name = "table"
        self.context = context
        self.vocabulary = table_vocabulary(len(table), end_ids)
        self.forwards = 0
        self._sequences: dict[int, list[int]] = {}
        self._handles = itertools.count(1)

    def open(self, tokens: Sequence[int] = ()) -> int:
        handle = next(self._handles)
        self._sequences[handle] = []
        return handle

    def cached(self, sequence: int) -> int:
        return len(self._sequences[sequence])

    @property
    def sequences(self) -> int:
        """How many are open."""
        return len(self._sequences)

    def fits(self, steps: Sequence[Step]) -> bool:
        return True

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        self.forwards += 1
        results = []
        for step in steps:
            tokens = self._sequences[step.sequence]
            assert 0 <= step.keep <= len(tokens)
            assert 1 <= step.rows <= len(step.tokens)
            tokens[step.keep :] = step.tokens
            assert len(tokens) <= self.context
            results.append(self.table[tokens[-step.rows :]])
        return results

    def close(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)


class LetterEncoder:
    """A PromptEncoder for `table_vocabulary`: one token a letter."""

    has_chat_template = False
    chat_template_digest = b""

    def encode_text(self, text: str) -> list[int]:
        return [ord(char) - ord("a") for char in text]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        raise BadRequest("no chat template")


def exact_outputs(
    table: np.ndarray, params: SamplingParams, last: int, length: int
) -> dict[tuple[int, ...], float]:
    """The target's own distribution of the next `length` tokens after token `last`."""
    p = distribution(table.astype(np.float64), params)
    result = {}
    for output in itertools.product(range(len(table)), repeat=length):
        chance, before = 1.0, last
        for token in output:
            chance *= p[before, token]
            before = token
        result[output] = float(chance)
    return result
