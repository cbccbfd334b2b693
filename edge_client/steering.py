"""From what is seen of a session to how it goes on: the policy at work. Reads no clock.

A shell tells what happened and when; the session's state machine is told how to draft,
and the cloud, through it, how to pace itself. The simulator runs the same object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge_client.options import WAYS, Mode
from edge_client.policy.choice import Plan, choose
from edge_client.policy.estimates import Agreement, LinkEstimates, conditions
from edge_client.policy.speed import Conditions, Way
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb

MOST_GAMMA = 16
"""Of a proposal, where the user fixed none."""
_FIRST_GAMMA = 4
_FIRST_WINDOW = 12
_RECONSIDER = 8
"""Verdicts from one choice to the next."""
PROBE_AFTER = 64
"""Tokens without drafts, after which a few are drafted to see whether they would help now."""
PROBE_TOKENS = 8
_OFTEN = 8
"""Times in a row that the draft had nothing to say, after which a fixed mode does not have
the cloud wait for it until it speaks again."""

_FIRST_PROBE = 4
"""Tokens without drafts at first, where they share cores with the target: what they must beat."""
_AT_BEST = 0.95
"""Where not even drafts that are accepted so often would pay, none is tried."""
_HOPED_AT_MOST = 0.999
_IN_TURN = (Way.STREAM, Way.SYNC)
"""What `auto` chooses from where draft and target share their cores."""


class Steering:
    """Chooses, for one session, the way and γ, and changes them when another is better.

    Args:
        machine: the session, whose drafting and pacing this decides.
        mode: the way that the user fixed, or `auto`.
        gamma: the user's; with a fixed mode exactly this is used, with `auto` never
            more. None leaves it to the policy.
        window: most draft tokens beyond the frontier, and in a proposal; None leaves it to
            the policy.
        limits: the verifier's.
        link: what is known of draft, target and link; shared by all sessions on them.
    """

    def __init__(
        self,
        machine: EdgeSession,
        *,
        mode: Mode,
        gamma: int | None,
        window: int | None,
        limits: Limits,
        link: LinkEstimates,
    ) -> None:
        self._machine = machine
        self._ways = WAYS[mode]
        if link.taking_turns and mode is Mode.AUTO:
            self._ways = _IN_TURN
        self._fixed = gamma is not None and mode is not Mode.AUTO
        self._most_window = max(1, min(window or limits.chain, limits.chain))
        self._most_gamma = max(1, min(gamma or MOST_GAMMA, limits.gamma, self._most_window))
        self._link = link
        self.agreement = Agreement(link.alpha.value or 0.0)
        self._sent: deque[tuple[int, float]] = deque()  # numbers of proposals, and when
        self._fresh = True  # the next forward holds the prompt
        self._verdicts = 0
        self._committed = 0  # since the plan was made
        self._probing = False
        self._exhausted = 0  # times in a row
        self._undrafted = link.undrafted
        self._patience = PROBE_AFTER
        self._lost = False
        self.record: list[dict[str, Any]] | None = None
        """What was measured, in order, for whoever puts a list here; see docs/cli.md."""
        self.plan = self._first_plan()
        self._apply()

    def _first_plan(self) -> Plan:
        known = conditions(self._link, self.agreement)
        if known is not None:
            return self._chosen(known, None)
        if self._ways is _IN_TURN:
            self._patience = _FIRST_PROBE
            return Plan(Way.STREAM, 0, 1)
        way = self._trial_way()
        gamma = self._most_gamma if self._fixed else min(_FIRST_GAMMA, self._most_gamma)
        return self._trial(way, gamma)

    # ------------------------------------------------------------------ events

    def opened(self) -> None:
        """The session was opened, resumed or rebuilt: what was sent before is void."""
        self._sent.clear()
        self._fresh = True

    def sent(self, proposal: pb.Proposal, now: float) -> None:
        """A proposal left."""
        self._sent.append((proposal.number, now))

    def drafted(self, confidence: float, seconds: float | None) -> float:
        """A token was drafted; returns the chance that it is accepted, 1 if that decides nothing.

        `seconds` is how long it took, None where that tells nothing.
        """
        if self._exhausted >= _OFTEN:
            self._apply()
        self._exhausted = 0
        if seconds is not None:
            self._link.add_draft(seconds)
            if self.record is not None:
                self.record.append({"draft_s": seconds})
        return self.agreement.chance(confidence) if self._machine.drafting.stop_below else 1.0

    def exhausted(self) -> None:
        """The draft had nothing to say.

        A cloud that waits for drafts would then wait for the edge to ask for each token.
        """
        self._exhausted += 1
        if Way.STREAM in self._ways:
            if self.plan.way.waits:
                self.plan = replace(self.plan, way=Way.RUN_AHEAD)
                self._verdicts = 0
                self._apply()
        elif self._exhausted == _OFTEN:
            self._machine.steer(self._machine.drafting, pb.PACING_RUN_AHEAD)

    def draft_lost(self) -> None:
        """No draft will come any more: let the cloud go on alone, for good."""
        self._lost = True
        self.plan = Plan(Way.STREAM, 0, 1)
        self._apply()

    def verdict(self, verdict: pb.Verdict, now: float) -> None:
        """A verdict came at `now`, and the session has taken it."""
        forward = verdict.forward_us / 1e6
        queue = verdict.queue_us / 1e6
        self._hear_of(verdict, now)
        if not self._fresh:
            self._link.add_forward(verdict.evaluated, forward)
            if self.plan.way.waits:
                self._link.queue.add(queue)
            if self.record is not None:
                values = {"verify_s": forward, "queue_s": queue, "evaluated": verdict.evaluated}
                self.record.append(values)
        self._fresh = False
        compared, link = self._machine.take_compared(), self._link
        for item in compared:
            self.agreement.add(item.place, item.confidence, item.agreed)
            link.alpha.add(float(item.agreed))
            if self.record is not None:
                values = {"draft_knew": item.agreed, "position": item.position}
                values |= {"place": item.place, "confidence": item.confidence}
                self.record.append(values)
        self._verdicts += 1
        committed = verdict.accepted + verdict.HasField("token")
        self._committed += committed
        if self.plan.way is Way.STREAM and not self._lost:
            self._count_undrafted(self._undrafted + committed)
        self._reconsider()

    def _hear_of(self, verdict: pb.Verdict, now: float) -> None:
        """Learn the round trip from the newest proposal that had arrived at the verdict."""
        heard: tuple[int, float] | None = None
        while self._sent and self._sent[0][0] <= verdict.proposal:
            heard = self._sent.popleft()
        if heard is not None and heard[0] == verdict.proposal:
            # A server that does not tell how long it was there leaves what is sure.
            sure = verdict.queue_us + verdict.forward_us
            held = verdict.held_us if verdict.HasField("held_us") else sure
            self._link.add_rtt(now - heard[1] - held / 1e6)

    # ------------------------------------------------------------------ choice

    def _reconsider(self) -> None:
        if self._lost:
            return
        if self.plan.way is Way.STREAM and not self._probing:
            if self._undrafted >= self._patience:
                self._patience = PROBE_AFTER
                self._count_undrafted(0)
                if not self._hopeless():
                    self._probe()
            return
        if self._probing and self._committed < PROBE_TOKENS:
            return
        if self.plan.speed > 0 and self._verdicts < _RECONSIDER and not self._probing:
            return
        known = conditions(self._link, self.agreement)
        if known is None:
            return
        self._probing = False
        self._verdicts = self._committed = 0
        self._count_undrafted(0)
        self.plan = self._chosen(known, self.plan if self.plan.speed > 0 else None)
        self._apply()

    def _count_undrafted(self, tokens: int) -> None:
        """Tokens since drafts were last tried; the next session counts on from there."""
        self._undrafted = self._link.undrafted = tokens

    def _chosen(self, known: Conditions, current: Plan | None) -> Plan:
        plan = self._best(known, current, self._ways)
        if plan.way is Way.STREAM and not self._link.taking_turns:
            # Nothing more is learnt of drafts once they are given up, and to go on costs hardly
            # any time. So they are once they would not pay even if what is known of them were
            # by chance too little: optimism in the face of uncertainty (Lai and Robbins, 1985).
            doubt = self.agreement.doubt
            alphas = [min(alpha + doubt, _HOPED_AT_MOST) for alpha in known.alphas]
            # A cloud that waited for them would pay for the hope.
            ways = [way for way in self._ways if not way.waits]
            going_on = current if current is not None and current.way in ways else None
            plan = self._best(replace(known, alphas=alphas), going_on, ways)
        return plan

    def _best(self, known: Conditions, current: Plan | None, ways: Sequence[Way]) -> Plan:
        return choose(
            known,
            ways=ways,
            most_gamma=self._most_gamma,
            most_window=self._most_window,
            exactly=self._fixed,
            current=current,
        )

    def _hopeless(self) -> bool:
        """Whether drafts would not even pay if nearly all were accepted, so that none is tried.

        Trying costs time only where draft and target take turns.
        """
        known = conditions(self._link, self.agreement)
        if known is None or not self._link.taking_turns:
            return False
        best = choose(
            replace(known, alphas=[_AT_BEST]),
            ways=self._ways,
            most_gamma=self._most_gamma,
            most_window=self._most_window,
        )
        return best.way is Way.STREAM

    def _probe(self) -> None:
        self._probing = True
        self._committed = 0
        self.plan = self._trial(self._trial_way(), min(2, self._most_gamma))
        self._apply()

    def _trial_way(self) -> Way:
        """The way in which drafts can be tried at the least cost."""
        return Way.RUN_AHEAD if Way.RUN_AHEAD in self._ways else self._ways[-1]

    def _trial(self, way: Way, gamma: int) -> Plan:
        """A plan while too little is known to choose one."""
        ahead = min(_FIRST_WINDOW, self._most_window)
        return Plan(way, gamma, gamma if way is Way.SYNC else max(gamma, ahead))

    def _apply(self) -> None:
        plan = self.plan
        self._machine.steer(
            Drafting(
                plan.gamma,
                pipeline=plan.way is not Way.SYNC,
                window=max(plan.window, 1),
                stop_below=plan.stop_below if plan.way is Way.SYNC and not self._fixed else 0.0,
            ),
            pb.PACING_WAIT if plan.way.waits else pb.PACING_RUN_AHEAD,
            at_once=self._link.taking_turns,
        )
