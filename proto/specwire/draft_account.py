"""What became of a session's drafts, as the edge saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwire.draft_chain import DraftChain


@dataclass
class Counts:
    """What happened to the drafts of a session."""

    rounds: int = 0
    proposals: int = 0
    proposed: int = 0
    examined: int = 0
    accepted: int = 0
    examined_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)

    def add_round(self, examined: int, accepted: int) -> None:
        """Count a verdict; position i is the i-th draft token that a round examined."""
        self.rounds += 1
        self.examined += examined
        self.accepted += accepted
        while len(self.examined_by_position) < examined:
            self.examined_by_position.append(0)
            self.accepted_by_position.append(0)
        for i in range(examined):
            self.examined_by_position[i] += 1
        for i in range(accepted):
            self.accepted_by_position[i] += 1

    @property
    def alpha(self) -> float | None:
        """Accepted over examined draft tokens; None if none was examined."""
        return self.accepted / self.examined if self.examined else None


class Comparison(NamedTuple):
    """A draft token whose position was decided, those before it in its chain having been right.

    position: of the token in the output, from 0. place: in its chain, from 0. confidence: as
    `add_draft` was told. agreed: whether it was committed.
    """

    position: int
    place: int
    confidence: float
    agreed: bool


def compare(
    chain: DraftChain, output: Sequence[int], prompt: int, start: int, stop: int
) -> list[Comparison]:
    """What became of the chain's tokens at the positions start … stop−1, all of them committed.

    Up to the first that was not right: what follows it says nothing.

    Args:
        chain: as it was drafted.
        output: committed output tokens.
        prompt: tokens before them.
        start: the first position that was decided.
        stop: the position after the last.
    """
    found = []
    for position in range(max(start, chain.start), min(stop, chain.end)):
        index = position - chain.start
        agreed = output[position - prompt] == chain.tokens[index]
        place, confidence = position - chain.root, chain.confidences[index]
        found.append(Comparison(position - prompt, place, confidence, agreed))
        if not agreed:
            break
    return found
