"""Tokens that are final, as the edge learns of them, and who wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from specwire.errors import ProtocolError
from specwire.v1 import verifier_pb2 as pb


class Origin(StrEnum):
    """Who wrote a committed token."""

    ACCEPTED = "accepted"  # the draft, and the target agreed
    CORRECTION = "correction"  # the target, after rejecting a draft token
    BONUS = "bonus"  # the target, after accepting all
    RUN_AHEAD = "run-ahead"  # the target, with no draft at hand
    CAUGHT_UP = "caught-up"  # known only after a reconnection, origin not told


_OF_KIND = {
    pb.TOKEN_KIND_CORRECTION: Origin.CORRECTION,
    pb.TOKEN_KIND_BONUS: Origin.BONUS,
    pb.TOKEN_KIND_RUN_AHEAD: Origin.RUN_AHEAD,
}


def origin_of(kind: pb.TokenKind) -> Origin:
    """Who wrote a verdict's own token."""
    return _OF_KIND.get(kind, Origin.RUN_AHEAD)


class CommittedToken(NamedTuple):
    """One token of the output, final."""

    position: int
    id: int
    origin: Origin
    logprobs: pb.TokenLogprobs | None = None
    text: bytes | None = None
    """Bytes of this token and those before it that have None, if the cloud sends text."""


def news(
    start: int,
    tokens: Sequence[int],
    origins: Sequence[Origin],
    *,
    logprobs: Sequence[pb.TokenLogprobs],
    text: bytes,
) -> list[CommittedToken]:
    """The tokens committed from position `start` on.

    Args:
        start: position of the first.
        tokens: their ids.
        origins: one a token.
        logprobs: none, or one a token.
        text: of all of them; empty if the cloud sends none.

    Raises:
        ProtocolError: some have log-probabilities and some have none.
    """
    if logprobs and len(logprobs) < len(tokens):
        raise ProtocolError(
            f"{len(tokens)} tokens are committed from {start} on, "
            f"but log-probabilities come for {len(logprobs)} alone"
        )
    last = len(tokens) - 1
    return [
        CommittedToken(
            start + i,
            tokens[i],
            origins[i],
            logprobs[i] if logprobs else None,
            text if text and i == last else None,
        )
        for i in range(len(tokens))
    ]
