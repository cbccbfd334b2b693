"""What the edge tells the cloud of waiting for drafts, and what the cloud may be doing."""

from __future__ import annotations

from specwire.v1 import verifier_pb2 as pb


class PacingTalk:
    """One session's pacing: as it is wanted, and as far as the cloud knows.

    Guarantees that the cloud is never waited for while it may be waiting itself: whatever
    was lost on the way, an edge without drafts asks unless the cloud was surely told not
    to wait.
    """

    def __init__(self, pacing: pb.Pacing) -> None:
        self.wanted = pacing
        self.due = False
        """Whether the cloud must be told before there are drafts: it may be waiting."""
        self.asked_at = -1
        """Where a target token was asked for last, which is not there yet unless the frontier
        is beyond it."""
        self._told = True
        self._switched = False  # since the session was opened first
        self._at_once = False
        self._may_wait = pacing != pb.PACING_RUN_AHEAD  # the cloud, for all it was told

    def want(self, pacing: pb.Pacing, *, at_once: bool) -> None:
        """Pace so from now on.

        A cloud that is to wait hears so with the next drafts; `at_once` it is told before.
        """
        self._at_once = at_once
        if self.wanted != pacing:
            self.wanted = pacing
            self._switched = True
            self._told = False
        self._settle_due()

    def reopened(self) -> None:
        """The link was lost: a switch may have been, too, and it may have arrived."""
        self._told = not self._switched
        self._may_wait = self._switched or self.wanted != pb.PACING_RUN_AHEAD
        self.asked_at = -1
        self._settle_due()

    def _settle_due(self) -> None:
        self.due = not self._told and (self._at_once or self.wanted == pb.PACING_RUN_AHEAD)

    def tell(self, proposal: pb.Proposal) -> None:
        """Put into a proposal what the cloud has to be told."""
        if self._told:
            return
        self._told, self.due = True, False
        self._may_wait = self.wanted != pb.PACING_RUN_AHEAD
        proposal.pacing = self.wanted

    @property
    def needs_asking(self) -> bool:
        """Whether target tokens come only if they are asked for, with no draft to come.

        A cloud that was not told yet to wait gives them by itself.
        """
        return self._may_wait and self.wanted != pb.PACING_RUN_AHEAD

    def ask(self, frontier: int) -> None:
        """A target token is asked for."""
        self.asked_at = frontier
