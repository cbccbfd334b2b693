"""Chains of draft tokens at the edge: the one being drafted, and those that verdicts may name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specwire.errors import ProtocolError
from specwire.qrow import QRow
from specwire.v1 import verifier_pb2 as pb


@dataclass(slots=True)
class DraftChain:
    """Draft tokens of the positions `start` … `end`−1; those before `sent_end` are on their way.

    id: what the cloud knows it by. drafted_as: what the drafting side does; the rest of a
        chain can be sent as a new one while it is still being drafted.
    root: where drafting began.
    chance: that all of what is not sent yet is accepted.
    tail: what was drafted without a link, up to here, is sent at once.
    exhausted_at: where the draft had nothing to say.
    ended: it holds an end token.
    """

    id: int
    drafted_as: int
    start: int
    root: int
    end: int
    sent_end: int
    tokens: list[int] = field(default_factory=list)
    rows: list[QRow | None] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    chance: float = 1.0
    tail: int = 0
    exhausted_at: int = -1
    ended: bool = False

    def append(
        self, token: int, row: QRow | None, confidence: float, chance: float, *, ends: bool
    ) -> None:
        """Take one more draft token; `ends`: nothing can follow it."""
        self.tokens.append(token)
        self.rows.append(row)
        self.confidences.append(confidence)
        self.end += 1
        self.chance *= chance
        self.ended = self.ended or ends

    def beyond(self, position: int) -> list[int]:
        """The tokens from `position` on."""
        return self.tokens[max(position - self.start, 0) :]

    def rest(self, id_: int, position: int) -> DraftChain:
        """What is left from `position` on, as a chain of which nothing is sent."""
        cut = position - self.start
        return DraftChain(
            id_,
            self.drafted_as,
            start=position,
            root=self.root,
            end=self.end,
            sent_end=position,
            tokens=self.tokens[cut:],
            rows=self.rows[cut:],
            confidences=self.confidences[cut:],
            chance=self.chance,
            tail=self.tail,
            exhausted_at=self.exhausted_at,
            ended=self.ended,
        )


class Chains:
    """The chain being drafted, and older ones that may still be examined."""

    def __init__(self) -> None:
        self.current = _begun(1, 0)
        self._old: dict[int, DraftChain] = {}

    def settle(
        self, output: Sequence[int], frontier: int, *, highest: int = 0, resend: bool = False
    ) -> None:
        """Keep the chain while it agrees with what is committed, else begin a new one.

        What was sent must connect to what is sent next. Where it no longer does, because
        the frontier passed it or it may be lost, the rest goes on as a chain of its own.

        Args:
            output: committed output tokens, up to the frontier.
            frontier: where what is not committed begins.
            highest: no new chain may have this id or a lower one.
            resend: what was sent may be lost.
        """
        chain = self.current
        overlap = frontier - chain.start
        whole = overlap <= len(output)  # it does not begin within the prompt
        committed = output[len(output) - overlap :] if whole else ()
        alive = whole and chain.end >= frontier and chain.tokens[:overlap] == list(committed)
        sent = chain.sent_end > chain.start
        if alive and not (sent and (resend or chain.sent_end < frontier)):
            return
        if sent:
            self._old[chain.id] = chain
        for id_ in [id_ for id_, old in self._old.items() if old.end <= frontier]:
            del self._old[id_]
        fresh = max(chain.id, highest) + 1
        self.current = chain.rest(fresh, frontier) if alive else _begun(fresh, frontier)

    def abandon(self, frontier: int) -> None:
        """Begin anew at the frontier: the cloud could not connect what was sent."""
        chain = self.current
        if chain.sent_end > chain.start:
            self._old[chain.id] = chain
        self.current = _begun(chain.id + 1, frontier)

    def accepted(self, verdict: pb.Verdict) -> list[int]:
        """The draft tokens that a verdict commits.

        Raises:
            ProtocolError: it speaks of a chain or of tokens that were never sent.
        """
        if verdict.accepted > verdict.examined:
            raise ProtocolError(
                f"verdict {verdict.number} accepts {verdict.accepted} tokens "
                f"of {verdict.examined} examined"
            )
        if not verdict.accepted:
            return []
        chain = self.current
        if verdict.chain != chain.id:
            found = self._old.get(verdict.chain)
            if found is None:
                raise ProtocolError(
                    f"verdict {verdict.number} accepts unknown chain {verdict.chain}"
                )
            chain = found
        offset = verdict.start - chain.start
        tokens = chain.tokens[offset : offset + verdict.accepted]
        if offset < 0 or len(tokens) != verdict.accepted:
            raise ProtocolError(
                f"verdict {verdict.number} accepts {verdict.accepted} tokens of chain {chain.id} "
                f"from {verdict.start}, which spans {chain.start} … {chain.end}"
            )
        return tokens


def _begun(id_: int, position: int) -> DraftChain:
    """A chain without any token."""
    return DraftChain(id_, id_, start=position, root=position, end=position, sent_end=position)
