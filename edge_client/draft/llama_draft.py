"""The draft model in llama.cpp: one evaluation state over shared weights.

Guarantees: bad input raises before llama.cpp, which would end the process, sees it; one
context is never entered by two threads; memory does not grow with context × vocabulary;
contexts are freed before the weights they use, at garbage collection and at interpreter
exit alike. Not guaranteed: two threads sharing one `LlamaDraft` are refused, not queued;
logits are equal bit by bit only when the same tokens came in batches of the same size.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edge_client.draft.llama_api import cause_of
from edge_client.draft.llama_weights import LlamaWeights, SharedModel
from edge_client.draft.threads import default_threads
from specwire.errors import BadRequest, ModelError

FloatRow = npt.NDArray[np.float32]

DEFAULT_CONTEXT = 2048
DEFAULT_BATCH = 64
"""Prompt tokens for each llama.cpp call. More is no faster on a CPU and costs compute memory."""

_LOG = logging.getLogger(__name__)
_EXIT_WAIT_S = 10.0


class _Gate:
    """Lets one thread at a time into a context, and none once it is shut."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shut = False


class _Context:
    """Owns a llama_context and its batch, and keeps the model alive until they are freed."""

    def __init__(self, model: SharedModel, handle: int, batch: Any, gate: _Gate) -> None:
        self.handle = handle
        self.batch = batch
        weakref.finalize(self, _free_context, model, handle, batch, gate)


def _free_context(model: SharedModel, handle: int, batch: Any, gate: _Gate) -> None:
    # At exit a daemon thread may still be inside llama.cpp. Wait for it; if it doesn't
    # come back, leave all to the operating system rather than free what it uses.
    gate.shut = True
    if not gate.lock.acquire(timeout=_EXIT_WAIT_S):
        model.finalizer.detach()
        return
    gate.lock.release()
    model.llama.api.llama_batch_free(batch)
    model.llama.api.llama_free(handle)


class _Row:
    """One row of logits in llama.cpp's memory, as numpy's array interface.

    Arrays made of it hold it, and it holds the context, so that an array which
    outlives its draft still points to memory.
    """

    def __init__(self, context: _Context, address: int, width: int) -> None:
        self.context = context
        self.__array_interface__ = {
            "version": 3,
            "shape": (width,),
            "typestr": np.dtype(np.float32).str,
            "data": (address, True),  # read-only
        }


class LlamaDraft:
    """A draft model's evaluation state for one sequence; implements `DraftModel`.

    One thread uses it at a time. A call while another thread is inside one raises
    `RuntimeError` and changes nothing.

    Rows of logits are float32 of shape (weights.width,), read-only views of llama.cpp's
    buffer, valid until the next call.

    Args:
        weights: the model; many drafts may share it.
        context: most tokens that this draft can hold.
        threads: threads for llama.cpp; None lets `default_threads` choose.
        batch: prompt tokens for each llama.cpp call.

    Raises:
        BadRequest: `context`, `threads` or `batch` is below 1.
        ModelError: llama.cpp can't allocate the context.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        context: int = DEFAULT_CONTEXT,
        threads: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        threads = default_threads() if threads is None else threads
        for what, value in (("context", context), ("threads", threads), ("batch", batch)):
            if value < 1:
                raise BadRequest(f"draft {what} must be at least 1, not {value}")
        if context > weights.train_context > 0:
            _LOG.warning(
                "draft context %d is longer than the %d tokens that %s was trained on; "
                "drafts beyond them will rarely be accepted",
                context,
                weights.train_context,
                weights.name,
            )
        model = weights.shared()
        self._limit = context
        self._batch_size = min(batch, context)
        self._width = weights.width
        self._name = weights.name
        self.threads = threads
        """Threads that llama.cpp computes with."""
        self._api = model.llama.api
        self._gate = _Gate()
        self._context: _Context | None = self._open(model)
        self._memory: int = self._api.llama_get_memory(self._context.handle)
        self._bind_batch(self._context.batch)
        self._tokens: list[int] = []
        self._evaluated = 0  # how many of _tokens llama.cpp holds; fewer only after a refusal
        self._row: FloatRow | None = None
        self._row_address = 0
        self._row_is_current = False

    def _open(self, model: SharedModel) -> _Context:
        params = self._api.llama_context_default_params()
        params.n_ctx = self._limit
        params.n_batch = params.n_ubatch = self._batch_size
        params.n_outputs_max = 1  # one row of logits, not one for each token
        params.n_threads = params.n_threads_batch = self.threads
        params.swa_full = True  # sliding-window layers keep all keys, so that they roll back
        params.offload_kqv = params.op_offload = model.on_gpu
        with model.llama.log.capture() as errors:
            handle = self._api.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"can't make a context of {self._limit} tokens for {self._name}: "
                f"{cause_of(errors)}; try a smaller one"
            )
        batch = self._api.llama_batch_init(self._batch_size, 0, 1)
        return _Context(model, handle, batch, self._gate)

    def _bind_batch(self, batch: Any) -> None:
        size = (self._batch_size,)
        self._batch_tokens = np.ctypeslib.as_array(batch.token, size)
        self._batch_positions = np.ctypeslib.as_array(batch.pos, size)
        self._batch_outputs = np.ctypeslib.as_array(batch.logits, size)
        self._batch_outputs[:] = 0
        np.ctypeslib.as_array(batch.n_seq_id, size)[:] = 1
        for i in range(self._batch_size):
            batch.seq_id[i][0] = 0

    @property
    def context(self) -> int:
        """Most tokens that it can hold."""
        return self._limit

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens evaluated so far. A live list: read it, don't change it."""
        return self._tokens

    def logits_after(self, tokens: Sequence[int]) -> FloatRow:
        """Next-token logits after `tokens` (at least one), shape (width,).

        Evaluates only what follows the longest common prefix with the tokens evaluated
        before. Comparing costs time proportional to the length; where the caller knows
        what changed, `truncate` and `extend` don't compare.

        Raises:
            BadRequest: `tokens` is empty or longer than the context, or an id is out of range.
            ModelError: llama.cpp failed; the state is empty afterwards.
            RuntimeError: it is closed, or in use by another thread.
        """
        wanted = list(tokens)
        self._enter()
        try:
            if not wanted:
                raise BadRequest("draft: there is no token to predict from; give at least one")
            self._check_room(len(wanted))
            keep = _common_prefix(self._tokens, wanted)
            if keep == len(wanted):
                if keep == len(self._tokens) and self._row_is_current and self._row is not None:
                    return self._row
                keep -= 1
            new = wanted[keep:]
            self._check_ids(new)
            self._keep(keep)
            return self._append(new)
        finally:
            self._gate.lock.release()

    def extend(self, tokens: Sequence[int]) -> FloatRow:
        """Append `tokens` (at least one); next-token logits after them, shape (width,).

        Raises: as `logits_after`.
        """
        self._enter()
        try:
            if not len(tokens):
                raise BadRequest("draft: there is no token to append; give at least one")
            self._check_room(len(self._tokens) + len(tokens))
            self._check_ids(tokens)
            return self._append(tokens)
        finally:
            self._gate.lock.release()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            BadRequest: `length` is below 0 or above the number of tokens held.
            RuntimeError: it is closed, or in use by another thread.
        """
        self._enter()
        try:
            if not 0 <= length <= len(self._tokens):
                raise BadRequest(
                    f"draft: can't keep {length} tokens of {len(self._tokens)}; "
                    f"give 0 … {len(self._tokens)}"
                )
            self._keep(length)
        finally:
            self._gate.lock.release()

    def close(self) -> None:
        """Free the context. Waits for a call in another thread, which stops early. Idempotent.

        A row of logits that the caller still holds stays readable; the memory is freed
        with it.
        """
        self._gate.shut = True
        with self._gate.lock:
            context, self._context = self._context, None
            self._row = None
            self._row_is_current = False
            self._tokens = []
            self._evaluated = 0
        del context  # outside the lock, which freeing takes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self) -> None:
        if not self._gate.lock.acquire(blocking=False):
            raise RuntimeError(
                f"the draft {self._name} is in use by another thread; "
                f"give each thread its own LlamaDraft (they share the weights)"
            )
        if self._gate.shut:
            self._gate.lock.release()
            raise RuntimeError(f"the draft {self._name} is closed")

    def _check_room(self, length: int) -> None:
        if length > self._limit:
            raise BadRequest(
                f"{length} tokens don't fit the draft's context of {self._limit}; "
                f"send fewer, or make the draft with a larger context"
            )

    def _check_ids(self, tokens: Sequence[int]) -> None:
        for index, id_ in enumerate(tokens):
            if not 0 <= id_ < self._width:
                raise BadRequest(
                    f"draft: token id {id_} at index {index} is outside the model's "
                    f"0 … {self._width - 1}"
                )

    def _keep(self, length: int) -> None:
        if length == len(self._tokens):
            return
        self._row_is_current = False
        if length < self._evaluated:
            if self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
                self._evaluated = length
            else:  # a recurrent state has no past to go back to: start over at the next call
                self._api.llama_memory_clear(self._memory, True)
                self._evaluated = 0
        del self._tokens[length:]

    def _append(self, tokens: Sequence[int]) -> FloatRow:
        held, done = self._tokens, self._evaluated
        pending = tokens if done == len(held) else [*held[done:], *tokens]
        self._row_is_current = False
        size, left = self._batch_size, len(pending)
        try:
            for at in range(0, left, size):
                self._decode(pending[at : at + size], done + at, want_row=at + size >= left)
            held.extend(tokens)
            self._evaluated = done + left
            return self._read_row()
        except BaseException:  # an interrupt too: what llama.cpp holds is unknown now
            self._api.llama_memory_clear(self._memory, True)
            held.clear()
            self._evaluated = 0
            raise

    def _decode(self, tokens: Sequence[int], position: int, *, want_row: bool) -> None:
        if self._gate.shut:
            raise RuntimeError(f"the draft {self._name} was closed during a call")
        context = self._held_context()
        count = len(tokens)
        batch = context.batch
        batch.n_tokens = count
        if count == 1:
            self._batch_tokens[0] = tokens[0]
            self._batch_positions[0] = position
        else:
            self._batch_tokens[:count] = tokens
            self._batch_positions[:count] = range(position, position + count)
        self._batch_outputs[count - 1] = want_row
        status = self._api.llama_decode(context.handle, batch)
        self._batch_outputs[count - 1] = 0
        if status != 0:
            raise ModelError(
                f"llama.cpp could not evaluate {count} tokens at position {position} "
                f"of {self._name} (status {status}); the draft starts empty"
            )

    def _read_row(self) -> FloatRow:
        context = self._held_context()
        pointer = self._api.llama_get_logits_ith(context.handle, -1)
        if not pointer:
            raise ModelError(f"llama.cpp gave no logits for {self._name}; the draft starts empty")
        address = ctypes.addressof(pointer.contents)
        row = self._row
        if row is None or address != self._row_address:
            row = self._row = np.asarray(_Row(context, address, self._width))
            self._row_address = address
        self._row_is_current = True
        return row

    def _held_context(self) -> _Context:
        if self._context is None:
            raise RuntimeError(f"the draft {self._name} is closed")
        return self._context


def _common_prefix(held: list[int], wanted: list[int]) -> int:
    shorter = min(len(held), len(wanted))
    if held[:shorter] == wanted[:shorter]:
        return shorter
    for index in range(shorter):
        if held[index] != wanted[index]:
            return index
    return shorter
