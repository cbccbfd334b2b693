"""One generation: the session state machine between a stream and a drafting thread."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable

from edge_client import retry
from edge_client.answer import Answer
from edge_client.connection import TargetRoute, TargetStream
from edge_client.draft.source import Drafted
from edge_client.draft.worker import DraftEvents, DraftRun
from edge_client.drafter import DraftSide
from edge_client.inbox import Inbox
from edge_client.link import StreamEnded
from edge_client.offline import MOST_TOKENS, ProvisionalText, Show
from edge_client.options import GenerateOptions, Mode
from edge_client.result import FINISH_REASONS, Result, Status, Token
from edge_client.steering import Steering
from specwire.committed import CommittedToken
from specwire.drafting import Drafting
from specwire.edge_session import EdgeSession
from specwire.errors import LinkError, SessionNotFound, SpecwireError, Superseded, Unconnected
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.request import SessionRequest
from specwire.v1 import verifier_pb2 as pb

MAX_FRUITLESS = 8
"""Streams in a row that may break without a new token before the generation gives up."""


class Generation:
    """Runs one session to its end. Iterate over it once; then read `result`.

    Survives a broken link: it resumes its session, or rebuilds it from seed and
    committed tokens where the verifier no longer knows it.
    """

    def __init__(
        self,
        link: TargetRoute,
        opening: pb.Open,
        options: GenerateOptions,
        *,
        draft: DraftSide | None,
        limits: Limits,
        notify: Callable[[str], None],
        provisional: Show | None,
        began: float,
    ) -> None:
        """`began` is when the text was asked for, in seconds of time.perf_counter."""
        self.result = Result(
            mode=options.mode,
            verification="coupled" if opening.mode == pb.VERIFICATION_MODE_COUPLED else "rejection",
            draft=draft.name if draft else None,
        )
        self._link = link
        self._opening = opening
        self._options = options
        self._draft = draft
        self._notify = notify
        self._machine = EdgeSession(
            SessionRequest(
                prompt=tuple(opening.ids.ids),
                seed=opening.seed,
                max_tokens=opening.max_tokens,
                sampling=options.sampling,
                mode=opening.mode,
                pacing=opening.pacing,
            ),
            Drafting(gamma=0),
            end_ids=draft.end_ids if draft else frozenset(),
            weight_bits=options.truncation.weight_bits,
        )
        self.result.counts = self._machine.counts
        self._limits = limits
        vocabulary = draft.vocabulary if draft is not None else None
        pieces = vocabulary.pieces if vocabulary is not None else None
        self._answer = Answer(
            self.result,
            stops=options.stops,
            pieces=pieces,
            logprobs=options.logprobs is not None,
            began=began,
        )
        self._provisional = ProvisionalText(provisional, pieces)
        if options.offline_tail:
            self.result.offline_tail = self._provisional.account
        self._steering: Steering | None = None
        if draft is not None:
            self._steering = Steering(
                self._machine,
                mode=options.mode,
                gamma=options.gamma,
                window=options.window,
                limits=limits,
                link=draft.estimates,
            )
            if options.record:
                self._steering.record = self.result.record
        self._run: DraftRun | None = None
        self._outgoing: asyncio.Queue[pb.Proposal] | None = None  # while there is a stream
        self._began = began
        self._rebuild: pb.Open | None = None  # opens the session anew where it was lost
        self._connected = False
        self._draft_failed = False
        self._uncounted = False  # a stream ended early, which alone is no reconnection

    # ------------------------------------------------------------- iteration

    async def __aiter__(self) -> AsyncGenerator[Token, None]:
        """Tokens as they are committed.

        Raises:
            SpecwireError: the verifier refused, or can't be reached any more.
        """
        fruitless = 0
        try:
            while self._machine.finished is None:
                before = self._machine.frontier
                try:
                    async with contextlib.aclosing(self._converse()) as tokens:
                        async for token in tokens:
                            yield token
                except SessionNotFound:
                    if not self._machine.opened or self._rebuild is not None:
                        raise
                    self._rebuild = self._machine.rebuild_frame(self._opening)
                    # One key for all attempts: they reach the session that the first one made.
                    self._rebuild.open_key = secrets.token_bytes(16)
                    self.result.reconnections += self._uncounted
                    self._uncounted = False
                    self._go_offline()
                except (*retry.TRANSIENT, Unconnected, Superseded) as error:
                    if not self._connected:
                        raise  # connecting has its own bounded attempts
                    if isinstance(error, Unconnected):
                        self._machine.abandon_chain()
                    fruitless = 0 if self._machine.frontier > before else fruitless + 1
                    if fruitless >= MAX_FRUITLESS:
                        raise
                    await self._pause(error, fruitless)
                else:
                    if self._machine.finished is None:
                        raise LinkError("the verifier ended the stream before the text was done")
            for token in self._answer.finish(self._machine.frontier):
                yield token
        finally:
            if self._run is not None and self._draft is not None:
                self._draft.worker.close_run(self._run)
            self._provisional.withdraw()
            self._provisional.settle()
            if self._machine.opened and self._machine.finished is None:
                self._link.leave(self._machine.session_id)
            self._settle_result()

    @property
    def opened(self) -> bool:
        """Whether a verifier has taken the session on."""
        return self._machine.opened

    def status(self) -> Status:
        """How it is going now."""
        steering, tokens = self._steering, len(self.result.token_ids)
        counts = self._machine.counts
        span = time.perf_counter() - self._began - self.result.ttft_s
        return Status(
            way=str(steering.plan.way) if steering is not None else "stream",
            gamma=steering.plan.gamma if steering is not None else 0,
            alpha=steering.agreement.alpha if steering is not None and counts.examined else None,
            rtt_s=self._draft.estimates.rtt.value if self._draft is not None else None,
            tokens=tokens,
            tokens_per_s=(tokens - 1) / span if tokens > 1 and span > 0 else 0.0,
            per_round_trip=self.result.tokens_per_round or 0.0,
        )

    async def _pause(self, error: SpecwireError, fruitless: int) -> None:
        self._uncounted = isinstance(error, StreamEnded)
        if not self._uncounted:
            self._notify(f"link lost ({error}); resuming")
            self.result.reconnections += 1
            self._go_offline()
        if fruitless:
            await asyncio.sleep(min(0.1 * 2**fruitless, 2.0))

    async def _converse(self) -> AsyncGenerator[Token, None]:
        """One stream, from Open or Resume to its end or its breaking."""
        async with contextlib.AsyncExitStack() as stack:
            self._connected = False
            stream = await self._connect(stack)
            self._connected = True
            writer: asyncio.Task[None] | None = None
            inbox = Inbox(stream)
            try:
                self._provisional.withdraw()
                for token in self._deliver(self._machine.on_opened(stream.opened)):
                    yield token
                if self._steering is not None:
                    self._steering.opened()
                self._rebuild = None
                if self._draft is not None:
                    self._begin_drafting(self._draft)
                    self._outgoing = asyncio.Queue()
                    self._pump()
                    writer = asyncio.create_task(self._write(stream, self._outgoing))
                while self._machine.finished is None:
                    frame, came_at = await inbox.take()
                    if frame is None:
                        return
                    tokens = self._deliver(self._take(frame, came_at))
                    self._pump()
                    for token in tokens:
                        yield token
            finally:
                self._outgoing = None
                if writer is not None:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
                await inbox.close()
                self.result.bytes_up += stream.bytes_up
                self.result.bytes_down += stream.bytes_down

    # ------------------------------------------------------------ connecting

    async def _connect(self, stack: contextlib.AsyncExitStack) -> TargetStream:
        """A stream whose session is open, with bounded attempts."""

        async def attempt() -> TargetStream:
            return await stack.enter_async_context(self._stream())

        policy = retry.RESUME if self._machine.opened else retry.CONNECT

        told = ""

        def on_wait(error: BaseException, wait_s: float) -> None:
            nonlocal told
            reason = str(error) if str(error) != told else "still no link"
            told = str(error)
            self._notify(f"{reason}; next attempt in {wait_s:.1f} s")
            self._go_offline()

        return await retry.retrying(policy, attempt, on_wait)

    def _stream(self) -> contextlib.AbstractAsyncContextManager[TargetStream]:
        machine = self._machine
        if machine.opened and self._rebuild is None:
            return self._link.decode(pb.EdgeFrame(resume=machine.resume_frame()))
        opening = self._rebuild or self._opening
        if self._options.mode in (Mode.STREAM, Mode.TARGET_ONLY):
            return self._link.generate(opening)
        return self._link.decode(pb.EdgeFrame(open=opening))

    # ---------------------------------------------------------------- frames

    def _take(self, frame: pb.CloudFrame, came_at: float) -> list[CommittedToken]:
        kind = frame.WhichOneof("kind")
        if kind == "verdict":
            committed = self._machine.on_verdict(frame.verdict)
            if self._steering is not None:
                way = str(self._steering.plan.way)
                self.result.ways[way] = self.result.ways.get(way, 0) + len(committed)
                self._steering.verdict(frame.verdict, came_at)
            return committed
        if kind == "finished":
            self._machine.on_finished(frame.finished)
            self._tell_what_stands(self._provisional.settle())
        return []

    def _deliver(self, committed: list[CommittedToken]) -> list[Token]:
        for item in committed:
            self._tell_what_stands(self._provisional.compare(item.position, item.id))
        return self._answer.take(committed)

    def _tell_what_stands(self, line: str | None) -> None:
        if line is not None:
            self._notify(line)

    def _settle_result(self) -> None:
        machine, result = self._machine, self.result
        result.duration_s = time.perf_counter() - self._began
        if self._steering is not None:
            result.gamma = self._steering.plan.gamma
        if self._draft is not None:
            result.timing = self._draft.estimates.milliseconds()
        result.seed = machine.request.seed
        result.model = machine.model
        result.prompt_tokens = len(machine.request.prompt)
        if machine.finished is not None:
            result.finish_reason = FINISH_REASONS.get(machine.finished.reason, "unknown")
            result.cached_prompt_tokens = machine.finished.usage.cached_prompt_tokens

    # -------------------------------------------------------------- drafting

    def _begin_drafting(self, draft: DraftSide) -> None:
        if self._run is not None or self._draft_failed:
            return
        events = DraftEvents(self._on_draft, self._on_exhausted, self._on_draft_failed)
        self._run = draft.worker.open(draft.make_source(self._machine), events)

    def _go_offline(self) -> None:
        """Draft on although nothing can be sent, if that is wanted."""
        if not self._options.offline_tail or self._run is None or self._draft_failed:
            return
        machine, limits = self._machine, self._limits
        machine.go_offline(min(MOST_TOKENS, limits.chain), max(limits.gamma, 1))
        self._provisional.begin(self._answer.text, machine.frontier, machine.drafted)
        self._pump()

    def _pump(self) -> None:
        """Send what is ready, and tell the drafting thread what is wanted."""
        if self._draft is None or self._steering is None or self._answer.text.stopped:
            return
        machine = self._machine
        while self._outgoing is not None and (proposal := machine.next_proposal()) is not None:
            self._steering.sent(proposal, time.perf_counter())
            self._outgoing.put_nowait(proposal)
        if self._run is None:
            return
        wanted = machine.draft_wanted()
        if wanted is None:
            self._draft.worker.rest(self._run)
        else:
            start, stop = wanted.start, wanted.start + wanted.count
            self._draft.worker.aim(self._run, wanted.chain, lambda: machine.prefix(start), stop)

    def _on_draft(self, chain: int, drafted: Drafted, seconds: float | None) -> None:
        if self._draft_failed:
            return
        chance = self._steering.drafted(drafted.confidence, seconds) if self._steering else 1.0
        try:
            taken = self._machine.add_draft(
                chain, drafted.token, drafted.row, confidence=drafted.confidence, chance=chance
            )
        except ValueError as error:
            if self._run is not None and self._draft is not None:
                self._draft.worker.close_run(self._run)
            self._on_draft_failed(error)
            return
        if taken:
            self._provisional.add(drafted.token)
            self._pump()

    def _on_exhausted(self, chain: int) -> None:
        self._machine.draft_exhausted(chain)
        if self._steering is not None:
            self._steering.exhausted()
        self._pump()

    def _on_draft_failed(self, error: Exception) -> None:
        self._draft_failed = True
        self._notify(f"the draft failed ({error}); going on without it")
        if self._steering is not None:
            self._steering.draft_lost()
        self._pump()

    async def _write(self, stream: TargetStream, outgoing: asyncio.Queue[pb.Proposal]) -> None:
        # A broken stream also ends the reading side, which knows what to do about it.
        with contextlib.suppress(SpecwireError):
            while True:
                await stream.send(pb.EdgeFrame(proposal=await outgoing.get()))


def opening_frame(options: GenerateOptions, *, fingerprint: bytes, return_text: bool) -> pb.Open:
    """The Open frame that asks for `options`, without a prompt."""
    frame = pb.Open(
        protocol_version=PROTOCOL_VERSIONS[-1],
        sampling=options.sampling.to_proto(),
        max_tokens=options.max_tokens,
        stops=options.stops,
        mode=options.rule,
        pacing=options.pacing,
        vocabulary_fingerprint=fingerprint,
        open_key=secrets.token_bytes(16),
        return_text=return_text,
    )
    if options.seed is not None:
        frame.seed = options.seed
    if options.logprobs is not None:
        frame.logprobs = options.logprobs
    return frame
