"""What is simulated, and what comes of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from netsim.acceptance import Acceptance
from netsim.links import LinkModel
from netsim.times import Models


class Way(StrEnum):
    """How a target's tokens reach the user: baselines first, then edge speculation."""

    PER_TOKEN = "per-token"  # every token is a call of its own: a round trip each
    STREAM = "stream"  # the cloud streams: the round trip is paid once
    CLOUD = "cloud"  # the cloud streams, and speculates with a draft of its own
    SYNC = "sync"
    PIPELINE = "pipeline"
    RUN_AHEAD = "run-ahead"
    AUTO = "auto"


EDGE = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO)
"""Those that draft on the edge."""


@dataclass(frozen=True)
class Scenario:
    """One or more sessions over a link.

    way: how tokens come. gamma, window: as the client's options; None leaves them to the
    policy. tokens: of output. prompt: its tokens. clients: sessions that begin together, each
    over a link of its own, on one verifier. connect: whether each begins with a connection,
    TCP's handshake and that of TLS, instead of having one. seed: of everything random.
    """

    link: LinkModel
    models: Models
    acceptance: Acceptance
    way: Way = Way.AUTO
    gamma: int | None = None
    window: int | None = None
    tokens: int = 256
    prompt: int = 64
    clients: int = 1
    connect: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Span:
    """Something that took a while: "draft", "up", "prefill", "verify" or "down", in seconds.

    "prefill" is a forward in which a prompt was read, and no round verified. first, count:
    positions that it concerned. useful: whether it led to output.
    """

    what: str
    begin: float
    end: float
    first: int
    count: int
    useful: bool = True


@dataclass
class Run:
    """What became of one session. Times are in seconds since it was begun.

    arrivals: when each output token reached the user. forwards: target forwards that it
    took part in. share: of those forwards, each divided among the sessions in it. bytes_up,
    bytes_down: on the wire, headers of all layers included. ways: tokens that came while each
    way was in force, where the policy chooses. spans: who did what and when, if asked for.
    """

    way: str
    arrivals: list[float] = field(default_factory=list)
    forwards: int = 0
    share: float = 0.0
    messages_up: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    examined: int = 0
    accepted: int = 0
    proposed: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return len(self.arrivals)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0]

    @property
    def duration_s(self) -> float:
        """Time to the last token."""
        return self.arrivals[-1]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the whole time, the opening included."""
        return self.tokens / self.duration_s

    @property
    def token_s(self) -> float:
        """Mean time of a token after the first one."""
        return (self.duration_s - self.ttft_s) / max(self.tokens - 1, 1)
