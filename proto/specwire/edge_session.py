"""The edge's end of a session, as a state machine without input or output.

Frames from the cloud go in (`on_opened`, `on_verdict`, `on_finished`) and come
back as committed tokens; `draft_wanted` says from where and how far to draft;
`add_draft` takes what was drafted; `next_proposal` gives what to send. It can
lose its link at any moment: `resume_frame` and `rebuild_frame` say how to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specwire.codec import encode_q
from specwire.committed import CommittedToken, Origin, news, origin_of
from specwire.draft_account import Comparison, Counts, compare
from specwire.draft_chain import Chains
from specwire.drafting import Drafting, DraftWanted, draft_room, offline_room
from specwire.errors import ProtocolError
from specwire.limits import PROTOCOL_VERSIONS
from specwire.pacing_talk import PacingTalk
from specwire.qrow import QRow
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb


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
        self.frontier = len(request.prompt) + len(request.committed)
        """Committed tokens, prompt included."""
        self._end_ids = end_ids
        self._weight_bits = weight_bits
        self._output: list[int] = list(request.committed)
        self._text_bytes = 0  # of the output, if the cloud sends text
        self._chains = Chains()
        self._pacing = PacingTalk(request.pacing)
        self._compared: list[Comparison] = []
        self._number = 0
        self._going = False  # open, and more will be committed
        self._offline = 0  # most draft tokens beyond the frontier while there is no link
        self._burst = 1  # gamma of what was drafted without a link

    # ------------------------------------------------------------------ state

    @property
    def opened(self) -> bool:
        """Whether the cloud has answered the opening."""
        return bool(self.session_id)

    @property
    def output(self) -> Sequence[int]:
        """Committed output tokens."""
        return self._output

    @property
    def pacing(self) -> pb.Pacing:
        """What the cloud is to do when it has no draft."""
        return self._pacing.wanted

    @property
    def output_is_fixed(self) -> bool:
        """Whether seed and target alone decide the output: drafts only make it come sooner."""
        request = self.request
        return request.mode == pb.VERIFICATION_MODE_COUPLED or request.sampling.greedy

    def prefix(self, stop: int) -> list[int]:
        """Prompt, output, and the current chain's tokens, up to position `stop`."""
        return [*self.request.prompt, *self._output, *self.drafted][:stop]

    @property
    def drafted(self) -> Sequence[int]:
        """Draft tokens beyond the frontier, sent or not."""
        return self._chains.current.beyond(self.frontier)

    @property
    def waiting(self) -> bool:
        """Whether something sent is not decided yet."""
        frontier = self.frontier
        return self._chains.current.sent_end > frontier or self._pacing.asked_at >= frontier

    def _commit(self, tokens: Sequence[CommittedToken]) -> None:
        self._output.extend([token.id for token in tokens])
        self.frontier += len(tokens)
        # Known before the cloud says so: what is sent now would meet the end of the stream.
        ended = bool(self._output) and self._output[-1] in self._end_ids
        self._going = not ended and self.frontier < self.max_frontier and self.finished is None
        if tokens:
            self._text_bytes += len(tokens[-1].text or b"")

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
        frame.pacing = self.pacing
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
        self.frontier = len(prompt) + len(self._output)
        self.session_id = frame.session_id
        self.model = frame.model
        self.max_frontier = frame.max_frontier
        learnt = self._learnt(frame)
        self._commit(learnt)
        chain = self._chains.current
        if self._offline:
            # How much there is depends on when the link came back, not on what was drawn.
            self._offline, chain.tail = 0, chain.end
        self._pacing.reopened()
        # How much of the chain has arrived is unknown: what is left begins a new one.
        self._chains.settle(self._output, self.frontier, highest=frame.highest_chain, resend=True)
        return learnt

    def _learnt(self, frame: pb.Opened) -> list[CommittedToken]:
        """What the cloud committed and this end did not know."""
        committed = frame.committed
        if committed.start > self.frontier or frame.frontier < self.frontier:
            raise ProtocolError(
                f"the cloud continues from {committed.start} to {frame.frontier}, "
                f"but the frontier here is {self.frontier}"
            )
        known = self.frontier - committed.start
        if list(committed.tokens[:known]) != self._output[len(self._output) - known :]:
            raise ProtocolError("the cloud's committed tokens differ from those here")
        return news(
            committed.start,
            committed.tokens,
            [Origin.CAUGHT_UP] * len(committed.tokens),
            logprobs=committed.logprobs,
            # The text begins at committed.start: here, or where the output does.
            text=committed.text[self._text_bytes if known else 0 :],
        )[known:]

    # --------------------------------------------------------------- verdicts

    def on_verdict(self, verdict: pb.Verdict) -> list[CommittedToken]:
        """Take a verdict; returns the tokens it commits.

        Raises:
            ProtocolError: it does not follow what is committed here.
        """
        start = verdict.start
        if start != self.frontier:
            raise ProtocolError(
                f"verdict {verdict.number} starts at {start}, "
                f"but the frontier here is {self.frontier}"
            )
        tokens = self._chains.accepted(verdict)
        origins = [Origin.ACCEPTED] * len(tokens)
        if verdict.HasField("token"):
            tokens.append(verdict.token)
            origins.append(origin_of(verdict.kind))
        committed = news(start, tokens, origins, logprobs=verdict.logprobs, text=verdict.text)
        self._commit(committed)
        self.counts.add_round(verdict.examined, verdict.accepted)
        # A token that the target drew without looking at the draft says nothing about the
        # rule of acceptance, unless it would have drawn the same with the draft at hand.
        stop = self.frontier if self.output_is_fixed else start + verdict.examined
        chain, prompt = self._chains.current, len(self.request.prompt)
        self._compared += compare(chain, self._output, prompt, start, stop)
        self._chains.settle(self._output, self.frontier)
        return committed

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
        self._going = False

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
        room = self._room()
        if room <= 0:
            return None
        chain = self._chains.current
        return DraftWanted(chain.drafted_as, chain.end, room)

    def _room(self) -> int:
        """How many draft tokens are wanted now; 0 or less for none."""
        if not self._going:
            return 0
        chain, frontier = self._chains.current, self.frontier
        last = self.max_frontier - 2  # the last position of all is the target's own to fill
        if self._offline:
            return offline_room(self._offline, chain, frontier, last=last)
        waiting = not self.drafting.pipeline and self.waiting
        return draft_room(self.drafting, chain, frontier, waiting=waiting, last=last)

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

        Raises:
            ValueError: there is no q, although this mode sends it.
        """
        current = self._chains.current
        if row is None and self.request.mode != pb.VERIFICATION_MODE_COUPLED:
            raise ValueError(f"draft token {token} has no q, which rejection mode sends with it")
        if chain != current.drafted_as or self.finished is not None:
            return False
        current.append(token, row, confidence, chance, ends=token in self._end_ids)
        return True

    def draft_exhausted(self, chain: int) -> None:
        """The draft can't go on from the chain's end (its context is full, say).

        What was drafted is sent at once then. So it must not depend on which token
        was drawn last, or that token's arrival in time would.
        """
        current = self._chains.current
        if chain == current.drafted_as:
            current.exhausted_at = current.end

    def go_offline(self, most: int, gamma: int) -> None:
        """The link is lost, and may be for long: draft up to `most` tokens beyond the frontier.

        Nothing is sent until the next opening, then all of it at once, in proposals of
        `gamma` tokens.
        """
        if self._going:
            self._offline, self._burst = most, gamma

    def abandon_chain(self) -> None:
        """Begin anew at the frontier: the cloud could not connect what was sent."""
        self._chains.abandon(self.frontier)

    def steer(self, drafting: Drafting, pacing: pb.Pacing, *, at_once: bool = False) -> None:
        """Draft and send differently from now on, and tell the cloud how to pace itself.

        A cloud that is to wait hears so with the next drafts, and goes on until they come;
        `at_once` it is told before, where its going on would hold the drafts up.
        """
        self.drafting = drafting
        self._pacing.want(pacing, at_once=at_once)

    # -------------------------------------------------------------- proposals

    def next_proposal(self) -> pb.Proposal | None:
        """What to send now; None if more must be drafted or a verdict awaited."""
        if not self._going or self._offline:
            return None
        chain, frontier = self._chains.current, self.frontier
        first = chain.sent_end if chain.sent_end > frontier else frontier
        if chain.tail > first:
            return self._send(first, min(chain.tail - first, self._burst))
        if self._pacing.due:
            return self._proposal(frontier)
        unsent = chain.end - first
        if unsent:
            if not self.drafting.pipeline and self.waiting:
                return None
            gamma = self.drafting.gamma or 1
            if unsent >= gamma:
                return self._send(first, gamma)
            return self._send(first, unsent) if self._room() <= 0 else None
        if self._pacing.needs_asking and not self.waiting and self._room() <= 0:
            self._pacing.ask(frontier)
            return self._proposal(frontier)
        return None

    def _send(self, first: int, count: int) -> pb.Proposal:
        chain = self._chains.current
        chain.sent_end = first + count
        chain.chance = 1.0
        self.counts.proposed += count
        begin = first - chain.start
        end = begin + count
        return self._proposal(first, chain.tokens[begin:end], chain.rows[begin:end])

    def _proposal(
        self, start: int, tokens: Sequence[int] = (), rows: Sequence[QRow | None] = ()
    ) -> pb.Proposal:
        self._number += 1
        self.counts.proposals += 1
        chain = self._chains.current
        proposal = pb.Proposal(number=self._number, chain=chain.id, start=start, tokens=tokens)
        if tokens and self.request.mode != pb.VERIFICATION_MODE_COUPLED:
            encode_q(proposal, [row for row in rows if row is not None], self._weight_bits)
        # Promise more only where more will be drafted without waiting for a verdict.
        proposal.continues = (self.drafting.pipeline and self._room() > 0) or (
            chain.tail > max(chain.sent_end, self.frontier)
        )
        self._pacing.tell(proposal)
        return proposal
