"""The target on transformers' own model code: a cache for each sequence, a forward for each step.

Correct and simple; the steps of a batch are evaluated one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from cloud_verifier.backends.architecture import check_architecture, context_limit, token_width
from specwire.errors import BadRequest, ModelError
from specwire.ports import Step
from specwire.vocabulary import Vocabulary

PREFILL_CHUNK = 512
"""Most tokens of one forward; longer runs are evaluated in pieces."""

_DEFAULT_CONTEXT = 4096


@dataclass
class _Sequence:
    # Without a config every layer keeps all its keys, sliding-window ones too: their
    # mask still applies the window, and keys that leave it may be needed after a rollback.
    cache: DynamicCache = field(default_factory=DynamicCache)
    length: int = 0


class TransformersBackend:
    """A causal transformers model as a `TargetBackend`.

    One thread must own it: the model and its caches have no locks. A forward
    that fails leaves its sequence with the tokens that the step kept, so the
    same step can be tried again.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        name: str,
        context: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        """Take over a loaded model and try it with one token.

        `context` lowers the most tokens that a sequence may hold; it can't
        raise it above what the model was built for.

        Raises:
            ModelError: the model's cache can't be rolled back, or its logits
                are narrower than the vocabulary.
        """
        check_architecture(model.config, type(model))
        if context is not None and context < 1:
            raise ModelError(f"a context of {context} tokens holds nothing; give at least 1")
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk must be at least 1, not {prefill_chunk}")
        limits = [n for n in (context, context_limit(model.config)) if n is not None]
        self._context = min(limits, default=_DEFAULT_CONTEXT)
        self._width = token_width(model.config)
        if self._width < len(vocabulary):
            raise ModelError(
                f"{name}: the model knows {self._width} token ids but its tokenizer "
                f"{len(vocabulary)}; use the tokenizer that belongs to the model"
            )
        self._model = model.eval()
        self._device = model.device
        self._vocabulary = vocabulary
        self._name = name
        self._prefill_chunk = prefill_chunk
        self._sequences: dict[int, _Sequence] = {}
        self._handles = itertools.count(1)
        self._probe()

    @property
    def name(self) -> str:
        """Name of the model, for people and logs."""
        return self._name

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens in id order. Logits may be wider; the padding is never drawn."""
        return self._vocabulary

    @property
    def context(self) -> int:
        """Most tokens that a sequence may hold."""
        return self._context

    def open(self) -> int:
        """Start an empty sequence and return its handle."""
        handle = next(self._handles)
        self._sequences[handle] = _Sequence()
        return handle

    def cached(self, sequence: int) -> int:
        """How many tokens the sequence holds.

        Raises:
            KeyError: no such sequence is open.
        """
        return self._sequences[sequence].length

    def close(self, sequence: int) -> None:
        """Forget a sequence. Unknown handles are ignored."""
        self._sequences.pop(sequence, None)

    def forward(self, steps: Sequence[Step]) -> list[torch.Tensor]:
        """Evaluate a ragged batch, each sequence at most once.

        Returns one float32 tensor for each step, shape (rows, width), on the
        model's device and without a gradient. All steps are checked before any
        is evaluated.

        Raises:
            BadRequest: a token is not in the vocabulary, or the tokens exceed
                the context.
            KeyError: a sequence is not open.
            ValueError: a step names a sequence twice, keeps more than is
                cached, has no tokens, or asks for more rows than tokens.
        """
        self._check(steps)
        return [self._evaluate(step) for step in steps]

    def _check(self, steps: Sequence[Step]) -> None:
        seen: set[int] = set()
        for step in steps:
            count = len(step.tokens)
            held = self._sequences[step.sequence].length
            if step.sequence in seen:
                raise ValueError(f"sequence {step.sequence} appears twice in one forward")
            seen.add(step.sequence)
            if not 0 <= step.keep <= held:
                raise ValueError(f"can't keep {step.keep} tokens; the sequence holds {held}")
            if not 1 <= step.rows <= count:
                raise ValueError(f"can't return {step.rows} rows of {count} tokens")
            if step.keep + count > self._context:
                raise BadRequest(
                    f"{step.keep} + {count} tokens exceed the context of {self._context}; "
                    f"shorten the prompt or ask for fewer tokens"
                )
            self._vocabulary.check_ids(step.tokens, "tokens")

    def _evaluate(self, step: Step) -> torch.Tensor:
        sequence = self._sequences[step.sequence]
        truncate_cache(sequence.cache, step.keep)
        sequence.length = step.keep
        # If this fails, some layers hold more than `length`; the next step cuts them back.
        with torch.inference_mode():
            logits = self._run(sequence.cache, step)
        sequence.length = step.keep + len(step.tokens)
        # A copy made out here is an ordinary tensor, which callers may change in place.
        return logits.to(torch.float32, copy=True)

    def _run(self, cache: DynamicCache, step: Step) -> torch.Tensor:
        tokens = torch.tensor([list(step.tokens)], device=self._device)  # (1, count)
        count = tokens.shape[1]
        positions = torch.arange(step.keep, step.keep + count, device=self._device)[None]
        first_row = count - step.rows
        parts: list[torch.Tensor] = []
        for start in range(0, count, self._prefill_chunk):
            stop = min(start + self._prefill_chunk, count)
            rows = max(0, stop - max(start, first_row))
            output = self._model(
                input_ids=tokens[:, start:stop],
                position_ids=positions[:, start:stop],
                cache=cache,
                use_cache=True,
                logits_to_keep=max(1, rows),  # 0 would mean all
            )
            if rows:
                parts.append(output.logits[0, -rows:])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _probe(self) -> None:
        # A model that keeps its state elsewhere than in the cache shows here, not as wrong text.
        first = next(i for i, name in enumerate(self._vocabulary.names) if name is not None)
        handle = self.open()
        (logits,) = self.forward([Step(handle, 0, (first,), 1)])
        cache = self._sequences[handle].cache
        held = {layer.get_seq_length() for layer in cache.layers if layer.is_initialized}
        self.close(handle)
        if held != {1}:
            raise ModelError(
                f"{self._name}: {type(self._model).__name__} does not keep its state in a cache "
                f"that can be rolled back; choose a decoder whose layers are all attention"
            )
        if logits.shape[-1] < len(self._vocabulary):
            raise ModelError(
                f"{self._name}: the logits have {logits.shape[-1]} columns but the vocabulary "
                f"{len(self._vocabulary)} tokens; the checkpoint is inconsistent"
            )


def truncate_cache(cache: DynamicCache, length: int) -> None:
    """Forget all tokens of a cache but the first `length`.

    A cache that holds no more than that stays as it is. The layers are cut here
    because the meaning of transformers' own `crop` argument differs between
    releases.

    Raises:
        ValueError: `length` is negative.
        TypeError: a layer does not keep one key and value for every token.
    """
    if length < 0:
        raise ValueError(f"can't truncate a cache to {length} tokens")
    for layer in cache.layers:
        if layer.is_sliding or not layer.is_croppable:
            raise TypeError(f"a {type(layer).__name__} can't be truncated")
        if layer.is_initialized and layer.get_seq_length() > length:
            layer.keys = layer.keys[..., :length, :]
            layer.values = layer.values[..., :length, :]
