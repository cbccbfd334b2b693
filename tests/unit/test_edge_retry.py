"""Trying again: what is tried again, how often, how long, and what ends it."""

from __future__ import annotations

import asyncio
import time

import pytest

from edge_client.retry import CONNECT, RESUME, TRANSIENT, RetryPolicy, retrying
from specwire.errors import (
    BadRequest,
    Draining,
    Exhausted,
    LinkError,
    NotOwner,
    OtherTarget,
    SessionNotFound,
    SpecwireError,
    Unauthenticated,
    Unsupported,
    Untrusted,
    VersionMismatch,
    VocabularyMismatch,
)

QUICK = RetryPolicy(attempts=4, total_s=5.0, first_s=0.001)


class Attempts:
    """Fails with each error in turn, then succeeds."""

    def __init__(self, *errors: BaseException, pause_s: float = 0.0) -> None:
        self.made = 0
        self._errors = list(errors)
        self._pause_s = pause_s

    async def __call__(self) -> str:
        self.made += 1
        await asyncio.sleep(self._pause_s)
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def quiet(error: BaseException, wait_s: float) -> None:
    """Nobody is told."""


@pytest.mark.parametrize("kind", TRANSIENT)
async def test_what_may_pass_is_tried_again(kind: type[SpecwireError]) -> None:
    attempts = Attempts(kind("1"), kind("2"), kind("3"))
    told: list[tuple[str, float]] = []
    result = await retrying(QUICK, attempts, lambda error, wait: told.append((str(error), wait)))
    assert result == "done" and attempts.made == 4
    assert [text for text, _ in told] == ["1", "2", "3"]
    assert all(0 < wait <= 0.008 for _, wait in told)


async def test_the_last_failure_is_the_error() -> None:
    attempts = Attempts(*(LinkError(str(i)) for i in range(9)))
    with pytest.raises(LinkError, match=r"^3$"):
        await retrying(QUICK, attempts, quiet)
    assert attempts.made == 4


@pytest.mark.parametrize(
    "error",
    [
        *(
            kind("no")
            for kind in (
                BadRequest,
                NotOwner,
                OtherTarget,
                SessionNotFound,
                Unauthenticated,
                Unsupported,
                Untrusted,
                VersionMismatch,
                VocabularyMismatch,
            )
        ),
        ValueError("no"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        SystemExit(1),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_final_gets_one_attempt(error: BaseException) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        await retrying(QUICK, attempts, quiet)
    assert attempts.made == 1


async def test_no_attempt_begins_after_the_total_time() -> None:
    attempts = Attempts(*(LinkError("x") for _ in range(100)), pause_s=0.05)
    began = time.monotonic()
    with pytest.raises(LinkError):
        await retrying(RetryPolicy(attempts=100, total_s=0.3, first_s=0.02), attempts, quiet)
    assert 2 < attempts.made < 10
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("pause_s", [0.0, 10.0], ids=["between", "during"])
async def test_cancelling_is_prompt_and_final(pause_s: float) -> None:
    """Between two attempts, and during one."""
    attempts = Attempts(*(LinkError("x") for _ in range(9)), pause_s=pause_s)
    slow = RetryPolicy(attempts=9, total_s=60.0, first_s=5.0)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(retrying(slow, attempts, quiet), 0.1)
    assert time.monotonic() - began < 1.0
    await asyncio.sleep(0.1)
    assert attempts.made == 1


def test_waits_double_up_to_the_longest_and_differ() -> None:
    policy = RetryPolicy(attempts=99, total_s=1.0, first_s=0.1, longest_s=2.0)
    for failures, full in ((1, 0.2), (2, 0.4), (3, 0.8), (5, 2.0), (5000, 2.0)):
        waits = {policy.wait_s(failures) for _ in range(50)}
        assert len(waits) > 40
        assert full / 2 <= min(waits) and max(waits) <= full


@pytest.mark.parametrize("policy", [CONNECT, RESUME])
def test_the_products_own_bounds(policy: RetryPolicy) -> None:
    assert policy.attempts <= 30 and policy.total_s <= 90
    assert issubclass(Draining, TRANSIENT) and issubclass(Exhausted, TRANSIENT)
