"""Faults of the link: cuts at any byte, a verifier that restarts, one that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode, Result, TokenStream, Verification, link
from specwire.errors import BadRequest, LinkError, SpecwireError
from specwire.v1 import verifier_pb2 as pb
from tests.support.edge import (
    DRAFTING_MODES,
    Relay,
    SourceClient,
    VerifierThread,
    asking,
    byte_budgets,
    guess_source,
    settled,
    tiny_verifier,
)
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

TOKENS = 400
PROMPT = "A long tale"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "verification": Verification.COUPLED},
}
ALL_MODES = (*DRAFTING_MODES, Mode.STREAM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("link")
    write_tiny_gguf(folder / "target.gguf", chat_template=CHAT_TEMPLATE, context=512)
    write_tiny_gguf(folder / "draft.gguf", chat_template=CHAT_TEMPLATE, context=512, noise=0.1)
    return folder


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


@pytest.fixture(scope="module")
def draft(folder: Path) -> str:
    return str(folder / "draft.gguf")


@pytest.fixture(scope="module")
def undisturbed(verifier: VerifierThread) -> dict[str, Result]:
    with EdgeClient(verifier.address) as client:
        return {
            name: client.generate(PROMPT, options=asking(TOKENS, mode=Mode.STREAM, **rule))
            for name, rule in RULES.items()
        }


def quiet(line: str) -> None:
    """Nobody is told."""


# ── cuts ─────────────────────────────────────────────────────────────────────────────


async def through(relay: Relay, draft: str, mode: Mode, rule: str, texts: list[str]) -> Result:
    """A generation whose link breaks as planned, from its first token on; fills `texts`."""
    async with EdgeClient(relay.address, draft=draft, threads=1, notify=quiet) as client:
        options = asking(TOKENS, mode=mode, gamma=2, **RULES[rule])
        stream = client.stream(PROMPT, options=options)
        async for token in stream:
            texts.append(token.text)
            if len(texts) == 1:
                relay.arm()
    return stream.result


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
async def test_cuts_after_any_number_of_bytes(
    verifier: VerifierThread, draft: str, undisturbed: dict[str, Result], rule: str
) -> None:
    async def one(mode: Mode, seed: int) -> int:
        async with Relay(verifier.address, byte_budgets(seed, 350, 1000, 9)) as relay:
            texts: list[str] = []
            result = await settled(through(relay, draft, mode, rule, texts), 240)
        assert result.token_ids == undisturbed[rule].token_ids, mode
        assert "".join(texts) == result.text == undisturbed[rule].text, mode
        assert result.finish_reason == "length"
        assert result.reconnections > 0
        return relay.cuts

    # In stream mode a few long reads are all there is to cut, so it counts for less.
    cuts = await asyncio.gather(*(one(mode, seed) for seed, mode in enumerate(ALL_MODES)))
    assert sum(cuts) >= 30, cuts


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
async def test_cuts_at_any_time(
    verifier: VerifierThread, draft: str, undisturbed: dict[str, Result], rule: str
) -> None:
    async def one(mode: Mode, seed: int) -> int:
        draw, texts = random.Random(seed), list[str]()

        async def cutting(relay: Relay) -> None:
            # At any time, but after some progress: on a slow machine it would be endless else.
            seen = 0
            while True:
                await asyncio.sleep(draw.uniform(0.02, 0.2))
                if relay.cuts and len(texts) > seen:
                    relay.cut()
                    seen = len(texts)

        async with Relay(verifier.address) as relay:
            cutter = asyncio.create_task(cutting(relay))
            try:
                result = await settled(through(relay, draft, mode, rule, texts), 240)
            finally:
                cutter.cancel()
        assert result.token_ids == undisturbed[rule].token_ids, mode
        assert "".join(texts) == undisturbed[rule].text, mode
        return relay.cuts

    cuts = await asyncio.gather(*(one(mode, seed) for seed, mode in enumerate(ALL_MODES, 10)))
    assert sum(cuts) >= 8, cuts


async def test_a_link_that_never_carries_a_token_is_given_up(
    verifier: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stream opens and then breaks before its first proposal."""
    monkeypatch.setattr("edge_client.generation.MAX_FRUITLESS", 4)
    send, receive = link.Stream.send, link.Stream.receive
    streams: list[link.Stream] = []

    async def opened_only(self: link.Stream) -> pb.CloudFrame | None:
        if self in streams:
            raise LinkError("cut")
        streams.append(self)
        return await receive(self)

    async def without_proposals(self: link.Stream, frame: pb.EdgeFrame) -> None:
        if frame.WhichOneof("kind") != "proposal":
            await send(self, frame)

    monkeypatch.setattr(link.Stream, "receive", opened_only)
    monkeypatch.setattr(link.Stream, "send", without_proposals)
    notices: list[str] = []
    async with EdgeClient(
        verifier.address, draft=draft, threads=1, notify=notices.append
    ) as client:
        with pytest.raises(LinkError, match="cut"):
            await settled(client.complete(PROMPT, options=asking(20)), 120)
    assert len(streams) == 5  # the first, and four that brought nothing
    assert len([line for line in notices if "resuming" in line]) == 4


# ── slow readers ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.PIPELINE])
async def test_a_slow_reader_is_no_long_round_trip(
    verifier: VerifierThread, draft: str, mode: Mode
) -> None:
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=quiet) as client:
        stream = client.stream(PROMPT, options=asking(30, mode=mode))
        async for _ in stream:
            await asyncio.sleep(0.1)
        status = stream.status
    assert status is not None and status.rtt_s is not None and status.rtt_s < 0.05


# ── restarts ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def restartable(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ALL_MODES)
async def test_a_restarted_verifier_goes_on_where_the_old_one_stopped(
    restartable: VerifierThread,
    draft: str,
    undisturbed: dict[str, Result],
    mode: Mode,
    rule: str,
) -> None:
    async with EdgeClient(restartable.address, draft=draft, threads=1, notify=quiet) as client:
        stream = client.stream(PROMPT, options=asking(TOKENS, mode=mode, **RULES[rule]))
        texts, restarts = [], 0
        async for token in stream:
            texts.append(token.text)
            if token.position in (60, 200) or (restarts == 0 and token.position > 200):
                restarts += 1
                await asyncio.to_thread(restartable.stop, 0.0 if restarts == 1 else 1.0)
                await asyncio.to_thread(restartable.start)
        result = stream.result
    assert restarts == 2
    assert result.token_ids == undisturbed[rule].token_ids
    assert "".join(texts) == result.text == undisturbed[rule].text


async def test_nothing_counts_as_sent_while_there_is_no_link(
    restartable: VerifierThread, draft: str
) -> None:
    counted: list[int] = []
    stream: TokenStream

    def slow_guess(prefix: Sequence[int]) -> int:
        time.sleep(0.05)
        return prefix[-1]

    async def come_back() -> None:
        await asyncio.sleep(0.7)
        await asyncio.to_thread(restartable.start)

    async with SourceClient(
        restartable.address,
        draft,
        guess_source(slow_guess),
        notify=lambda _: counted.append(stream.result.counts.proposed),
    ) as client:
        stream = client.stream(PROMPT, options=asking(40, mode=Mode.PIPELINE, gamma=1))
        async for token in stream:
            if token.position == 30:
                await asyncio.to_thread(restartable.stop)
                coming = asyncio.create_task(come_back())
        await coming
    assert len(counted) > 1 and len(set(counted)) == 1, counted


@pytest.mark.parametrize("mode", [Mode.STREAM, Mode.SYNC])
async def test_attempts_to_rebuild_a_session_reach_the_same_one(
    restartable: VerifierThread,
    draft: str,
    undisturbed: dict[str, Result],
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
) -> None:
    receive = link.Stream.receive
    lost = 0

    async def without_answers(self: link.Stream) -> pb.CloudFrame | None:
        nonlocal lost
        frame = await receive(self)
        if frame is not None and frame.WhichOneof("kind") == "opened" and restarted and lost < 3:
            lost += 1
            await asyncio.sleep(0.05)  # meanwhile it writes on
            raise LinkError("cut")
        return frame

    monkeypatch.setattr(link.Stream, "receive", without_answers)
    restarted = False
    async with EdgeClient(restartable.address, draft=draft, threads=1, notify=quiet) as client:
        stream = client.stream(PROMPT, options=asking(TOKENS, mode=mode))
        async for token in stream:
            if token.position >= 60 and not restarted:
                restarted = True
                await asyncio.to_thread(restartable.stop)
                await asyncio.to_thread(restartable.start)
        assert lost == 3 and restartable.kept == 1
    assert stream.result.text == undisturbed["greedy"].text
    assert stream.result.token_ids == undisturbed["greedy"].token_ids


async def test_a_session_whose_last_word_is_lost_with_the_verifier_still_ends(
    restartable: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens have come but not Finished, and nobody remembers the session any more."""
    receive = link.Stream.receive
    dropped = 0

    async def without_finished(self: link.Stream) -> pb.CloudFrame | None:
        nonlocal dropped
        frame = await receive(self)
        if frame is not None and frame.WhichOneof("kind") == "finished" and not dropped:
            dropped += 1
            await asyncio.to_thread(restartable.stop)
            await asyncio.to_thread(restartable.start)
            raise LinkError("cut")
        return frame

    monkeypatch.setattr(link.Stream, "receive", without_finished)
    async with EdgeClient(restartable.address, draft=draft, threads=1, notify=quiet) as client:
        result = await settled(client.complete(PROMPT, options=asking(30)))
    assert dropped == 1
    assert len(result.token_ids) == 30
    assert result.finish_reason == "length"


# ── nobody there (G6, G8) ────────────────────────────────────────────────────────────


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def silence() -> Iterator[str]:
    """The address of something that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def describes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times of the attempts to reach a verifier."""
    times: list[float] = []
    describe = link.Link.describe

    async def counted(self: link.Link) -> pb.DescribeResponse:
        times.append(time.perf_counter())
        return await describe(self)

    monkeypatch.setattr(link.Link, "describe", counted)
    return times


async def test_an_address_without_a_verifier_fails_soon(describes: list[float]) -> None:
    notices: list[str] = []
    address = f"127.0.0.1:{unused_port()}"
    began = time.perf_counter()
    async with EdgeClient(address, notify=notices.append) as client:
        with pytest.raises(LinkError, match=f"{address}.*is it running there"):
            await client.complete("x")
    assert time.perf_counter() - began < 10
    assert len(describes) == 3
    assert len([line for line in notices if "next attempt in" in line]) == 2


async def test_silence_fails_within_the_connect_time(
    describes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONNECT_S", 0.3)
    began = time.perf_counter()
    with silence() as address:
        client = EdgeClient(address, notify=quiet)
        with pytest.raises(LinkError, match=r"did not answer within 0\.3 s"):
            await client.complete("x")
        await client.aclose()
    assert time.perf_counter() - began < 5
    assert len(describes) == 3


async def test_an_unknown_name_says_so() -> None:
    async with EdgeClient("no-such-host.invalid:1", notify=quiet) as client:
        with pytest.raises(LinkError, match=r"(?i)dns|resol"):
            await settled(client.complete("x"), 25)


async def test_a_permanent_refusal_gets_one_attempt(
    verifier: VerifierThread, draft: str, describes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0
    encode = verifier.encoder.encode_text

    def counted(text: str) -> list[int]:
        nonlocal opened
        opened += 1
        return encode(text)

    monkeypatch.setattr(verifier.encoder, "encode_text", counted)
    notices: list[str] = []
    async with EdgeClient(
        verifier.address, draft=draft, threads=1, notify=notices.append
    ) as client:
        for mode in ALL_MODES:
            with pytest.raises(BadRequest, match="context holds 512"):
                await client.complete("x " * 600, options=asking(5, mode=mode))
    assert opened == len(describes) == len(ALL_MODES)
    assert notices == []


async def test_giving_up_waiting_is_prompt_and_final(describes: list[float]) -> None:
    with silence() as address:
        client = EdgeClient(address, notify=quiet)
        began = time.perf_counter()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.complete("x"), 0.5)
        assert time.perf_counter() - began < 1.5
        await asyncio.sleep(1.0)
        assert len(describes) == 1
        await client.aclose()


async def test_giving_up_between_two_attempts_is_prompt_and_final(describes: list[float]) -> None:
    address = f"127.0.0.1:{unused_port()}"
    waiting = asyncio.Event()
    async with EdgeClient(address, notify=lambda line: waiting.set()) as client:
        work = asyncio.create_task(client.complete("x"))
        await settled(waiting.wait(), 5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settled(work, 1)
        tried = len(describes)
        await asyncio.sleep(1.0)
        assert len(describes) == tried


async def test_a_verifier_gone_for_good_ends_the_generation_in_bounded_time(
    restartable: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client import retry

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(attempts=4, total_s=5.0, first_s=0.1))
    notices: list[str] = []
    async with EdgeClient(
        restartable.address, draft=draft, threads=1, notify=notices.append
    ) as client:
        stream = client.stream(PROMPT, options=asking(TOKENS))

        async def read() -> None:
            async for token in stream:
                if token.position == 60:
                    await asyncio.to_thread(restartable.stop)

        with pytest.raises(SpecwireError) as caught:
            await settled(read(), 120)
    assert isinstance(caught.value, LinkError)
    assert len([line for line in notices if "next attempt in" in line]) == 3
    assert len(stream.result.token_ids) >= 48  # what came stays


# ── proxies (G9) ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "grpc_proxy", "https_proxy"])
async def test_a_proxy_for_the_world_is_not_used_for_this_machine(
    verifier: VerifierThread, monkeypatch: pytest.MonkeyPatch, host: str, variable: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    port = verifier.address.rpartition(":")[2]
    async with EdgeClient(f"{host}:{port}") as client:
        result = await settled(client.complete("x", options=asking(3, mode=Mode.STREAM)), 120)
    assert len(result.token_ids) == 3
