"""A GGUF model in llama.cpp as a `TargetBackend`: a verifier without torch.

Guarantees: bad input raises before llama.cpp, which would end the process, sees it; a
step's logits depend on its own sequence only. Whether they are the same bits in batches
of another shape is the cache type's matter.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloud_verifier.backends import host_memory
from cloud_verifier.backends.llama_cpp_cells import Line, SharedCells
from cloud_verifier.backends.llama_cpp_context import (
    BATCH,
    CacheType,
    LlamaCppContext,
    Rows,
    cache_type,
    most_sequences,
)
from cloud_verifier.backends.llama_cpp_model import LlamaCppModel
from cloud_verifier.backends.llama_cpp_prompt import llama_cpp_encoder
from cloud_verifier.backends.source import Source
from specwire.errors import BadRequest, ModelError
from specwire.llama_prompt import LlamaEncoder
from specwire.ports import Step
from specwire.vocabulary import Vocabulary

_DEFAULT_CONTEXT = 4096
_DEFAULT_MEMORY = 1 << 30
_PROBE_TOKENS = 12
_TOLERANCE = 5e-2  # of the spread of the logits; quantised arithmetic is rough


@dataclass(frozen=True)
class _Turn:
    """A step with what it really takes: `start` tokens are kept, `tokens` evaluated."""

    line: Line
    start: int
    tokens: Sequence[int]
    rows: int


class LlamaCppBackend:
    """A GGUF model as a `TargetBackend`. One thread owns it."""

    def __init__(
        self,
        model: LlamaCppModel,
        *,
        name: str,
        dtype: str = "auto",
        context: int | None = None,
        kv_memory: int | None = None,
        threads: int | None = None,
    ) -> None:
        """Take over a loaded model, and see on a few tokens that it can be rolled back.

        Args:
            model: the weights and the vocabulary.
            name: for people and logs.
            dtype: format of keys and values; see `cache_type`.
            context: lowers the most tokens that a sequence may hold.
            kv_memory: bytes for keys and values of all sequences; None for eight
                sequences of full length, or 1 GiB if that is less, or most of the free
                memory of a CPU.
            threads: CPU threads; None for one on each CPU that this process may use.

        Raises:
            ModelError: the model can't be run this way, or `kv_memory` is too small, or more
                than there is.
        """
        if context is not None and context < 1:
            raise ModelError(f"a context of {context} tokens holds nothing; give at least 1")
        self._name = name
        self._model = model
        kind = cache_type(dtype, on_gpu=model.on_gpu)
        threads = threads or _cpus()
        self.bytes_per_token = _probe(model, kind, threads)
        """Of keys and values, with llama.cpp's own few bytes for each token."""
        trained = model.train_context or _DEFAULT_CONTEXT
        wanted = trained if context is None else min(context, trained)
        cells = self._cells(wanted, kv_memory)
        self._memory = LlamaCppContext(model, cells=cells, kind=kind, threads=threads)
        self._pool = SharedCells(self._memory, cells=cells, slots=self._memory.rows)
        self._context = min(wanted, cells)
        self._lines: dict[int, Line] = {}
        self._handles = itertools.count(1)

    # ------------------------------------------------------------------- port

    @property
    def name(self) -> str:
        """Name of the model, for people and logs."""
        return self._name

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens in id order. Logits may be wider; the padding is never drawn."""
        return self._model.vocabulary

    @property
    def context(self) -> int:
        """Most tokens that a sequence may hold."""
        return self._context

    @property
    def tokens(self) -> int:
        """Tokens that the cache memory holds, of all sequences together."""
        return self._pool.count

    @property
    def pool(self) -> SharedCells:
        """The cells of cache memory, for measurements."""
        return self._pool

    def open(self, tokens: Sequence[int] = ()) -> int:
        """Start a sequence; what is at hand of a beginning of `tokens` is its own at once.

        The last of `tokens` is never among it: its logits will be wanted.
        """
        handle = next(self._handles)
        self._lines[handle] = self._pool.open(tokens)
        return handle

    def cached(self, sequence: int) -> int:
        """How many tokens the sequence holds.

        Raises:
            KeyError: no such sequence is open.
        """
        return len(self._lines[sequence].tokens)

    def close(self, sequence: int) -> None:
        """Forget a sequence; it may stay at hand for others until its room is needed."""
        line = self._lines.pop(sequence, None)
        if line is not None:
            self._pool.close(line)

    def fits(self, steps: Sequence[Step]) -> bool:
        """Whether there is room for a forward of these steps."""
        turns = map(self._turn, steps)
        return self._pool.fits([(t.line, t.start, len(t.tokens)) for t in turns])

    def forward(self, steps: Sequence[Step]) -> list[Any]:
        """Evaluate a ragged batch, each sequence at most once.

        Returns one float32 numpy array for each step, shape (rows, width). All steps are
        checked before any is evaluated.

        Raises:
            BadRequest: a token is not in the vocabulary, or the tokens exceed
                the context.
            OutOfCells: there is no room; ask `fits` first.
            TargetFault: llama.cpp failed.
            KeyError, ValueError: a step does not fit its sequence.
        """
        self._check(steps)
        if not steps:
            return []
        turns = [self._turn(step) for step in steps]
        try:
            for turn in turns:
                self._pool.truncate(turn.line, turn.start)
            slots = [self._pool.append(turn.line, turn.tokens) for turn in turns]
            logits = self._evaluate(turns, slots)
        except BaseException:
            # Nothing is known about cells that were not filled.
            for turn in turns:
                self._pool.truncate(turn.line, turn.start)
            raise
        return np.split(logits, np.cumsum([turn.rows for turn in turns])[:-1])

    # ---------------------------------------------------------------- forward

    def _check(self, steps: Sequence[Step]) -> None:
        seen: set[int] = set()
        for step in steps:
            count, held = len(step.tokens), self.cached(step.sequence)
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
            self.vocabulary.check_ids(step.tokens, "tokens")

    def _turn(self, step: Step) -> _Turn:
        line = self._lines[step.sequence]
        start = self._pool.start(line, step.keep)
        return _Turn(line, start, [*line.tokens[start : step.keep], *step.tokens], step.rows)

    def _evaluate(self, turns: Sequence[_Turn], slots: Sequence[int]) -> Rows:
        counts = [len(turn.tokens) for turn in turns]
        wanted = np.zeros(sum(counts), np.int8)
        for end, turn in zip(itertools.accumulate(counts), turns, strict=True):
            wanted[end - turn.rows : end] = 1
        return self._memory.evaluate(
            np.array([id_ for turn in turns for id_ in turn.tokens], np.int32),
            np.concatenate(
                [np.arange(t.start, t.start + len(t.tokens), dtype=np.int32) for t in turns]
            ),
            np.repeat(np.array(slots, np.int32), counts),
            wanted,
        )

    def _cells(self, context: int, kv_memory: int | None) -> int:
        free = None if self._model.on_gpu else host_memory.free_bytes()
        if kv_memory is None:
            most = (
                _DEFAULT_MEMORY
                if free is None
                else min(_DEFAULT_MEMORY, int(host_memory.SHARE * free))
            )
            return max(1, min(8 * context, most // self.bytes_per_token))
        # More than this can't be used, and llama.cpp takes 32 bits.
        most = min(context * most_sequences(self._model.width), (1 << 31) - BATCH)
        cells = min(kv_memory // self.bytes_per_token, most)
        if cells < 1:
            raise ModelError(
                f"{kv_memory} bytes of cache hold not even one token, which takes "
                f"{self.bytes_per_token}; give more KV memory"
            )
        host_memory.check_room(cells * self.bytes_per_token, free=free)
        return cells


def load_llama_cpp(
    source: Source,
    *,
    dtype: str,
    device: str,
    context: int | None,
    kv_memory: int | None,
    threads: int | None,
    progress: Callable[[str], None],
) -> tuple[LlamaCppBackend, LlamaEncoder]:
    """Load a GGUF file. The arguments are those of `load.load_target`.

    Raises:
        ModelError: whatever stops the model from being loaded.
    """
    if source.gguf is None:
        raise ModelError(
            f"{source.spec!r} is no .gguf file, and the backend llama_cpp reads nothing else; "
            f"convert the model, or use the backend transformers"
        )
    progress(f"loading {source.name} into llama.cpp")
    model = LlamaCppModel(Path(source.location) / source.gguf, device=device)
    backend = LlamaCppBackend(
        model,
        name=source.name,
        dtype=dtype,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
    )
    place = "an accelerator" if model.on_gpu else "cpu"
    progress(
        f"{source.name}: llama.cpp on {place}, context {backend.context} tokens, cache for "
        f"{backend.tokens} tokens of {backend.bytes_per_token} bytes"
    )
    return backend, llama_cpp_encoder(model)


def _probe(model: LlamaCppModel, kind: CacheType, threads: int) -> int:
    """See that the model can go back and comes to the same; bytes of a token's cache."""
    what = f"architecture {model.architecture!r}"
    names = model.vocabulary.names
    known = [i for i, name in enumerate(names) if name is not None]
    ids = np.array([known[(7 * i) % len(known)] for i in range(_PROBE_TOKENS)], np.int32)
    half, places = _PROBE_TOKENS // 2, np.arange(_PROBE_TOKENS, dtype=np.int32)
    slots, wanted = np.zeros(_PROBE_TOKENS, np.int32), np.ones(_PROBE_TOKENS, np.int8)
    memory = LlamaCppContext(model, cells=_PROBE_TOKENS, kind=kind, threads=threads)
    first = memory.evaluate(ids, places, slots, wanted)
    whole = memory.state_bytes(0)
    if not memory.can_truncate(0, half):
        raise ModelError(
            f"{what}: its memory can't be rolled back; "
            f"choose a model whose layers are all attention"
        )
    left = memory.state_bytes(0)
    again = memory.evaluate(ids[half:], places[half:], slots[half:], wanted[half:])
    spread = float((first - first.mean(-1, keepdims=True)).max())
    error = float(abs(first[half:] - again).max()) / max(spread, 1e-6)
    if not error <= _TOLERANCE:
        raise ModelError(
            f"{what}: its logits are others after going back (relative difference {error:.2g}); "
            f"choose another model"
        )
    return max(1, (whole - left) // (_PROBE_TOKENS - half))


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
