"""64 clients at once, cut and resumed at random: each gets the text that it gets alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cloud_verifier.backends.packed import PackedBackend
from specwire.limits import Limits
from tests.support.clients import KINDS, alone, crowd, disturbed, with_truth
from tests.support.drafter import until
from tests.support.serving import serving, stub_for, tiny_target
from tests.support.tiny_models import SPECIALS

CLIENTS = 64
TOKENS = 24
LIMITS = Limits(context=256, gamma=6, chain=32, sessions=4 * CLIENTS)


@pytest.mark.slow
async def test_64_clients_cut_at_random_get_the_text_they_get_alone(tiny_gguf: Path) -> None:
    target = tiny_target(tiny_gguf)
    backend = target.backend
    assert isinstance(backend, PackedBackend)
    low, high = len(SPECIALS), len(backend.vocabulary)
    async with (
        asyncio.timeout(60),
        serving(backend, target.encoder, LIMITS) as server,
        stub_for(server) as calm,
        stub_for(server) as wild,
    ):
        members = crowd(CLIENTS, low=low, high=high, max_tokens=TOKENS, seed=7)
        members = [await with_truth(calm, member) for member in members]
        expected = [await alone(calm, member) for member in members]
        drafters = [member.drafter() for member in members]
        rngs = [random.Random(f"cuts {member.seed}") for member in members]
        cuts = await asyncio.gather(
            *(disturbed(wild, d, rng) for d, rng in zip(drafters, rngs, strict=True))
        )
        for member, drafter, text in zip(members, drafters, expected, strict=True):
            assert drafter.output == text, member.kind.name
            assert drafter.finished is not None
            assert drafter.finished.usage.output_tokens == len(text)
        await until(lambda: backend.pool.used == 0 and server.attached == 0)

    # The test means something: streams were cut, drafts accepted and rejected, in every kind.
    assert min(cuts) >= 1
    assert sum(cuts) > 2 * CLIENTS
    for kind in KINDS:
        usage = [
            d.finished.usage
            for d, m in zip(drafters, members, strict=True)
            if m.kind is kind and d.finished is not None
        ]
        accepted, examined = sum(u.accepted for u in usage), sum(u.examined for u in usage)
        assert 0 < accepted < examined, kind.name
