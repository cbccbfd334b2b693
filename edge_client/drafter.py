"""What a client drafts with: the model on this machine, what was written before, or both."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.lookup import CombinedSource, LookupSource
from edge_client.draft.models import resolve_model
from edge_client.draft.shelf import BorrowedDraft, DraftShelf
from edge_client.draft.source import DraftRules, DraftSource, ModelSource
from edge_client.draft.threads import check_threads
from edge_client.draft.worker import DraftWorker
from edge_client.options import GenerateOptions, Mode
from edge_client.policy.estimates import LinkEstimates
from specwire.edge_session import EdgeSession
from specwire.errors import BadRequest, SpecwireError
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary, template_digest

DRAFT_CONTEXT = 4096
"""Tokens that a draft context holds at most; past them the target goes on alone."""

CLOSE_S = 0.2
"""How long closing waits for a model that is being loaded."""

LOADING = "load-draft"
"""Name of the thread that loads a model."""

Notify: TypeAlias = Callable[[str], None]
SourceMaker: TypeAlias = Callable[[EdgeSession], DraftSource]


class DraftFrom(StrEnum):
    """Where draft tokens come from."""

    AUTO = "auto"  # copied from the text where much of it repeats, else from the model
    MODEL = "model"
    LOOKUP = "lookup"  # copied from prompt and output; needs no model


@dataclass(frozen=True)
class DraftSide:
    """What a generation drafts with: where, what, and in which vocabulary.

    vocabulary: the draft's; None without a model, and then the verifier sends text.
    end_ids: the target's, after which there is nothing to draft. estimates: what is known
    of this draft with this verifier, from earlier generations too.
    """

    worker: DraftWorker
    make_source: SourceMaker
    vocabulary: Vocabulary | None
    end_ids: frozenset[int]
    name: str
    estimates: LinkEstimates


class Drafter:
    """Loads the draft model once, and makes what each generation drafts with.

    Args:
        spec: of the model, see `resolve_model`; None for none.
        draft_from: where draft tokens come from.
        threads: of the model; None lets the machine decide.
        place: puts a source where it has to run.
        estimates: what is known of draft and target, and will be learnt.
        notify: called with one line for a person.

    Raises:
        BadRequest: `threads` is out of range.
    """

    def __init__(
        self,
        spec: str | None,
        draft_from: DraftFrom,
        *,
        threads: int | None,
        place: Callable[[DraftSource], DraftSource],
        estimates: LinkEstimates,
        notify: Notify,
    ) -> None:
        if threads is not None:
            check_threads(threads)
        self.needs_model = draft_from is not DraftFrom.LOOKUP
        self.spec = spec
        self._from = draft_from
        self._threads = threads
        self._place = place
        self._notify = notify
        self._weights: LlamaWeights | None = None
        self._error: SpecwireError | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._worker = DraftWorker()
        self._shelf = DraftShelf(DRAFT_CONTEXT)
        self._estimates = estimates

    def load(self) -> LlamaWeights:
        """The draft model. Blocks while it is loaded; what failed once fails again at once.

        Raises:
            ModelError: it can't be loaded.
            RuntimeError: the client is closed.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._weights is None:
                try:
                    self._weights = LlamaWeights(resolve_model(self.spec or "", self._notify))
                except SpecwireError as error:
                    self._error = error
                    raise
            return self._keep_open(self._weights)

    def _keep_open(self, weights: LlamaWeights) -> LlamaWeights:
        if self._closed:  # while it was loaded, when nobody could wait for it
            self._free()
            raise RuntimeError("the client is closed")
        return weights

    async def loaded(self) -> LlamaWeights:
        """As `load`, without blocking. Who gives up waiting is not held up by the loading."""
        if self._weights is not None and not self._closed:
            return self._weights
        loop = asyncio.get_running_loop()
        future: asyncio.Future[LlamaWeights] = loop.create_future()

        def settle(weights: LlamaWeights | None, error: Exception | None) -> None:
            if future.done():  # nobody waits any more
                return
            if error is not None:
                future.set_exception(error)
            elif weights is not None:
                future.set_result(weights)

        def work() -> None:
            weights: LlamaWeights | None = None
            failure: Exception | None = None
            try:
                weights = self.load()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(settle, weights, failure)

        # A daemon, unlike an executor's threads: the process need not wait for it at its end.
        threading.Thread(target=work, name=LOADING, daemon=True).start()
        return await future

    async def side(
        self,
        served: pb.DescribeResponse,
        options: GenerateOptions,
        notify: Notify,
        *,
        by_template: bool,
    ) -> DraftSide | None:
        """What to draft with, or None, with a notice that says why.

        `by_template`: the prompt goes through the target's chat template.
        """
        if options.mode in (Mode.STREAM, Mode.TARGET_ONLY):
            return None
        if options.gamma == 0:
            notify("gamma is 0: the target generates alone")
            return None
        if not self.needs_model:
            return self._side(served, None, options)
        if self.spec is None:
            notify("no draft model is set: the target generates alone")
            return None
        try:
            weights = await self.loaded()
        except SpecwireError as error:
            notify(f"no draft ({error}): the target generates alone")
            return None
        if weights.vocabulary.fingerprint != served.vocabulary.fingerprint:
            notify(
                f"draft {weights.name} has another vocabulary ({len(weights.vocabulary)} tokens) "
                f"than the target {served.model} ({served.vocabulary.size} tokens): "
                "the target generates alone; use a draft of the target's family"
            )
            return None
        if by_template and _digest(weights.chat_template) != served.chat_template_digest:
            notify(
                f"draft {weights.name} has {'another' if weights.chat_template else 'no'} chat "
                "template; the target's is used for both"
            )
        return self._side(served, weights, options)

    def _side(
        self, served: pb.DescribeResponse, weights: LlamaWeights | None, options: GenerateOptions
    ) -> DraftSide:
        return DraftSide(
            self._worker,
            lambda machine: self.source(weights, machine, options),
            weights.vocabulary if weights is not None else None,
            frozenset(served.vocabulary.end_ids),
            weights.name if weights is not None else "prompt lookup",
            self._estimates,
        )

    def source(
        self, weights: LlamaWeights | None, machine: EdgeSession, options: GenerateOptions
    ) -> DraftSource:
        """The source of one session's drafts."""
        coupled = machine.request.mode == pb.VERIFICATION_MODE_COUPLED
        if weights is None:
            return LookupSource(coupled=coupled)
        longest = min(machine.max_frontier, DRAFT_CONTEXT, weights.train_context or DRAFT_CONTEXT)
        rules = DraftRules(
            params=options.sampling,
            mode=machine.request.mode,
            seed=machine.request.seed,
            size=len(weights.vocabulary),
            padding_ids=weights.vocabulary.padding_ids,
            prompt_length=len(machine.request.prompt),
            truncation=options.truncation,
        )
        draft = BorrowedDraft(self._shelf, weights, context=longest, threads=self._threads)
        source = self._place(ModelSource(draft, rules))
        if self._from is DraftFrom.AUTO and machine.output_is_fixed:
            return CombinedSource(source, coupled=coupled)
        return source

    def close(self) -> None:
        """End the drafting thread and free the model.

        One that is still being loaded is freed by the thread that does it.
        """
        self._worker.close()
        self._shelf.close()
        self._closed = True
        if self._lock.acquire(timeout=CLOSE_S):
            try:
                self._free()
            finally:
                self._lock.release()

    def _free(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None


def draft_from(name: str) -> DraftFrom:
    """The member of that name.

    Raises:
        BadRequest: there is none.
    """
    try:
        return DraftFrom(name)
    except ValueError:
        known = ", ".join(DraftFrom)
        raise BadRequest(f"the draft source {name!r} is unknown; known: {known}") from None


def _digest(template: str | None) -> bytes:
    return template_digest(template) if template else b""
