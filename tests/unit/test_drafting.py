"""How far the edge may draft at a moment: arithmetic alone."""

from __future__ import annotations

import pytest

from specwire.draft_chain import DraftChain
from specwire.drafting import Drafting, draft_room, offline_room

FRONTIER = 10
FAR = 1000


def chain(*, drafted: int, sent: int = 0, start: int = FRONTIER, **fields: object) -> DraftChain:
    """A chain of so many tokens."""
    end = start + drafted
    made = DraftChain(1, 1, start=start, root=start, end=end, sent_end=start + sent)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def room(drafting: Drafting, of: DraftChain, *, waiting: bool = False, last: int = FAR) -> int:
    return max(draft_room(drafting, of, FRONTIER, waiting=waiting, last=last), 0)


@pytest.mark.parametrize(("drafted", "wanted"), [(0, 4), (3, 1), (4, 0)])
def test_in_turn_a_proposal_is_filled(drafted: int, wanted: int) -> None:
    assert room(Drafting(4), chain(drafted=drafted)) == wanted


def test_in_turn_nothing_is_drafted_while_a_verdict_is_awaited() -> None:
    assert room(Drafting(4), chain(drafted=0), waiting=True) == 0


def test_in_turn_a_proposal_that_is_unlikely_as_a_whole_is_full() -> None:
    drafting = Drafting(4, stop_below=0.5)
    assert room(drafting, chain(drafted=2, chance=0.6)) == 2
    assert room(drafting, chain(drafted=2, chance=0.4)) == 0
    assert room(drafting, chain(drafted=0, chance=0.4)) == 4  # the first is always drafted


@pytest.mark.parametrize(
    ("drafted", "sent", "wanted"), [(0, 0, 8), (6, 4, 2), (8, 4, 0), (8, 8, 0)]
)
def test_ahead_the_window_is_filled_whatever_is_awaited(
    drafted: int, sent: int, wanted: int
) -> None:
    drafting = Drafting(2, pipeline=True, window=8)
    for waiting in (False, True):
        assert room(drafting, chain(drafted=drafted, sent=sent), waiting=waiting) == wanted


def test_what_the_frontier_has_passed_takes_no_room() -> None:
    of = chain(drafted=6, sent=2, start=FRONTIER - 4)
    assert room(Drafting(2, pipeline=True, window=8), of) == 6
    assert room(Drafting(3), of) == 1


def test_no_gamma_no_drafts() -> None:
    assert room(Drafting(0), chain(drafted=0)) == 0
    assert room(Drafting(0, pipeline=True), chain(drafted=0)) == 0


def test_a_draft_with_nothing_to_say_is_not_asked_at_that_position() -> None:
    drafting = Drafting(4)
    assert room(drafting, chain(drafted=1, exhausted_at=FRONTIER + 1)) == 0
    assert room(drafting, chain(drafted=2, exhausted_at=FRONTIER + 1)) == 2


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize(("unsent", "wanted"), [(1, 3), (3, 1), (4, 0), (5, 3)])
def test_the_proposal_of_an_end_token_is_filled_and_nothing_beyond(
    pipeline: bool, unsent: int, wanted: int
) -> None:
    if unsent > 4 and not pipeline:
        return
    of = chain(drafted=unsent, ended=True)
    assert room(Drafting(4, pipeline=pipeline, window=32), of) == wanted


def test_the_last_position_bounds_everything() -> None:
    for drafting in (Drafting(4), Drafting(4, pipeline=True, window=32)):
        assert room(drafting, chain(drafted=1), last=FRONTIER + 2) == 2
        assert room(drafting, chain(drafted=1), last=FRONTIER) == 0


def test_without_a_link_so_many_beyond_the_frontier_and_none_after_an_end() -> None:
    def offline(of: DraftChain, last: int = FAR) -> int:
        return max(offline_room(20, of, FRONTIER, last=last), 0)

    assert offline(chain(drafted=5, sent=5)) == 15
    assert offline(chain(drafted=20)) == 0
    assert offline(chain(drafted=5), last=FRONTIER + 6) == 2
    assert offline(chain(drafted=5, ended=True)) == 0
    assert offline(chain(drafted=5, exhausted_at=FRONTIER + 5)) == 0
