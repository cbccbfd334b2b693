"""What gRPC adds to a message, as the simulation has it, against what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient, Mode
from netsim.links import CALL_DOWN_BYTES, CALL_UP_BYTES, WINDOW_BYTES, LinkModel, wire_bytes
from netsim.real import generate
from netsim.relay import Relay
from netsim.scenario import Way
from tests.support.edge import VerifierThread, asking, tiny_verifier
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

TOKENS = 200
LINK = LinkModel.symmetric(0.004)
PINGS = 0.3
"""What pings may add: gRPC sends them as it likes, to find out how fast a link is."""
MESSAGE = wire_bytes(0, tls=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    write_tiny_gguf(folder / "target.gguf", chat_template=CHAT_TEMPLATE, context=512)
    return folder


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


def sent(relay: Relay) -> tuple[int, int]:
    """Bytes on its sockets so far, up and down."""
    stats = relay.stats()
    return stats["bytes_up"], stats["bytes_down"]


async def test_messages_of_a_session(verifier: VerifierThread, folder: Path) -> None:
    async with (
        Relay(verifier.address, LINK) as relay,
        EdgeClient(relay.address, draft=str(folder / "target.gguf"), threads=1) as client,
    ):
        options = asking(TOKENS, mode=Mode.SYNC, gamma=2)
        await client.complete("Warm up", options=options)
        before = sent(relay)
        result = await client.complete("A long tale", options=options)
        up, down = (now - then for now, then in zip(sent(relay), before, strict=True))
    proposals, verdicts = result.counts.proposals, result.counts.rounds
    assert proposals >= TOKENS / 3
    expected = MESSAGE + WINDOW_BYTES
    assert 0.95 < (up - result.bytes_up) / proposals / expected < 1 + PINGS
    assert 0.95 < (down - result.bytes_down) / verdicts / expected < 1 + PINGS


async def test_messages_of_calls(verifier: VerifierThread) -> None:
    async with (
        Relay(verifier.address, LINK) as relay,
        EdgeClient(relay.address) as client,
    ):
        messages = [("user", "A long tale")]
        measured = await generate(client, relay.address, Way.PER_TOKEN, messages, tokens=TOKENS)
        up, down = sent(relay)
    calls = len(measured.token_ids)
    assert calls == TOKENS
    assert 0.95 < (up - measured.bytes_up) / calls / (MESSAGE + CALL_UP_BYTES) < 1 + PINGS
    assert 0.95 < (down - measured.bytes_down) / calls / (MESSAGE + CALL_DOWN_BYTES) < 1 + PINGS
