"""Expected tokens/s of each way to share the work, from what is known of models and link.

The model: between two disagreements of draft and target nothing is random but where
the next one comes. So the forwards of such a span, and what each has at hand, follow
from the times alone, and the chance that a span gets as far as a forward is a product
of acceptance rates. Speed is the expected tokens of a span over its expected time
(renewal reward).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, chain, islice, repeat

_NEGLIGIBLE = 1e-4
"""A span that is less likely to go on than this is not followed further."""
_HOPELESS = 0.02
"""A draft token that is less likely to be committed than this is not worth a battery."""
_MOST_FORWARDS = 48
"""Of one span. With acceptance rates near 1 the rest goes on as the last ones did."""
_MOST_TOKENS = 512
"""Of one span, likewise."""


class Way(StrEnum):
    """How edge and cloud share the work from now on."""

    SYNC = "sync"  # draft, send, wait for the verdict
    PIPELINE = "pipeline"  # draft on while verdicts are under way; the cloud waits for drafts
    RUN_AHEAD = "run-ahead"  # draft on, and the cloud does not wait
    STREAM = "stream"  # no drafts; the cloud does not wait

    @property
    def waits(self) -> bool:
        """Whether the cloud waits for drafts."""
        return self in (Way.SYNC, Way.PIPELINE)


@dataclass(frozen=True)
class Conditions:
    """What decides the speed. Times in seconds.

    alphas: chance that draft token i of a chain is accepted, if those before it are;
        the last value holds for all that follow. At least one.
    draft_s: to draft a token.
    verify_s: of a target forward with one token.
    batch_s: that a forward takes longer once it evaluates draft tokens, however few: what a CPU
        pays for the step from a vector to a matrix. Below 0 where the first cost less than more.
    extra_s: that each draft token adds to a forward.
    rtt_s: there and back, without the forward.
    queue_s: that drafts which the cloud waited for wait for others' forwards. One that does not
        wait takes part in every forward.
    message_s: that a proposal costs on its way, whatever its size.
    """

    alphas: Sequence[float]
    draft_s: float
    verify_s: float
    extra_s: float = 0.0
    rtt_s: float = 0.0
    message_s: float = 0.0
    queue_s: float = 0.0
    batch_s: float = 0.0

    def alpha(self, index: int) -> float:
        """Acceptance rate of draft token `index` of a chain."""
        return self.alphas[min(index, len(self.alphas) - 1)]

    @cached_property
    def survival(self) -> Sequence[float]:
        """Chance that the first k draft tokens of a chain are all accepted, for k from 0 on.

        As far as it matters: to the first that is negligible, or `_MOST_TOKENS`.
        """
        chances, chance = [1.0], 1.0
        rates = chain(self.alphas, repeat(self.alphas[-1]))
        for rate in islice(rates, _MOST_TOKENS):
            chance *= rate
            chances.append(chance)
            if chance < _NEGLIGIBLE:
                break
        return chances

    @cached_property
    def hopeful(self) -> int:
        """How many draft tokens of a chain are likely enough to be committed to draft them."""
        # Chances only fall, so the list is in order when read from its end.
        return bisect.bisect_left(self.survival, -_HOPELESS, key=lambda chance: -chance) - 1

    @cached_property
    def expected(self) -> Sequence[float]:
        """Expected tokens of a span cut after k of them: sums of `survival`."""
        return [0.0, *accumulate(self.survival)]


def expected_speed(way: Way, gamma: int, conditions: Conditions, *, window: int = 1 << 30) -> float:
    """Tokens/s of a way with `gamma` tokens in a proposal and `window` beyond the frontier."""
    if way is Way.STREAM or gamma == 0:
        return 1.0 / conditions.verify_s
    if way is Way.SYNC:
        return _synchronous(gamma, conditions)
    return _overlapped(gamma, conditions, window, waits=way is Way.PIPELINE)


def _synchronous(gamma: int, at: Conditions) -> float:
    tokens = at.expected[min(gamma + 1, len(at.expected) - 1)]
    forward = at.verify_s + at.batch_s + gamma * at.extra_s
    return tokens / (gamma * at.draft_s + at.message_s + at.rtt_s + at.queue_s + forward)


def _overlapped(gamma: int, at: Conditions, window: int, *, waits: bool) -> float:
    """Speed where drafting goes on while verdicts are under way."""
    interval = max(gamma * at.draft_s, at.message_s)
    # The window lets so many proposals be under way at once.
    interval = max(interval, (at.rtt_s + at.verify_s + interval) * gamma / max(window, gamma))
    first = gamma * at.draft_s + at.message_s + at.rtt_s
    now = 0.0  # since the target's own token, in the cloud
    done = 0  # tokens committed since then, all of them as drafted
    survival, last = at.survival, len(at.survival) - 1
    verify_s, extra_s, batch_s = at.verify_s, at.extra_s, at.batch_s
    alive, spent = 1.0, 0.0  # alive: the chance that the span has come so far
    for _ in range(_MOST_FORWARDS):
        arrived = gamma * (1 + int((now - first) / interval)) if now >= first else 0
        if arrived <= done and waits:
            now = first + (done // gamma) * interval + at.queue_s
            arrived = gamma * (done // gamma + 1)
        if arrived > done:
            now += batch_s + (arrived - done) * extra_s
            done = arrived
        now += verify_s
        done = done + 1 if done + 1 < last else last
        spent += now * (alive - survival[done])
        alive = survival[done]
        if done == last:
            break
    return at.expected[done] / (spent + alive * now)
