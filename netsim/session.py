"""One session of edge and cloud over a virtual clock.

The state machines of both ends and the steering are the real ones; models and link are
times and chances. Greedy: the target's token at a position is a function of the
position alone, and whether the draft knows it is drawn once for each position.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import simpy

from edge_client.options import Mode
from edge_client.policy.estimates import LinkEstimates
from edge_client.steering import Steering
from specwire.cloud_session import CloudSession, Outcome, Work
from specwire.edge_session import Counts, Drafting, EdgeSession
from specwire.limits import Limits
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

_SIZE = 64
_NAMES = [f"t{i}" for i in range(_SIZE)]
VOCABULARY = Vocabulary(_NAMES, [name.encode() for name in _NAMES], frozenset())


@dataclass(frozen=True)
class Models:
    """Times of draft and target in seconds, and how well they agree.

    verify_s: of a target forward with one token; extra_s: of each further one.
    agrees: chance that the draft knows the target's token at an output position.
    """

    draft_s: float
    verify_s: float
    extra_s: float
    agrees: Callable[[int], float]


@dataclass
class Run:
    """What a simulated session did. Times in seconds."""

    tokens: int = 0
    ttft_s: float = 0.0
    duration_s: float = 0.0
    forwards: int = 0
    messages_up: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    @property
    def tokens_per_s(self) -> float:
        """Tokens over the whole time."""
        return self.tokens / self.duration_s


class SimulatedSession:
    """A session of `tokens` output tokens; `run` gives its account."""

    def __init__(
        self,
        models: Models,
        *,
        up: Callable[[int], float],
        down: Callable[[int], float],
        mode: Mode,
        tokens: int,
        gamma: int | None = None,
        window: int | None = None,
        seed: int = 0,
        link: LinkEstimates | None = None,
    ) -> None:
        self._models = models
        self._up = up
        self._down = down
        self._env = simpy.Environment()
        self._rng = random.Random(seed)
        self._known: dict[int, bool] = {}
        limits = Limits(context=1 << 20)
        request = SessionRequest(
            prompt=(1, 2, 3),
            seed=seed,
            max_tokens=tokens,
            sampling=SamplingParams(temperature=0.0),
            mode=pb.VERIFICATION_MODE_COUPLED,  # no q on the wire, as none is needed
            pacing=pb.PACING_WAIT if mode in (Mode.SYNC, Mode.PIPELINE) else pb.PACING_RUN_AHEAD,
        )
        self._cloud = CloudSession(request, VOCABULARY, limits)
        self._edge = EdgeSession(request, Drafting(gamma=0))
        self._steering: Steering | None = None
        if mode is not Mode.STREAM:
            self._steering = Steering(
                self._edge,
                mode=mode,
                gamma=gamma,
                window=window,
                limits=limits,
                link=link or LinkEstimates(),
            )
        self._run = Run()
        self._begun = False
        self._arrived = self._env.event()  # something for the cloud to look at
        self._aimed = self._env.event()  # something for the draft to do
        self._over = self._env.event()
        self._last_up = self._last_down = 0.0

    def run(self) -> Run:
        """Run to the end."""
        env = self._env
        env.process(self._open())
        env.process(self._verify())
        if self._steering is not None:
            env.process(self._draft())
        env.run(until=self._over)
        run = self._run
        run.duration_s = env.now
        run.counts = self._edge.counts
        run.tokens = len(self._edge.output)
        return run

    def _target(self, position: int) -> int:
        return position * 7 % _SIZE

    def _agrees(self, position: int) -> bool:
        if position not in self._known:
            self._known[position] = self._rng.random() < self._models.agrees(position - 3)
        return self._known[position]

    # ------------------------------------------------------------------- edge

    def _open(self) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._up(0))
        self._begun = True
        frame = self._cloud.opened(b"s", "simulated", with_prompt=False)
        self._to_cloud(None)
        self._send_down([frame])

    def _pump(self) -> None:
        edge, env = self._edge, self._env
        if self._steering is None:
            return
        while (proposal := edge.next_proposal()) is not None:
            self._steering.sent(proposal, env.now)
            self._run.messages_up += 1
            arrival = max(env.now + self._up(proposal.ByteSize()), self._last_up)
            self._last_up = arrival
            env.process(self._carry(arrival, partial(self._to_cloud, proposal)))
        if not self._aimed.triggered:
            self._aimed.succeed()

    def _carry(
        self, arrival: float, deliver: Callable[[], None]
    ) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(arrival - self._env.now)
        deliver()

    def _draft(self) -> Generator[simpy.Event, Any, None]:
        edge, env = self._edge, self._env
        assert self._steering is not None
        while True:
            wanted = edge.draft_wanted()
            if wanted is None:
                self._aimed = env.event()
                yield self._aimed
                continue
            yield env.timeout(self._models.draft_s)
            token = self._target(wanted.start) + (0 if self._agrees(wanted.start) else 1)
            chance = self._steering.drafted(1.0, self._models.draft_s)
            if edge.add_draft(wanted.chain, token % _SIZE, None, confidence=0.5, chance=chance):
                self._pump()

    def _receive(self, frame: Any) -> None:
        edge, env, run = self._edge, self._env, self._run
        if isinstance(frame, pb.Opened):
            edge.on_opened(frame)
            if self._steering is not None:
                self._steering.opened()
        elif frame.HasField("verdict"):
            committed = edge.on_verdict(frame.verdict)
            if committed and not run.ttft_s:
                run.ttft_s = env.now
            if self._steering is not None:
                way = str(self._steering.plan.way)
                run.ways[way] = run.ways.get(way, 0) + len(committed)
                self._steering.verdict(frame.verdict, env.now)
        else:
            edge.on_finished(frame.finished)
            self._over.succeed()
            return
        self._pump()

    # ------------------------------------------------------------------ cloud

    def _to_cloud(self, proposal: pb.Proposal | None) -> None:
        if proposal is not None:
            self._cloud.receive(proposal)
        if not self._arrived.triggered:
            self._arrived.succeed()

    def _verify(self) -> Generator[simpy.Event, Any, None]:
        env, cloud, run = self._env, self._cloud, self._run
        while not cloud.ended:
            work = cloud.next_work() if self._begun else None
            if work is None:
                self._arrived = env.event()
                yield self._arrived
                continue
            seconds = self._models.verify_s + len(work.tokens) * self._models.extra_s
            yield env.timeout(seconds)
            run.forwards += 1
            self._send_down(cloud.complete(work, self._outcome(work, seconds)))

    def _outcome(self, work: Work, seconds: float) -> Outcome:
        accepted = 0
        for token in work.tokens:
            if token != self._target(work.start + accepted):
                break
            accepted += 1
        return Outcome(accepted, self._target(work.start + accepted), forward_us=int(seconds * 1e6))

    def _send_down(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            arrival = max(self._env.now + self._down(frame.ByteSize()), self._last_down)
            self._last_down = arrival
            self._env.process(self._carry(arrival, partial(self._receive, frame)))
