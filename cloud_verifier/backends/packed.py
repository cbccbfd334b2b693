"""A transformers model over paged keys and values: one forward for a ragged batch.

The model's own code stays as it is. Its attention is replaced through
transformers' attention interface, and the tokens of all sequences are packed
into one row without padding. Truncating a sequence moves a length back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface

from cloud_verifier.backends import host_memory
from cloud_verifier.backends.architecture import check_architecture, context_limit, token_width
from cloud_verifier.backends.blocks import BlockPool, BlockTable
from cloud_verifier.backends.paged_attention import (
    LayerPool,
    PackedBatch,
    Scoring,
    Sight,
    Span,
)
from specwire.errors import BadRequest, ModelError
from specwire.ports import Step
from specwire.vocabulary import Vocabulary

BLOCK = 16
"""Tokens of a block. What two sequences share is a whole number of blocks."""

_DEFAULT_CONTEXT = 4096
_GPU_SHARE = 0.8  # of the free memory; the rest is for activations
_PROBE_TOKENS = 12
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_ROUGH_TOLERANCE = 5e-2  # of 16-bit and quantised models, relative to the spread of the logits

_names = itertools.count()


class PackedBackend:
    """A causal transformers model as a `TargetBackend`. One thread owns it."""

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        name: str,
        context: int | None = None,
        kv_memory: int | None = None,
    ) -> None:
        """Take over a loaded model and compare it with itself on a few tokens.

        Args:
            model: a transformers causal language model on its device.
            vocabulary: of its tokenizer.
            name: for people and logs.
            context: lowers the most tokens that a sequence may hold.
            kv_memory: bytes for keys and values of all sequences; None for most of what
                is free on the GPUs, or on a CPU for eight sequences of full length, or
                most of the free memory if that is less.

        Raises:
            ModelError: the model can't be run this way, or `kv_memory` is too small, or more
                than there is.
        """
        check_architecture(model.config, type(model))
        if context is not None and context < 1:
            raise ModelError(f"a context of {context} tokens holds nothing; give at least 1")
        self._name = name
        self._vocabulary = vocabulary
        self._model = model.eval()
        self._device: torch.device = model.device
        if token_width(model.config) < len(vocabulary):
            raise ModelError(
                f"{name}: the model knows {token_width(model.config)} token ids but its tokenizer "
                f"{len(vocabulary)}; use the tokenizer that belongs to the model"
            )
        limits = [n for n in (context, context_limit(model.config)) if n is not None]
        wanted = min(limits, default=_DEFAULT_CONTEXT)
        self._tables: dict[int, BlockTable] = {}
        self._handles = itertools.count(1)
        self._batch: PackedBatch | None = None
        self._chunks = _chunks(model.config)
        self._quantised = bool(getattr(model, "is_quantized", False))
        # Some packages' quantised tensors can't be used in inference mode.
        self._without_gradients = torch.no_grad if self._quantised else torch.inference_mode
        self._layers: dict[int, LayerPool] = {}
        self.bytes_per_token = self._probe()
        self._resize(self._blocks(wanted, kv_memory))
        self._context = min(wanted, self._pool.count * BLOCK)
        self._allocate()

    # ------------------------------------------------------------------- port

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

    @property
    def tokens(self) -> int:
        """Tokens that the cache memory holds, of all sequences together."""
        return self._pool.count * BLOCK

    @property
    def pool(self) -> BlockPool:
        """The blocks of cache memory, for measurements."""
        return self._pool

    def open(self, tokens: Sequence[int] = ()) -> int:
        """Start a sequence; known blocks that begin `tokens` are its own at once.

        The last of `tokens` is never among them: its logits will be wanted.
        """
        handle = next(self._handles)
        self._tables[handle] = self._pool.adopt(tokens, len(tokens) - 1)
        return handle

    def cached(self, sequence: int) -> int:
        """How many tokens the sequence holds.

        Raises:
            KeyError: no such sequence is open.
        """
        return len(self._tables[sequence].tokens)

    def close(self, sequence: int) -> None:
        """Forget a sequence; its full blocks stay known until their room is needed."""
        table = self._tables.pop(sequence, None)
        if table is not None:
            self._pool.release(table)

    def fits(self, steps: Sequence[Step]) -> bool:
        """Whether there is room for a forward of these steps."""
        needed = sum(
            self._pool.needed(self._tables[step.sequence], step.keep, len(step.tokens))
            for step in steps
        )
        return needed <= self._pool.available

    def forward(self, steps: Sequence[Step]) -> list[Any]:
        """Evaluate a ragged batch in one forward, each sequence at most once.

        Returns one float32 array for each step, shape (rows, width): a tensor on the
        model's device, or numpy's where that is the CPU, whose operations on single
        rows are quicker there. All steps are checked before any is evaluated.

        Raises:
            BadRequest: a token is not in the vocabulary, or the tokens exceed
                the context.
            OutOfBlocks: there is no room; ask `fits` first.
            KeyError, ValueError: a step does not fit its sequence.
        """
        self._check(steps)
        tables = [self._tables[step.sequence] for step in steps]
        try:
            with self._without_gradients():
                for step, table in zip(steps, tables, strict=True):
                    self._pool.truncate(table, step.keep)
                for step, table in zip(steps, tables, strict=True):
                    self._write(table, step.tokens)
                logits = self._run(steps, tables)
        except BaseException:
            # Nothing is known about slots that were not filled.
            for step, table in zip(steps, tables, strict=True):
                self._pool.truncate(table, min(step.keep, len(table.tokens)))
            raise
        for table in tables:
            self._pool.publish(table)
        if self._device.type == "cpu":
            return [rows.numpy() for rows in logits]
        return list(logits)

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
            self._vocabulary.check_ids(step.tokens, "tokens")

    def _write(self, table: BlockTable, tokens: Sequence[int]) -> None:
        copied = self._pool.write(table, tokens)
        if copied is not None:
            source, target = (slice(b * BLOCK, (b + 1) * BLOCK) for b in copied)
            for layer in self._layers.values():
                layer.copy(source, target)

    def _run(self, steps: Sequence[Step], tables: Sequence[BlockTable]) -> list[torch.Tensor]:
        spans: list[Span] = []
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        first = 0
        for step, table in zip(steps, tables, strict=True):
            count = len(step.tokens)
            spans.append(Span(first, count, self._slots_of(table)))
            ids += step.tokens
            positions += range(step.keep, step.keep + count)
            first += count
            rows += range(first - step.rows, first)
        batch = PackedBatch(spans)
        logits = self._evaluate(ids, positions, rows, batch)
        return list(torch.split(logits, [step.rows for step in steps]))

    def _slots_of(self, table: BlockTable) -> torch.Tensor:
        slots = torch.tensor(table.blocks)[:, None] * BLOCK + torch.arange(BLOCK)
        return slots.flatten()[: len(table.tokens)]

    def _evaluate(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        rows: Sequence[int],
        batch: PackedBatch,
    ) -> torch.Tensor:
        """(len(rows), width) float32 logits of the packed row's tokens `rows`."""
        self._batch = batch
        try:
            output = self._model(
                input_ids=torch.tensor([list(ids)], device=self._device),
                position_ids=torch.tensor([list(positions)], device=self._device),
                use_cache=False,
                logits_to_keep=torch.tensor(list(rows)),
            )
        finally:
            self._batch = None
        logits: torch.Tensor = output.logits[0].float()
        return logits

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention as transformers calls it: (1, heads, tokens, width) in, (1, tokens, …) out."""
        # Flags don't change the arithmetic; a tensor or a number that is not known here may.
        strange = sorted(
            name
            for name, value in others.items()
            if isinstance(value, (torch.Tensor, float)) and name != "position_ids"
        )
        if strange or attention_mask is not None:
            what = ", ".join(strange) or "a mask of its own"
            raise ModelError(
                f"{self._name}: {type(module).__name__} attends with {what}, which is not "
                "supported; choose another model"
            )
        assert self._batch is not None
        batch = self._batch.on(query.device)
        layer = self._layers.get(module.layer_idx)
        if layer is None:
            layer = self._layers[module.layer_idx] = LayerPool(self._pool.count * BLOCK)
        keys, values = layer.write(
            batch.new_slots, key[0].transpose(0, 1), value[0].transpose(0, 1)
        )
        out = batch.attend(
            query[0],
            keys,
            values,
            sight=Sight(sliding_window, self._chunks.get(module.layer_idx)),
            scoring=Scoring(scaling, softcap, s_aux),
        )
        return out[None], None

    # ----------------------------------------------------------------- set-up

    def _probe(self) -> int:
        """Compare the packed forward with the model's own; returns bytes of a token's cache.

        An attention that computes something else than we do shows here, at load, and
        not as wrong text.
        """
        tokens = self._some_tokens(_PROBE_TOKENS)
        with self._without_gradients():
            output = self._model(
                input_ids=torch.tensor([tokens], device=self._device), use_cache=False
            )
            own = output.logits[0].float()
        if own.shape[-1] < len(self._vocabulary):
            raise ModelError(
                f"{self._name}: the logits have {own.shape[-1]} columns but the vocabulary "
                f"{len(self._vocabulary)} tokens; the checkpoint is inconsistent"
            )
        name = f"specwire_packed_{next(_names)}"
        AttentionInterface.register(name, self._attend)
        self._model.set_attn_implementation(name)
        self._context = 2 * BLOCK
        self._resize(4)
        one, two = self.open(), self.open()
        half = _PROBE_TOKENS // 2
        first, other = self.forward([Step(one, 0, tokens[:half], half), Step(two, 0, tokens, 1)])
        (second,) = self.forward([Step(one, half, tokens[half:], _PROBE_TOKENS - half)])
        packed = torch.cat(
            [torch.as_tensor(rows, device=self._device) for rows in (first, second, other)]
        )
        wanted = torch.cat([own, own[-1:]])
        spread = float((wanted - wanted.mean(-1, keepdim=True)).abs().max())
        error = float((packed - wanted).abs().max()) / max(spread, 1e-6)
        exact = {} if self._quantised else _TOLERANCE
        if not error <= exact.get(self._model.dtype, _ROUGH_TOLERANCE):
            raise ModelError(
                f"{self._name}: {type(self._model).__name__} computes other logits in a packed "
                f"batch than alone (relative difference {error:.2g}); choose another model"
            )
        return sum(layer.bytes_per_slot for layer in self._layers.values())

    def _allocate(self) -> None:
        """Take the cache memory now, so that too much of it fails at load and not later."""
        handle = self.open()
        try:
            self.forward([Step(handle, 0, self._some_tokens(1), 1)])
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{self._name}: there is no memory for {self.tokens} tokens of cache, "
                f"{self.tokens * self.bytes_per_token} bytes; give less KV memory"
            ) from error
        self.close(handle)

    def _some_tokens(self, count: int) -> list[int]:
        known = [i for i, name in enumerate(self._vocabulary.names) if name is not None]
        return [known[(7 * i) % len(known)] for i in range(count)]

    def _resize(self, blocks: int) -> None:
        self._tables.clear()
        self._layers.clear()
        self._pool = BlockPool(blocks, BLOCK)

    def _blocks(self, context: int, kv_memory: int | None) -> int:
        of_one = -(-context // BLOCK)
        if self._device.type == "cpu":
            free = host_memory.free_bytes()
            if kv_memory is not None:
                host_memory.check_room(kv_memory, free=free)
            else:
                room = 8 * of_one * BLOCK * self.bytes_per_token
                kv_memory = room if free is None else min(room, int(host_memory.SHARE * free))
        elif kv_memory is None and self._device.type != "cuda":
            return 8 * of_one
        elif kv_memory is None:
            devices = {p.device for p in self._model.parameters() if p.device.type == "cuda"}
            free = sum(torch.cuda.mem_get_info(device)[0] for device in devices)
            kv_memory = int(_GPU_SHARE * free)
        blocks = kv_memory // (BLOCK * self.bytes_per_token)
        if blocks < 1:
            raise ModelError(
                f"{kv_memory} bytes of cache hold not even one block of {BLOCK} tokens, which "
                f"takes {BLOCK * self.bytes_per_token}; give more KV memory"
            )
        return blocks


def _chunks(config: Any) -> dict[int, int]:
    """Positions of a chunk, for the layers that attend in chunks (Llama 4)."""
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None) or ()
    return {
        index: int(text.attention_chunk_size)
        for index, kind in enumerate(kinds)
        if kind == "chunked_attention"
    }
