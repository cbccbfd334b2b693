"""TCP seen from above: when a message that is handed to a socket has arrived, in order.

Nothing here is a packet exchange in detail. A message becomes segments, a segment leaves as
soon as the congestion window lets it, takes its way, and is sent again later where it was
lost; the message is there when all of it and all before it is. The rules are those of
RFC 5681 (windows), RFC 6298 (timeouts, with Linux's minimum) and RFC 8985 (losses found by
what arrives after them). docs/links.md has the equations and what they leave out.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from netsim.links.losses import LostSegment, backed_off, overtaken, take
from netsim.links.path import Path

SEGMENT_BYTES = 1448
"""Payload of a full segment: 1500 bytes of IP packet less 52 of headers."""
INITIAL_WINDOW = 10
LARGEST_WINDOW = 2048
"""Segments: 3 MB, what Linux's default receive buffer lets a sender have in flight."""
LEAST_RTO_S = 0.2
_PROBE_SLACK_S = 0.002
_BACKOFF = 0.7  # what CUBIC leaves of its window after a loss
_GROWTH = 3 * (1 - _BACKOFF) / (1 + _BACKOFF)  # by which it grows in a round trip after that


class OneWay:
    """One direction of a TCP connection. Times are seconds of any one clock.

    way: what its packets go through. header: bytes of TCP and IP, a segment. back_s: what
    an acknowledgement takes, the other direction's average delay.

    Calls of `send` come with times that never decrease. It reads no clock.
    """

    __slots__ = (
        "_arrived",
        "_back",
        "_delay",
        "_fill",
        "_flight",
        "_gap",
        "_header",
        "_plain",
        "_recovered",
        "_rto",
        "_rtt",
        "_sent",
        "_srtt",
        "_threshold",
        "_varies",
        "_window",
        "bytes",
        "handed",
        "messages",
        "other",
        "path",
        "payload",
    )

    def __init__(
        self,
        path: Path,
        *,
        delay_s: float,
        average_s: float,
        back_s: float,
        plain: bool,
        header: int,
    ) -> None:
        self.path = path
        self.other: OneWay | None = None
        """The other direction, which tells whether its end answers or speaks by itself."""
        self._delay = delay_s
        self._back = back_s
        self._rtt = average_s + back_s
        self._plain = plain
        self._header = header
        self.messages = 0
        self.payload = 0
        """Bytes handed over."""
        self.bytes = 0
        """Bytes on the wire: payload, TCP/IP headers, retransmissions."""
        self.handed = -math.inf
        """When the last message was."""
        self._gap = math.inf
        self.reset()

    def reset(self) -> None:
        """Begin a new connection: nothing in flight, a small window."""
        self._flight: list[float] = []  # when each segment under way is acknowledged
        self._window: float = INITIAL_WINDOW
        self._threshold: float = math.inf
        self._sent = -math.inf  # when the last segment was, for the first time
        self._fill = 0  # its payload
        self._arrived = -math.inf  # when all that was sent is there
        self._recovered = -math.inf
        self._srtt = self._rtt
        self._varies = 0.0 if self._plain else self._rtt / 2
        self._rto = self._srtt + max(LEAST_RTO_S, 4 * self._varies)

    def send(self, now: float, size: int) -> float:
        """When the last byte of a message of `size` bytes, handed over at `now`, is there.

        Infinite where nothing ever gets through.
        """
        self.messages += 1
        self.payload += size
        flight = self._flight
        if flight and flight[0] <= now:
            self._acknowledge(now)
        if now > self._sent + self._rto and self._window > INITIAL_WINDOW:
            self._restart(now)
        if not (0 <= size <= SEGMENT_BYTES and now >= self._sent and len(flight) < self._window):
            return self._send(now, size)
        # One segment that may leave at once, as nearly all do.
        if self._plain:
            self.bytes += size + self._header
            self.handed = self._sent = now
            self._fill = size
            self._arrived = arrives = now + self._delay
            heappush(flight, arrives + self._back)
            return arrives
        if self.path.dead:
            return math.inf
        arrived = self.path.carry(now, size + self._header)
        if arrived is None:
            return self._send(now, size, lost=True)
        self.bytes += size + self._header
        since = now - self.handed
        if since < math.inf:
            self._gap = since if self._gap == math.inf else self._gap + (since - self._gap) / 8
        self.handed = self._sent = now
        self._fill = size
        acknowledged = arrived + self._back
        heappush(flight, acknowledged)
        sample = acknowledged - now
        self._varies += (abs(self._srtt - sample) - self._varies) / 4
        self._srtt += (sample - self._srtt) / 8
        variation = 4 * self._varies
        self._rto = self._srtt + (variation if variation > LEAST_RTO_S else LEAST_RTO_S)
        if arrived > self._arrived:
            self._arrived = arrived
        return self._arrived

    # ---------------------------------------------------------------- in general

    def _send(self, now: float, size: int, *, lost: bool = False) -> float:
        """As `send`. lost: the first segment has been, at once."""
        if not size >= 0:
            raise ValueError(f"a message of {size} bytes: give 0 or more")
        if self.path.dead or self._arrived == math.inf:
            self.handed = now
            return math.inf
        if self._sent > now and self._fill + size <= SEGMENT_BYTES:
            return self._join(now, size)
        follows_s = self._follows(now)
        last = self._segments(max(now, self._sent), size, follows_s, lost)
        self._arrived = max(self._arrived, last)
        return self._arrived

    def _join(self, now: float, size: int) -> float:
        """The last segment still waits for the window: this message goes along in it."""
        self._fill += size
        self.bytes += size
        self.handed = now
        self._arrived = max(self._arrived, self.path.lengthen(self._sent, size))
        return self._arrived

    def _follows(self, now: float) -> float:
        """After how long another message follows this one by itself; infinite if it may not.

        An end that has more than one message under way, or sends twice without hearing
        anything in between, does not wait for answers.
        """
        since = now - self.handed
        alone = not self._flight or self._flight[-1] <= now
        answers = self.other is not None and self.other.handed >= self.handed
        self.handed = now
        if since == math.inf:
            return math.inf
        self._gap = since if self._gap == math.inf else self._gap + (since - self._gap) / 8
        return math.inf if alone and answers else self._gap

    def _segments(self, start: float, size: int, follows_s: float, lost: bool) -> float:
        """Send a message's segments; when the last of them to arrive does."""
        count = max(1, -(-size // SEGMENT_BYTES))
        flight, path = self._flight, self.path
        pending: list[LostSegment] = []  # lost, and not yet known to be
        due = math.inf  # when the first of them is
        again: list[int] = []  # found to be lost: bytes of each, the next one last
        pressing = 0  # that many of them don't wait for the window
        arrived = now = start
        index = timeouts = 0
        while True:
            if index < count or again:
                if flight and flight[0] <= now:
                    self._acknowledge(now)
            elif pending:
                now = max(now, due)
            else:
                return arrived
            if due <= now:
                found, timeout = take(pending, now)
                due = min(each.due for each in pending) if pending else math.inf
                self._slow_down(now, timeout)
                again += reversed(found)
                # After a timeout one of them asks whether the way is open.
                pressing = 1 if timeout else pressing + len(found)
                timeouts += timeout
            if len(flight) + len(pending) > self._window - 1 and not pressing:
                now = min(flight[0], due) if flight else due
                continue
            fresh = not again
            if fresh:
                index += 1
                payload = SEGMENT_BYTES if index < count else size - (count - 1) * SEGMENT_BYTES
                packet = payload + self._header
                self._sent, self._fill = now, payload
            else:
                packet = again.pop()
                pressing -= pressing > 0
            self.bytes += packet
            round_trip = self._rtt + path.waiting_s(now)
            arrives = None if lost else path.carry(now, packet)
            lost = False
            if arrives is not None:
                timeouts = 0
                acknowledged = arrives + self._back
                if pending:
                    due = min(due, overtaken(pending, acknowledged))
                if arrives > arrived:
                    arrived = arrives
                heappush(flight, acknowledged)
                self._measure(acknowledged - now)
                continue
            if path.silent_for_ever(now):
                return math.inf
            segment = self._lost(now, packet, round_trip, timeouts)
            if index == count and not again and not timeouts:
                alone = not (fresh and (flight or pending))
                segment.found_at(now + self._tail(now, round_trip, follows_s, alone))
            pending.append(segment)
            due = min(due, segment.due)

    def _lost(self, at: float, packet: int, round_trip: float, timeouts: int) -> LostSegment:
        """A segment sent at `at` that did not arrive, after so many timeouts in a row."""
        timeout_s = backed_off(max(self._rto, round_trip), timeouts)
        return LostSegment(at, packet, round_trip, timeout_s)

    def _tail(self, at: float, round_trip: float, follows_s: float, alone: bool) -> float:
        """How long after it was sent at `at` a message's last segment is sent again.

        By what follows the message, where that arrives, or by a tail loss probe where it was
        not alone; infinite where neither is to be expected.
        """
        if follows_s < math.inf:
            first = max(follows_s, self.path.dark_until(at + follows_s) - at)
            found = round_trip + min(first + 2 * follows_s, max(first, round_trip / 4))
        else:
            found = math.inf
        return found if alone else min(found, 2 * self._srtt + _PROBE_SLACK_S)

    def _slow_down(self, now: float, timeout: bool) -> None:
        """A loss has been found: less at a time, once a round trip, and one after a timeout."""
        if now < self._recovered and not timeout:
            return
        self._recovered = now + self._srtt
        if self._window > 1.0:  # else the timeout before this one has said all
            self._threshold = max(2.0, self._window * _BACKOFF)
        self._window = 1.0 if timeout else self._threshold

    def _restart(self, now: float) -> None:
        """After a silence the window is halved for each timeout in it, as Linux does."""
        self._threshold = max(self._threshold, 0.75 * self._window)
        halvings = min(int((now - self._sent) / self._rto), 20) if self._sent > -math.inf else 20
        self._window = max(float(INITIAL_WINDOW), self._window / 2**halvings)

    def _acknowledge(self, now: float) -> None:
        """Take in acknowledgements; the window grows where it was made use of."""
        flight = self._flight
        used = len(flight)
        while flight and flight[0] <= now:
            window = self._window
            if window < self._threshold:
                if 2 * used > window and window < LARGEST_WINDOW:
                    self._window += 1
            elif used >= int(window) and window < LARGEST_WINDOW:
                self._window += _GROWTH / window
            heappop(flight)

    def _measure(self, sample: float) -> None:
        """Smoothed round trip and its variation, by RFC 6298.

        Of segments sent again too: the timestamp in the header tells which one is answered.
        """
        self._varies += (abs(self._srtt - sample) - self._varies) / 4
        self._srtt += (sample - self._srtt) / 8
        self._rto = self._srtt + max(LEAST_RTO_S, 4 * self._varies)
