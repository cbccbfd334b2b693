"""Sessions of edge and cloud over a link, on a virtual clock.

Both ends are the real state machines, the edge is steered by the real policy, messages
have the sizes of the real protocol. Models are times and chances, the link is a model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from typing import Any

import simpy

from edge_client.policy.estimates import LinkEstimates
from netsim.edge import Edge, pacing_of
from netsim.links import Link, OneWay, wire_bytes
from netsim.scenario import Run, Scenario, Span, Way
from netsim.verifier import PROMPT, SIZE, Seat, Verifier, speculate_in_cloud
from specwire.cloud_session import CloudSession
from specwire.limits import Limits
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

_NAMES = [f"t{i}" for i in range(SIZE)]
VOCABULARY = Vocabulary(_NAMES, [name.encode() for name in _NAMES], frozenset())
LIMITS = Limits(context=1 << 20)
_GREEDY = SamplingParams(temperature=0.0)
_OPEN_BYTES = 60
"""Of an opening without its prompt, whose tokens take two bytes each."""
_CLOUD_GAMMA = 4


def simulate(
    scenario: Scenario, *, link: LinkEstimates | None = None, trace: bool = False
) -> list[Run]:
    """The sessions of a scenario, in the order of its clients.

    Args:
        scenario: what to simulate.
        link: what the first client's policy knows of the link already; learns more.
        trace: note who did what and when in `Run.spans`.
    """
    env = simpy.Environment()
    if scenario.way is Way.CLOUD:
        sessions: list[Any] = [_CloudSpeculation(env, scenario, i) for i in range(scenario.clients)]
    else:
        verifier = Verifier(env, scenario.models, scenario.seed)
        sessions = [
            _Session(env, scenario, verifier, client, link if client == 0 else None, trace)
            for client in range(scenario.clients)
        ]
    for session in sessions:
        env.run(until=session.over)
    return [session.finish() for session in sessions]


class _Wire:
    """One direction of a session's link: calls back when a message has arrived."""

    def __init__(self, env: simpy.Environment, way: OneWay) -> None:
        self._env = env
        self._way = way
        self._last = 0.0  # when the latest message will be there

    def send(self, size: int, then: Any, *args: Any) -> tuple[float, float]:
        """Send a message of `size` bytes; returns when it left and when it arrives."""
        now = self._env.now
        arrival = max(self._way.send(now, wire_bytes(size)), self._last)
        delay = arrival - now
        while now + delay < arrival:  # by rounding: it would overtake one that is there then
            delay = math.nextafter(delay, math.inf)
        self._last = now + delay
        event = self._env.timeout(delay)
        event.callbacks.append(lambda _: then(*args))
        return now, arrival


class _Session:
    """One client's session."""

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        verifier: Verifier,
        client: int,
        known: LinkEstimates | None,
        trace: bool,
    ) -> None:
        self._env = env
        self._verifier = verifier
        self._trace = trace
        seed = scenario.seed * 1009 + client
        self._link: Link = scenario.link.open(seed)
        self._up, self._down = _Wire(env, self._link.up), _Wire(env, self._link.down)
        request = SessionRequest(
            prompt=PROMPT,
            seed=seed,
            max_tokens=scenario.tokens,
            sampling=_GREEDY,
            mode=pb.VERIFICATION_MODE_COUPLED,  # no q on the wire, as none is needed
            pacing=pacing_of(scenario.way),
        )
        self._cloud = CloudSession(request, VOCABULARY, LIMITS)
        self._seat = Seat(self._cloud, self._answer, scenario.prompt)
        self._edge = Edge(
            env,
            scenario,
            request,
            LIMITS,
            knows=scenario.acceptance.draw(seed),
            send=self._propose,
            link=known,
            trace=trace,
        )
        self.over = self._edge.over
        self._up.send(_OPEN_BYTES + 2 * scenario.prompt, self._opened)

    def _opened(self) -> None:
        frame = self._cloud.opened(b"s" * 16, "simulated", with_prompt=False)
        self._down.send(frame.ByteSize(), self._edge.receive, frame)
        self._verifier.seat(self._seat)

    def _propose(self, proposal: pb.Proposal) -> None:
        run = self._edge.run
        run.messages_up += 1
        left, arrival = self._up.send(proposal.ByteSize(), self._take, proposal)
        if self._trace:
            run.spans.append(Span("up", left, arrival, proposal.start, len(proposal.tokens)))

    def _take(self, proposal: pb.Proposal) -> None:
        self._cloud.receive(proposal)
        self._verifier.wake(self._seat)

    def _answer(self, frames: list[pb.CloudFrame]) -> None:
        for frame in frames:
            left, arrival = self._down.send(frame.ByteSize(), self._edge.receive, frame)
            if self._trace and frame.HasField("verdict"):
                verdict = frame.verdict
                count = verdict.accepted + verdict.HasField("token")
                self._edge.run.spans.append(Span("down", left, arrival, verdict.start, count))

    def finish(self) -> Run:
        """The account."""
        run = self._edge.run
        run.forwards = self._seat.forwards
        run.bytes_up, run.bytes_down = self._link.up.bytes, self._link.down.bytes
        if self._trace:
            run.spans.extend(
                Span("verify", began, ended, work.start, len(work.tokens) + 1)
                for began, ended, work in self._seat.verified
            )
            run.spans.sort(key=lambda span: (span.begin, span.end))
        return run


class _CloudSpeculation:
    """The baseline that drafts in the cloud, beside the target, and streams what comes of it."""

    def __init__(self, env: simpy.Environment, scenario: Scenario, client: int) -> None:
        self._env = env
        self._scenario = scenario
        self._seed = scenario.seed * 1009 + client
        self._link = scenario.link.open(self._seed)
        self._up, self._down = _Wire(env, self._link.up), _Wire(env, self._link.down)
        self._run = Run(scenario.way)
        self.over = env.event()
        self._up.send(_OPEN_BYTES + 2 * scenario.prompt, lambda: env.process(self._serve()))

    def _serve(self) -> Generator[simpy.Event, None, None]:
        scenario, models, env = self._scenario, self._scenario.models, self._env
        knows = scenario.acceptance.draw(self._seed)
        gamma = scenario.gamma or _CLOUD_GAMMA
        draft = (models.cloud_draft or models.draft).sampler(random.Random(f"draft {self._seed}"))
        verify = models.verify.sampler(random.Random(f"verify {self._seed}"))
        yield env.timeout(scenario.prompt * models.prefill_s)
        made = 0
        while made < scenario.tokens:
            drafted = min(gamma, scenario.tokens - made - 1)
            seconds = sum(draft() for _ in range(drafted)) + verify() + models.overhead_s
            yield env.timeout(seconds + drafted * models.extra_s)
            tokens = speculate_in_cloud(knows, made, drafted)
            made += tokens
            self._run.forwards += 1
            self._run.accepted += tokens - 1
            self._run.examined += min(tokens, drafted)
            verdict = pb.Verdict(number=self._run.forwards, start=made, accepted=tokens)
            self._down.send(verdict.ByteSize() + 2 * tokens, self._arrive, tokens)

    def _arrive(self, tokens: int) -> None:
        self._run.arrivals.extend([self._env.now] * tokens)
        if len(self._run.arrivals) >= self._scenario.tokens:
            self.over.succeed()

    def finish(self) -> Run:
        """The account."""
        self._run.bytes_up, self._run.bytes_down = self._link.up.bytes, self._link.down.bytes
        return self._run
