"""Sessions of edge and cloud over a link, on a virtual clock.

Both ends are the real state machines, the edge is steered by the real policy, messages
have the sizes of the real protocol. Models are times and chances, the link is a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from edge_client.policy.estimates import LinkEstimates
from netsim.calls import answered_bytes, asked_bytes
from netsim.cloud_speculation import CloudSpeculation, Stream
from netsim.edge import Edge, pacing_of
from netsim.links import CALL_DOWN_BYTES, CALL_UP_BYTES, Link
from netsim.scenario import Run, Scenario, Span, Way
from netsim.verifier import PROMPT, VOCABULARY, Seat, Verifier
from netsim.wire import wires
from specwire.cloud_session import CloudSession
from specwire.limits import Limits
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

LIMITS = Limits(context=1 << 20)
_GREEDY = SamplingParams(temperature=0.0)
_OPEN_BYTES = 60
"""Of an opening without its prompt, whose tokens take two bytes each."""
_ENVELOPE_BYTES = 2
"""Of the frame that a proposal goes up in."""
_Q_BYTES = 12
"""Of a draft token that the cloud waits for: its q at temperature 0.7, on average, as
docs/benchmarks.md has it. Where the cloud does not wait, both ends share their noise instead."""
_SESSION_ID = b"s" * 16


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
        cloud = CloudSpeculation(env, scenario, scenario.seed * 1009)
        sessions: list[Any] = [
            _CloudSession(env, scenario, cloud, client) for client in range(scenario.clients)
        ]
    else:
        verifier = Verifier(
            env, scenario.models, scenario.seed, alone=scenario.clients == 1, trace=trace
        )
        sessions = [
            _Session(env, scenario, verifier, client, link if client == 0 else None, trace)
            for client in range(scenario.clients)
        ]
    for session in sessions:
        env.run(until=session.over)
    return [session.finish() for session in sessions]


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
        self._calls = scenario.way is Way.PER_TOKEN
        pacing = pacing_of(scenario.way)
        self._q_bytes = _Q_BYTES if pacing == pb.PACING_WAIT else 0
        seed = scenario.seed * 1009 + client
        self._link: Link = scenario.link.open(seed)
        self._up, self._down = wires(env, self._link, windows=not self._calls)
        request = SessionRequest(
            prompt=PROMPT,
            seed=seed,
            max_tokens=scenario.tokens,
            sampling=_GREEDY,
            mode=pb.VERIFICATION_MODE_COUPLED,  # q is counted, and not computed
            pacing=pacing,
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
        opening = _OPEN_BYTES + 2 * scenario.prompt + (CALL_UP_BYTES if self._calls else 0)
        _begin(env, scenario, self._link, lambda: self._up.send(opening, self._opened))

    def _opened(self) -> None:
        frame = self._cloud.opened(_SESSION_ID, "simulated", with_prompt=False)
        size = frame.ByteSize() + (CALL_DOWN_BYTES if self._calls else 0)
        self._down.send(size, self._edge.receive, frame)
        self._verifier.seat(self._seat)

    def _propose(self, proposal: pb.Proposal) -> None:
        run = self._edge.run
        run.messages_up += 1
        if self._calls:
            size = asked_bytes(_SESSION_ID, proposal)
        else:
            size = proposal.ByteSize() + _ENVELOPE_BYTES + self._q_bytes * len(proposal.tokens)
        left, arrival = self._up.send(size, self._take, proposal)
        if self._trace:
            run.spans.append(Span("up", left, arrival, proposal.start, len(proposal.tokens)))

    def _take(self, proposal: pb.Proposal) -> None:
        self._cloud.receive(proposal, self._env.now)
        self._verifier.wake(self._seat)

    def _answer(self, frames: list[pb.CloudFrame]) -> None:
        down, receive = self._down, self._edge.receive
        if self._calls:
            left, arrival = down.send(answered_bytes(self._cloud, frames), self._answered, frames)
        else:
            left, arrival = down.send(frames[0].ByteSize(), receive, frames[0])
            for frame in frames[1:]:
                down.send(frame.ByteSize(), receive, frame)
        if self._trace:
            verdict = frames[0].verdict
            count = verdict.accepted + verdict.HasField("token")
            self._edge.run.spans.append(Span("down", left, arrival, verdict.start, count))

    def _answered(self, frames: list[pb.CloudFrame]) -> None:
        for frame in frames:
            self._edge.receive(frame)

    def finish(self) -> Run:
        """The account."""
        run = self._edge.run
        run.forwards, run.share = self._seat.forwards, self._seat.share
        run.bytes_up, run.bytes_down = self._link.up.bytes, self._link.down.bytes
        if self._trace:
            if self._seat.reading is not None:
                run.spans.append(Span("prefill", *self._seat.reading, 0, self._seat.prompt))
            run.spans.extend(
                Span("verify", began, ended, work.start, len(work.tokens) + 1)
                for began, ended, work in self._seat.verified
            )
            run.spans.sort(key=lambda span: (span.begin, span.end))
        return run


class _CloudSession:
    """One client's session where the cloud drafts itself."""

    def __init__(
        self, env: simpy.Environment, scenario: Scenario, cloud: CloudSpeculation, client: int
    ) -> None:
        self._env = env
        self._tokens = scenario.tokens
        seed = scenario.seed * 1009 + client
        self._link = scenario.link.open(seed)
        self._up, self._down = wires(env, self._link)
        self._run = Run(scenario.way)
        self._stream = Stream(scenario.acceptance.draw(seed), self._answer, scenario.prompt)
        self.over = env.event()
        opening = _OPEN_BYTES + 2 * scenario.prompt
        _begin(env, scenario, self._link, lambda: self._up.send(opening, cloud.seat, self._stream))

    def _answer(self, tokens: int) -> None:
        stream = self._stream
        verdict = pb.Verdict(number=stream.forwards, start=stream.made, accepted=tokens)
        self._down.send(verdict.ByteSize() + 2 * tokens, self._arrive, tokens)

    def _arrive(self, tokens: int) -> None:
        self._run.arrivals.extend([self._env.now] * tokens)
        if len(self._run.arrivals) >= self._tokens:
            self.over.succeed()

    def finish(self) -> Run:
        """The account."""
        run, stream = self._run, self._stream
        run.forwards, run.share = stream.forwards, stream.share
        run.accepted, run.examined = stream.accepted, stream.examined
        run.bytes_up, run.bytes_down = self._link.up.bytes, self._link.down.bytes
        run.messages_up = 1
        return run


def _begin(
    env: simpy.Environment, scenario: Scenario, link: Link, opening: Callable[[], object]
) -> None:
    """Send the opening: at once, or when there is a connection to send it on."""

    def connected(_: simpy.Event) -> None:
        opening()

    if not scenario.connect:
        opening()
        return
    handshakes = env.timeout(link.connect(env.now) - env.now)
    assert handshakes.callbacks is not None
    handshakes.callbacks.append(connected)
