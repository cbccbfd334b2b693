"""What is known of the draft, the target and the link between them, learnt as it goes."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Sequence

from edge_client.policy.speed import Conditions
from specwire.forward_line import forward_line

PROPOSAL_S = 2e-3
"""What a proposal is taken to cost on its way, whatever its size."""

_EXTRA = 0.02
"""Of a forward: what a draft token in it usually adds."""
_FRESH = 8
"""Forwards with drafts, after which those without tell only what part of them they were: fewer
than are remembered, so that both are of one time."""

_SHORT_RTT_S = 0.02
"""A round trip of this is never taken to be delayed."""


class Average:
    """A running mean, which forgets.

    The first values weigh as in a plain mean, later ones `gain`. `start` weighs as `seen` values.
    """

    def __init__(self, gain: float, start: float | None = None, *, seen: int = 0) -> None:
        self._gain = gain
        self._seen = seen
        self._mean = start

    @property
    def value(self) -> float | None:
        """The mean; None before the first value, if it has no start."""
        return self._mean

    def add(self, value: float) -> None:
        """Take a value in."""
        if self._mean is None or self._seen == 0:
            self._mean, self._seen = value, 1
            return
        self._seen += 1
        plain = 1 / self._seen
        self._mean += (plain if plain > self._gain else self._gain) * (value - self._mean)


class LinkEstimates:
    """Times of one draft, one verifier and the link, and how well the models agree.

    They outlive a session. Times are in seconds, and don't depend on what is being written.

    taking_turns: draft and target compute on the same cores, so that neither gains by
        working while the other does.
    """

    def __init__(self, *, taking_turns: bool = False) -> None:
        self.taking_turns = taking_turns
        self.rtt = Average(0.1)
        self.draft = Average(0.05)
        self.queue = Average(0.1, 0.0)
        """What a round waits for its forward where the cloud waits for drafts: others' forwards."""
        self.alpha = Average(0.01, 0.8, seen=16)
        """Part of the draft tokens that the target agreed with, whatever the text."""
        self.undrafted = 0
        """Tokens that the session before went without drafts since it last tried any. Short
        texts would never come to try them if each began to count anew."""
        self._drafted: deque[tuple[int, float]] = deque(maxlen=32)
        # Forwards without drafts are few, or none, while the cloud waits for drafts.
        self._plain: deque[float] = deque(maxlen=8)
        self._since_plain = 0  # forwards with drafts
        self._plain_share = 1.0  # of the time that a forward with drafts begins with

    def add_forward(self, evaluated: int, seconds: float) -> None:
        """A target forward that evaluated so many draft tokens, whatever became of them."""
        if evaluated:
            self._drafted.append((evaluated, seconds))
            self._since_plain += 1
        else:
            self._plain.append(seconds)
            self._since_plain = 0

    def add_draft(self, seconds: float) -> None:
        """A draft token. One that something else delayed counts no more than four."""
        known = self.draft.value
        self.draft.add(seconds if known is None or seconds < 4 * known else 4 * known)

    def add_rtt(self, seconds: float) -> None:
        """A round trip. One that something else delayed counts no more than four."""
        known = self.rtt.value
        most = math.inf if known is None else max(4 * known, _SHORT_RTT_S)
        self.rtt.add(min(max(seconds, 0.0), most))

    def milliseconds(self) -> dict[str, float | None]:
        """The estimates for people: draft, verify, batch, extra and rtt; None where unknown."""
        verify, batch, extra = self.forward_times() or (None, None, None)
        seconds = {
            "draft": self.draft.value,
            "verify": verify,
            "batch": batch,
            "extra": extra,
            "rtt": self.rtt.value,
        }
        return {
            name: None if value is None else round(1e3 * value, 3)
            for name, value in seconds.items()
        }

    def forward_times(self) -> tuple[float, float, float] | None:
        """Seconds of a forward without drafts, those that any add, and those that each adds.

        As the recent forwards were. Those that any add are below 0 where the first drafts cost
        less than further ones. None before the first forward.
        """
        if not self._drafted:
            if not self._plain:
                return None
            plain = statistics.median(self._plain)
            return plain, 0.0, _EXTRA * plain
        # One forward in ten that something else delayed must not tilt the line.
        begins, extra = forward_line(self._drafted, expected=_EXTRA, longest=2.0)
        if self._plain and self._since_plain <= _FRESH and begins > 0:
            self._plain_share = statistics.median(self._plain) / begins
        plain = self._plain_share * begins
        return plain, begins - plain, extra


class Agreement:
    """How often draft and target agree, by place in the chain, and by how sure the draft is.

    Old tokens weigh less than new ones, so that a text which changes its kind is noticed.

    Args:
        expected: how often they agree where nothing was seen yet.
    """

    PLACES = 16
    _MEMORY = 0.99
    _EXPECTED_WEIGHT = 6.0  # of what is expected over all places, in tokens
    _PRIOR_WEIGHT = 3.0  # of that rate, at each place and for each confidence
    _HEAVIEST = 1e12
    _EDGES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)

    def __init__(self, expected: float = 0.8) -> None:
        self._expected = expected
        # Instead of making all that is old lighter, each token weighs more than the one before.
        self._weight = 1.0
        self._agreed = [0.0] * self.PLACES
        self._seen = [0.0] * self.PLACES
        self._sure_agreed = [0.0] * (len(self._EDGES) + 1)
        self._sure_seen = [0.0] * (len(self._EDGES) + 1)
        self._all_agreed = self._all_seen = 0.0

    def add(self, place: int, confidence: float, agreed: bool) -> None:
        """Token `place` of a chain, all before which were committed, was decided.

        `confidence` is the draft's own probability of its likeliest token there.
        """
        self._weight /= self._MEMORY
        if self._weight > self._HEAVIEST:
            self._lighten()
        place = min(place, self.PLACES - 1)
        step = bisect.bisect(self._EDGES, confidence)
        weight = self._weight
        self._seen[place] += weight
        self._sure_seen[step] += weight
        self._all_seen += weight
        if agreed:
            self._agreed[place] += weight
            self._sure_agreed[step] += weight
            self._all_agreed += weight

    def _lighten(self) -> None:
        for values in (self._agreed, self._seen, self._sure_agreed, self._sure_seen):
            values[:] = [value / self._weight for value in values]
        self._all_agreed /= self._weight
        self._all_seen /= self._weight
        self._weight = 1.0

    @property
    def alpha(self) -> float:
        """Acceptance rate over all places."""
        prior = self._EXPECTED_WEIGHT * self._weight
        return (self._all_agreed + prior * self._expected) / (self._all_seen + prior)

    @property
    def doubt(self) -> float:
        """By how much `alpha` may be off by chance: its standard deviation."""
        seen = self._all_seen / self._weight + self._EXPECTED_WEIGHT
        return math.sqrt(self.alpha * (1 - self.alpha) / (seen + 1))

    def alphas(self) -> Sequence[float]:
        """Acceptance rate by place; where little is known, near that of all places."""
        whole, prior = self.alpha, self._PRIOR_WEIGHT * self._weight
        places = zip(self._agreed, self._seen, strict=True)
        return [(a + prior * whole) / (s + prior) for a, s in places]

    def chance(self, confidence: float) -> float:
        """Chance that a token is accepted of whose likeliest alternative the draft is so sure."""
        step = bisect.bisect(self._EDGES, confidence)
        weight = self._PRIOR_WEIGHT * self._weight
        # A draft's confidence is a fair guess of its acceptance until there is a record.
        prior = math.sqrt(confidence * self.alpha)
        return (self._sure_agreed[step] + weight * prior) / (self._sure_seen[step] + weight)


def conditions(link: LinkEstimates, agreement: Agreement) -> Conditions | None:
    """What is known, as the speeds are computed from it; None while it is too little."""
    times = link.forward_times()
    rtt, draft = link.rtt.value, link.draft.value
    if times is None or rtt is None or draft is None:
        return None
    forward, batch, extra = times
    return Conditions(
        alphas=agreement.alphas(),
        draft_s=max(draft, 1e-6),
        verify_s=max(forward, 1e-6),
        batch_s=batch,
        extra_s=extra,
        rtt_s=max(rtt, 0.0),
        queue_s=link.queue.value or 0.0,
        message_s=PROPOSAL_S,
    )
