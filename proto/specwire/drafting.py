"""How the edge drafts and sends, and how far that lets it draft at a moment."""

from __future__ import annotations

from dataclasses import dataclass

from specwire.draft_chain import DraftChain


@dataclass(frozen=True)
class Drafting:
    """How the edge drafts and sends.

    gamma: most draft tokens in a proposal; 0 asks for one target token at a time.
    pipeline: go on drafting and sending while a verdict is awaited. Without it
        one proposal is sent, and drafting pauses until its verdict is here.
    window: most draft tokens beyond the frontier, with `pipeline`.
    stop_below: without `pipeline`, a proposal is sent before it is full once the chance
        that all of it is accepted has sunk below this.
    """

    gamma: int
    pipeline: bool = False
    window: int = 32
    stop_below: float = 0.0

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ValueError(f"gamma must be 0 or more, not {self.gamma}")
        if self.window < max(self.gamma, 1):
            raise ValueError(f"window {self.window} is smaller than gamma {self.gamma}")


@dataclass(slots=True)
class DraftWanted:
    """Draft up to `count` tokens of `chain` from position `start` on."""

    chain: int
    start: int
    count: int


def draft_room(
    drafting: Drafting, chain: DraftChain, frontier: int, *, waiting: bool, last: int
) -> int:
    """How many more tokens of a chain to draft now; 0 or less for none.

    Args:
        drafting: how to draft.
        chain: what is drafted so far.
        frontier: committed tokens.
        waiting: something sent is not decided yet; tells nothing with `pipeline`.
        last: the last position that a draft token may have.
    """
    end = chain.end
    if end == chain.exhausted_at:
        return 0
    sent_end = chain.sent_end
    unsent = end - (sent_end if sent_end > frontier else frontier)
    if drafting.pipeline:
        room = drafting.window - (end - frontier) if drafting.gamma else 0
    elif waiting or (unsent and chain.chance < drafting.stop_below):
        return 0
    else:
        room = drafting.gamma - unsent
    if chain.ended:
        # Nothing follows an end token, but the proposal it is in is filled as any other:
        # sent sooner, it would overtake the cloud's own token more often than another
        # token drawn there, and the text would end too early.
        room = min(room, -unsent % max(drafting.gamma, 1))
    most = last + 1 - end
    return room if room < most else most


def offline_room(most: int, chain: DraftChain, frontier: int, *, last: int) -> int:
    """As `draft_room`, while there is no link: up to `most` beyond the frontier."""
    if chain.ended or chain.end == chain.exhausted_at:
        return 0
    return min(most - (chain.end - frontier), last + 1 - chain.end)
