"""Trying again where it can help: when connecting, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from specwire.errors import Draining, Exhausted, LinkError

T = TypeVar("T")

TRANSIENT = (LinkError, Draining, Exhausted)
"""What may pass by itself. Everything else is an answer, and final."""


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds of a series of attempts.

    attempts: most tries. total_s: no try begins later than this after the first.
    first_s, longest_s: the waits between tries double from one to the other; each is
        shortened by up to half at random, so that clients that lost a verifier together
        do not come back together.
    """

    attempts: int
    total_s: float
    first_s: float = 0.2
    longest_s: float = 5.0

    def wait_s(self, failures: int) -> float:
        """How long to wait after so many failures, 1 or more."""
        # The exponent is bounded: a float has no room for 2 to the power of every count.
        full = min(self.first_s * 2.0 ** min(failures, 32), self.longest_s)
        return full * random.uniform(0.5, 1.0)


CONNECT = RetryPolicy(attempts=3, total_s=15.0)
RESUME = RetryPolicy(attempts=30, total_s=90.0)


async def retrying(
    policy: RetryPolicy,
    attempt: Callable[[], Awaitable[T]],
    on_wait: Callable[[BaseException, float], None],
) -> T:
    """The result of the first attempt that succeeds.

    `on_wait` hears of each failure and of the seconds until the next attempt.

    Raises:
        SpecwireError: the last failure, or at once one that trying again can't mend.
        asyncio.CancelledError: at once; no attempt follows.
    """

    def before_sleep(state: tenacity.RetryCallState) -> None:
        if state.outcome is not None and state.next_action is not None:
            error = state.outcome.exception()
            if error is not None:
                on_wait(error, state.next_action.sleep)

    tries = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(TRANSIENT),
        stop=tenacity.stop_after_attempt(policy.attempts)
        | tenacity.stop_before_delay(policy.total_s),
        wait=lambda state: policy.wait_s(state.attempt_number),
        before_sleep=before_sleep,
        reraise=True,
    )
    return await tries(attempt)
