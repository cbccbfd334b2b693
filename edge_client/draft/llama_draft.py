"""The draft model in llama.cpp: one evaluation state over shared weights.

Guarantees those of `LlamaSequence`. Logits are equal bit by bit only when the same
tokens came in batches of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from edge_client.draft.llama_sequence import DEFAULT_BATCH, LlamaSequence
from edge_client.draft.llama_weights import LlamaWeights

FloatRow = npt.NDArray[np.float32]

DEFAULT_CONTEXT = 2048


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
        BadRequest: `context` or `batch` is below 1, or `threads` is out of range.
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
        self._sequence = LlamaSequence(
            weights, role="draft", context=context, threads=threads, batch=batch
        )

    @property
    def context(self) -> int:
        """Most tokens that it can hold."""
        return self._sequence.limit

    @property
    def threads(self) -> int:
        """Threads that llama.cpp computes with."""
        return self._sequence.threads

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens evaluated so far. A live list: read it, don't change it."""
        return self._sequence.tokens

    @property
    def fresh(self) -> int:
        """Tokens that the last `logits_after` had to evaluate."""
        return self._sequence.fresh

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._sequence.closed

    def logits_after(self, tokens: Sequence[int]) -> FloatRow:
        """Next-token logits after `tokens` (at least one), shape (width,).

        Evaluates only what follows the longest common prefix with the tokens evaluated
        before. Comparing costs time proportional to the length; where the caller knows
        what changed, `truncate` and `extend` don't compare.

        Raises:
            BadRequest: `tokens` is empty or longer than the context, or an id is out of range.
            ModelError: llama.cpp failed; the state is empty afterwards.
            RuntimeError: it is closed or stopped, or in use by another thread.
        """
        row: FloatRow = self._sequence.logits_after(tokens)[0]
        return row

    def extend(self, tokens: Sequence[int]) -> FloatRow:
        """Append `tokens` (at least one); next-token logits after them, shape (width,).

        Raises: as `logits_after`.
        """
        row: FloatRow = self._sequence.extend(tokens)[0]
        return row

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            BadRequest: `length` is below 0 or above the number of tokens held.
            RuntimeError: it is closed or stopped, or in use by another thread.
        """
        self._sequence.truncate(length)

    def stop(self) -> None:
        """Let nothing begin until `resume`; a call in another thread stops early."""
        self._sequence.stop()

    def resume(self) -> None:
        """Let calls begin again after `stop`. Not for one that was closed."""
        self._sequence.resume()

    def close(self) -> None:
        """Free the context. Waits for a call in another thread, which stops early. Idempotent.

        A row of logits that the caller still holds stays readable; the memory is freed
        with it.
        """
        self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
