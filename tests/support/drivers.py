"""Both ends of a session in one thread, over a link that a seeded clock plays.

The two state machines are the real ones, and so are drafting, acceptance and
noise; only the models are tables. Every step picks one thing that can happen next
(a token drafted, a frame arriving, a forward ending, the link breaking, …), so a
seed plays one interleaving, and many seeds play what asyncio, threads and networks do.

The choice never looks at tokens. That matters: an interleaving that depended on
what was drawn would bias the output by itself.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specwire.acceptance import coupled_noise, examine_coupled, examine_rejection, rejection_noise
from specwire.cloud_session import CloudSession, Outcome, Work
from specwire.committed import CommittedToken
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.qrow import (
    QRow,
    Truncation,
    coupled_draft,
    draft_noise,
    draft_row,
    draw_row,
    stack_rows,
)
from specwire.request import SessionRequest, read_open
from specwire.sampling import History, SamplingParams, distribution
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary
from tests.support.tables import table_vocabulary


class TableTarget:
    """Examines works by a table, as the engine does with a model."""

    def __init__(self, table: np.ndarray, params: SamplingParams) -> None:
        self.params = params
        self._table = table
        self._p = None if params.penalises else distribution(table, params)

    def outcome(self, session: CloudSession, work: Work) -> Outcome:
        """What the target says about a work of this session."""
        seed, count = session.request.seed, len(work.tokens)
        last = session.committed(work.start - 1, work.start)
        p = self._rows(session, [*last, *work.tokens], work)
        tokens = np.array(work.tokens, np.int64)
        if session.request.mode == pb.VERIFICATION_MODE_COUPLED:
            result = examine_coupled(p, tokens, coupled_noise(seed, work.start, count, p))
        else:
            accept, draw = rejection_noise(seed, work.start, count)
            rows = stack_rows(work.rows, p.shape[1], p)
            result = examine_rejection(p, tokens, rows, np.array(accept), np.array(draw))
        return Outcome(int(result.accepted), int(result.token))

    def _rows(self, session: CloudSession, before: list[int], work: Work) -> np.ndarray:
        if self._p is not None:
            return np.asarray(self._p[before])
        history = History(session.request.prompt, tuple(session.output))
        return np.asarray(
            distribution(self._table[before], self.params, history=history, drafted=work.tokens)
        )


class TableDraft:
    """Drafts by a table, as the edge does with a model."""

    def __init__(
        self, table: np.ndarray, params: SamplingParams, truncation: Truncation | None = None
    ) -> None:
        self._table, self._params = table, params
        self._truncation = truncation or Truncation(cover=0.8, cap=3, weight_bits=4)
        self.weight_bits = self._truncation.weight_bits
        self._cache: dict[int, QRow] = {}

    def next(
        self, request: SessionRequest, prefix: list[int], chain: int
    ) -> tuple[int, QRow | None]:
        """The draft token that follows the prefix in this chain, and its q."""
        position, history = len(prefix), None
        if self._params.penalises:
            cut = len(request.prompt)
            history = History(prefix[:cut], prefix[cut:])
        if request.mode == pb.VERIFICATION_MODE_COUPLED:
            token = coupled_draft(
                self._table[prefix[-1]],
                self._params,
                seed=request.seed,
                position=position,
                size=len(self._table),
                history=history,
            )
            return token, None
        row = self._row(prefix[-1], history)
        noise = draft_noise(request.seed, position, chain)
        return draw_row(row, noise), row

    def _row(self, last: int, history: History | None) -> QRow:
        if history is None and last in self._cache:
            return self._cache[last]
        row = draft_row(
            self._table[last],
            self._params,
            self._truncation,
            size=len(self._table),
            history=history,
        )
        self._cache[last] = row
        return row


@dataclass(frozen=True)
class Drafted:
    """What the drafting side tells: a token for a position; None where it has nothing to say."""

    chain: int
    position: int
    token: int | None
    row: QRow | None = None


class DraftingSide:
    """Drafts on its own, as the edge's thread does: it is heard, and hears, a while later.

    What it is told is from when the edge knew less, so it drafts more than is wanted by then.
    """

    def __init__(self, draft: TableDraft) -> None:
        self.told: deque[Drafted] = deque()
        self._draft = draft
        self._chain = 0
        self._prefix: list[int] = []
        self._stop = 0

    @property
    def wants(self) -> bool:
        """Whether there is something to draft."""
        return len(self._prefix) < self._stop

    def aim(self, edge: EdgeSession) -> None:
        """Hear what is wanted now."""
        wanted = edge.draft_wanted()
        self._stop = 0
        if wanted is None:
            return
        assert wanted.count > 0
        if wanted.chain != self._chain:
            self._chain, self._prefix = wanted.chain, edge.prefix(wanted.start)
            assert len(self._prefix) == wanted.start
        self._stop = wanted.start + wanted.count

    def work(self, request: SessionRequest, *, exhausted: bool) -> None:
        """Draft a token, or find nothing to say."""
        position = len(self._prefix)
        if exhausted:
            self._stop = 0
            self.told.append(Drafted(self._chain, position, None))
            return
        token, row = self._draft.next(request, self._prefix, self._chain)
        self._prefix.append(token)
        self.told.append(Drafted(self._chain, position, token, row))


@dataclass(frozen=True)
class Faults:
    """Chance of each fault at a step.

    cut: the stream breaks, with frames under way lost. restart: the cloud forgets the
    session. repeat: an old proposal of this stream's session arrives again.
    stop: the draft fails for good. exhaust: the draft has nothing to say here.
    abandon: a round in flight comes to nothing, and its stream ends with an error.
    bound: a round examines only a few of the draft tokens at hand, or none.
    """

    cut: float = 0.0
    restart: float = 0.0
    repeat: float = 0.0
    stop: float = 0.0
    exhaust: float = 0.0
    abandon: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True)
class Setup:
    """All that a run is made of but its seed."""

    target: TableTarget
    draft: TableDraft
    vocabulary: Vocabulary
    drafting: Drafting
    mode: pb.VerificationMode = pb.VERIFICATION_MODE_REJECTION
    pacing: pb.Pacing = pb.PACING_WAIT
    prompt: tuple[int, ...] = (0,)
    max_tokens: int = 8
    stops: tuple[str, ...] = ()
    limits: Limits = Limits(context=4096)  # noqa: RUF009 (frozen)
    faults: Faults = Faults()
    serialise: bool = False
    offline: int = 0
    """Tokens drafted beyond the frontier while the stream is broken; 0 for as many as ever."""
    chance: float = 0.7
    """That a draft token is accepted, as the edge is told."""


def make_setup(
    target: np.ndarray,
    draft: np.ndarray,
    drafting: Drafting,
    *,
    params: SamplingParams | None = None,
    end_ids: frozenset[int] = frozenset(),
    truncation: Truncation | None = None,
    **fields: object,
) -> Setup:
    """A setup from two tables."""
    params = params or SamplingParams()
    setup = Setup(
        TableTarget(target, params),
        TableDraft(draft, params, truncation),
        table_vocabulary(len(target), end_ids),
        drafting,
    )
    return replace(setup, **fields)  # type: ignore[arg-type]


class Deadlock(AssertionError):
    """Nothing can happen any more, and the session has not ended."""


class Driver:
    """One session, played to its end.

    seed: of the session's draws. order: of the interleaving.
    """

    def __init__(self, setup: Setup, seed: int, order: int | None = None) -> None:
        self.setup = setup
        self.choose = random.Random(seed if order is None else order)
        self.opening = pb.Open(
            protocol_version=1,
            ids=pb.TokenIds(ids=setup.prompt),
            seed=seed,
            sampling=setup.target.params.to_proto(),
            max_tokens=setup.max_tokens,
            stops=setup.stops,
            mode=setup.mode,
            pacing=setup.pacing,
        )
        request = SessionRequest(
            prompt=setup.prompt,
            seed=seed,
            max_tokens=setup.max_tokens,
            sampling=setup.target.params,
            mode=setup.mode,
            pacing=setup.pacing,
        )
        self.edge = EdgeSession(
            request,
            setup.drafting,
            end_ids=setup.vocabulary.end_ids,
            weight_bits=setup.draft.weight_bits,
        )
        self.side = DraftingSide(setup.draft)
        self.delivered: list[CommittedToken] = []
        self.up: deque[pb.Proposal] = deque()
        self.down: deque[pb.CloudFrame] = deque()
        self.work: Work | None = None
        self.old: list[pb.Proposal] = []
        self.connected = False  # the cloud has a stream
        self.attached = False  # and the edge has read that stream's first frame
        self.known = True  # the cloud still has the session
        self.cuts = self.restarts = self.steps = 0
        self._ids = itertools.count(1)
        self._open(self.opening)

    # ------------------------------------------------------------------ the run

    def run(self) -> list[int]:
        """Play to the end, with what must hold checked at each step; the output."""
        faults = self.setup.faults
        while self.edge.finished is None:
            self.steps += 1
            self._fault(faults)
            possible = self._possible()
            if not possible:
                raise Deadlock(f"step {self.steps}: {self.describe()}")
            self.choose.choice(possible)()
            self._check()
        assert list(self.edge.output) == list(self.cloud.output)
        assert [t.id for t in self.delivered] == list(self.edge.output)
        start = len(self.setup.prompt)
        assert [t.position for t in self.delivered] == list(
            range(start, start + len(self.delivered))
        )
        return list(self.edge.output)

    def describe(self) -> str:
        """The state, for a failing test."""
        chain = self.edge._chains.current
        asked_at = self.edge._pacing.asked_at
        return (
            f"edge at {self.edge.frontier} with chain {chain}, asked at {asked_at}; "
            f"cloud at {self.cloud.frontier} with {self.cloud._chain}, pacing {self.cloud.pacing}"
        )

    def _possible(self) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        if self.side.wants:
            actions.append(self._draft)
        if self.side.told:
            actions.append(self._hear)
        if not self.connected:
            actions.append(self._reconnect)
        if self.up:
            actions.append(self._arrive)
        if self.down:
            actions.append(self._deliver)
        if self.work is not None:
            actions.append(self._end_round)
        elif self.connected and self.cloud.has_work():
            actions.append(self._begin_round)
        return actions

    def _check(self) -> None:
        edge, cloud = self.edge.output, self.cloud.output
        assert list(edge) == list(cloud[: len(edge)])
        assert len(cloud) <= self.setup.max_tokens
        window = max(self.setup.drafting.window, self.setup.offline)
        assert window >= len(self.edge.drafted)
        # With nothing under way, what the edge waits for must be known to the cloud.
        quiet = self.connected and not (self.up or self.down or self.cloud.ended)
        if quiet and self.edge.waiting:
            assert self.work is not None or self.cloud.has_work(), self.describe()

    # ------------------------------------------------------------------- events

    def _pump(self) -> None:
        while (proposal := self.edge.next_proposal()) is not None:
            gamma = self.setup.limits.gamma if self.setup.offline else self.setup.drafting.gamma
            assert len(proposal.tokens) <= max(gamma, 1)
            if self.attached:
                self.up.append(self._through(proposal))
        self.side.aim(self.edge)

    def _through(self, message: pb.Proposal) -> pb.Proposal:
        if not self.setup.serialise:
            return message
        return pb.Proposal.FromString(message.SerializeToString())

    def _draft(self) -> None:
        exhausted = self.choose.random() < self.setup.faults.exhaust
        self.side.work(self.edge.request, exhausted=exhausted)

    def _hear(self) -> None:
        told, chain = self.side.told.popleft(), self.edge._chains.current
        if told.token is None:
            self.edge.draft_exhausted(told.chain)
        else:
            end, chance = chain.end, self.setup.chance
            taken = self.edge.add_draft(told.chain, told.token, told.row, chance=chance)
            assert taken == (told.chain == chain.drafted_as and not self.edge.finished)
            assert not taken or told.position == end
        self._pump()

    def _arrive(self) -> None:
        proposal = self.up.popleft()
        self.cloud.receive(proposal)
        self.old.append(proposal)

    def _begin_round(self) -> None:
        bound = self.setup.faults.bound
        most = self.choose.randint(0, 2) if bound and self.choose.random() < bound else None
        at_hand = self.cloud.drafts_at_hand
        self.work = self.cloud.next_work(most)
        assert self.work is not None
        assert len(self.work.tokens) == (at_hand if most is None else min(at_hand, most))
        assert self.work.start == self.cloud.frontier
        assert self.cloud.next_work() is None

    def _end_round(self) -> None:
        work, self.work = self.work, None
        assert work is not None
        if self.choose.random() < self.setup.faults.abandon:
            self.cloud.abandon_work()
            self._cut()
            return
        frames = self.cloud.complete(work, self.setup.target.outcome(self.cloud, work))
        assert self.cloud.frontier > work.start
        if self.connected:
            self.down.extend(frames)

    def _deliver(self) -> None:
        frame = self.down.popleft()
        kind = frame.WhichOneof("kind")
        if kind == "opened":
            self.attached = True
            self.delivered += self.edge.on_opened(frame.opened)
        elif kind == "verdict":
            self.delivered += self.edge.on_verdict(frame.verdict)
        else:
            self.edge.on_finished(frame.finished)
        self._pump()

    # ------------------------------------------------------------------- faults

    def _fault(self, faults: Faults) -> None:
        draw = self.choose.random
        if self.connected and faults.cut and draw() < faults.cut:
            self._cut()
        if faults.restart and draw() < faults.restart:
            self._cut()
            self.known = False
        if faults.repeat and self.old and self.connected and draw() < faults.repeat:
            self.cloud.receive(self.choose.choice(self.old))
        if faults.stop and draw() < faults.stop:
            self.edge.steer(Drafting(0), pb.PACING_RUN_AHEAD)
            self._pump()

    def _cut(self) -> None:
        if not self.connected:
            return
        # Some of what was under way upwards still reaches the cloud.
        for _ in range(self.choose.randint(0, len(self.up))):
            self._arrive()
        self.up.clear()
        self.down.clear()
        self.connected = self.attached = False
        self.cuts += 1
        if self.setup.offline:
            self.edge.go_offline(self.setup.offline, self.setup.limits.gamma)
            self.side.aim(self.edge)

    def _reconnect(self) -> None:
        if self.known and self.edge.opened:
            resume = self.edge.resume_frame()
            opened = self.cloud.resumed(resume.frontier, resume.session_id, "table")
            self._attach(opened)
        else:
            self.restarts += self.edge.opened
            opened_before = self.edge.opened
            self._open(self.edge.rebuild_frame(self.opening) if opened_before else self.opening)

    def _open(self, frame: pb.Open) -> None:
        setup = self.setup
        request = read_open(
            frame,
            list(frame.ids.ids),
            seed=1,
            vocabulary=setup.vocabulary,
            limits=setup.limits,
        )
        self.cloud = CloudSession(request, setup.vocabulary, setup.limits)
        self.work, self.old, self.known = None, [], True
        session_id = next(self._ids).to_bytes(16, "big")
        self._attach(self.cloud.opened(session_id, "table", with_prompt=False))

    def _attach(self, opened: pb.Opened) -> None:
        self.connected = True
        self.down.append(pb.CloudFrame(opened=opened))
        if self.cloud.finished is not None:
            self.down.append(pb.CloudFrame(finished=self.cloud.finished))


def target_only(setup: Setup, seed: int) -> list[int]:
    """The output without any draft, link or fault."""
    request = SessionRequest(
        prompt=setup.prompt,
        seed=seed,
        max_tokens=setup.max_tokens,
        sampling=setup.target.params,
        stops=setup.stops,
        mode=setup.mode,
        pacing=pb.PACING_RUN_AHEAD,
    )
    session = CloudSession(request, setup.vocabulary, setup.limits)
    while session.finished is None:
        work = session.next_work()
        assert work is not None
        session.complete(work, setup.target.outcome(session, work))
    return list(session.output)


def drafts_only(output: Sequence[CommittedToken]) -> int:
    """How many committed tokens came from accepted drafts."""
    return sum(token.origin == "accepted" for token in output)
