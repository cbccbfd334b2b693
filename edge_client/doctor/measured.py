"""The numbers that were measured; None stands for what was not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_client.policy.estimates import PROPOSAL_S
from edge_client.policy.speed import Conditions


@dataclass(frozen=True)
class Spread:
    """The median of some times, and how far they spread: from the 10th to the 90th percentile."""

    median_s: float
    low_s: float
    high_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of at least one time."""
        values = sorted(seconds)
        last = len(values) - 1
        return cls(
            statistics.median(values),
            values[round(0.1 * last)],
            values[round(0.9 * last)],
            len(values),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "median_s": round(self.median_s, 6),
            "p10_s": round(self.low_s, 6),
            "p90_s": round(self.high_s, 6),
            "count": self.count,
        }


@dataclass
class Measured:
    """What is known after the checks. Times in seconds.

    rtt: of small unary calls. round_trip: of rounds over a stream, without the forward and
    the waiting for it. up_bit_s: at least so much; down is never measured. draft_s: a
    draft token. forward_s: a target forward with one token, waiting included;
    forward_many_s with `many` draft tokens more. alpha: acceptance rate, of `examined`.
    """

    rtt: Spread | None = None
    round_trip: Spread | None = None
    up_bit_s: float | None = None
    draft_load_s: float | None = None
    draft_s: float | None = None
    forward_s: float | None = None
    forward_many_s: float | None = None
    many: int = 0
    alpha: float | None = None
    examined: int = 0

    def conditions(self, *, draft_s: float | None = None, alpha: float | None = None) -> (
        Conditions | None
    ):  # fmt: skip
        """What the speeds follow from; None where something of it is missing.

        `draft_s` and `alpha` stand in for a draft that is not there.
        """
        draft_s = self.draft_s if draft_s is None else draft_s
        alpha = self.alpha if alpha is None else alpha
        trip = self.round_trip or self.rtt
        if self.forward_s is None or trip is None or draft_s is None or alpha is None:
            return None
        extra = 0.0
        if self.forward_many_s is not None and self.many:
            extra = max(self.forward_many_s - self.forward_s, 0.0) / self.many
        return Conditions(
            alphas=(alpha,),
            draft_s=max(draft_s, 1e-6),
            verify_s=max(self.forward_s, 1e-6),
            extra_s=extra,
            rtt_s=trip.median_s,
            message_s=PROPOSAL_S,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "rtt": self.rtt.to_json() if self.rtt is not None else None,
            "round_trip": self.round_trip.to_json() if self.round_trip is not None else None,
            "up_bit_s": None if self.up_bit_s is None else round(self.up_bit_s),
            "down_bit_s": None,
            "draft_load_s": _rounded(self.draft_load_s),
            "draft_s": _rounded(self.draft_s),
            "forward_s": _rounded(self.forward_s),
            "forward_many_s": _rounded(self.forward_many_s),
            "forward_many_drafts": self.many,
            "alpha": _rounded(self.alpha),
            "examined": self.examined,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
