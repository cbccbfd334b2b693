"""How many draft tokens of each session a forward examines, where drafts of some delay others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import log1p

from specwire.forward_line import forward_line

_ALIKE = 8
"""Forwards of one size, after which one of another is tried."""


class Accepted:
    """How often one session's draft tokens are accepted, lately."""

    _MEMORY = 0.97  # by token
    _UNTRIED = 0.99  # by round that examined none: what was seen long ago is doubted
    _PRIOR = 0.8
    _PRIOR_WEIGHT = 3.0

    def __init__(self) -> None:
        self._accepted = self._PRIOR * self._PRIOR_WEIGHT
        self._examined = self._PRIOR_WEIGHT

    def add(self, examined: int, accepted: int) -> None:
        """A round accepted so many of the draft tokens that it examined."""
        if not examined:
            doubt = 1 - self._UNTRIED
            self._accepted += doubt * (self._PRIOR * self._PRIOR_WEIGHT - self._accepted)
            self._examined += doubt * (self._PRIOR_WEIGHT - self._examined)
            return
        kept = self._MEMORY**examined
        self._accepted = kept * self._accepted + accepted
        self._examined = kept * self._examined + examined

    @property
    def alpha(self) -> float:
        """The acceptance rate."""
        return self._accepted / self._examined


class DraftShare:
    """Draft tokens that may ride along, adapted to what one costs on this device.

    A draft token that is examined brings its session a token if it is accepted, and makes
    the forward longer, for all sessions in it. On a device with room to spare that is next to
    nothing; on one that computes as much as it can, a token of a draft costs as much as one of
    the target's own. What is maximised is the product of all sessions' speeds, that is
    proportional fairness (Kelly, 1997): many drafts that are seldom right give way to few that
    often are, and to sessions without any. A session that is alone has all its drafts
    examined: the edge weighs what they cost.
    """

    _MEMORY = 64
    """Forwards."""

    def __init__(self) -> None:
        self._forwards: deque[tuple[int, float]] = deque(maxlen=self._MEMORY)
        self._sizes: deque[int] = deque(maxlen=self._MEMORY)

    def learn(self, tokens: int, seconds: float, *, prefilled: int = 0) -> None:
        """Take note of a forward: the tokens it evaluated, its time, those of prompts among them.

        A prompt's tokens cost less than others, so those with any tell only what was dared.
        """
        self._sizes.append(tokens)
        if not prefilled:
            self._forwards.append((tokens, seconds))

    def of(
        self, sessions: Sequence[tuple[int, float | None]], *, others: int = 0, fixed: int = 0
    ) -> list[int]:
        """Draft tokens to examine of each session.

        Args:
            sessions: the draft tokens at hand of each that has a round, and its acceptance rate;
                None in its place where all are examined, whatever they cost.
            others: sessions that the forward keeps waiting without a round, for their prompts.
            fixed: tokens of prompts in the forward.
        """
        at_hand = [count for count, _ in sessions]
        everyone = len(sessions) + others
        if everyone < 2 or not any(at_hand) or not self._forwards:
            return at_hand
        shares = [count if alpha is None else 0 for count, alpha in sessions]
        fixed += sum(shares)
        # Nothing is taken to cost anything until it was seen to: so it is tried, and seen,
        # but not much more of it at once than before.
        base_s, token_s = forward_line(self._forwards)
        forward_s = base_s + token_s * (len(sessions) + fixed)
        room = 2 * max(*self._sizes, len(sessions)) - len(sessions) - fixed
        sizes = {tokens for tokens, _ in self._forwards}
        if len(sizes) == 1 and len(self._forwards) >= _ALIKE:
            # They tell nothing of what a token costs.
            room = min(room, (sum(at_hand) - sum(shares)) // 2)
        expected = [1.0] * len(sessions)
        alphas = [alpha or 0.0 for _, alpha in sessions]
        chances = list(alphas)
        # By what the next draft token of each adds to the logarithm of its speed.
        queue = [(-log1p(chances[i]), i) for i, count in enumerate(at_hand) if count > shares[i]]
        heapify(queue)
        while queue and room > 0:
            gain, i = -queue[0][0], queue[0][1]
            if gain < everyone * log1p(token_s / forward_s):
                break
            room -= 1
            shares[i] += 1
            forward_s += token_s
            expected[i] += chances[i]
            chances[i] *= alphas[i]
            if shares[i] < at_hand[i]:
                heapreplace(queue, (-log1p(chances[i] / expected[i]), i))
            else:
                heappop(queue)
        return shares
