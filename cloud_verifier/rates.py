"""How fast each client may ask: one token bucket a client."""

from __future__ import annotations

from specwire.errors import Exhausted

BURST_S = 2.0
"""A client that was quiet may ask for this many seconds' worth at once."""

_FORGET_AT = 10_000


class Rates:
    """Requests a second and client. Takes the time as an argument; reads no clock."""

    def __init__(self, per_s: float) -> None:
        """`per_s`: requests a second; 0 for no limit."""
        self._per_s = per_s
        self._burst = max(per_s * BURST_S, 1.0)
        self._full_at: dict[str, float] = {}

    def wait(self, client: str, now: float) -> float:
        """Take one request of the client's share; the seconds it should wait for that.

        For streams, which can be read more slowly.
        """
        if not self._per_s:
            return 0.0
        full_at = max(self._full_at.get(client, now), now) + 1 / self._per_s
        self._full_at[client] = full_at
        if len(self._full_at) > _FORGET_AT:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        return max(full_at - now - self._burst / self._per_s, 0.0)

    def take(self, client: str, now: float) -> None:
        """Take one request of the client's share, if there is one left.

        For calls, which can only be answered or refused.

        Raises:
            Exhausted: there is none; nothing was taken.
        """
        before = self._full_at.get(client, now)
        wait = self.wait(client, now)
        if wait > 0:
            self._full_at[client] = before
            raise Exhausted(
                f"more than {self._per_s:g} requests a second (at most {self._burst:g} at once), "
                f"this verifier's limit for one client; try again in {wait:.1f} s"
            )
