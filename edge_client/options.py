"""What a caller can ask of one generation, and how it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from edge_client.policy.speed import Way
from specwire.errors import BadRequest
from specwire.qrow import Truncation
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

E = TypeVar("E", bound=StrEnum)

MOST = (1 << 32) - 1
"""The largest number of tokens that a frame can name."""


class Mode(StrEnum):
    """How edge and cloud share the work."""

    AUTO = "auto"  # whichever of the others promises most, at any time
    SYNC = "sync"  # draft, send, wait for the verdict
    PIPELINE = "pipeline"  # go on drafting while verdicts are under way
    RUN_AHEAD = "run-ahead"  # the cloud never waits; drafts that come in time help
    STREAM = "stream"  # no drafts: plain token streaming
    TARGET_ONLY = "target-only"  # as stream, because there is no usable draft


WAYS: Mapping[Mode, tuple[Way, ...]] = {
    Mode.AUTO: (Way.STREAM, Way.RUN_AHEAD, Way.PIPELINE, Way.SYNC),
    Mode.SYNC: (Way.SYNC,),
    Mode.PIPELINE: (Way.PIPELINE,),
    Mode.RUN_AHEAD: (Way.RUN_AHEAD,),
    Mode.STREAM: (Way.STREAM,),
    Mode.TARGET_ONLY: (Way.STREAM,),
}
"""The ways that a mode may take; a session is opened as suits the first."""


class Verification(StrEnum):
    """Which rule of acceptance a session uses."""

    AUTO = "auto"  # coupled where the cloud never waits, rejection where it does
    REJECTION = "rejection"
    COUPLED = "coupled"


@dataclass(frozen=True)
class GenerateOptions:
    """One generation.

    max_tokens: of output. stops: the text ends before the first of them.
    seed: of every draw; None lets the verifier choose.
    gamma: draft tokens in a proposal; with `Mode.AUTO` the most of them. None lets the
        policy choose and change it; 0 uses no draft.
    window: most draft tokens under way at once, so no proposal is longer; None lets the
        policy choose.
    logprobs: None for none, else how many likeliest tokens beside each token's own.
    offline_tail: go on drafting while the link is lost, and have it verified at once when
        it is back. Without a draft it has no effect, and a notice says so.
    record: keep what was measured in `Result.record`, for the simulator; likewise.

    Raises:
        BadRequest: a value is out of range.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 256
    stops: tuple[str, ...] = ()
    seed: int | None = None
    mode: Mode = Mode.AUTO
    verification: Verification = Verification.AUTO
    gamma: int | None = None
    window: int | None = None
    logprobs: int | None = None
    offline_tail: bool = False
    record: bool = False
    truncation: Truncation = field(default_factory=Truncation)

    def __post_init__(self) -> None:
        # Plain strings mean their members.
        object.__setattr__(self, "mode", _member(Mode, self.mode, "mode"))
        rule = _member(Verification, self.verification, "verification")
        object.__setattr__(self, "verification", rule)
        for name, least in (("max_tokens", 1), ("gamma", 0), ("window", 1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise BadRequest(f"{name} must be between {least} and {MOST}, not {value}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise BadRequest(f"seed must be between 0 and 2^64 − 1, not {self.seed}")
        if self.mode is not Mode.AUTO and self.gamma and self.window and self.window < self.gamma:
            raise BadRequest(
                f"window {self.window} holds no proposal of gamma {self.gamma} draft tokens; "
                "raise one or lower the other"
            )
        stops: object = self.stops
        if isinstance(stops, str):
            raise BadRequest(f"stops must be a tuple of strings, such as ({stops!r},)")
        for stop in self.stops:
            _check_stop(stop)

    @property
    def pacing(self) -> pb.Pacing:
        """What the cloud does at first when it has no draft."""
        return pb.PACING_WAIT if WAYS[self.mode][0].waits else pb.PACING_RUN_AHEAD

    @property
    def rule(self) -> pb.VerificationMode:
        """The rule of acceptance.

        While the cloud runs ahead, a draft must agree with tokens the target drew
        meanwhile, which shared noise makes likely. Greedy drafts agree without it.
        """
        if self.verification is Verification.AUTO:
            shares = self.pacing == pb.PACING_RUN_AHEAD and not self.sampling.greedy
            return pb.VERIFICATION_MODE_COUPLED if shares else pb.VERIFICATION_MODE_REJECTION
        if self.verification is Verification.COUPLED:
            return pb.VERIFICATION_MODE_COUPLED
        return pb.VERIFICATION_MODE_REJECTION


def _check_stop(stop: str) -> None:
    if not stop:
        raise BadRequest("an empty stop string would stop at once; leave it out")
    try:
        stop.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"the stop string {stop!r} is no text; give it in UTF-8") from error


def _member(kind: type[E], value: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise BadRequest(f"{what} {value!r} is unknown; known: {known}") from None
