"""The edge of a simulation: the real state machine and the real policy, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import simpy

from edge_client.options import Mode
from edge_client.policy.estimates import LinkEstimates
from edge_client.steering import Steering
from netsim.acceptance import Knows
from netsim.scenario import EDGE, Run, Scenario, Span, Way
from netsim.verifier import PROMPT, draft_token
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb

CONFIDENCE = 0.5
"""Simulated drafts say nothing of how sure they are."""


class Edge:
    """One session's edge.

    Args:
        env: the clock.
        scenario: what is simulated.
        request: as the session is opened.
        limits: the verifier's.
        knows: which tokens the draft knows.
        send: takes what leaves for the cloud.
        link: what was learnt of the link before; None for nothing.
        trace: whether to note who did what and when.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        request: SessionRequest,
        limits: Limits,
        *,
        knows: Knows,
        send: Callable[[pb.Proposal], None],
        link: LinkEstimates | None,
        trace: bool,
    ) -> None:
        self._env = env
        self._models = scenario.models
        self._knows = knows
        self._send = send
        self._trace = trace
        self._machine = EdgeSession(request, Drafting(gamma=0))
        self._steering: Steering | None = None
        if scenario.way in EDGE:
            self._steering = Steering(
                self._machine,
                mode=Mode(scenario.way.value),
                gamma=scenario.gamma,
                window=scenario.window,
                limits=limits,
                link=link or LinkEstimates(),
            )
        self._wait: simpy.Event | None = None
        self._left = 0  # to be drafted before the state machine need be asked again
        self._seed = scenario.seed
        self._prompt = scenario.prompt
        self.run = Run(scenario.way)
        self.over = env.event()

    def receive(self, frame: Any) -> None:
        """Take a frame of the cloud's."""
        machine, steering, now = self._machine, self._steering, self._env.now
        if isinstance(frame, pb.Opened):
            machine.on_opened(frame)
            if steering is not None:
                steering.opened()
                self._env.process(self._draft(self._prompt))
        elif frame.HasField("verdict"):
            verdict, run = frame.verdict, self.run
            committed = len(machine.on_verdict(verdict))
            run.arrivals.extend([now] * committed)
            if steering is not None:
                way = steering.plan.way
                run.ways[way] = run.ways.get(way, 0) + committed
                steering.verdict(verdict, now)
        else:
            machine.on_finished(frame.finished)
            counts, run = machine.counts, self.run
            run.examined, run.accepted = counts.examined, counts.accepted
            run.proposed = counts.proposed
            self.over.succeed()
            return
        self._left = 0
        self._pump()
        if self._wait is not None:
            wait, self._wait = self._wait, None
            wait.succeed()

    def _pump(self) -> None:
        machine, steering = self._machine, self._steering
        while (proposal := machine.next_proposal()) is not None:
            self._left = 0
            if steering is not None:
                steering.sent(proposal, self._env.now)
            self._send(proposal)

    def _draft(self, prompt: int) -> Generator[simpy.Event, None, None]:
        env, machine, steering = self._env, self._machine, self._steering
        assert steering is not None
        sample = self._models.draft.sampler(random.Random(f"draft {self._seed}"))
        if prompt and self._models.draft_prefill_s:
            yield env.timeout(prompt * self._models.draft_prefill_s)
        knows, first, trace = self._knows, len(PROMPT), self._trace
        chain = root = position = -1
        while machine.finished is None:
            if not self._left:
                wanted = machine.draft_wanted()
                if wanted is None:
                    self._wait = env.event()
                    yield self._wait
                    continue
                position, self._left = wanted.start, wanted.count
                if wanted.chain != chain:
                    chain, root = wanted.chain, position
            began = env.now
            seconds = sample()
            yield env.timeout(seconds)
            right = knows(position - first, position - root)
            chance = steering.drafted(CONFIDENCE, seconds)
            taken = machine.add_draft(
                chain, draft_token(position, right), None, confidence=CONFIDENCE, chance=chance
            )
            if trace:
                self.run.spans.append(Span("draft", began, env.now, position, 1, taken and right))
            if taken:
                position += 1
                self._left -= self._left > 0
                self._pump()


def pacing_of(way: Way) -> pb.Pacing:
    """What the session is opened with."""
    waits = way in (Way.SYNC, Way.PIPELINE, Way.PER_TOKEN)
    return pb.PACING_WAIT if waits else pb.PACING_RUN_AHEAD
