"""One llama_context: batches of several sequences in, rows of logits out.

Guarantees: no batch goes in that would make llama.cpp end the process; the context is
freed before the weights it uses, at garbage collection and at interpreter exit alike.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud_verifier.backends.llama_cpp import cause_of
from cloud_verifier.backends.llama_cpp_model import LlamaCppModel
from specwire.errors import ModelError, TargetFault

Rows = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

BATCH = 512
"""Most tokens of one call of llama.cpp."""

_LOGITS_BYTES = 128 << 20
_MOST_SEQUENCES = 256  # as llama.cpp is compiled
_GGML_TYPE_BF16 = 30
_EXIT_WAIT_S = 10.0


@dataclass(frozen=True)
class CacheType:
    """How keys and values are stored, and whether the fused attention is used on them."""

    ggml_type: int
    fused: bool


def cache_type(dtype: str, *, on_gpu: bool) -> CacheType:
    """What `--dtype` means here: the format of keys and values; weights stay as they are.

    llama.cpp's fused attention on a CPU sums up differently in batches of different shape,
    except with bfloat16: there a token's logits are the same bits whatever is evaluated
    beside it. float32 is for tests; it does without.
    """
    if dtype == "auto":
        dtype = "float16" if on_gpu else "bfloat16"
    types = {
        "float32": CacheType(0, False),
        "float16": CacheType(1, True),
        "bfloat16": CacheType(_GGML_TYPE_BF16, True),
    }
    return types[dtype]


def most_sequences(width: int) -> int:
    """How many sequences there may be, for rows of logits of `width` columns."""
    return max(1, min(_MOST_SEQUENCES, _LOGITS_BYTES // (4 * width)))


class LlamaCppContext:
    """A model's evaluation state for several sequences; a `SlotMemory`. One thread uses it.

    Args:
        model: the weights.
        cells: tokens that it holds, of all sequences together.
        kind: how keys and values are stored.
        threads: threads that llama.cpp computes with.

    Raises:
        ModelError: llama.cpp can't allocate it.
    """

    def __init__(self, model: LlamaCppModel, *, cells: int, kind: CacheType, threads: int) -> None:
        self._model = model
        self._api = api = model.llama.api
        # llama.cpp wants a row of logits for each sequence, at least, and aborts otherwise.
        self.rows = most_sequences(model.width)
        """Most rows of logits of one call of llama.cpp, and most sequences."""
        params = api.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = params.n_outputs_max = self.rows
        params.kv_unified = True  # all sequences share the cells
        params.swa_full = True  # sliding-window layers keep all keys, so that they roll back
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = kind.ggml_type
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_AUTO if kind.fused else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.offload_kqv = params.op_offload = model.on_gpu
        with model.llama.listening() as errors:
            handle = api.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"can't allocate keys and values of {cells} tokens: {cause_of(errors)}; "
                f"serve with less KV memory"
            )
        self._handle: int = handle
        self._busy = threading.Lock()
        weakref.finalize(self, _free, model, handle, self._busy)
        self._memory: int = api.llama_get_memory(handle)
        self._make_batch()

    def _make_batch(self) -> None:
        self._ids = np.zeros(BATCH, np.int32)
        self._positions = np.zeros(BATCH, np.int32)
        self._slots = np.zeros(BATCH, np.int32)
        self._wanted = np.zeros(BATCH, np.int8)
        self._ones = np.ones(BATCH, np.int32)
        # For each token a pointer to its sequences, of which there is one.
        self._pointers = self._slots.ctypes.data + 4 * np.arange(BATCH, dtype=np.uintp)
        self._batch: Any = self._api.llama_batch()
        kinds = dict(self._batch._fields_)
        for name, array in (
            ("token", self._ids),
            ("pos", self._positions),
            ("n_seq_id", self._ones),
            ("seq_id", self._pointers),
            ("logits", self._wanted),
        ):
            setattr(self._batch, name, ctypes.cast(array.ctypes.data, kinds[name]))

    def evaluate(
        self, ids: Ints, positions: Ints, slots: Ints, wanted: npt.NDArray[np.int8]
    ) -> Rows:
        """Evaluate tokens, each at a position of its slot, in as few calls as possible.

        Returns a copy of the logits after those that `wanted` marks with 1, in their order,
        shape (sum(wanted), width).

        Raises:
            TargetFault: llama.cpp failed; what the slots hold of these tokens is unknown.
        """
        out = np.empty((int(wanted.sum()), self._model.width), np.float32)
        done = 0
        for part in self._parts(wanted):
            count = part.stop - part.start
            self._ids[:count] = ids[part]
            self._positions[:count] = positions[part]
            self._slots[:count] = slots[part]
            self._wanted[:count] = wanted[part]
            self._decode(count)
            rows = int(wanted[part].sum())
            if rows:
                out[done : done + rows] = self._logits(rows)
                done += rows
        return out

    def _parts(self, wanted: npt.NDArray[np.int8]) -> Iterator[slice]:
        """Slices of at most BATCH tokens with at most `rows` wanted rows."""
        upto = np.cumsum(wanted, dtype=np.int64)
        start = 0
        while start < len(wanted):
            before = int(upto[start - 1]) if start else 0
            most = int(np.searchsorted(upto, before + self.rows, side="right"))
            stop = min(start + BATCH, most)
            yield slice(start, stop)
            start = stop

    def _decode(self, count: int) -> None:
        self._batch.n_tokens = count
        with self._busy:
            status = self._api.llama_decode(self._handle, self._batch)
        if status != 0:
            raise TargetFault(f"llama.cpp could not evaluate {count} tokens (status {status})")

    def _logits(self, rows: int) -> Rows:
        pointer = self._api.llama_get_logits(self._handle)
        if not pointer:
            raise TargetFault("llama.cpp gave no logits")
        return np.ctypeslib.as_array(pointer, (rows, self._model.width))

    def state_bytes(self, slot: int) -> int:
        """Size of what a slot's tokens have left in memory."""
        size: int = self._api.llama_state_seq_get_size(self._handle, slot)
        return size

    def can_truncate(self, slot: int, keep: int) -> bool:
        """Truncate if the model's memory lets it."""
        return bool(self._api.llama_memory_seq_rm(self._memory, slot, keep, -1))

    # -------------------------------------------------------------- SlotMemory

    def copy(self, source: int, target: int, count: int) -> None:
        """Let the empty slot `target` hold the first `count` tokens of `source` as well."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, count)

    def truncate(self, slot: int, keep: int) -> None:
        """Forget all but the first `keep` tokens."""
        self._api.llama_memory_seq_rm(self._memory, slot, keep, -1)

    def intact(self, slot: int, count: int) -> bool:
        """Whether a sequence can go on after its first `count` tokens."""
        window = self._model.window
        if window == 0 or count == 0:
            return True
        first: int = self._api.llama_memory_seq_pos_min(self._memory, slot)
        return 0 <= first <= max(0, count - window)


def _free(model: LlamaCppModel, handle: int, busy: threading.Lock) -> None:
    # At exit a daemon thread may still be inside llama.cpp. Wait for it; if it doesn't
    # come back, leave all to the operating system rather than free what it uses.
    if not busy.acquire(timeout=_EXIT_WAIT_S):
        model.finalizer.detach()
        return
    model.llama.api.llama_free(handle)
