"""What the draft has read is kept from one session to the next.

A conversation's next turn begins with all that was said before. Reading it again takes the
draft seconds, in which the target is alone; so the evaluation state that was used last waits
for a session whose text begins alike, and only what differs is read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from edge_client.draft.llama_draft import FloatRow, LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError

LEAST_CONTEXT = 512


class DraftShelf:
    """Holds one evaluation state that no session uses. Its methods may be called by any thread.

    Args:
        most: tokens that no state need hold more than.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: LlamaDraft | None = None
        self._closed = False

    def take(self, weights: LlamaWeights, *, context: int, threads: int | None) -> LlamaDraft:
        """A state with room for `context` tokens: the kept one, or a new one.

        Raises:
            ModelError: llama.cpp can't allocate it.
        """
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None and idle.context >= context:
            return idle
        if idle is not None:
            idle.close()
        most = min(self._most, weights.train_context or self._most)
        try:
            return LlamaDraft(weights, context=roomy(context, most), threads=threads)
        except ModelError:  # there may be memory for what is needed now
            return LlamaDraft(weights, context=context, threads=threads)

    def give_back(self, draft: LlamaDraft) -> None:
        """Keep the state that was used last; the one before it is freed."""
        draft.resume()
        with self._lock:
            if self._closed:
                before: LlamaDraft | None = draft
            else:
                before, self._idle = self._idle, draft
        if before is not None:
            before.close()

    def close(self) -> None:
        """Free what is kept, and from now on what comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()


class BorrowedDraft:
    """One session's use of the shelf; implements `DraftModel`.

    The state is taken when the first token is drafted, which is after the session before has
    given its own back, and comes back with `close`. One that failed is freed instead.

    Args:
        shelf: where states are kept.
        weights: the model.
        context: most tokens that the session can have.
        threads: of llama.cpp, for a new state; None lets `default_threads` choose.
    """

    def __init__(
        self, shelf: DraftShelf, weights: LlamaWeights, *, context: int, threads: int | None
    ) -> None:
        self._shelf = shelf
        self._weights = weights
        self._context = context
        self._threads = threads
        self._lock = threading.Lock()  # so that a late `stop` can't reach another session
        self._draft: LlamaDraft | None = None
        self._over = False
        self._failed = False

    @property
    def context(self) -> int:
        """Most tokens that the session can have."""
        return self._context

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens evaluated so far."""
        draft = self._draft
        return [] if draft is None else draft.tokens

    @property
    def fresh(self) -> int:
        """Tokens that the last `logits_after` had to evaluate."""
        draft = self._draft
        return 0 if draft is None else draft.fresh

    def logits_after(self, tokens: Sequence[int]) -> FloatRow:
        """As `LlamaDraft.logits_after`.

        Raises: as that; ModelError also where llama.cpp has no memory for a state, and
            RuntimeError once it was stopped.
        """
        draft = self._draft
        if draft is None:
            if self._over:
                raise RuntimeError("the session that this draft was for is over")
            draft = self._take()
        sound = False
        try:
            logits = draft.logits_after(tokens)
            sound = True
        except RuntimeError:
            sound = self._over  # it was stopped, and holds what it had read until then
            raise
        finally:
            self._failed = self._failed or not sound
        return logits

    def _take(self) -> LlamaDraft:
        draft = self._shelf.take(self._weights, context=self._context, threads=self._threads)
        with self._lock:
            self._draft = draft
            if self._over:
                draft.stop()
        return draft

    def stop(self) -> None:
        """Let nothing begin any more; a call in another thread stops early. Close it then."""
        with self._lock:
            self._over = True
            if self._draft is not None:
                self._draft.stop()

    def close(self) -> None:
        """Give the state back. By the thread that used it. Idempotent."""
        with self._lock:
            self._over = True
            draft, self._draft = self._draft, None
        if draft is None:
            return
        if self._failed:
            draft.close()
        else:
            self._shelf.give_back(draft)


def roomy(context: int, most: int) -> int:
    """Tokens that a state for `context` tokens has room for, so that next turns may fit it too.

    A power of two: a conversation that has outgrown its state is read once more, and that
    happens as often as its length doubles.
    """
    room = max(LEAST_CONTEXT, 1 << (context - 1).bit_length())
    return max(context, min(room, most))
