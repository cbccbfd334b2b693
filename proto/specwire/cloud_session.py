"""The cloud's end of a session, as a state machine without input or output.

Proposals go in with `receive`; `next_work` says what to examine; the outcome of
the target forward goes in with `complete`, and frames come out. No clock, no
socket, no model: the service, the simulator and the tests drive the same object.

What makes it lossless: a position is decided exactly once, in `complete`, and
the draft token examined there was drawn from the q that came with it, given
exactly the tokens that are committed before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwire.codec import decode_q
from specwire.errors import BadRequest, SpecwireError, TargetFault, Unconnected, Unsupported
from specwire.limits import Limits
from specwire.qrow import QRow
from specwire.request import SessionRequest
from specwire.text import StopMatcher
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

_PACINGS = frozenset((pb.PACING_UNSPECIFIED, pb.PACING_WAIT, pb.PACING_RUN_AHEAD))


class Work(NamedTuple):
    """Examine this: draft tokens after the frontier, possibly none.

    start: the frontier. tokens: n draft tokens. rows: their q, empty in coupled mode.
    """

    start: int
    chain: int
    tokens: tuple[int, ...]
    rows: tuple[QRow, ...]


class Outcome(NamedTuple):
    """What the target says about a `Work`.

    accepted: 0 … n. token: the target's own after them. logprobs: one for each
    accepted token and the target's own, if the session wants them.
    """

    accepted: int
    token: int
    logprobs: Sequence[pb.TokenLogprobs] = ()
    queue_us: int = 0
    forward_us: int = 0


@dataclass
class _Chain:
    """The newest chain.

    `end` is the position after its last token. `tokens` are those from the frontier
    on; those before it agree with what is committed and are cut off. The chain may
    end before the frontier and still be alive: what continues it may come late.
    """

    id: int = 0
    alive: bool = False
    end: int = 0
    tokens: list[int] = field(default_factory=list)
    rows: list[QRow] = field(default_factory=list)
    continues: bool = False


class CloudSession:
    """One session's state. Not thread-safe; it belongs to the event loop."""

    def __init__(self, request: SessionRequest, vocabulary: Vocabulary, limits: Limits) -> None:
        self.request = request
        self.pacing = request.pacing
        self.finished: pb.Finished | None = None
        self.stale = 0
        """Draft tokens that were received and never examined: too late, or on a dead chain."""
        self.frontier = len(request.prompt)
        """Committed tokens, prompt included."""
        self.max_frontier = self.frontier + request.max_tokens
        """Where the session ends at the latest."""
        self._vocabulary = vocabulary
        self._limits = limits
        self._output: list[int] = []
        self._logprobs: list[pb.TokenLogprobs] = []
        self._stops = StopMatcher([stop.encode() for stop in request.stops])
        self._chain = _Chain()
        self._asked = False
        self._in_flight: Work | None = None
        self._cut = False  # it leaves draft tokens out that could be examined
        self._prompt_noted = False
        self._proposal = 0
        self._received = 0.0  # when that one was
        self._told = 0  # the newest that a verdict was told of
        self._verdict = 0
        self._usage = pb.Usage(prompt_tokens=len(request.prompt))
        # A session that had ended elsewhere, its last frame lost, has ended here too.
        for index, token in enumerate(request.committed):
            if self.finished is not None:
                raise BadRequest(
                    f"the text ends at committed token {index - 1}, "
                    f"but {len(request.committed)} tokens are committed"
                )
            self._take(token)

    # ------------------------------------------------------------------ state

    @property
    def ended(self) -> bool:
        """Whether nothing will be committed any more."""
        return self.finished is not None

    @property
    def output(self) -> Sequence[int]:
        """Committed output tokens."""
        return self._output

    def committed(self, start: int, stop: int) -> list[int]:
        """Committed tokens of the positions start … stop−1."""
        prompt = self.request.prompt
        cut = len(prompt)
        if start >= cut:
            return self._output[start - cut : max(stop - cut, 0)]
        return [*prompt[start:stop], *self._output[: max(stop - cut, 0)]]

    def usage(self) -> pb.Usage:
        """Counts so far, as a copy."""
        usage = pb.Usage()
        usage.CopyFrom(self._usage)
        usage.output_tokens = len(self._output)
        return usage

    def note_shared_prompt(self, tokens: int) -> None:
        """Record that so many tokens were at hand when the cache was begun.

        Only the first time counts: what is rebuilt later was this session's own.
        """
        if not self._prompt_noted:
            self._prompt_noted = True
            self._usage.cached_prompt_tokens = min(tokens, len(self.request.prompt))

    # ----------------------------------------------------------------- frames

    def opened(self, session_id: bytes, model: str, *, with_prompt: bool) -> pb.Opened:
        """The answer to an Open (first or repeated)."""
        frame = self._catch_up(len(self.request.prompt), session_id, model)
        if with_prompt:
            frame.prompt.ids.extend(self.request.prompt)
        return frame

    def resumed(self, frontier: int, session_id: bytes, model: str) -> pb.Opened:
        """The answer to a Resume: what the edge lacks.

        Raises:
            BadRequest: the edge's frontier is not a position of this session's output.
        """
        return self._catch_up(self._check_frontier(frontier), session_id, model)

    def _catch_up(self, start: int, session_id: bytes, model: str) -> pb.Opened:
        return pb.Opened(
            session_id=session_id,
            seed=self.request.seed,
            prompt_length=len(self.request.prompt),
            committed=self.committed_from(start),
            frontier=self.frontier,
            verdict=self._verdict,
            highest_chain=self._chain.id,
            model=model,
            max_frontier=self.max_frontier,
        )

    def committed_from(self, start: int) -> pb.Committed:
        """Output tokens from position `start` to the frontier, with what belongs to them."""
        start = self._check_frontier(start)
        tokens = self.committed(start, self.frontier)
        frame = pb.Committed(start=start, tokens=tokens)
        if self.request.logprobs is not None:
            # Tokens committed elsewhere have no logprobs here.
            first = len(self._output) - len(self._logprobs)
            begin = start - len(self.request.prompt)
            frame.logprobs.extend(
                self._logprobs[i - first] if i >= first else pb.TokenLogprobs(logprob=float("nan"))
                for i in range(begin, len(self._output))
            )
        if self.request.return_text:
            frame.text = self._vocabulary.decode(tokens)
        return frame

    def _check_frontier(self, frontier: int) -> int:
        low = len(self.request.prompt)
        if not low <= frontier <= self.frontier:
            raise BadRequest(
                f"frontier {frontier} is not in this session, whose output spans "
                f"{low} … {self.frontier}",
                frontier=self.frontier,
            )
        return frontier

    # -------------------------------------------------------------- proposals

    def receive(self, proposal: pb.Proposal, now: float = 0.0) -> None:
        """Take a proposal. Late ones are used as far as they still fit, or ignored.

        `now` is in seconds, of the clock that `complete` is told of.

        Raises:
            BadRequest: a field is wrong; the session is unchanged.
            Unconnected: it starts beyond what can be connected, or within the prompt.
        """
        tokens = list(proposal.tokens)
        try:
            rows = self._check(proposal, tokens)
        except SpecwireError as error:
            error.frontier = self.frontier
            raise
        chain, current = proposal.chain, self._chain
        if self.finished is not None:
            self.stale += len(tokens)
        elif not tokens:
            self._ask(proposal)
        elif chain > current.id:
            self._begin_chain(proposal, tokens, rows)
        elif chain == current.id and current.alive:
            self._extend_chain(proposal, tokens, rows)
        else:
            self.stale += len(tokens)
        if proposal.number > self._proposal:
            self._proposal, self._received = proposal.number, now
        if proposal.pacing != pb.PACING_UNSPECIFIED:
            self.pacing = proposal.pacing

    def _check(self, proposal: pb.Proposal, tokens: Sequence[int]) -> list[QRow]:
        limits, count = self._limits, len(tokens)
        if proposal.parents:
            raise Unsupported("draft trees (Proposal.parents) are not supported; send a chain")
        if proposal.number < 1:
            raise BadRequest("Proposal.number counts from 1", frontier=self.frontier)
        if proposal.chain < 1:
            raise BadRequest("Proposal.chain counts from 1", frontier=self.frontier)
        if count > limits.gamma:
            raise BadRequest(
                f"a proposal of {count} draft tokens; the limit (gamma) is {limits.gamma}",
                frontier=self.frontier,
            )
        if proposal.pacing not in _PACINGS:
            raise BadRequest(f"pacing {proposal.pacing} is unknown", frontier=self.frontier)
        if proposal.start < len(self.request.prompt):
            raise Unconnected(
                f"a proposal starts at position {proposal.start}, inside the prompt of "
                f"{len(self.request.prompt)} tokens; the frontier is {self.frontier}",
                frontier=self.frontier,
            )
        self._vocabulary.check_ids(tokens, "proposal")
        if self.request.mode == pb.VERIFICATION_MODE_COUPLED:
            if proposal.WhichOneof("q") is not None:
                raise BadRequest("a coupled session takes no q; send token ids alone")
            return []
        return decode_q(proposal, self._vocabulary)

    def _ask(self, proposal: pb.Proposal) -> None:
        chain = self._chain
        if proposal.start > max(self.frontier, chain.end if chain.alive else 0):
            raise self._gap(proposal)
        if proposal.chain == chain.id and proposal.start >= chain.end:
            chain.continues = proposal.continues
        if proposal.start == self.frontier:
            self._asked = True

    def _begin_chain(self, proposal: pb.Proposal, tokens: list[int], rows: list[QRow]) -> None:
        if proposal.start > self.frontier:
            raise self._gap(proposal)
        self._check_waiting(proposal)
        self.stale += len(self._chain.tokens)
        if self._in_flight is not None and self._in_flight.chain == self._chain.id:
            self.stale -= len(self._in_flight.tokens)  # `complete` says which are examined
        self._chain = _Chain(proposal.chain, alive=True, end=proposal.start)
        self._append(tokens, rows, continues=proposal.continues)

    def _extend_chain(self, proposal: pb.Proposal, tokens: list[int], rows: list[QRow]) -> None:
        chain, start = self._chain, proposal.start
        if start > max(chain.end, self.frontier):
            raise self._gap(proposal)
        self._check_waiting(proposal)
        # Where the frontier has passed the chain, the edge need not send what lies before it.
        chain.end = max(chain.end, start)
        # What is alive agrees with what is committed, so a repeat must agree with both.
        offset = max(start - self.frontier, 0)
        before = self.committed(start, min(self.frontier, chain.end))
        known = [*before, *chain.tokens[offset:]]
        overlap = min(len(known), len(tokens))
        if tokens[:overlap] != known[:overlap]:
            raise BadRequest(
                f"chain {chain.id} was sent again with other tokens; "
                "what was drawn can't change: begin a chain with a higher id",
                frontier=self.frontier,
            )
        if start + len(tokens) >= chain.end:
            self._append(tokens[overlap:], rows[overlap:], continues=proposal.continues)

    def _append(self, tokens: list[int], rows: list[QRow], *, continues: bool) -> None:
        """Put tokens at the chain's end; those before the frontier must agree with it."""
        chain = self._chain
        late = min(max(self.frontier - chain.end, 0), len(tokens))
        if tokens[:late] != self.committed(chain.end, chain.end + late):
            self._kill(len(tokens))
            return
        self.stale += late
        chain.end += len(tokens)
        chain.tokens.extend(tokens[late:])
        chain.rows.extend(rows[late:])
        chain.continues = continues

    def _check_waiting(self, proposal: pb.Proposal) -> None:
        waiting = proposal.start + len(proposal.tokens) - self.frontier
        if waiting > self._limits.chain:
            raise BadRequest(
                f"{waiting} draft tokens of chain {proposal.chain} would be waiting; "
                f"the limit (chain) is {self._limits.chain}",
                frontier=self.frontier,
            )

    def _kill(self, stale: int) -> None:
        self.stale += stale
        self._chain = _Chain(self._chain.id)

    def _gap(self, proposal: pb.Proposal) -> Unconnected:
        return Unconnected(
            f"proposal {proposal.number} of chain {proposal.chain} starts at position "
            f"{proposal.start}, which nothing connects to the frontier {self.frontier}; "
            f"begin a new chain at the frontier",
            frontier=self.frontier,
        )

    def _advance(self, work: Work, examined: int) -> None:
        """A round moved the frontier: cut the chain there, or drop it if it differs."""
        chain = self._chain
        if chain.id == work.chain:
            self.stale -= examined
        else:  # replaced meanwhile
            self.stale += len(work.tokens) - examined
        passed = min(self.frontier - work.start, len(chain.tokens))
        if chain.tokens[:passed] != self.committed(work.start, work.start + passed):
            self._kill(len(chain.tokens))
            return
        self.stale += passed
        del chain.tokens[:passed]
        del chain.rows[:passed]

    # ------------------------------------------------------------------ rounds

    def has_work(self) -> bool:
        """Whether there is something to examine or decode, in flight or not."""
        if self.finished is not None:
            return False
        return bool(
            self._chain.tokens
            or self._asked
            or self._in_flight is not None
            or self.pacing == pb.PACING_RUN_AHEAD
        )

    @property
    def drafts_at_hand(self) -> int:
        """Draft tokens that a round could examine now."""
        # The round yields one token of the target's own: leave it room.
        room = self.max_frontier - self.frontier - 1
        return min(len(self._chain.tokens), self._limits.gamma, room)

    @property
    def follows_drafts(self) -> bool:
        """Whether the text follows from seed and drafts alone, if all of them are examined.

        Where fewer are, it is as good a text, but another one: it would depend on the load.
        """
        return not self._fixed and self.pacing != pb.PACING_RUN_AHEAD

    @property
    def _fixed(self) -> bool:
        """Whether seed and target alone decide the text."""
        request = self.request
        return request.mode == pb.VERIFICATION_MODE_COUPLED or request.sampling.greedy

    def next_work(self, most: int | None = None) -> Work | None:
        """What to examine now, or None if there is nothing to do.

        Under `wait` that needs a draft token or an empty proposal at the frontier;
        under `run_ahead` there is always work. One round is in flight at a time.

        Args:
            most: draft tokens to examine; those after them stay for the next round. It may
                depend on anything but which tokens were drawn. None for all at hand.
        """
        if self._in_flight is not None or not self.has_work():
            return None
        chain, count = self._chain, self.drafts_at_hand
        self._cut = most is not None and most < count
        if self._cut and most is not None:
            count = most
        self._in_flight = Work(
            start=self.frontier,
            chain=chain.id if count else 0,
            tokens=tuple(chain.tokens[:count]),
            rows=tuple(chain.rows[:count]),
        )
        return self._in_flight

    def _holds_bonus(self, work: Work) -> bool:
        """Whether to commit no bonus token after full acceptance, because more is coming.

        A bonus drawn from p agrees with the next draft token less often than that
        token would be accepted. Where the target's token does not depend on the
        draft (greedy, coupled) nothing is gained by holding it back. Nor where draft tokens
        were left out because each costs everybody time: then a round is to yield what it can.
        """
        chain, count = self._chain, len(work.tokens)
        if self._cut or self._fixed:
            return False
        if not count or chain.id != work.chain or work.start + count >= self.max_frontier - 1:
            return False
        coming = chain.continues and self.pacing == pb.PACING_WAIT
        return len(chain.tokens) > count or coming

    def abandon_work(self) -> None:
        """Forget the round in flight without a result, as if it had not begun."""
        self._in_flight = None

    def complete(self, work: Work, outcome: Outcome, now: float = 0.0) -> list[pb.CloudFrame]:
        """Commit the outcome of a round; returns a Verdict and, at the end, Finished.

        `now` is in seconds, of the clock that `receive` was told of.

        Raises:
            TargetFault: the target's distribution was not usable; nothing is committed.
        """
        if work is not self._in_flight:
            raise ValueError("this work is not the one in flight")
        self._in_flight = None
        if outcome.token < 0:
            raise TargetFault(
                f"the target gave no usable distribution at position "
                f"{work.start + outcome.accepted} (NaN or no probability)",
                frontier=self.frontier,
            )
        full = outcome.accepted == len(work.tokens)
        tokens = list(work.tokens[: outcome.accepted])
        if not (full and self._holds_bonus(work)):
            tokens.append(outcome.token)
        kept = self._commit(tokens, outcome.logprobs)
        accepted = min(kept, outcome.accepted)
        rejected = not full and kept > accepted
        self._verdict += 1
        self._asked = False
        self._count(accepted, accepted + rejected)
        self._advance(work, accepted + rejected)
        frame = pb.CloudFrame()
        verdict = frame.verdict  # filled where it is: a copy would cost more than all of it
        verdict.number = self._verdict
        verdict.start = work.start
        verdict.chain = work.chain
        verdict.examined = accepted + rejected
        verdict.accepted = accepted
        verdict.queue_us = outcome.queue_us
        verdict.forward_us = outcome.forward_us
        verdict.evaluated = len(work.tokens)
        verdict.proposal = self._proposal
        if self._proposal != self._told:
            self._told = self._proposal
            # As the protocol's 32 bits hold them.
            verdict.held_us = min(max(0, int((now - self._received) * 1e6)), (1 << 32) - 1)
        if kept > accepted:
            verdict.token = outcome.token
            verdict.kind = _kind(len(work.tokens), full)
        if self.request.logprobs is not None:
            verdict.logprobs.extend(outcome.logprobs[:kept])
        if self.request.return_text:
            verdict.text = self._vocabulary.decode(tokens[:kept])
        if self.finished is None:
            return [frame]
        return [frame, pb.CloudFrame(finished=self.finished)]

    def _commit(self, tokens: Sequence[int], logprobs: Sequence[pb.TokenLogprobs]) -> int:
        # Commits up to and including the token that ends the text; returns how many.
        for index, token in enumerate(tokens):
            if self.request.logprobs is not None:
                self._logprobs.append(logprobs[index])
            self._take(token)
            if self.finished is not None:
                return index + 1
        return len(tokens)

    def _take(self, token: int) -> None:
        self._output.append(token)
        self.frontier += 1
        self._stops.feed(self._vocabulary.pieces[token])
        if token in self._vocabulary.end_ids:
            self._finish(pb.FINISH_REASON_END_TOKEN)
        elif self._stops.hit is not None:
            self._finish(pb.FINISH_REASON_STOP_STRING)
        elif self.frontier >= self.max_frontier:
            self._finish(pb.FINISH_REASON_LENGTH)

    def _count(self, accepted: int, examined: int) -> None:
        self._usage.rounds += 1
        self._usage.accepted += accepted
        self._usage.examined += examined
        if self.finished is not None:
            self.finished.usage.CopyFrom(self.usage())

    def _finish(self, reason: pb.FinishReason) -> None:
        self.finished = pb.Finished(reason=reason, frontier=self.frontier, usage=self.usage())
        if reason == pb.FINISH_REASON_STOP_STRING and self._stops.hit is not None:
            self.finished.stop_index = self._stops.hit

    def close(self) -> None:
        """End the session where it stands; a no-op if it has ended."""
        if self.finished is None:
            self._in_flight = None
            self._finish(pb.FINISH_REASON_CLOSED)


def _kind(drafted: int, full: bool) -> pb.TokenKind:
    if not drafted:
        return pb.TOKEN_KIND_RUN_AHEAD
    return pb.TOKEN_KIND_BONUS if full else pb.TOKEN_KIND_CORRECTION
