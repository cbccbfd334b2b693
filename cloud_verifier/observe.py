"""What a verifier tells those who watch it: metrics, traces, logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specwire.errors import SpecwireError
from specwire.v1 import verifier_pb2 as pb


@dataclass(frozen=True)
class Round:
    """A round that has ended.

    session_id: a secret; show it through `logs.session_tag` alone.
    ready, ended: seconds of time.perf_counter; in between lie queue, forward and examination.
    sessions: how many shared the forward, this one included.
    """

    session_id: bytes
    verdict: pb.Verdict
    ready: float
    ended: float
    sessions: int


class Observer(Protocol):
    """Hears what happens. Called on the event loop: be quick, and never raise."""

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """A target forward that so many sessions took part in has ended; its seconds."""

    def round_ended(self, round: Round) -> None:
        """A session has got a verdict."""

    def drafts_received(self, tokens: int) -> None:
        """A proposal of so many draft tokens has come."""

    def drafts_stale(self, tokens: int) -> None:
        """So many draft tokens will never be examined."""

    def refused(self, error: SpecwireError) -> None:
        """A call has ended with this error."""


class Silent:
    """Nobody listens."""

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """Ignore it."""

    def round_ended(self, round: Round) -> None:
        """Ignore it."""

    def drafts_received(self, tokens: int) -> None:
        """Ignore it."""

    def drafts_stale(self, tokens: int) -> None:
        """Ignore it."""

    def refused(self, error: SpecwireError) -> None:
        """Ignore it."""


SILENT: Observer = Silent()


class Several:
    """Passes everything on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.forward_ended(sessions, forward_s)

    def round_ended(self, round: Round) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.round_ended(round)

    def drafts_received(self, tokens: int) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.drafts_received(tokens)

    def drafts_stale(self, tokens: int) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.drafts_stale(tokens)

    def refused(self, error: SpecwireError) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.refused(error)


def all_of(observers: Sequence[Observer]) -> Observer:
    """One observer for all of them."""
    if not observers:
        return SILENT
    return observers[0] if len(observers) == 1 else Several(observers)
