"""A llama.cpp context: keys and values of one sequence, a batch, and the logits it gives.

Guarantees: memory does not grow with context × vocabulary; a context is freed before the
weights it uses, at garbage collection and at interpreter exit alike, and not while an array of
its logits is held.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_client.draft.llama_api import cause_of
from edge_client.draft.llama_weights import LlamaWeights, SharedModel
from specwire.errors import ModelError

Rows = npt.NDArray[np.float32]

_EXIT_WAIT_S = 10.0


class Gate:
    """Lets one thread at a time into a context; none while it is stopped or once it is shut."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stopped = False
        self.shut = False

    @property
    def open(self) -> bool:
        """Whether anything may begin."""
        return not (self.stopped or self.shut)


class _Owner:
    """Owns a llama_context and its batch, and keeps the model alive until they are freed."""

    def __init__(self, model: SharedModel, handle: int, batch: Any, gate: Gate) -> None:
        self.handle = handle
        self.batch = batch
        weakref.finalize(self, _free, model, handle, batch, gate)


def _free(model: SharedModel, handle: int, batch: Any, gate: Gate) -> None:
    # At exit a daemon thread may still be inside llama.cpp. Wait for it; if it doesn't
    # come back, leave all to the operating system rather than free what it uses.
    gate.shut = True
    if not gate.lock.acquire(timeout=_EXIT_WAIT_S):
        model.finalizer.detach()
        return
    gate.lock.release()
    model.llama.api.llama_batch_free(batch)
    model.llama.api.llama_free(handle)


class _View:
    """Rows of logits in llama.cpp's memory, as numpy's array interface.

    Arrays made of it hold it, and it holds their owner, so that an array which outlives its
    context still points to memory.
    """

    def __init__(self, owner: _Owner, address: int, shape: tuple[int, int]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": np.dtype(np.float32).str,
            "data": (address, True),  # read-only
        }


class LlamaContext:
    """Evaluates batches of one sequence. Whoever uses it has the gate's lock.

    Args:
        weights: the model.
        length: most tokens that it can hold.
        batch: most tokens of one call.
        most_rows: most rows of logits of one call.
        threads: of llama.cpp.
        cache: ggml's type of keys and values; None for llama.cpp's choice.
        gate: kept shut while it is freed.

    Raises:
        ModelError: llama.cpp can't allocate it.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        length: int,
        batch: int,
        most_rows: int,
        threads: int,
        cache: int | None,
        gate: Gate,
    ) -> None:
        model = weights.shared()
        self.api = model.llama.api
        self._name = weights.name
        self._width = weights.width
        params = self.api.llama_context_default_params()
        params.n_ctx = length
        params.n_batch = params.n_ubatch = batch
        params.n_outputs_max = most_rows  # rows of logits, not one for each token
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = True  # sliding-window layers keep all keys, so that they roll back
        params.offload_kqv = params.op_offload = model.on_gpu
        if cache is not None:
            params.type_k = params.type_v = cache
        with model.llama.log.capture() as errors:
            handle = self.api.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"can't make a context of {length} tokens for {self._name}: "
                f"{cause_of(errors)}; try a smaller one"
            )
        self._owner = _Owner(model, handle, self.api.llama_batch_init(batch, 0, 1), gate)
        self._memory: int = self.api.llama_get_memory(handle)
        self._bind(batch)
        self._views: dict[int, Rows] = {}  # by number of rows
        self._views_at = 0

    def _bind(self, most: int) -> None:
        batch, size = self._owner.batch, (most,)
        self._tokens = np.ctypeslib.as_array(batch.token, size)
        self._positions = np.ctypeslib.as_array(batch.pos, size)
        self._outputs = np.ctypeslib.as_array(batch.logits, size)
        self._outputs[:] = 0
        np.ctypeslib.as_array(batch.n_seq_id, size)[:] = 1
        for i in range(most):
            batch.seq_id[i][0] = 0

    def decode(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """Evaluate tokens that follow the first `position`, and keep the last `rows` logits.

        Raises:
            ModelError: llama.cpp failed; what it holds is unknown then.
        """
        owner = self._owner
        count = len(tokens)
        batch = owner.batch
        batch.n_tokens = count
        if count == 1:
            self._tokens[0] = tokens[0]
            self._positions[0] = position
        else:
            self._tokens[:count] = tokens
            self._positions[:count] = range(position, position + count)
        self._outputs[count - rows : count] = 1
        status = self.api.llama_decode(owner.handle, batch)
        self._outputs[count - rows : count] = 0
        if status != 0:
            raise ModelError(
                f"llama.cpp could not evaluate {count} tokens at position {position} "
                f"of {self._name} (status {status})"
            )

    def logits(self, rows: int) -> Rows:
        """The rows that the last `decode` kept, (rows, width); valid until the next one.

        Raises:
            ModelError: there are none.
        """
        owner = self._owner
        pointer = self.api.llama_get_logits(owner.handle)
        if not pointer:
            raise ModelError(f"llama.cpp gave no logits for {self._name}")
        address = ctypes.addressof(pointer.contents)
        if address != self._views_at:
            self._views = {}
            self._views_at = address
        view = self._views.get(rows)
        if view is None:
            view = self._views[rows] = np.asarray(_View(owner, address, (rows, self._width)))
        return view

    def keep(self, length: int) -> bool:
        """Forget all but the first tokens; False if it had to forget those too.

        A recurrent state has no past to go back to.
        """
        if self.api.llama_memory_seq_rm(self._memory, 0, length, -1):
            return True
        self.clear()
        return False

    def clear(self) -> None:
        """Forget all tokens."""
        self.api.llama_memory_clear(self._memory, True)
