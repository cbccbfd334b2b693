"""The target model in llama.cpp: one evaluation state that gives the last rows of logits."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.draft.llama_context import Rows
from edge_client.draft.llama_sequence import LlamaSequence, common_prefix
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError

MOST_ROWS = 33
"""Rows of logits of one call: 32 draft tokens and the target's own."""

_GGML_F16, _GGML_BF16 = 1, 30


class LlamaTarget:
    """A target model's evaluation state for one sequence. One thread uses it at a time.

    Keys and values are bfloat16 on a CPU: there llama.cpp's attention gives a token the same
    logits whatever is evaluated beside it, so that drafts change no near tie.

    Args:
        weights: the model.
        context: most tokens that it can hold.
        threads: threads for llama.cpp; None lets `default_threads` choose.

    Raises:
        BadRequest: `context` is below 1, or `threads` is out of range.
        ModelError: llama.cpp can't allocate the context.
    """

    def __init__(self, weights: LlamaWeights, *, context: int, threads: int | None = None) -> None:
        self._sequence = LlamaSequence(
            weights,
            role="target",
            context=context,
            threads=threads,
            most_rows=MOST_ROWS,
            cache=_GGML_F16 if weights.shared().on_gpu else _GGML_BF16,
        )

    def shared(self, tokens: Sequence[int]) -> int:
        """How many of the first `tokens` need no evaluation; never the last."""
        return min(common_prefix(self._sequence.tokens, list(tokens)), len(tokens) - 1)

    def logits_after(self, tokens: Sequence[int], rows: int) -> Rows:
        """Logits after each of the last `rows` of `tokens`, float32 (rows, width).

        Evaluates only what differs from the tokens evaluated before. The array is valid
        until the next call.

        Raises:
            BadRequest: `tokens` don't fit the context, or an id is out of range.
            ModelError: llama.cpp failed; the state is empty afterwards.
            RuntimeError: it is stopped, or in use by another thread.
        """
        return self._sequence.logits_after(tokens, rows)

    def stop(self) -> None:
        """Let nothing begin until `resume`; a call in another thread stops early."""
        self._sequence.stop()

    def resume(self) -> None:
        """Let calls begin again after `stop`."""
        self._sequence.resume()

    def close(self) -> None:
        """Free what it holds. Idempotent."""
        self._sequence.close()


def check_can_verify(weights: LlamaWeights, *, drafted_for: bool) -> None:
    """Refuse a model that can't go back to before rejected drafts, if there will be drafts.

    Raises:
        ModelError: it has a state that knows no past.
    """
    shared = weights.shared()
    api = shared.llama.api
    recurrent = api.llama_model_is_recurrent(shared.handle) or api.llama_model_is_hybrid(
        shared.handle
    )
    if drafted_for and recurrent:
        raise ModelError(
            f"the target {weights.path} has recurrent layers, which can't be rolled back when "
            "it rejects a draft; run it alone, with --draft none, or choose another"
        )
