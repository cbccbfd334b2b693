"""From a draft model's logits to draft tokens and the q they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from specwire.ports import DraftModel
from specwire.qrow import QRow, Truncation, coupled_draft, draft_noise, draft_row, draw_row
from specwire.sampling import History, SamplingParams
from specwire.v1 import verifier_pb2 as pb


@dataclass(frozen=True)
class Drafted:
    """A draft token and its q; no q in coupled mode.

    confidence: the source's own probability of the likeliest token there. It says
        nothing about which token was drawn.
    fresh: tokens that were read for it; those that others wrote since the last among them.
    """

    token: int
    row: QRow | None
    confidence: float = 1.0
    fresh: int = 0


class DraftSource(Protocol):
    """Something that can guess the next token. Used by one thread at a time."""

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        """The draft token that follows `prefix` in this chain; None if there is none to give."""

    def close(self) -> None:
        """Give back what it holds."""


@runtime_checkable
class Interruptible(Protocol):
    """A source whose `next` may take long, and can be cut short."""

    def interrupt(self) -> None:
        """Let `next` raise soon, in whatever thread it runs; nothing begins any more."""


def interrupt(source: DraftSource) -> None:
    """Cut short what the source is at, if it can be; it is only closed then."""
    if isinstance(source, Interruptible):
        source.interrupt()


@dataclass(frozen=True)
class DraftRules:
    """What the session asks of its drafts.

    size: of the vocabulary. padding_ids: ids in it that stand for nothing.
    prompt_length: where the output begins, for penalties.
    """

    params: SamplingParams
    mode: pb.VerificationMode
    seed: int
    size: int
    padding_ids: Sequence[int]
    prompt_length: int
    truncation: Truncation


class ModelSource:
    """Drafts with a model, by the session's own sampling parameters."""

    def __init__(self, model: DraftModel, rules: DraftRules) -> None:
        self._model = model
        self._rules = rules

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        """Draft one token; None where the prefix no longer fits the model's context."""
        if len(prefix) > self._model.context:
            return None
        rules, position = self._rules, len(prefix)
        logits = self._model.logits_after(prefix)
        history = None
        if rules.params.penalises:
            cut = rules.prompt_length
            history = History(prefix[:cut], prefix[cut:])
        if rules.mode == pb.VERIFICATION_MODE_COUPLED:
            token = coupled_draft(
                logits,
                rules.params,
                seed=rules.seed,
                position=position,
                size=rules.size,
                padding_ids=rules.padding_ids,
                history=history,
            )
            return Drafted(token, None, _confidence(logits, rules.size), self._model.fresh)
        row = draft_row(
            logits,
            rules.params,
            rules.truncation,
            size=rules.size,
            padding_ids=rules.padding_ids,
            history=history,
        )
        token = draw_row(row, draft_noise(rules.seed, position, chain))
        return Drafted(token, row, _confidence(logits, rules.size), self._model.fresh)

    def interrupt(self) -> None:
        """Let `next` raise soon; nothing begins any more."""
        self._model.stop()

    def close(self) -> None:
        """Give the model's state back."""
        self._model.close()


def _confidence(logits: npt.NDArray[np.float32], size: int) -> float:
    """Probability of the likeliest token at temperature 1."""
    z = logits[:size]
    return 1.0 / float(np.exp(z - z.max()).sum())
