"""Trying again where it can help: when connecting, and nowhere else."""

from __future__ import annotations

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
    first_s, longest_s: the waits between tries grow from one to the other, jittered.
    """

    attempts: int
    total_s: float
    first_s: float = 0.2
    longest_s: float = 5.0


CONNECT = RetryPolicy(attempts=3, total_s=10.0)
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
        wait=tenacity.wait_exponential(multiplier=policy.first_s, max=policy.longest_s)
        + tenacity.wait_random(0, policy.first_s),
        before_sleep=before_sleep,
        reraise=True,
    )
    return await tries(attempt)
