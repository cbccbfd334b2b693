"""The cloud's end of a session, frame by frame."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specwire.cloud_session import CloudSession, Outcome, Work
from specwire.errors import BadRequest, TargetFault, Unconnected, Unsupported
from specwire.limits import Limits
from specwire.qrow import QRow
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from tests.support.tables import table_vocabulary

WAIT, RUN_AHEAD = pb.PACING_WAIT, pb.PACING_RUN_AHEAD
A, B, C, D, END = range(5)
VOCABULARY = table_vocabulary(5, frozenset({END}))
LIMITS = Limits(context=100, gamma=4, chain=6)


def session(**fields: Any) -> CloudSession:
    """A session whose prompt is two tokens long, so its output begins at position 2."""
    request = {"prompt": (A, B), "seed": 1, "max_tokens": 20, **fields}
    return CloudSession(SessionRequest(**request), VOCABULARY, LIMITS)


def draft(start: int, *tokens: int, chain: int = 1, number: int = 1, **fields: Any) -> pb.Proposal:
    """A proposal with point q, as greedy drafts have it."""
    frame = pb.Proposal(number=number, chain=chain, start=start, tokens=tokens, **fields)
    if tokens:
        frame.point.SetInParent()
    return frame


def work_of(cloud: CloudSession) -> Work:
    work = cloud.next_work()
    assert work is not None
    return work


def run(cloud: CloudSession, accepted: int, token: int, **fields: Any) -> list[pb.CloudFrame]:
    return cloud.complete(work_of(cloud), Outcome(accepted, token, **fields))


def verdict_of(frames: list[pb.CloudFrame]) -> pb.Verdict:
    return frames[0].verdict


# ── rounds ───────────────────────────────────────────────────────────────────────────


def test_a_round_from_proposal_to_verdict() -> None:
    cloud = session()
    assert cloud.next_work() is None and not cloud.has_work()
    cloud.receive(draft(2, C, D, A))
    work = work_of(cloud)
    assert (work.start, work.chain, work.tokens) == (2, 1, (C, D, A))
    assert [row.ids.tolist() for row in work.rows] == [[C], [D], [A]]
    assert cloud.next_work() is None  # one round at a time
    frames = cloud.complete(work, Outcome(1, B, queue_us=5, forward_us=7))
    assert frames == [
        pb.CloudFrame(
            verdict=pb.Verdict(
                number=1,
                start=2,
                chain=1,
                examined=2,
                accepted=1,
                token=B,
                kind=pb.TOKEN_KIND_CORRECTION,
                queue_us=5,
                forward_us=7,
                held_us=0,
                proposal=1,
                evaluated=3,
            )
        )
    ]
    assert list(cloud.output) == [C, B] and cloud.frontier == 4
    assert not cloud.has_work()


def test_full_acceptance_gives_a_bonus() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D))
    verdict = verdict_of(run(cloud, 2, A))
    assert (verdict.examined, verdict.accepted, verdict.kind) == (2, 2, pb.TOKEN_KIND_BONUS)
    assert list(cloud.output) == [C, D, A]


def test_k3_the_first_draft_after_a_one_token_prompt_is_rejected() -> None:
    cloud = session(prompt=(A,))
    cloud.receive(draft(1, C))
    verdict = verdict_of(run(cloud, 0, D))
    assert (verdict.start, verdict.examined, verdict.accepted, verdict.token) == (1, 1, 0, D)


def test_an_ask_gives_one_token() -> None:
    cloud = session()
    cloud.receive(draft(2))
    verdict = verdict_of(run(cloud, 0, C))
    assert (verdict.kind, verdict.chain, verdict.examined) == (pb.TOKEN_KIND_RUN_AHEAD, 0, 0)
    assert not cloud.has_work()


@pytest.mark.parametrize("start", [2, 3])
def test_an_ask_that_comes_late_gives_none(start: int) -> None:
    cloud = session()
    cloud.receive(draft(2, C, D))
    run(cloud, 2, A)
    cloud.receive(draft(start, number=2))
    assert not cloud.has_work()


def test_an_ask_during_a_round_is_answered_by_it() -> None:
    cloud = session()
    cloud.receive(draft(2, C))
    work = work_of(cloud)
    cloud.receive(draft(2, number=2))
    cloud.complete(work, Outcome(1, A))
    assert not cloud.has_work()


def test_running_ahead_there_is_always_work() -> None:
    cloud = session(pacing=RUN_AHEAD)
    for token in (C, D):
        run(cloud, 0, token)
    cloud.receive(draft(2, C, D, A, B))  # agrees with what was decoded meanwhile
    work = work_of(cloud)
    assert (work.start, work.tokens) == (4, (A, B))
    assert cloud.stale == 2


def test_a_round_takes_no_more_than_gamma_and_leaves_room_for_the_own_token() -> None:
    cloud = session(max_tokens=7)
    cloud.receive(draft(2, C, D, A, B))
    cloud.receive(draft(6, C, D, number=2))
    work = work_of(cloud)
    assert work.tokens == (C, D, A, B)
    cloud.complete(work, Outcome(4, C))
    # 4 tokens are committed (the bonus was held back), 3 are left: two drafts and one own.
    work = work_of(cloud)
    assert (work.start, work.tokens) == (6, (C, D))
    frames = cloud.complete(work, Outcome(2, A))
    assert frames[1].finished.reason == pb.FINISH_REASON_LENGTH
    assert list(cloud.output) == [C, D, A, B, C, D, A]


def test_the_last_position_is_decoded_without_a_draft() -> None:
    cloud = session(max_tokens=1)
    cloud.receive(draft(2, C))
    work = work_of(cloud)
    assert (work.tokens, work.chain) == ((), 0)
    assert cloud.complete(work, Outcome(0, D))[1].finished.reason == pb.FINISH_REASON_LENGTH


def test_pacing_can_be_switched() -> None:
    cloud = session()
    cloud.receive(draft(2, pacing=RUN_AHEAD))
    run(cloud, 0, C)
    assert cloud.has_work()
    cloud.receive(draft(2, number=2, pacing=WAIT))
    assert not cloud.has_work()


# ── bonus tokens held back ───────────────────────────────────────────────────────────


def test_a_promise_holds_the_bonus_back() -> None:
    cloud = session()
    cloud.receive(draft(2, C, continues=True))
    verdict = verdict_of(run(cloud, 1, A))
    assert (verdict.accepted, verdict.HasField("token")) == (1, False)
    assert list(cloud.output) == [C] and not cloud.has_work()
    cloud.receive(draft(3, D, number=2))
    assert verdict_of(run(cloud, 1, A)).token == A


def test_a_promise_can_be_taken_back_by_asking() -> None:
    cloud = session()
    cloud.receive(draft(2, C, continues=True))
    run(cloud, 1, A)
    cloud.receive(draft(3, number=2))
    assert verdict_of(run(cloud, 0, B)).token == B
    assert list(cloud.output) == [C, B]


@pytest.mark.parametrize(
    "fields",
    [
        {"pacing": RUN_AHEAD},
        {"mode": pb.VERIFICATION_MODE_COUPLED},
        {"sampling": SamplingParams(temperature=0)},
        {"max_tokens": 2},
    ],
    ids=["running ahead", "coupled", "greedy", "the end is near"],
)
def test_a_promise_holds_nothing_back_where_that_gains_nothing(fields: dict[str, Any]) -> None:
    cloud = session(**fields)
    proposal = draft(2, C, continues=True)
    if cloud.request.mode == pb.VERIFICATION_MODE_COUPLED:
        proposal.ClearField("point")
    cloud.receive(proposal)
    assert verdict_of(run(cloud, 1, A)).token == A


def test_a_promise_taken_back_during_the_round_counts() -> None:
    cloud = session()
    cloud.receive(draft(2, C, continues=True))
    work = work_of(cloud)
    cloud.receive(draft(3, number=2))
    assert verdict_of(cloud.complete(work, Outcome(1, A))).token == A


def test_nothing_is_held_back_for_drafts_that_were_left_out_of_the_round() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D, A, continues=True))
    assert cloud.drafts_at_hand == 3
    work = cloud.next_work(1)
    assert work is not None and work.tokens == (C,)
    assert verdict_of(cloud.complete(work, Outcome(1, D))).token == D
    # What the target drew is what was drafted: the rest is still to be examined.
    assert cloud.drafts_at_hand == 1
    assert work_of(cloud).tokens == (A,)


def test_a_verdict_tells_once_how_long_a_proposal_was_here() -> None:
    cloud = session(pacing=RUN_AHEAD)
    cloud.receive(draft(2, C), 10.0)
    work = work_of(cloud)
    cloud.receive(draft(3, D, number=2), 10.5)
    verdict = verdict_of(cloud.complete(work, Outcome(1, A), 11.25))
    assert (verdict.proposal, verdict.held_us) == (2, 750_000)
    work = work_of(cloud)
    assert not verdict_of(cloud.complete(work, Outcome(0, B), 12.0)).HasField("held_us")
    cloud.receive(draft(2, C, number=1), 12.5)  # again
    work = work_of(cloud)
    assert not verdict_of(cloud.complete(work, Outcome(0, B), 13.0)).HasField("held_us")


def test_a_rejection_is_never_held_back() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D, continues=True))
    assert verdict_of(run(cloud, 1, A)).token == A


def test_what_arrived_during_the_round_holds_the_bonus_back_too() -> None:
    cloud = session(pacing=RUN_AHEAD)
    cloud.receive(draft(2, C))
    work = work_of(cloud)
    cloud.receive(draft(3, D, number=2))
    assert not verdict_of(cloud.complete(work, Outcome(1, A))).HasField("token")
    assert work_of(cloud).tokens == (D,)


# ── chains ───────────────────────────────────────────────────────────────────────────


def test_a_chain_is_extended_repeated_and_overlapped() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D))
    cloud.receive(draft(2, C, D, number=2))
    cloud.receive(draft(3, D, A, number=3))
    cloud.receive(draft(2, C, number=4))
    assert work_of(cloud).tokens == (C, D, A)
    assert cloud.stale == 0


def test_a_repeat_of_what_is_committed_changes_nothing() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D, continues=True))
    run(cloud, 2, A)
    cloud.receive(draft(2, C, D, number=1, continues=True))
    assert not cloud.has_work() and list(cloud.output) == [C, D]


def test_a_higher_chain_replaces_and_a_lower_one_is_ignored() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D))
    cloud.receive(draft(2, A, chain=3, number=2))
    cloud.receive(draft(2, B, chain=2, number=3))
    assert work_of(cloud).tokens == (A,)
    assert cloud.stale == 3


def test_a_dead_chain_stays_dead() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D, A))
    run(cloud, 1, B)
    cloud.receive(draft(5, A, number=2))
    assert not cloud.has_work()
    assert cloud.stale == 2  # the third token of the chain, and the late one
    cloud.receive(draft(4, A, number=3, chain=2))
    assert work_of(cloud).tokens == (A,)


def test_a_late_chain_that_differs_is_dropped() -> None:
    cloud = session(pacing=RUN_AHEAD)
    run(cloud, 0, C)
    cloud.receive(draft(2, D, A))
    assert work_of(cloud).tokens == ()
    assert cloud.stale == 2


def test_a_chain_that_the_frontier_passed_goes_on_where_it_agrees() -> None:
    """Its continuation is late, not lost: the part before the frontier is compared."""
    cloud = session(pacing=RUN_AHEAD)
    cloud.receive(draft(2, C))
    run(cloud, 1, D)
    run(cloud, 0, A)
    cloud.receive(draft(3, D, A, B, number=2))
    work = work_of(cloud)
    assert (work.start, work.tokens) == (5, (B,))


def test_a_chain_that_the_frontier_passed_may_go_on_at_the_frontier() -> None:
    cloud = session(pacing=RUN_AHEAD)
    cloud.receive(draft(2, C))
    run(cloud, 1, D)
    run(cloud, 0, A)
    cloud.receive(draft(5, B, number=2))
    assert work_of(cloud).tokens == (B,)


def test_a_chain_replaced_during_its_round_is_examined_once() -> None:
    """What a resumed edge does: the same tokens again under a new id."""
    cloud = session()
    cloud.receive(draft(2, C, D))
    work = work_of(cloud)
    cloud.receive(draft(2, C, D, A, chain=2, number=2))
    verdict = verdict_of(cloud.complete(work, Outcome(2, A)))
    assert (verdict.chain, verdict.accepted, verdict.token) == (1, 2, A)
    assert list(cloud.output) == [C, D, A] and not cloud.has_work()
    assert cloud.stale == 3
    assert cloud.usage().examined == 2


# ── refused proposals ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("proposal", "error", "message"),
    [
        (draft(2, C, number=0), BadRequest, "number counts from 1"),
        (draft(2, C, chain=0), BadRequest, "chain counts from 1"),
        (draft(2, *[C] * 5), BadRequest, r"5 draft tokens; the limit \(gamma\) is 4"),
        (draft(2, C, pacing=9), BadRequest, "pacing 9 is unknown"),
        (draft(2, C, parents=[0]), Unsupported, "draft trees"),
        (draft(2, 5), BadRequest, "token id 5 at index 0"),
        (draft(1, C), Unconnected, "position 1, inside the prompt of 2 tokens"),
        (draft(4, C), Unconnected, "starts at position 4, .* frontier 3"),
        (draft(5), Unconnected, "starts at position 5"),
    ],
    ids=["number", "chain", "gamma", "pacing", "parents", "id", "prompt", "gap", "ask in a gap"],
)
def test_what_can_not_be_taken_is_refused_and_changes_nothing(
    proposal: pb.Proposal, error: type[Exception], message: str
) -> None:
    cloud = session()
    cloud.receive(draft(2))
    run(cloud, 0, C)
    before = repr(vars(cloud))
    with pytest.raises(error, match=message) as caught:
        cloud.receive(proposal)
    assert repr(vars(cloud)) == before
    if error is Unconnected:
        assert caught.value.frontier == cloud.frontier == 3  # type: ignore[attr-defined]


def test_a_gap_in_a_chain_is_refused_with_the_frontier() -> None:
    cloud = session()
    cloud.receive(draft(2, C))
    for proposal in (draft(4, D, number=2), draft(4, number=2), draft(4, D, number=2, chain=2)):
        with pytest.raises(Unconnected, match="frontier 2") as caught:
            cloud.receive(proposal)
        assert caught.value.frontier == 2
    assert work_of(cloud).tokens == (C,)


@pytest.mark.parametrize("start", [2, 3])
def test_a_repeat_with_other_tokens_is_refused(start: int) -> None:
    """What was drawn can't change, committed already or not."""
    cloud = session()
    cloud.receive(draft(2, C, D, A))
    work = work_of(cloud)
    cloud.complete(work, Outcome(3, A))
    cloud.receive(draft(6, B, number=2, chain=2))
    cloud.receive(draft(7, B, number=3, chain=2))
    before = repr(vars(cloud))
    with pytest.raises(BadRequest, match="chain 2 was sent again with other tokens"):
        cloud.receive(draft(start + 4, C, A, number=4, chain=2))
    assert repr(vars(cloud)) == before
    assert work_of(cloud).tokens == (B, B)


@pytest.mark.parametrize("chain", [1, 2])
def test_d6_no_more_may_wait_than_the_limit(chain: int) -> None:
    cloud = CloudSession(
        SessionRequest(prompt=(A, B), seed=1, max_tokens=50),
        VOCABULARY,
        Limits(context=100, gamma=8, chain=6),
    )
    cloud.receive(draft(2, *[C] * 4))
    before = repr(vars(cloud))
    refused = draft(6, C, C, C, number=2) if chain == 1 else draft(2, *[C] * 7, number=2, chain=2)
    with pytest.raises(BadRequest, match=r"7 draft tokens of chain .* the limit \(chain\) is 6"):
        cloud.receive(refused)
    assert repr(vars(cloud)) == before
    cloud.receive(draft(6, C, C, number=2))
    assert len(work_of(cloud).tokens) == 6


def test_d6_wrong_drafts_round_after_round_cost_one_token_each() -> None:
    cloud = session(max_tokens=30)
    for i in range(20):
        cloud.receive(draft(cloud.frontier, D, D, chain=i + 1, number=i + 1))
        assert run(cloud, 0, C)[0].verdict.examined == 1
    assert list(cloud.output) == [C] * 20
    assert (cloud.usage().examined, cloud.usage().accepted, cloud.stale) == (20, 0, 20)


# ── faults of the target ─────────────────────────────────────────────────────────────


def test_an_unusable_distribution_commits_nothing() -> None:
    cloud = session()
    cloud.receive(draft(2, C, D))
    with pytest.raises(TargetFault, match="position 3") as caught:
        run(cloud, 1, -1)
    assert caught.value.frontier == cloud.frontier == 2
    assert work_of(cloud).tokens == (C, D)  # the round can be tried again


def test_abandoned_work_is_done_again() -> None:
    cloud = session()
    cloud.receive(draft(2))
    work_of(cloud)
    cloud.abandon_work()
    work = work_of(cloud)
    with pytest.raises(ValueError, match="not the one in flight"):
        cloud.complete(Work(2, 0, (), ()), Outcome(0, A))
    cloud.complete(work, Outcome(0, A))
    assert list(cloud.output) == [A]


# ── the end ──────────────────────────────────────────────────────────────────────────


def test_an_end_token_inside_the_accepted_drafts_ends_there() -> None:
    cloud = session(logprobs=0, return_text=True)
    cloud.receive(draft(2, C, END, D))
    logprobs = [pb.TokenLogprobs(logprob=-float(i)) for i in range(4)]
    frames = run(cloud, 3, A, logprobs=logprobs)
    verdict, finished = frames[0].verdict, frames[1].finished
    assert (verdict.examined, verdict.accepted, verdict.HasField("token")) == (2, 2, False)
    assert [entry.logprob for entry in verdict.logprobs] == [0.0, -1.0]
    assert verdict.text == b"ce"
    assert finished.reason == pb.FINISH_REASON_END_TOKEN
    assert (finished.frontier, finished.usage.output_tokens) == (4, 2)
    assert (finished.usage.examined, finished.usage.accepted, finished.usage.rounds) == (2, 2, 1)
    assert list(cloud.output) == [C, END] and cloud.ended


def test_an_end_token_of_the_targets_own_ends_too() -> None:
    cloud = session()
    cloud.receive(draft(2, C))
    frames = run(cloud, 0, END)
    assert frames[0].verdict.token == END
    assert frames[1].finished.reason == pb.FINISH_REASON_END_TOKEN


@pytest.mark.parametrize(
    ("stops", "output", "index"),
    [(("dc",), [C, D, C], 0), (("zz", "ad"), [C, D, C, A, D], 1), (("cd", "d"), [C, D], 0)],
)
def test_t2_a_stop_string_ends_at_the_token_that_completes_it(
    stops: tuple[str, ...], output: list[int], index: int
) -> None:
    """Ids, logprobs and usage hold nothing after it."""
    cloud = session(stops=stops, logprobs=0)
    cloud.receive(draft(2, C, D, C, A))
    logprobs = [pb.TokenLogprobs(logprob=float(i)) for i in range(5)]
    frames = run(cloud, 4, D, logprobs=logprobs)
    assert list(cloud.output) == output
    assert frames[1].finished.reason == pb.FINISH_REASON_STOP_STRING
    assert frames[1].finished.stop_index == index
    assert frames[1].finished.usage.output_tokens == len(output)
    assert len(frames[0].verdict.logprobs) == len(output)
    assert len(cloud.committed_from(2).logprobs) == len(output)


def test_after_the_end_proposals_are_checked_and_ignored() -> None:
    cloud = session(max_tokens=1)
    cloud.receive(draft(2))
    run(cloud, 0, C)
    cloud.receive(draft(3, D, number=2, pacing=RUN_AHEAD))
    assert cloud.stale == 1 and cloud.next_work() is None and not cloud.has_work()
    with pytest.raises(BadRequest):
        cloud.receive(draft(3, 7, number=3))


def test_closing_ends_where_it_stands_once() -> None:
    cloud = session()
    cloud.receive(draft(2, C))
    work = work_of(cloud)
    cloud.close()
    assert cloud.finished is not None and cloud.finished.reason == pb.FINISH_REASON_CLOSED
    with pytest.raises(ValueError, match="not the one in flight"):
        cloud.complete(work, Outcome(1, A))
    first = cloud.finished
    cloud.close()
    assert cloud.finished is first and list(cloud.output) == []


# ── opening, resuming, rebuilding ────────────────────────────────────────────────────


def test_opened_tells_what_an_edge_needs() -> None:
    cloud = session(committed=(C, D), return_text=True, logprobs=0)
    opened = cloud.opened(b"id", "model", with_prompt=True)
    assert (opened.session_id, opened.seed, opened.model) == (b"id", 1, "model")
    assert (opened.prompt_length, opened.frontier, opened.max_frontier) == (2, 4, 22)
    assert list(opened.prompt.ids) == [A, B]
    assert (opened.committed.start, list(opened.committed.tokens)) == (2, [C, D])
    assert opened.committed.text == b"cd"
    assert all(math.isnan(entry.logprob) for entry in opened.committed.logprobs)
    assert not cloud.opened(b"id", "model", with_prompt=False).HasField("prompt")


def test_resumed_brings_what_the_edge_lacks() -> None:
    cloud = session(logprobs=0)
    cloud.receive(draft(2, C, D))
    run(cloud, 2, A, logprobs=[pb.TokenLogprobs(logprob=float(i)) for i in range(3)])
    opened = cloud.resumed(3, b"id", "model")
    assert (opened.committed.start, list(opened.committed.tokens)) == (3, [D, A])
    assert [entry.logprob for entry in opened.committed.logprobs] == [1.0, 2.0]
    assert (opened.verdict, opened.highest_chain, opened.frontier) == (1, 1, 5)
    assert list(cloud.resumed(5, b"id", "model").committed.tokens) == []


@pytest.mark.parametrize("frontier", [0, 1, 4, 99])
def test_a_frontier_of_another_session_is_refused(frontier: int) -> None:
    cloud = session()
    cloud.receive(draft(2))
    run(cloud, 0, C)
    with pytest.raises(BadRequest, match=f"frontier {frontier} .* 2 … 3") as caught:
        cloud.resumed(frontier, b"id", "model")
    assert caught.value.frontier == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"committed": (C, END)}, pb.FINISH_REASON_END_TOKEN),
        ({"committed": (C, D), "stops": ("cd",)}, pb.FINISH_REASON_STOP_STRING),
        ({"committed": (C, D), "max_tokens": 2}, pb.FINISH_REASON_LENGTH),
    ],
)
def test_a_session_rebuilt_after_its_end_has_ended(
    fields: dict[str, Any], reason: pb.FinishReason
) -> None:
    """The last frame can be lost, and the server with it: the edge still learns the reason."""
    cloud = session(**fields)
    assert cloud.finished is not None and cloud.finished.reason == reason
    assert cloud.finished.frontier == cloud.frontier == 4
    assert cloud.finished.usage.output_tokens == 2
    assert cloud.next_work() is None


@pytest.mark.parametrize(
    "fields", [{"committed": (END, C)}, {"committed": (C, D, A), "stops": ("cd",)}]
)
def test_committed_tokens_beyond_the_end_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="the text ends at committed token"):
        session(**fields)


def test_a_stop_string_may_begin_in_what_was_committed_elsewhere() -> None:
    cloud = session(committed=(C,), stops=("cd",))
    cloud.receive(draft(3, D, A))
    frames = run(cloud, 2, A)
    assert frames[1].finished.reason == pb.FINISH_REASON_STOP_STRING
    assert list(cloud.output) == [C, D]


def test_committed_positions() -> None:
    cloud = session(committed=(C, D, A))
    assert cloud.committed(0, 5) == [A, B, C, D, A]
    assert cloud.committed(1, 3) == [B, C]
    assert cloud.committed(4, 4) == cloud.committed(4, 3) == []


def test_usage_is_a_copy() -> None:
    cloud = session()
    cloud.note_shared_prompt(1)
    usage = cloud.usage()
    usage.rounds = 99
    assert (cloud.usage().rounds, cloud.usage().cached_prompt_tokens) == (0, 1)
    assert cloud.usage().prompt_tokens == 2


def test_sparse_rows_reach_the_round_as_they_were_sent() -> None:
    cloud = session()
    cloud.receive(
        pb.Proposal(
            number=1,
            chain=1,
            start=2,
            tokens=[C],
            sparse=pb.SparseQ(weight_bits=2, rows=bytes([1, A, 1])),
        )
    )
    row: QRow = work_of(cloud).rows[0]
    assert (row.ids.tolist(), row.probs.tolist()) == ([A, C], [0.25, 0.75])
