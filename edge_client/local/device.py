"""A target on this device: its weights, its states, and the one thread that computes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from edge_client.draft.threads import check_threads
from edge_client.local.target import MOST_ROWS, LlamaTarget, check_can_verify
from specwire.cloud_session import Outcome, Work
from specwire.errors import BadRequest, Exhausted, ModelError
from specwire.examination import examine, round_logprobs
from specwire.limits import Limits
from specwire.llama_prompt import LlamaEncoder
from specwire.request import SessionRequest
from specwire.sampling import History

T = TypeVar("T")

DEFAULT_CONTEXT = 4096
"""Tokens of prompt and output that a session may have, if the model was trained for as many."""

MOST_SESSIONS = 4
"""Generations at once: each takes memory for keys and values of its own."""


@dataclass(frozen=True)
class LoadedTarget:
    """A target that is ready: weights, prompts, limits."""

    weights: LlamaWeights
    encoder: LlamaEncoder
    limits: Limits


@dataclass(frozen=True)
class Round:
    """What one round needs to know.

    committed: all committed tokens of the session. history: for penalties, None without.
    asked: when it was asked for, in seconds of time.perf_counter.
    """

    request: SessionRequest
    committed: Sequence[int]
    work: Work
    history: History | None
    asked: float


class TargetDevice:
    """A target that this process runs itself, for a few sessions that take turns.

    Models compute in `thread` alone. Made and used from any thread and event loop.

    Args:
        spec: a GGUF file or "builtin:smollm2".
        threads: of llama.cpp; None for the fast cores.
        context: most tokens of a session; None for `DEFAULT_CONTEXT`, or fewer where the
            model was trained for fewer.
        drafted_for: whether drafts will come, for which the model must be able to go back.
        progress: gets a line before slow work.

    Raises:
        BadRequest: `context` is below 1, or `threads` is out of range.
    """

    def __init__(
        self,
        spec: str,
        *,
        threads: int | None = None,
        context: int | None = None,
        drafted_for: bool = True,
        progress: Callable[[str], None],
    ) -> None:
        if context is not None and context < 1:
            raise BadRequest(f"context must be at least 1, not {context}")
        if threads is not None:
            check_threads(threads)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="models")
        self._spec = spec
        self._threads = threads
        self._context = context
        self._drafted_for = drafted_for
        self._progress = progress
        self._loaded: LoadedTarget | None = None
        self._idle: LlamaTarget | None = None  # keeps a conversation's tokens for its next turn
        self._seats: set[Seat] = set()
        self._closed = False

    async def load(self) -> LoadedTarget:
        """The target, loaded if it is not yet.

        Raises:
            ModelError: it can't be loaded.
        """
        if self._loaded is not None:
            return self._loaded
        return await self.run(self._load)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call in the model thread, after what was asked of it before.

        Raises:
            ModelError: the device is closed.
        """
        try:
            self._check_open()
            pending = asyncio.get_running_loop().run_in_executor(self.thread, function, *args)
        except RuntimeError:  # closed since
            raise self._gone() from None
        return await pending

    def seat(self, loaded: LoadedTarget) -> Seat:
        """A place at the target for one session.

        Raises:
            Exhausted: too many generations run at once.
            ModelError: the device is closed.
        """
        self._check_open()
        if len(self._seats) >= MOST_SESSIONS:
            raise Exhausted(
                f"{MOST_SESSIONS} generations run on this device already; let one of them end"
            )
        seat = Seat(self, loaded)
        self._seats.add(seat)
        return seat

    def close(self) -> None:
        """Stop what runs and free the model."""
        self._closed = True
        for seat in list(self._seats):
            seat.leave()
        self.thread.shutdown()
        if self._idle is not None:
            self._idle.close()
            self._idle = None
        if self._loaded is not None:
            self._loaded.weights.close()
            self._loaded = None

    def _check_open(self) -> None:
        if self._closed:
            raise self._gone()

    def _gone(self) -> ModelError:
        return ModelError(f"the target {self._spec} was closed")

    def _load(self) -> LoadedTarget:
        if self._loaded is None:
            weights = LlamaWeights(resolve_model(self._spec, self._progress, role="target"))
            check_can_verify(weights, drafted_for=self._drafted_for)
            trained = weights.train_context or DEFAULT_CONTEXT
            context = min(self._context or DEFAULT_CONTEXT, trained)
            if self._context is not None and self._context > context:
                self._progress(
                    f"the target has a context of {context} tokens at most, not {self._context}"
                )
            limits = Limits(context=context, gamma=MOST_ROWS - 1, sessions=MOST_SESSIONS)
            # It came with llama-cpp-python, whose absence the weights have explained better.
            from edge_client.local.prompt import llama_encoder

            self._loaded = LoadedTarget(weights, llama_encoder(weights), limits)
        return self._loaded

    # What a seat calls, in the model thread.

    def take(self, loaded: LoadedTarget) -> LlamaTarget:
        """An evaluation state: the idle one, or one more.

        Raises:
            ModelError: there is no memory for it.
        """
        target, self._idle = self._idle, None
        return target or LlamaTarget(
            loaded.weights, context=loaded.limits.context, threads=self._threads
        )

    def give_back(self, target: LlamaTarget) -> None:
        """Keep the state used last for the next session, with what it has read; free others."""
        target.resume()
        before, self._idle = self._idle, target
        if before is not None:
            before.close()

    def forget(self, seat: Seat) -> None:
        """A seat was left: its state comes back once the thread is done with it."""
        self._seats.discard(seat)
        try:
            self.thread.submit(seat.clear)
        except RuntimeError:  # closed since: nothing computes any more
            seat.clear()


class Seat:
    """One session's place at the target. Left on an event loop, used in the model thread."""

    def __init__(self, device: TargetDevice, loaded: LoadedTarget) -> None:
        self.shared = 0
        """Prompt tokens that needed no evaluation; known after the first round."""
        self._device = device
        self._loaded = loaded
        self._target: LlamaTarget | None = None
        self._busy = False
        self._left = False

    async def run(self, round_: Round) -> Outcome:
        """Examine the drafts of a round.

        Raises:
            ModelError: llama.cpp failed, or there is no memory, or the device was closed.
        """
        return await self._device.run(self._examine, round_)

    def leave(self) -> None:
        """Give the place up; what runs for it stops early. Idempotent."""
        if self._left:
            return
        self._left = True
        target = self._target
        if self._busy and target is not None:
            target.stop()
        self._device.forget(self)

    def clear(self) -> None:
        """Give the state back. In the model thread, after the last round."""
        target, self._target = self._target, None
        if target is not None:
            self._device.give_back(target)

    def _examine(self, round_: Round) -> Outcome:
        self._busy = True
        try:
            return self._examined(round_)
        except RuntimeError as error:  # stopped from elsewhere
            raise ModelError(f"the generation was stopped: {error}") from error
        finally:
            self._busy = False

    def _examined(self, round_: Round) -> Outcome:
        request, work = round_.request, round_.work
        if self._target is None and not self._left:
            self._target = self._device.take(self._loaded)
            self.shared = self._target.shared(request.prompt)
        if self._target is None or self._left:
            raise RuntimeError("its session has ended")
        began = time.perf_counter()
        logits = self._target.logits_after(
            [*round_.committed, *work.tokens], rows=len(work.tokens) + 1
        )
        ended = time.perf_counter()
        vocabulary = self._loaded.weights.vocabulary
        examination = examine(request, work, logits, round_.history, vocabulary)
        outcome = int(examination.accepted), int(examination.token)
        return Outcome(
            accepted=outcome[0],
            token=outcome[1],
            logprobs=round_logprobs(request, work, logits, outcome, len(vocabulary)),
            queue_us=int((began - round_.asked) * 1e6),
            forward_us=int((ended - began) * 1e6),
        )
