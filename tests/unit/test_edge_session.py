"""The edge's end of a session, frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

from specwire.committed import Origin
from specwire.drafting import Drafting, DraftWanted
from specwire.edge_session import EdgeSession
from specwire.errors import ProtocolError
from specwire.qrow import point_row
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb

WAIT, RUN_AHEAD = pb.PACING_WAIT, pb.PACING_RUN_AHEAD
END = 9


def opened(frontier: int = 2, **fields: Any) -> pb.Opened:
    """The cloud's answer to an Open of two prompt tokens."""
    values = {"session_id": b"id", "seed": 5, "prompt_length": 2, "max_frontier": 22, **fields}
    frame = pb.Opened(frontier=frontier, **values)
    if not frame.HasField("committed"):
        frame.committed.start = frontier
    return frame


def edge_of(drafting: Drafting, *, is_open: bool = True, **fields: Any) -> EdgeSession:
    request = {"prompt": (0, 1), "seed": 5, "max_tokens": 20, **fields}
    edge = EdgeSession(SessionRequest(**request), drafting, end_ids=frozenset({END}))
    if is_open:
        assert edge.on_opened(opened()) == []
    return edge


def feed(edge: EdgeSession, *tokens: int) -> None:
    """Draft these tokens, each where it is wanted."""
    for token in tokens:
        wanted = edge.draft_wanted()
        assert wanted is not None
        assert edge.add_draft(wanted.chain, token, point_row(token))


def sent(edge: EdgeSession) -> list[tuple[int, list[int], bool]]:
    """Start, tokens and `continues` of everything that is due now."""
    frames = []
    while (proposal := edge.next_proposal()) is not None:
        frames.append((proposal.start, list(proposal.tokens), proposal.continues))
    return frames


def verdict(edge: EdgeSession, accepted: int, token: int | None, **fields: Any) -> list[int]:
    """A verdict on the current chain at the frontier; the ids it commits."""
    values = {"number": 1, "start": edge.frontier, "chain": edge._chains.current.id, **fields}
    frame = pb.Verdict(examined=accepted, accepted=accepted, **values)
    if token is not None:
        frame.token = token
    return [item.id for item in edge.on_verdict(frame)]


SYNC = Drafting(3, window=3)
PIPELINE = Drafting(2, pipeline=True, window=5)


# ── drafting and sending ─────────────────────────────────────────────────────────────


def test_nothing_happens_before_the_session_is_open() -> None:
    edge = edge_of(SYNC, is_open=False)
    assert not edge.opened and edge.draft_wanted() is None and edge.next_proposal() is None
    edge.on_opened(opened())
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 3)


def test_synchronous_rounds() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4)
    assert sent(edge) == [] and edge.draft_wanted() == DraftWanted(edge._chains.current.id, 4, 1)
    feed(edge, 5)
    assert sent(edge) == [(2, [3, 4, 5], False)]
    assert edge.waiting and edge.draft_wanted() is None
    chain = edge._chains.current.id
    assert verdict(edge, 1, 7) == [3, 7]
    assert edge.draft_wanted() == DraftWanted(chain + 1, 4, 3)
    assert sent(edge) == [] and list(edge.output) == [3, 7]


def test_pipelined_rounds_go_on_while_waiting() -> None:
    edge = edge_of(PIPELINE)
    feed(edge, 3, 4)
    assert sent(edge) == [(2, [3, 4], True)]
    feed(edge, 5, 6)
    assert sent(edge) == [(4, [5, 6], True)]
    feed(edge, 7)
    assert edge.draft_wanted() is None  # the window is full
    assert sent(edge) == [(6, [7], False)]
    # Full acceptance, bonus held back: the chain goes on.
    assert verdict(edge, 2, None) == [3, 4]
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 7, 2)
    assert edge.prefix(7) == [0, 1, 3, 4, 5, 6, 7]


def test_a_promise_is_made_only_if_more_is_drafted_without_a_verdict() -> None:
    assert sent_after(Drafting(2, window=2), 3, 4) == [(2, [3, 4], False)]
    assert sent_after(Drafting(2, pipeline=True, window=2), 3, 4) == [(2, [3, 4], False)]
    assert sent_after(Drafting(2, pipeline=True, window=3), 3, 4) == [(2, [3, 4], True)]


def sent_after(drafting: Drafting, *tokens: int) -> list[tuple[int, list[int], bool]]:
    edge = edge_of(drafting)
    feed(edge, *tokens)
    return sent(edge)


def test_tokens_of_a_replaced_chain_are_not_taken() -> None:
    edge = edge_of(SYNC)
    wanted = edge.draft_wanted()
    assert wanted is not None
    verdict(edge, 0, 7, chain=0)
    assert not edge.add_draft(wanted.chain, 3, point_row(3))
    assert edge.prefix(10) == [0, 1, 7]


def test_a_run_ahead_token_that_agrees_keeps_the_chain() -> None:
    edge = edge_of(SYNC, pacing=RUN_AHEAD)
    feed(edge, 3, 4)
    chain = edge._chains.current.id
    assert verdict(edge, 0, 3, chain=0, kind=pb.TOKEN_KIND_RUN_AHEAD) == [3]
    assert edge.draft_wanted() == DraftWanted(chain, 4, 2)
    feed(edge, 5, 6)
    assert sent(edge) == [(3, [4, 5, 6], False)]


def test_a_run_ahead_token_that_differs_ends_the_chain() -> None:
    edge = edge_of(SYNC, pacing=RUN_AHEAD)
    feed(edge, 3, 4)
    chain = edge._chains.current.id
    verdict(edge, 0, 8, chain=0)
    assert edge.draft_wanted() == DraftWanted(chain + 1, 3, 3)


def test_what_the_frontier_passed_unsent_is_not_expected_by_the_cloud() -> None:
    """Where sent and unsent parts no longer connect, the rest is a chain of its own."""
    edge = edge_of(PIPELINE, pacing=RUN_AHEAD)
    feed(edge, 3, 4)
    sent(edge)
    feed(edge, 5)
    first = edge._chains.current.id
    verdict(edge, 2, 5)  # bonus = the next draft token, which was not sent yet
    feed(edge, 6)
    feed(edge, 7)
    proposal = edge.next_proposal()
    assert proposal is not None
    assert (proposal.start, list(proposal.tokens)) == (5, [6, 7])
    assert proposal.chain == first or proposal.chain == first + 1


def test_a_token_without_its_q_is_refused_before_anything_is_sent() -> None:
    edge = edge_of(SYNC)
    wanted = edge.draft_wanted()
    assert wanted is not None
    with pytest.raises(ValueError, match="draft token 3 has no q"):
        edge.add_draft(wanted.chain, 3, None)
    assert edge.draft_wanted() == wanted


def test_coupled_proposals_carry_no_q() -> None:
    edge = edge_of(SYNC, mode=pb.VERIFICATION_MODE_COUPLED)
    for token in (3, 4, 5):
        wanted = edge.draft_wanted()
        assert wanted is not None
        edge.add_draft(wanted.chain, token, None)
    proposal = edge.next_proposal()
    assert proposal is not None and proposal.WhichOneof("q") is None


def test_gamma_is_never_exceeded() -> None:
    edge = edge_of(Drafting(2, pipeline=True, window=5))
    for token in (3, 4, 5, 6, 7):
        wanted = edge.draft_wanted()
        assert wanted is not None
        edge.add_draft(wanted.chain, token, point_row(token))
    assert sent(edge) == [(2, [3, 4], False), (4, [5, 6], False), (6, [7], False)]


@pytest.mark.parametrize(
    ("gamma", "pipeline", "window"), [(-1, False, 3), (4, True, 3), (0, True, 0)]
)
def test_draftings_that_make_no_sense_are_refused(gamma: int, pipeline: bool, window: int) -> None:
    with pytest.raises(ValueError, match=r"gamma|window"):
        Drafting(gamma, pipeline=pipeline, window=window)


# ── asking ───────────────────────────────────────────────────────────────────────────


def test_without_drafts_it_asks_for_each_token() -> None:
    edge = edge_of(Drafting(0, window=1))
    for position, token in enumerate((3, 4), start=2):
        assert edge.draft_wanted() is None
        assert sent(edge) == [(position, [], False)]
        assert edge.waiting
        assert verdict(edge, 0, token, chain=0) == [token]


def test_without_drafts_it_asks_for_nothing_where_the_cloud_runs_ahead() -> None:
    edge = edge_of(Drafting(0, window=1), pacing=RUN_AHEAD)
    assert sent(edge) == [] and not edge.waiting


@pytest.mark.parametrize("drafting", [SYNC, PIPELINE], ids=["sync", "pipeline"])
def test_a_draft_with_nothing_to_say_sends_what_there_is_and_then_asks(
    drafting: Drafting,
) -> None:
    edge = edge_of(drafting)
    feed(edge, 3)
    edge.draft_exhausted(edge._chains.current.drafted_as)
    assert edge.draft_wanted() is None
    assert sent(edge) == [(2, [3], False)]
    assert sent(edge) == []
    verdict(edge, 1, None)
    assert sent(edge) == [(3, [], False)]
    verdict(edge, 0, 4, chain=0)
    assert edge.draft_wanted() is not None  # at the next position it is asked anew


def test_a_draft_that_was_exhausted_in_one_chain_is_asked_in_the_next() -> None:
    edge = edge_of(SYNC, pacing=RUN_AHEAD)
    feed(edge, 3, 4)
    edge.draft_exhausted(edge._chains.current.id)
    assert edge.draft_wanted() is None
    verdict(edge, 0, 8, chain=0)
    feed(edge, 5)
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 4, 2)


def test_k6_the_last_position_is_never_drafted() -> None:
    edge = edge_of(SYNC, is_open=False)
    edge.on_opened(opened(max_frontier=5))
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 2)
    feed(edge, 3, 4)
    assert sent(edge) == [(2, [3, 4], False)]
    verdict(edge, 2, None)
    assert edge.draft_wanted() is None
    assert sent(edge) == [(4, [], False)]


def test_a_draft_that_failed_lets_the_cloud_run_ahead() -> None:
    edge = edge_of(PIPELINE)
    feed(edge, 3)
    edge.steer(Drafting(0), RUN_AHEAD)
    proposal = edge.next_proposal()
    assert proposal is not None
    assert (proposal.pacing, list(proposal.tokens), proposal.continues) == (RUN_AHEAD, [], False)
    assert sent(edge) == [(2, [3], False)]
    assert edge.draft_wanted() is None


@pytest.mark.parametrize("at_once", [False, True])
def test_waiting_is_told_with_the_next_drafts_or_at_once(at_once: bool) -> None:
    edge = edge_of(Drafting(0), pacing=pb.PACING_RUN_AHEAD)
    edge.steer(Drafting(2), pb.PACING_WAIT, at_once=at_once)
    first = edge.next_proposal()
    assert (first is not None) == at_once
    if first is not None:
        assert (first.start, list(first.tokens), first.pacing) == (2, [], pb.PACING_WAIT)
        assert edge.next_proposal() is None
    feed(edge, 5, 6)
    drafts = edge.next_proposal()
    assert drafts is not None and list(drafts.tokens) == [5, 6]
    assert drafts.pacing == (pb.PACING_UNSPECIFIED if at_once else pb.PACING_WAIT)


def test_a_switched_pacing_is_told_again_after_a_cut() -> None:
    edge = edge_of(SYNC)
    edge.steer(Drafting(0), RUN_AHEAD)
    assert edge.next_proposal() is not None
    edge.on_opened(opened())
    proposal = edge.next_proposal()
    assert proposal is not None and proposal.pacing == RUN_AHEAD
    assert edge.next_proposal() is None


# ── end tokens ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pacing", [WAIT, RUN_AHEAD], ids=["wait", "run ahead"])
def test_the_proposal_of_an_end_token_is_filled_as_any_other(pacing: pb.Pacing) -> None:
    """It leaves when another token's would, so that its arrival tells nothing of it."""
    for drafting in (SYNC, PIPELINE):
        edge, other = edge_of(drafting, pacing=pacing), edge_of(drafting, pacing=pacing)
        for token in (END, 3, 4)[: drafting.gamma]:
            assert sent(edge) == sent(other) == []
            feed(edge, token)
            feed(other, 3)
        assert [len(tokens) for _, tokens, _ in sent(edge)] == [drafting.gamma]
        assert [len(tokens) for _, tokens, _ in sent(other)] == [drafting.gamma]


def test_nothing_is_drafted_after_the_proposal_of_an_end_token() -> None:
    edge = edge_of(PIPELINE)
    feed(edge, END, 3)
    assert sent(edge) == [(2, [END, 3], False)]
    assert edge.draft_wanted() is None
    verdict(edge, 0, 7)
    assert edge.draft_wanted() is not None


def test_what_was_under_way_when_an_end_token_was_drafted_is_no_gap_later() -> None:
    """The drafting side hears later that it need not go on, and does not draft that again."""
    edge = edge_of(Drafting(5, window=5, stop_below=0.5))
    chain = edge._chains.current.drafted_as
    for token in (3, 4, 5):
        assert edge.add_draft(chain, token, point_row(token), chance=0.7)
    assert sent(edge) == [(2, [3, 4, 5], False)]
    for token in (6, END, 7, 8):
        assert edge.add_draft(chain, token, point_row(token), chance=1.0)
    verdict(edge, 3, 6)
    wanted = edge.draft_wanted()
    assert wanted is not None
    assert (wanted.chain, wanted.start, wanted.count) == (chain, 9, 2)
    feed(edge, 3, 4)
    assert sent(edge) == [(6, [END, 7, 8, 3, 4], False)]


def test_after_an_end_token_nothing_is_sent() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, END, 4)
    sent(edge)
    assert verdict(edge, 2, None) == [3, END]
    assert sent(edge) == [] and edge.draft_wanted() is None
    finished = pb.Finished(reason=pb.FINISH_REASON_END_TOKEN, frontier=4)
    edge.on_finished(finished)
    assert edge.finished is finished
    assert not edge.add_draft(edge._chains.current.drafted_as, 3, point_row(3))


# ── verdicts ─────────────────────────────────────────────────────────────────────────


def test_tokens_are_delivered_with_position_origin_and_logprobs() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    sent(edge)
    frame = pb.Verdict(
        number=1,
        start=2,
        chain=edge._chains.current.id,
        examined=2,
        accepted=1,
        token=7,
        kind=pb.TOKEN_KIND_CORRECTION,
        logprobs=[pb.TokenLogprobs(logprob=-1), pb.TokenLogprobs(logprob=-2)],
        text=b"xy",
    )
    first, second = edge.on_verdict(frame)
    assert (first.position, first.id, first.origin, first.text) == (2, 3, Origin.ACCEPTED, None)
    assert (second.position, second.id, second.origin) == (3, 7, Origin.CORRECTION)
    assert second.text == b"xy"
    assert [t.logprobs.logprob for t in (first, second) if t.logprobs] == [-1, -2]
    assert (edge.counts.examined, edge.counts.accepted, edge.counts.alpha) == (2, 1, 0.5)
    assert edge.counts.examined_by_position == [1, 1]
    assert edge.counts.accepted_by_position == [1, 0]


@pytest.mark.parametrize(
    ("kind", "origin"),
    [(pb.TOKEN_KIND_BONUS, Origin.BONUS), (pb.TOKEN_KIND_RUN_AHEAD, Origin.RUN_AHEAD)],
)
def test_origins(kind: pb.TokenKind, origin: Origin) -> None:
    edge = edge_of(SYNC)
    (token,) = edge.on_verdict(pb.Verdict(number=1, start=2, token=3, kind=kind))
    assert token.origin == origin


def test_alpha_is_unknown_until_something_was_examined() -> None:
    assert edge_of(SYNC).counts.alpha is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 1}, "starts at 1, but the frontier here is 2"),
        ({"start": 3}, "starts at 3, but the frontier here is 2"),
        ({"start": 2, "chain": 77, "examined": 1, "accepted": 1}, "unknown chain 77"),
        ({"start": 2, "examined": 4, "accepted": 4}, "accepts 4 tokens of chain"),
        ({"start": 2, "examined": 1, "accepted": 2}, "accepts 2 tokens of 1 examined"),
    ],
)
def test_verdicts_that_do_not_fit_are_the_clouds_fault(
    fields: dict[str, Any], message: str
) -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    sent(edge)
    frame = pb.Verdict(**{"number": 1, "chain": edge._chains.current.id, **fields})
    with pytest.raises(ProtocolError, match=message):
        edge.on_verdict(frame)
    assert list(edge.output) == []


def test_log_probabilities_of_some_tokens_alone_are_the_clouds_fault() -> None:
    few = [pb.TokenLogprobs(logprob=-1)]
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    sent(edge)
    frame = pb.Verdict(
        number=1, start=2, chain=edge._chains.current.id, examined=2, accepted=2, token=7
    )
    frame.logprobs.extend(few)
    with pytest.raises(ProtocolError, match=r"3 tokens .* from 2 on, but .* for 1 alone"):
        edge.on_verdict(frame)
    committed = pb.Committed(start=2, tokens=[3, 8], logprobs=few)
    with pytest.raises(ProtocolError, match=r"2 tokens .* from 2 on, but .* for 1 alone"):
        edge.on_opened(opened(frontier=4, committed=committed))


def test_an_end_that_does_not_fit_is_the_clouds_fault() -> None:
    with pytest.raises(ProtocolError, match="ended at 7, but the frontier here is 2"):
        edge_of(SYNC).on_finished(pb.Finished(frontier=7))


# ── opening, resuming, rebuilding ────────────────────────────────────────────────────


def test_the_prompt_and_seed_may_come_from_the_cloud() -> None:
    edge = EdgeSession(SessionRequest(prompt=(), seed=0, max_tokens=5), SYNC)
    edge.on_opened(opened(prompt=pb.TokenIds(ids=[4, 6]), model="m"))
    assert (edge.request.prompt, edge.request.seed, edge.model) == ((4, 6), 5, "m")
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 3)


def test_after_a_cut_what_was_missed_is_caught_up() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    sent(edge)
    assert edge.resume_frame() == pb.Resume(protocol_version=1, session_id=b"id", frontier=2)
    news = edge.on_opened(
        opened(frontier=4, committed=pb.Committed(start=2, tokens=[3, 8], text=b"ab"))
    )
    assert [(t.position, t.id, t.origin) for t in news] == [
        (2, 3, Origin.CAUGHT_UP),
        (3, 8, Origin.CAUGHT_UP),
    ]
    assert news[-1].text == b"ab"
    wanted = edge.draft_wanted()
    assert wanted is not None and wanted.start == 4


def test_after_a_cut_what_was_sent_is_sent_again() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    first = edge.next_proposal()
    edge.on_opened(opened(highest_chain=first.chain if first else 0))
    again = edge.next_proposal()
    assert first is not None and again is not None
    assert (again.start, list(again.tokens)) == (2, [3, 4, 5])
    assert again.chain >= first.chain and again.number > first.number


def test_after_a_cut_it_asks_again() -> None:
    edge = edge_of(Drafting(0, window=1))
    assert sent(edge) == [(2, [], False)]
    edge.on_opened(opened())
    assert sent(edge) == [(2, [], False)]


def test_a_verdict_on_the_chain_of_before_the_cut_is_understood() -> None:
    """Its round was in flight when the stream broke and ends after the Resume."""
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    first = edge.next_proposal()
    assert first is not None
    edge.on_opened(opened(highest_chain=first.chain))
    sent(edge)
    assert verdict(edge, 2, 8, chain=first.chain) == [3, 4, 8]


def test_new_chains_are_above_all_that_the_cloud_knows() -> None:
    edge = edge_of(SYNC, is_open=False)
    edge.on_opened(opened(highest_chain=40))
    feed(edge, 3, 4, 5)
    proposal = edge.next_proposal()
    assert proposal is not None and proposal.chain > 40


def test_a_session_that_would_end_sooner_than_before_is_refused() -> None:
    edge = edge_of(SYNC)
    with pytest.raises(ProtocolError, match="would end at 10 now, but was opened to go on to 22"):
        edge.on_opened(opened(max_frontier=10))


def test_text_of_what_a_rebuilt_session_wrote_before_its_answer_came() -> None:
    """Text is counted from the output's beginning then, and what is known is not told again."""
    edge = edge_of(Drafting(0), pacing=RUN_AHEAD)
    edge.on_verdict(pb.Verdict(number=1, start=2, token=3, text="é".encode()))
    (news,) = edge.on_opened(
        opened(frontier=4, committed=pb.Committed(start=2, tokens=[3, 8], text="éb".encode()))
    )
    assert (news.id, news.text) == (8, b"b")
    edge.on_verdict(pb.Verdict(number=1, start=4, token=5, text=b"c"))
    (news,) = edge.on_opened(
        opened(frontier=6, committed=pb.Committed(start=5, tokens=[6], text=b"d"))
    )
    assert (news.id, news.text) == (6, b"d")


def test_rebuilding_takes_seed_prompt_and_output_along() -> None:
    edge = EdgeSession(SessionRequest(prompt=(), seed=0, max_tokens=0), SYNC)
    opening = pb.Open(protocol_version=1, text="hello", stops=["x"], open_key=b"k" * 16)
    edge.on_opened(opened(prompt=pb.TokenIds(ids=[4, 6]), max_frontier=9))
    verdict(edge, 0, 3, chain=0)
    frame = edge.rebuild_frame(opening)
    assert (list(frame.ids.ids), frame.seed) == ([4, 6], 5)
    assert (list(frame.committed.ids), frame.max_tokens, list(frame.stops)) == ([3], 7, ["x"])
    assert opening.text == "hello" and not opening.HasField("seed")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (opened(prompt_length=3), "speaks of 3 prompt tokens, but 2 are known"),
        (opened(frontier=2), "from 2 to 2, but the frontier here is 3"),
        (opened(frontier=5), "from 5 to 5, but the frontier here is 3"),
        (opened(frontier=4, committed=pb.Committed(start=2, tokens=[8, 8])), "differ from those"),
    ],
    ids=["prompt", "behind", "gap", "other tokens"],
)
def test_openings_that_do_not_fit_are_the_clouds_fault(frame: pb.Opened, message: str) -> None:
    edge = edge_of(SYNC)
    verdict(edge, 0, 3, chain=0)
    with pytest.raises(ProtocolError, match=message):
        edge.on_opened(frame)
    assert list(edge.output) == [3]


def test_a_repeated_opening_brings_only_what_is_new() -> None:
    edge = edge_of(SYNC)
    verdict(edge, 0, 3, chain=0)
    news = edge.on_opened(opened(frontier=4, committed=pb.Committed(start=2, tokens=[3, 6])))
    assert [(t.position, t.id) for t in news] == [(3, 6)]


def test_an_abandoned_chain_begins_anew_at_the_frontier() -> None:
    """What the cloud could not connect is drafted again, under a higher id."""
    edge = edge_of(Drafting(2))
    first = edge.draft_wanted()
    assert first is not None
    feed(edge, 1, 2)
    assert sent(edge) == [(2, [1, 2], False)]
    edge.abandon_chain()
    assert not edge.waiting
    again = edge.draft_wanted()
    assert again is not None
    assert again.chain > first.chain
    assert again.start == edge.frontier
    assert not edge.add_draft(first.chain, 1, point_row(1))


# ── without a link ───────────────────────────────────────────────────────────────────


def offline(drafting: Drafting, most: int = 8, gamma: int = 3) -> EdgeSession:
    edge = edge_of(drafting)
    edge.go_offline(most, gamma)
    return edge


@pytest.mark.parametrize("drafting", [SYNC, PIPELINE, Drafting(0)])
def test_offline_it_drafts_on_and_sends_all_at_once_when_the_link_is_back(
    drafting: Drafting,
) -> None:
    edge = offline(drafting)
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 8)
    feed(edge, *range(1, 9))
    assert edge.draft_wanted() is None and sent(edge) == []
    assert list(edge.drafted) == list(range(1, 9))
    edge.on_opened(opened())
    assert sent(edge) == [(2, [1, 2, 3], True), (5, [4, 5, 6], True), (8, [7, 8], False)]
    assert edge.draft_wanted() is None


def test_offline_goes_on_with_what_was_sent_before() -> None:
    edge = edge_of(SYNC)
    feed(edge, 3, 4, 5)
    assert sent(edge) == [(2, [3, 4, 5], False)]
    edge.go_offline(5, 8)
    feed(edge, 6, 7)
    assert edge.draft_wanted() is None
    # The cloud had committed one of them, and another token was lost on the way.
    committed = pb.Committed(start=2, tokens=[3])
    news = edge.on_opened(opened(frontier=3, committed=committed, highest_chain=1))
    assert [item.id for item in news] == [3]
    assert sent(edge) == [(3, [4, 5, 6, 7], False)]


def test_offline_what_no_longer_fits_is_not_sent() -> None:
    edge = offline(SYNC)
    feed(edge, 3, 4, 5)
    committed = pb.Committed(start=2, tokens=[3, 6])
    edge.on_opened(opened(frontier=4, committed=committed))
    assert sent(edge) == []
    wanted = edge.draft_wanted()
    assert wanted == DraftWanted(edge._chains.current.id, 4, 3)
    feed(edge, 1)
    assert sent(edge) == []  # a new chain is sent as ever


def test_offline_a_rejected_tail_leaves_no_trace() -> None:
    edge = offline(SYNC)
    feed(edge, *range(1, 9))
    edge.on_opened(opened())
    assert len(sent(edge)) == 3
    verdict(edge, 1, 8)
    feed(edge, 3)
    assert sent(edge) == []
    feed(edge, 4, 5)
    assert sent(edge) == [(4, [3, 4, 5], False)]


def test_offline_an_end_token_is_the_last_and_is_sent_with_the_rest() -> None:
    edge = offline(Drafting(4, pipeline=True, window=6))
    feed(edge, 3, END)
    assert edge.draft_wanted() is None
    edge.on_opened(opened())
    assert [tokens for _, tokens, _ in sent(edge)] == [[3, END]]


def test_offline_the_last_position_is_never_drafted() -> None:
    edge = edge_of(SYNC, is_open=False)
    edge.on_opened(opened(max_frontier=6))
    edge.go_offline(64, 32)
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 3)


def test_offline_is_nothing_before_the_session_is_open() -> None:
    edge = edge_of(SYNC, is_open=False)
    edge.go_offline(64, 32)
    edge.on_opened(opened())
    assert edge.draft_wanted() == DraftWanted(edge._chains.current.id, 2, 3)


def test_a_cloud_that_was_not_told_to_wait_is_not_asked() -> None:
    """The draft is still at its prompt: asking would cost a round trip for each token."""
    edge = edge_of(Drafting(2, pipeline=True, window=4), pacing=RUN_AHEAD)
    edge.steer(Drafting(2), WAIT)
    edge.draft_exhausted(edge._chains.current.drafted_as)
    assert edge.next_proposal() is None
    assert verdict(edge, 0, 3, chain=0) == [3]
    feed(edge, 4, 5)
    proposal = edge.next_proposal()
    assert proposal is not None and proposal.pacing == WAIT
    assert verdict(edge, 2, 6) == [4, 5, 6]
    edge.draft_exhausted(edge._chains.current.drafted_as)
    assert sent(edge) == [(edge.frontier, [], False)]  # now it waits, and is asked
    # After a resumption it is not known whether it heard: it is asked too.
    edge.on_opened(opened(edge.frontier))
    edge.draft_exhausted(edge._chains.current.drafted_as)
    proposal = edge.next_proposal()
    assert proposal is not None and not proposal.tokens and proposal.pacing == WAIT
