"""The sessions that a verifier keeps, and who may speak to them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cloud_verifier.draft_share import Accepted
from cloud_verifier.logs import about
from specwire.cloud_session import CloudSession
from specwire.errors import Exhausted, NotOwner, SessionNotFound, Superseded
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb

logger = logging.getLogger(__name__)

ID_BYTES = 16


class Outbox:
    """Frames on their way to one attached stream or call."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.CloudFrame | Exception | None] = asyncio.Queue()

    def put(self, frame: pb.CloudFrame) -> None:
        """Add a frame."""
        self._queue.put_nowait(frame)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after the frames before it."""
        self._queue.put_nowait(error)

    def end(self) -> None:
        """End the stream normally, after the frames before it."""
        self._queue.put_nowait(None)

    async def get(self) -> pb.CloudFrame | None:
        """The next frame, or None at the end.

        Raises:
            Exception: what the stream was ended with, mostly a SpecwireError.
        """
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item


@dataclass(eq=False)
class LiveSession:
    """A session and what the service knows about it."""

    id: bytes
    owner: str
    state: CloudSession
    open_key: bytes
    sequence: int | None = None  # the backend's handle, once there is one
    cached: int = 0  # committed tokens in the backend's cache
    outbox: Outbox | None = None  # of the stream or call attached now
    last_seen: float = field(default_factory=time.monotonic)
    ready_since: float = 0.0  # time.perf_counter: since then its round waits, if one does
    waiting: bool = False  # a round waits, in the queue or for its prompt
    turn: int = 0  # grows; who has the lowest has waited longest
    displaced: bool = False  # had to make room for others since its last round
    running: bool = False  # a job of this session is in the model thread
    calls: bool = False  # what is attached is a call, not a stream
    half_closed: bool = False  # the attached stream will send no more
    last_call: tuple[int, pb.Verdict] | None = None  # proposal number and verdict of Verify
    drafts: Accepted = field(default_factory=Accepted)
    stale_told: int = 0  # stale draft tokens that the observer knows of

    def attach(self, *, calls: bool = False) -> Outbox:
        """Make a new stream, or call, the session's only one."""
        if self.outbox is not None:
            self.outbox.fail(
                Superseded(
                    "a newer stream or call took this session over", frontier=self.state.frontier
                )
            )
        self.outbox = Outbox()
        self.half_closed = False
        self.calls = calls
        self.waiting = False
        self.ready_since = time.perf_counter()
        return self.outbox

    def detach(self, outbox: Outbox) -> None:
        """Forget a stream, unless a newer one took its place."""
        self.last_seen = time.monotonic()
        if self.outbox is outbox:
            self.outbox = None

    def deliver(self, frames: list[pb.CloudFrame]) -> None:
        """Hand frames to whoever is attached; otherwise a Resume will catch up."""
        if self.outbox is not None:
            for frame in frames:
                self.outbox.put(frame)


class SessionTable:
    """All sessions of a verifier, by id and by idempotency key."""

    def __init__(self, limits: Limits, on_drop: Callable[[LiveSession], None]) -> None:
        self._limits = limits
        self._on_drop = on_drop
        self._by_id: dict[bytes, LiveSession] = {}
        self._by_key: dict[tuple[str, bytes], LiveSession] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(self._by_id.values())

    @property
    def attached(self) -> int:
        """Sessions that a stream or call is attached to. May be read from any thread."""
        return sum(session.outbox is not None for session in list(self._by_id.values()))

    def check_room(self, owner: str) -> None:
        """Make room for one more session of a caller by dropping an ended one.

        Raises:
            Exhausted: the caller has as many as one may have, or the verifier as many
                as it can, and all are still running.
        """
        most = self._limits.sessions_per_client
        own = [s for s in self if s.owner == owner]
        if most and len(own) >= most and not self._drop_ended(own):
            raise Exhausted(
                f"you have {len(own)} sessions here, the limit for one client; "
                "close one, or try again later"
            )
        if len(self._by_id) >= self._limits.sessions and not self._drop_ended(self):
            raise Exhausted(
                f"the verifier holds {len(self._by_id)} sessions, its limit; try again later"
            )

    def _drop_ended(self, sessions: Iterable[LiveSession]) -> bool:
        ended = [s for s in sessions if s.state.finished is not None and s.outbox is None]
        if ended:
            self.drop(min(ended, key=lambda s: s.last_seen))
        return bool(ended)

    def add(self, owner: str, state: CloudSession, open_key: bytes) -> LiveSession:
        """Keep a new session under an unguessable id."""
        session = LiveSession(secrets.token_bytes(ID_BYTES), owner, state, open_key)
        self._by_id[session.id] = session
        if open_key:
            self._by_key[owner, open_key] = session
        logger.info("session opened", extra=about(session.id, client=owner))
        return session

    def find_opened(self, owner: str, open_key: bytes) -> LiveSession | None:
        """The session that an earlier Open with the same key made."""
        return self._by_key.get((owner, open_key)) if open_key else None

    def get(self, owner: str, session_id: bytes) -> LiveSession:
        """The caller's session.

        Raises:
            SessionNotFound: there is none with this id (any more).
            NotOwner: it is another caller's.
        """
        session = self._by_id.get(session_id)
        if session is None:
            raise SessionNotFound(
                f"no session {session_id.hex()[:8] or '(empty id)'}… here: it ended, was idle for "
                f"more than {self._limits.idle_s:g} s, or lives on another server; "
                "open a new one with its seed and committed tokens"
            )
        if session.owner != owner:
            raise NotOwner("this session belongs to another caller")
        session.last_seen = time.monotonic()
        return session

    def drop(self, session: LiveSession) -> None:
        """Forget a session and free what it holds."""
        self._by_id.pop(session.id, None)
        self._by_key.pop((session.owner, session.open_key), None)
        session.state.close()
        self._on_drop(session)
        logger.info("session gone", extra=about(session.id, client=session.owner))

    def drop_idle(self, now: float) -> int:
        """Drop sessions that nobody has been attached to for the idle time; how many."""
        idle = [
            session
            for session in self
            if session.outbox is None and now - session.last_seen > self._limits.idle_s
        ]
        for session in idle:
            self.drop(session)
        return len(idle)
