"""What a generation gives back: tokens as they come, and the account at the end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from specwire.committed import Origin
from specwire.draft_account import Counts
from specwire.v1 import verifier_pb2 as pb

FINISH_REASONS = {
    pb.FINISH_REASON_END_TOKEN: "stop",
    pb.FINISH_REASON_STOP_STRING: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CLOSED: "closed",
}


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probabilities at one position, of the target's raw distribution."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Token:
    """One committed token.

    text: what it makes certain; characters and possible stop strings that are not
        complete yet come with a later token. A last item with id None carries text
        that was held back to the end.
    piece: the bytes that it adds to the output. Without a draft model the verifier sends
        those of the tokens that one verdict commits, and they come with the last of these.
    """

    id: int | None
    text: str
    origin: Origin
    position: int
    logprob: TokenLogprob | None = None
    piece: bytes = b""


@dataclass(frozen=True)
class Status:
    """How a generation is going, for people to watch. Times are in seconds.

    way: how edge and cloud share the work now; "stream" without a draft.
    alpha: acceptance rate of recent drafts; None until some were examined.
    rtt_s: there and back without the model; None until it is known.
    tokens_per_s: since the first token. per_round_trip: tokens of verdicts over verdicts.
    """

    way: str
    gamma: int
    alpha: float | None
    rtt_s: float | None
    tokens: int
    tokens_per_s: float
    per_round_trip: float


@dataclass
class OfflineTail:
    """Tokens drafted while the link was lost, and how many of them the target committed."""

    drafted: int = 0
    kept: int = 0


@dataclass
class Result:
    """The account of one generation. Times are in seconds, bytes are payload."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    mode: str = ""
    verification: str = ""
    seed: int = 0
    model: str = ""
    draft: str | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    gamma: int = 0
    """Draft tokens in a proposal; where the policy chooses, what it chose last."""
    ways: dict[str, int] = field(default_factory=dict)
    """Output tokens that came while each way of sharing the work was in force."""
    counts: Counts = field(default_factory=Counts)
    origins: dict[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    reconnections: int = 0
    offline_tail: OfflineTail | None = None
    """With `offline_tail`: what became of it."""
    ttft_s: float = 0.0
    duration_s: float = 0.0
    logprobs: list[TokenLogprob] | None = None
    notices: list[str] = field(default_factory=list)
    timing: dict[str, float | None] = field(default_factory=dict)
    """Milliseconds that a draft token, a target forward with one token, a further token in it,
    and the link there and back take, as the policy knows them; None where it does not."""
    record: list[dict[str, Any]] = field(default_factory=list)
    """What was measured, in order, if asked for; see docs/cli.md."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the whole time, from when the text was asked for."""
        return len(self.token_ids) / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def round_trips_saved(self) -> int:
        """Tokens of verdicts minus verdicts: what asking for each token would have cost more."""
        return self._of_verdicts - self.counts.rounds

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens of verdicts over verdicts; None without one."""
        return self._of_verdicts / self.counts.rounds if self.counts.rounds else None

    @property
    def _of_verdicts(self) -> int:
        """Output tokens, but for those whose verdicts were lost with a link."""
        return len(self.token_ids) - self.origins.get(Origin.CAUGHT_UP, 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON object; documented in docs/cli.md."""
        counts = self.counts
        result: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_prompt_tokens": self.cached_prompt_tokens,
                "output_tokens": len(self.token_ids),
            },
            "mode": self.mode,
            "verification": self.verification,
            "gamma": self.gamma,
            "ways": self.ways,
            "rounds": counts.rounds,
            "round_trips_saved": self.round_trips_saved,
            "proposals": counts.proposals,
            "proposed": counts.proposed,
            "examined": counts.examined,
            "accepted": counts.accepted,
            "alpha": counts.alpha,
            "examined_by_position": counts.examined_by_position,
            "accepted_by_position": counts.accepted_by_position,
            "alpha_by_position": [
                a / e
                for a, e in zip(
                    counts.accepted_by_position, counts.examined_by_position, strict=True
                )
            ],
            "origins": self.origins,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "reconnections": self.reconnections,
            "ttft_s": round(self.ttft_s, 6),
            "timing_ms": self.timing,
            "tokens_per_round": self.tokens_per_round,
            "duration_s": round(self.duration_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 3),
            "seed": self.seed,
            "model": self.model,
            "draft": self.draft,
            "notices": self.notices,
        }
        if self.offline_tail is not None:
            result["offline_tail"] = asdict(self.offline_tail)
        if self.logprobs is not None:
            result["logprobs"] = [asdict(item) for item in self.logprobs]
        return result


def read_logprobs(message: pb.TokenLogprobs | None) -> TokenLogprob | None:
    """The message in plain values; None where there is none."""
    if message is None or math.isnan(message.logprob):
        return None
    return TokenLogprob(
        message.logprob, tuple(zip(message.top_ids, message.top_logprobs, strict=True))
    )
