"""One sequence of tokens evaluated in llama.cpp, over shared weights.

Guarantees those of `LlamaContext`, and: bad input raises before llama.cpp, which would end the
process, sees it; one context is never entered by two threads. Not guaranteed: two threads
sharing one `LlamaSequence` are refused, not queued.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from edge_client.draft.llama_context import Gate, LlamaContext, Rows
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.threads import check_threads, default_threads
from specwire.errors import BadRequest, ModelError

DEFAULT_BATCH = 64
"""Prompt tokens for each llama.cpp call. More is no faster on a CPU and costs compute memory."""

_LOG = logging.getLogger(__name__)


class LlamaSequence:
    """The evaluation state of one sequence of tokens.

    One thread uses it at a time. A call while another thread is inside one raises
    `RuntimeError` and changes nothing.

    Logits are float32 of shape (rows, weights.width), read-only views of llama.cpp's
    buffer where one batch held them all, valid until the next call.

    Args:
        weights: the model; many sequences may share it.
        role: "draft" or "target", for messages.
        context: most tokens that it can hold.
        threads: threads for llama.cpp; None lets `default_threads` choose.
        batch: tokens for each llama.cpp call.
        most_rows: most rows of logits that a call can ask for.
        cache: ggml's type of keys and values; None for llama.cpp's choice.

    Raises:
        BadRequest: `context` or `batch` is below 1, or `threads` is out of range.
        ModelError: llama.cpp can't allocate the context.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        role: str,
        context: int,
        threads: int | None = None,
        batch: int = DEFAULT_BATCH,
        most_rows: int = 1,
        cache: int | None = None,
    ) -> None:
        threads = default_threads() if threads is None else threads
        check_threads(threads)
        for what, value in (("context", context), ("batch", batch)):
            if value < 1:
                raise BadRequest(f"{role} {what} must be at least 1, not {value}")
        if context > weights.train_context > 0:
            _LOG.warning(
                "%s context %d is longer than the %d tokens that %s was trained on",
                role,
                context,
                weights.train_context,
                weights.name,
            )
        self.limit = context
        """Most tokens that it can hold."""
        self.threads = threads
        """Threads that llama.cpp computes with."""
        self.tokens: list[int] = []
        """The tokens evaluated so far. Read it, don't change it."""
        self.gate = Gate()
        self._role = role
        self._batch_size = min(batch, context)
        self._most_rows = most_rows
        self._width = weights.width
        self._name = weights.name
        self._context: LlamaContext | None = LlamaContext(
            weights,
            length=context,
            batch=self._batch_size,
            most_rows=most_rows,
            threads=threads,
            cache=cache,
            gate=self.gate,
        )
        self.fresh = 0
        """Tokens that the last `logits_after` had to evaluate."""
        self._evaluated = 0  # how many of tokens llama.cpp holds; fewer only after a refusal
        self._current: Rows | None = None  # the rows that the last call gave, while they are valid

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._context is None

    def logits_after(self, tokens: Sequence[int], rows: int = 1) -> Rows:
        """Logits after each of the last `rows` of `tokens`, shape (rows, width).

        Evaluates only what follows the longest common prefix with the tokens evaluated
        before. Comparing costs time proportional to the length; where the caller knows
        what changed, `truncate` and `extend` don't compare.

        Raises:
            BadRequest: `tokens` are fewer than `rows` or longer than the context, or an
                id is out of range.
            ModelError: llama.cpp failed; the state is empty afterwards.
            RuntimeError: it is closed or stopped, or in use by another thread. One that is
                stopped during the call keeps what it has read by then.
        """
        wanted = list(tokens)
        self._enter()
        try:
            self._check_rows(len(wanted), rows)
            self._check_room(len(wanted))
            same = common_prefix(self.tokens, wanted)
            current = self._current
            if (
                same == len(wanted) == len(self.tokens)
                and current is not None
                and len(current) == rows
            ):
                self.fresh = 0
                return current
            keep = min(same, len(wanted) - rows)
            new = wanted[keep:]
            self.fresh = len(new)
            self._check_ids(new)
            self._keep(keep)
            return self._append(new, rows)
        finally:
            self.gate.lock.release()

    def extend(self, tokens: Sequence[int], rows: int = 1) -> Rows:
        """Append `tokens`; logits after each of the last `rows` of them, shape (rows, width).

        Raises: as `logits_after`.
        """
        self._enter()
        try:
            self._check_rows(len(tokens), rows)
            self._check_room(len(self.tokens) + len(tokens))
            self._check_ids(tokens)
            return self._append(tokens, rows)
        finally:
            self.gate.lock.release()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            BadRequest: `length` is below 0 or above the number of tokens held.
            RuntimeError: it is closed or stopped, or in use by another thread.
        """
        self._enter()
        try:
            if not 0 <= length <= len(self.tokens):
                raise BadRequest(
                    f"{self._role}: can't keep {length} tokens of {len(self.tokens)}; "
                    f"give 0 … {len(self.tokens)}"
                )
            self._keep(length)
        finally:
            self.gate.lock.release()

    def stop(self) -> None:
        """Let nothing begin until `resume`; a call in another thread stops early."""
        self.gate.stopped = True

    def resume(self) -> None:
        """Let calls begin again after `stop`. Not for one that was closed."""
        self.gate.stopped = False

    def close(self) -> None:
        """Free the context. Waits for a call in another thread, which stops early. Idempotent.

        Logits that the caller still holds stay readable; the memory is freed with them.
        """
        self.gate.shut = True
        with self.gate.lock:
            context, self._context = self._context, None
            self._current = None
            self.tokens = []
            self._evaluated = 0
        del context  # outside the lock, which freeing takes

    def _enter(self) -> None:
        if not self.gate.lock.acquire(blocking=False):
            raise RuntimeError(
                f"the {self._role} {self._name} is in use by another thread; "
                f"give each thread its own (they share the weights)"
            )
        if not self.gate.open:
            self.gate.lock.release()
            state = "closed" if self.gate.shut else "stopped"
            raise RuntimeError(f"the {self._role} {self._name} is {state}")

    def _check_rows(self, tokens: int, rows: int) -> None:
        if not 1 <= rows <= self._most_rows:
            raise ValueError(f"{rows} rows of logits; the most is {self._most_rows}")
        if tokens < rows:
            raise BadRequest(
                f"{self._role}: {tokens} tokens can't give {rows} rows of logits; give more tokens"
            )

    def _check_room(self, length: int) -> None:
        if length > self.limit:
            raise BadRequest(
                f"{length} tokens don't fit the {self._role}'s context of {self.limit}; "
                f"send fewer, or make it with a larger context"
            )

    def _check_ids(self, tokens: Sequence[int]) -> None:
        for index, id_ in enumerate(tokens):
            if not 0 <= id_ < self._width:
                raise BadRequest(
                    f"{self._role}: token id {id_} at index {index} is outside the model's "
                    f"0 … {self._width - 1}"
                )

    def _keep(self, length: int) -> None:
        if length == len(self.tokens):
            return
        self._current = None
        if length < self._evaluated:
            # Where it had to forget all, the next call starts over.
            self._evaluated = length if self._held_context().keep(length) else 0
        del self.tokens[length:]

    def _append(self, tokens: Sequence[int], rows: int) -> Rows:
        context = self._held_context()
        held, done = self.tokens, self._evaluated
        pending = tokens if done == len(held) else [*held[done:], *tokens]
        self._current = None
        size, left = self._batch_size, len(pending)
        parts: list[Rows] = []
        read = 0
        try:
            while read < left and self.gate.open:
                stop = min(read + size, left)
                wanted = max(0, stop - max(read, left - rows))
                context.decode(pending[read:stop], done + read, wanted)
                if wanted:
                    logits = context.logits(wanted)
                    parts.append(logits if stop == left else logits.copy())
                read = stop
        except BaseException as error:  # an interrupt too: what llama.cpp holds is unknown now
            context.clear()
            held.clear()
            self._evaluated = 0
            if isinstance(error, ModelError):
                raise ModelError(f"{error}; the {self._role} starts empty") from error
            raise
        # Where it was stopped, what has been read stays: whoever goes on need not read it again.
        held.extend(pending[len(held) - done : read])
        self._evaluated = done + read
        if read < left:
            del context  # which the traceback would keep
            raise RuntimeError(f"the {self._role} {self._name} was stopped during a call")
        self._current = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._current

    def _held_context(self) -> LlamaContext:
        if self._context is None:
            raise RuntimeError(f"the {self._role} {self._name} is closed")
        return self._context


def common_prefix(held: list[int], wanted: list[int]) -> int:
    """How many first tokens two sequences share."""
    shorter = min(len(held), len(wanted))
    if held[:shorter] == wanted[:shorter]:
        return shorter
    for index in range(shorter):
        if held[index] != wanted[index]:
            return index
    return shorter
