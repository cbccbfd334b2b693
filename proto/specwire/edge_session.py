"""The edge's end of a session, as a state machine without input or output.

Frames from the cloud go in (`on_opened`, `on_verdict`, `on_finished`) and come
back as committed tokens; `draft_wanted` says from where and how far to draft;
`add_draft` takes what was drafted; `next_proposal` gives what to send. It can
lose its link at any moment: `resume_frame` and `rebuild_frame` say how to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from specwire.codec import encode_q
from specwire.errors import ProtocolError
from specwire.limits import PROTOCOL_VERSIONS
from specwire.qrow import QRow
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb


class Origin(StrEnum):
    """Who wrote a committed token."""

    ACCEPTED = "accepted"  # the draft, and the target agreed
    CORRECTION = "correction"  # the target, after rejecting a draft token
    BONUS = "bonus"  # the target, after accepting all
    RUN_AHEAD = "run-ahead"  # the target, with no draft at hand
    CAUGHT_UP = "caught-up"  # known only after a reconnection, origin not told


_ORIGINS = {
    pb.TOKEN_KIND_CORRECTION: Origin.CORRECTION,
    pb.TOKEN_KIND_BONUS: Origin.BONUS,
    pb.TOKEN_KIND_RUN_AHEAD: Origin.RUN_AHEAD,
}


@dataclass(frozen=True)
class CommittedToken:
    """One token of the output, final."""

    position: int
    id: int
    origin: Origin
    logprobs: pb.TokenLogprobs | None = None
    text: bytes | None = None
    """Bytes of this token and those before it that have None, if the cloud sends text."""


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


@dataclass(frozen=True)
class DraftWanted:
    """Draft up to `count` tokens of `chain` from position `start` on."""

    chain: int
    start: int
    count: int


@dataclass(frozen=True)
class Comparison:
    """A draft token whose position was decided, those before it in its chain having been right.

    position: of the token in the output, from 0. place: in its chain, from 0. confidence: as
    `add_draft` was told. agreed: whether it was committed.
    """

    position: int
    place: int
    confidence: float
    agreed: bool


@dataclass
class Counts:
    """What happened to the drafts of a session, as the edge saw it."""

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


@dataclass
class _Chain:
    """Draft tokens from `start` on; the first `sent` of them are on their way.

    `id` is what the cloud knows it by, `drafted_as` what the drafting side does: the
    rest of a chain can be sent as a new one while it is still being drafted. `root` is
    where drafting began. `chance` is that all of what is not sent yet is accepted. What
    was drafted without a link, up to `tail`, is sent at once. `exhausted_at` is the position
    at which the draft had nothing to say.
    """

    id: int
    drafted_as: int
    start: int
    root: int
    tokens: list[int] = field(default_factory=list)
    rows: list[QRow | None] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    sent: int = 0
    chance: float = 1.0
    tail: int = 0
    exhausted_at: int = -1
    ended: bool = False  # holds an end token

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class EdgeSession:
    """One session's state at the edge. Not thread-safe; it belongs to the event loop.

    `request.prompt` may be empty at first, where the cloud tokenizes: the ids
    come with `on_opened`.
    """

    def __init__(
        self,
        request: SessionRequest,
        drafting: Drafting,
        *,
        end_ids: frozenset[int] = frozenset(),
        weight_bits: int = 6,
    ) -> None:
        self.request = request
        self.drafting = drafting
        self.counts = Counts()
        self.finished: pb.Finished | None = None
        self.session_id = b""
        self.model = ""
        self.max_frontier = 0
        self._end_ids = end_ids
        self._weight_bits = weight_bits
        self._output: list[int] = list(request.committed)
        self._frontier = len(request.prompt) + len(self._output)
        self._chain = _Chain(1, 1, 0, 0)
        self._text_bytes = 0  # of the output, if the cloud sends text
        self._compared: list[Comparison] = []
        self._old_chains: dict[int, _Chain] = {}
        self._asked_at = -1  # position of the last empty proposal
        self._number = 0
        self._pacing_switched = False
        self._pacing_told = True  # the cloud knows the pacing in self.request
        self._tell_at_once = False
        self._may_wait = request.pacing != pb.PACING_RUN_AHEAD  # the cloud, for all we told it
        self._offline = 0  # most draft tokens beyond the frontier while there is no link
        self._burst = 1  # gamma of what was drafted without a link

    # ------------------------------------------------------------------ state

    @property
    def opened(self) -> bool:
        """Whether the cloud has answered the opening."""
        return bool(self.session_id)

    @property
    def frontier(self) -> int:
        """Committed tokens, prompt included."""
        return self._frontier

    @property
    def output(self) -> Sequence[int]:
        """Committed output tokens."""
        return self._output

    def prefix(self, stop: int) -> list[int]:
        """Prompt, output, and the current chain's tokens, up to position `stop`."""
        base = [*self.request.prompt, *self._output]
        ahead = max(self.frontier - self._chain.start, 0)
        return [*base, *self._chain.tokens[ahead:]][:stop]

    @property
    def waiting(self) -> bool:
        """Whether something sent is not decided yet."""
        return self._sent_end > self.frontier or self._asked_at >= self.frontier

    @property
    def _over(self) -> bool:
        # Known before the cloud says so: what is sent now would meet the end of the stream.
        if self.finished is not None or (self.opened and self._frontier >= self.max_frontier):
            return True
        return bool(self._output) and self._output[-1] in self._end_ids

    @property
    def _sent_end(self) -> int:
        return self._chain.start + self._chain.sent

    # ------------------------------------------------------- opening, resuming

    def resume_frame(self) -> pb.Resume:
        """How to continue on the server that knows the session."""
        return pb.Resume(
            protocol_version=PROTOCOL_VERSIONS[-1],
            session_id=self.session_id,
            frontier=self.frontier,
        )

    def rebuild_frame(self, opening: pb.Open) -> pb.Open:
        """How to continue on a server that does not know it: seed and committed ids.

        `opening` is the frame the session was first opened with.
        """
        frame = pb.Open()
        frame.CopyFrom(opening)
        frame.pacing = self.request.pacing
        frame.ids.ids[:] = self.request.prompt
        frame.seed = self.request.seed
        frame.committed.ids[:] = self._output
        frame.max_tokens = self.max_frontier - len(self.request.prompt)
        return frame

    def on_opened(self, frame: pb.Opened) -> list[CommittedToken]:
        """Take the answer to Open or Resume; returns tokens committed meanwhile.

        What was sent before is taken as lost and will be sent again.

        Raises:
            ProtocolError: the cloud's account does not fit ours.
        """
        prompt = tuple(frame.prompt.ids) or self.request.prompt
        if len(prompt) != frame.prompt_length:
            raise ProtocolError(
                f"the opening reply speaks of {frame.prompt_length} prompt tokens, "
                f"but {len(prompt)} are known"
            )
        if frame.max_frontier < self.max_frontier:
            raise ProtocolError(
                f"the session would end at {frame.max_frontier} now, but was opened to go on "
                f"to {self.max_frontier}"
            )
        self.request = replace(self.request, prompt=prompt, seed=frame.seed)
        self._frontier = len(prompt) + len(self._output)
        self.session_id = frame.session_id
        self.model = frame.model
        self.max_frontier = frame.max_frontier
        committed = frame.committed
        if committed.start > self.frontier or frame.frontier < self.frontier:
            raise ProtocolError(
                f"the cloud continues from {committed.start} to {frame.frontier}, "
                f"but the frontier here is {self.frontier}"
            )
        known = self.frontier - committed.start
        if list(committed.tokens[:known]) != self._output[len(self._output) - known :]:
            raise ProtocolError("the cloud's committed tokens differ from those here")
        news = [
            CommittedToken(
                committed.start + i,
                token,
                Origin.CAUGHT_UP,
                committed.logprobs[i] if committed.logprobs else None,
            )
            for i, token in enumerate(committed.tokens)
        ][known:]
        if news and committed.text:
            # The text begins at committed.start: here, or where the output does.
            text = committed.text[self._text_bytes if known else 0 :]
            news[-1] = replace(news[-1], text=text)
            self._text_bytes += len(text)
        self._output.extend(token.id for token in news)
        self._frontier += len(news)
        self._asked_at = -1
        if self._offline:
            # How much there is depends on when the link came back, not on what was drawn.
            self._offline, self._chain.tail = 0, self._chain.end
        # A switch may have been lost on the way, and it may have arrived.
        self._pacing_told = not self._pacing_switched
        self._may_wait = self._pacing_switched or self.request.pacing != pb.PACING_RUN_AHEAD
        # How much of the chain has arrived is unknown: what is left begins a new one.
        self._settle(frame.highest_chain, resend=True)
        return news

    # --------------------------------------------------------------- verdicts

    def on_verdict(self, verdict: pb.Verdict) -> list[CommittedToken]:
        """Take a verdict; returns the tokens it commits.

        Raises:
            ProtocolError: it does not follow what is committed here.
        """
        if verdict.start != self.frontier:
            raise ProtocolError(
                f"verdict {verdict.number} starts at {verdict.start}, "
                f"but the frontier here is {self.frontier}"
            )
        tokens = self._accepted(verdict)
        origins = [Origin.ACCEPTED] * len(tokens)
        if verdict.HasField("token"):
            tokens.append(verdict.token)
            origins.append(_ORIGINS.get(verdict.kind, Origin.RUN_AHEAD))
        self.counts.add_round(verdict.examined, verdict.accepted)
        news = [
            CommittedToken(
                verdict.start + i,
                token,
                origin,
                verdict.logprobs[i] if verdict.logprobs else None,
            )
            for i, (token, origin) in enumerate(zip(tokens, origins, strict=True))
        ]
        if news and verdict.text:
            news[-1] = replace(news[-1], text=verdict.text)
            self._text_bytes += len(verdict.text)
        self._output.extend(tokens)
        self._frontier += len(tokens)
        # A token that the target drew without looking at the draft says nothing about the
        # rule of acceptance, unless it would have drawn the same with the draft at hand.
        stop = self.frontier if self.output_is_fixed else verdict.start + verdict.examined
        self._compare(verdict.start, stop)
        self._settle(0, resend=False)
        return news

    @property
    def output_is_fixed(self) -> bool:
        """Whether seed and target alone decide the output: drafts only make it come sooner."""
        request = self.request
        return request.mode == pb.VERIFICATION_MODE_COUPLED or request.sampling.greedy

    def _accepted(self, verdict: pb.Verdict) -> list[int]:
        if verdict.accepted > verdict.examined:
            raise ProtocolError(
                f"verdict {verdict.number} accepts {verdict.accepted} tokens "
                f"of {verdict.examined} examined"
            )
        if not verdict.accepted:
            return []
        chain = self._chain
        if verdict.chain != chain.id:
            found = self._old_chains.get(verdict.chain)
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
        return list(tokens)

    def on_finished(self, frame: pb.Finished) -> None:
        """Take the end of the session.

        Raises:
            ProtocolError: tokens are missing here.
        """
        if frame.frontier != self.frontier:
            raise ProtocolError(
                f"the session ended at {frame.frontier}, but the frontier here is {self.frontier}"
            )
        self.finished = frame

    def _settle(self, highest_chain: int, *, resend: bool) -> None:
        """Keep the chain while it agrees with what is committed, else begin a new one.

        What was sent must connect to what is sent next. Where it no longer does, because
        the frontier passed it or it may be lost, the rest goes on as a chain of its own.
        """
        chain = self._chain
        begin = chain.start - len(self.request.prompt)
        committed = self._output[max(begin, 0) :]
        overlap = len(committed) if begin >= 0 else 0
        agrees = begin >= 0 and chain.tokens[:overlap] == committed[: len(chain.tokens)]
        alive = agrees and chain.end >= self.frontier
        if alive and not (chain.sent and (resend or self._sent_end < self.frontier)):
            return
        if chain.sent:
            self._old_chains[chain.id] = chain
        for id_ in [c.id for c in self._old_chains.values() if c.end <= self.frontier]:
            del self._old_chains[id_]
        fresh = max(chain.id, highest_chain) + 1
        if alive:
            self._chain = replace(
                chain,
                id=fresh,
                start=self.frontier,
                tokens=chain.tokens[overlap:],
                rows=chain.rows[overlap:],
                confidences=chain.confidences[overlap:],
                sent=0,
            )
        else:
            self._chain = _Chain(fresh, fresh, self.frontier, self.frontier)

    def _compare(self, start: int, stop: int) -> None:
        """Note what became of the chain's tokens from `start` to `stop`, just committed."""
        chain = self._chain
        for position in range(max(start, chain.start), min(stop, chain.end)):
            index = position - chain.start
            output = position - len(self.request.prompt)
            agreed = self._output[output] == chain.tokens[index]
            place = position - chain.root
            self._compared.append(Comparison(output, place, chain.confidences[index], agreed))
            if not agreed:
                return

    def take_compared(self) -> list[Comparison]:
        """What was found about drafts since the last call."""
        compared, self._compared = self._compared, []
        return compared

    # --------------------------------------------------------------- drafting

    def draft_wanted(self) -> DraftWanted | None:
        """From where and how far to draft now; None if there is nothing to draft.

        The answer changes only with frames, drafts and proposals, so a caller
        asks again after each of them.
        """
        if self._over or not self.opened:
            return None
        chain, gamma = self._chain, self.drafting.gamma
        if chain.end == chain.exhausted_at:
            return None
        if self._offline:
            room = 0 if chain.ended else self._offline - (chain.end - self.frontier)
            count = min(room, self.max_frontier - 1 - chain.end)
            return DraftWanted(chain.drafted_as, chain.end, count) if count > 0 else None
        unsent = chain.end - max(self._sent_end, self.frontier)
        if not self.drafting.pipeline:
            if self.waiting or (unsent and chain.chance < self.drafting.stop_below):
                return None
            room = gamma - unsent
        else:
            room = self.drafting.window - (chain.end - self.frontier) if gamma else 0
        if chain.ended:
            # Nothing follows an end token, but the proposal it is in is filled as any other:
            # sent sooner, it would overtake the cloud's own token more often than another
            # token drawn there, and the text would end too early.
            room = min(room, -unsent % max(gamma, 1))
        # The last position of all is the target's own to fill.
        count = min(room, self.max_frontier - 1 - chain.end)
        return DraftWanted(chain.drafted_as, chain.end, count) if count > 0 else None

    def add_draft(
        self,
        chain: int,
        token: int,
        row: QRow | None,
        *,
        confidence: float = 1.0,
        chance: float = 1.0,
    ) -> bool:
        """Take the next draft token of a chain; False if that chain is out of date.

        Args:
            chain: as `draft_wanted` named it.
            token: its id.
            row: the q it was drawn from, None in coupled mode.
            confidence: how sure the draft is, to be found again in `take_compared`.
            chance: that the token is accepted. What the last two are may depend on q and
                on the tokens before, never on which token was drawn.
        """
        if chain != self._chain.drafted_as or self.finished is not None:
            return False
        if self._chain.ended and self.draft_wanted() is None:
            return False
        self._chain.tokens.append(token)
        self._chain.rows.append(row)
        self._chain.confidences.append(confidence)
        self._chain.chance *= chance
        self._chain.ended |= token in self._end_ids
        return True

    def draft_exhausted(self, chain: int) -> None:
        """The draft can't go on from the chain's end (its context is full, say).

        What was drafted is sent at once then. So it must not depend on which token
        was drawn last, or that token's arrival in time would.
        """
        if chain == self._chain.drafted_as:
            self._chain.exhausted_at = self._chain.end

    def go_offline(self, most: int, gamma: int) -> None:
        """The link is lost, and may be for long: draft up to `most` tokens beyond the frontier.

        Nothing is sent until the next opening, then all of it at once, in proposals of
        `gamma` tokens.
        """
        if self.opened and not self._over:
            self._offline, self._burst = most, gamma

    @property
    def drafted(self) -> Sequence[int]:
        """Draft tokens beyond the frontier, sent or not."""
        return self._chain.tokens[max(self.frontier - self._chain.start, 0) :]

    def abandon_chain(self) -> None:
        """Begin anew at the frontier: the cloud could not connect what was sent."""
        if self._chain.sent:
            self._old_chains[self._chain.id] = self._chain
        fresh = self._chain.id + 1
        self._chain = _Chain(fresh, fresh, self.frontier, self.frontier)

    def steer(self, drafting: Drafting, pacing: pb.Pacing, *, at_once: bool = False) -> None:
        """Draft and send differently from now on, and tell the cloud how to pace itself.

        A cloud that is to wait hears so with the next drafts, and goes on until they come;
        `at_once` it is told before, where its going on would hold the drafts up.
        """
        self._tell_at_once = at_once
        self.drafting = drafting
        if self.request.pacing != pacing:
            self.request = replace(self.request, pacing=pacing)
            self._pacing_switched = True
            self._pacing_told = False

    # -------------------------------------------------------------- proposals

    def next_proposal(self) -> pb.Proposal | None:
        """What to send now; None if more must be drafted or a verdict awaited."""
        if self._over or not self.opened or self._offline:
            return None
        tail = self._chain.tail - max(self._sent_end, self.frontier)
        if tail > 0:
            return self._send(min(tail, self._burst))
        at_once = self._tell_at_once or self.request.pacing == pb.PACING_RUN_AHEAD
        if not self._pacing_told and at_once:
            return self._proposal([], [], self.frontier)  # the cloud may be waiting
        chain = self._chain
        unsent = chain.end - max(self._sent_end, self.frontier)
        if unsent > 0:
            gamma = max(self.drafting.gamma, 1)
            may = self.drafting.pipeline or not self.waiting
            ready = may and (unsent >= gamma or self.draft_wanted() is None)
            return self._send(min(unsent, gamma)) if ready else None
        if self._should_ask():
            self._asked_at = self.frontier
            return self._proposal([], [], self.frontier)
        return None

    def _should_ask(self) -> bool:
        # Under `wait`, with no draft to come, ask for a target token. A cloud that was not told
        # yet to wait gives them by itself.
        waits = self.request.pacing != pb.PACING_RUN_AHEAD
        return waits and self._may_wait and not self.waiting and self.draft_wanted() is None

    def _send(self, count: int) -> pb.Proposal:
        chain = self._chain
        first = max(self._sent_end, self.frontier) - chain.start
        chain.sent = first + count
        chain.chance = 1.0
        self.counts.proposed += count
        return self._proposal(
            chain.tokens[first : chain.sent],
            chain.rows[first : chain.sent],
            chain.start + first,
        )

    def _proposal(
        self, tokens: Sequence[int], rows: Sequence[QRow | None], start: int
    ) -> pb.Proposal:
        self._number += 1
        self.counts.proposals += 1
        proposal = pb.Proposal(
            number=self._number, chain=self._chain.id, start=start, tokens=tokens
        )
        if tokens and self.request.mode != pb.VERIFICATION_MODE_COUPLED:
            encode_q(proposal, [row for row in rows if row is not None], self._weight_bits)
        proposal.continues = self._continues()
        if not self._pacing_told:
            self._pacing_told = True
            self._may_wait = self.request.pacing != pb.PACING_RUN_AHEAD
            proposal.pacing = self.request.pacing
        return proposal

    def _continues(self) -> bool:
        # Promise more only where more will be drafted without waiting for a verdict.
        more = self._chain.tail > max(self._sent_end, self.frontier)
        return more or (self.drafting.pipeline and self.draft_wanted() is not None)
