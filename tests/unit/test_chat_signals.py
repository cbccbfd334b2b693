"""Signals become calls on the event loop, on every platform."""

from __future__ import annotations

import asyncio
import signal

import pytest

from edge_client.chat.signals import handled


def absent(*_: object) -> None:
    raise NotImplementedError


async def test_an_interrupt_is_a_call_where_the_loop_takes_no_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, told, before = (
        asyncio.get_running_loop(),
        asyncio.Event(),
        signal.getsignal(signal.SIGINT),
    )
    monkeypatch.setattr(loop, "add_signal_handler", absent)  # as on Windows
    with handled(told.set, absent, absent, absent):
        signal.raise_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            await told.wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(absent, absent, absent, absent):
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
