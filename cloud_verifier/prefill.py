"""How much prompt may be evaluated beside rounds, so that nobody waits long behind a long one."""

from __future__ import annotations

LEAST = 16
MOST = 4096
ALONE = 512
"""Prompt tokens of a forward that holds no round: nobody waits for it but the next comer."""

_SLOWDOWN = 2.0
_MEMORY = 0.2


class PrefillShare:
    """Prompt tokens that may ride along with rounds, adapted to the device.

    A forward with prefill in it shall take at most twice the time of one without.
    How many tokens that allows depends on model and device, so it is learnt:
    shrinking at once when it took too long, growing slowly when there was room.
    """

    def __init__(self, tokens: int = 64) -> None:
        self.tokens = tokens
        """The share now."""
        self._round_s: float | None = None

    def learn(self, forward_s: float, *, prefilled: int, rounds: int) -> None:
        """Take note of a forward: its seconds, prompt tokens and sessions with a round."""
        if not rounds:
            return
        if not prefilled:
            before = self._round_s
            self._round_s = forward_s if before is None else before + _MEMORY * (forward_s - before)
        elif self._round_s is not None:
            if forward_s > _SLOWDOWN * self._round_s:
                self.tokens = max(LEAST, self.tokens // 2)
            elif prefilled >= self.tokens and forward_s < 0.75 * _SLOWDOWN * self._round_s:
                self.tokens = min(MOST, self.tokens + self.tokens // 4)
