"""Links that stop carrying anything while their sockets stay open, in every state of a client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode
from edge_client import link as link_module
from edge_client.failover import FailoverLink
from specwire.errors import BadRequest, LinkError, VersionMismatch
from specwire.limits import Limits
from tests.support.edge import VerifierThread, asking, settled, tiny_verifier, until
from tests.support.rough_link import RoughLink
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

NOTICED_S = 30.0
"""What the product promises."""
TOKENS = 60
PROMPT = "A long tale"


class Held:
    """A backend that can be held up in its forwards."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.going = threading.Event()
        self.going.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, steps: Any) -> Any:
        time.sleep(0.005)
        self.going.wait(60)
        return self._backend.forward(steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half-open")
    more: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "context": 512}
    write_tiny_gguf(folder / "target.gguf", **more)
    write_tiny_gguf(folder / "draft.gguf", noise=0.1, **more)
    return folder


def serving(folder: Path) -> VerifierThread:
    verifier = tiny_verifier(folder / "target.gguf")
    verifier.stop()
    verifier.backend = Held(verifier.backend)
    verifier._limits = Limits(context=512)
    verifier.start()
    return verifier


@pytest.fixture
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with serving(folder) as verifier:
        yield verifier


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's times, ten to forty times as fast."""
    fast = {
        "grpc.keepalive_time_ms": 500,
        "grpc.keepalive_timeout_ms": 500,
        "grpc.http2.ping_timeout_ms": 500,
        "grpc.min_reconnect_backoff_ms": 1000,
    }
    options = tuple((name, fast.get(name, value)) for name, value in link_module._OPTIONS)
    assert fast.keys() <= dict(options).keys()
    monkeypatch.setattr(link_module, "_OPTIONS", options)
    monkeypatch.setattr(link_module, "CONNECT_S", 1.0)


class Case:
    """A client behind a rough link, and how long it took to find out about it."""

    def __init__(self, verifier: VerifierThread, link: RoughLink, folder: Path) -> None:
        self.verifier = verifier
        self.link = link
        self.told: list[float] = []
        self.client = EdgeClient(
            link.address, draft=str(folder / "draft.gguf"), threads=1, notify=self._tell
        )
        self._dead_since = 0.0

    def _tell(self, line: str) -> None:
        self.told.append(time.monotonic())

    def dies(self) -> None:
        self.link.half_open()
        self._dead_since = time.monotonic()
        self.told.clear()

    @property
    def noticed_s(self) -> float:
        """Seconds from the link's death to the first notice."""
        return self.told[0] - self._dead_since

    @property
    def since_s(self) -> float:
        return time.monotonic() - self._dead_since

    async def idle(self) -> float:
        """Between two prompts, the second one following at once."""
        await self.client.complete(PROMPT, options=asking(3))
        self.dies()
        result = await self.client.complete(PROMPT, options=asking(3))
        assert len(result.token_ids) == 3
        return self.since_s

    async def idle_for_long(self) -> float:
        """Between two prompts that are far apart: the link is known to be dead by then."""
        await self.client.complete(PROMPT, options=asking(3))
        self.dies()
        keepalive_ms = dict(link_module._OPTIONS)["grpc.keepalive_time_ms"]
        await asyncio.sleep(2.5 * keepalive_ms / 1000)
        began = time.monotonic()
        await self.client.complete(PROMPT, options=asking(3))
        assert self.told == []
        return time.monotonic() - began

    async def in_the_middle(self, mode: Mode) -> float:
        """While tokens come and proposals go."""
        stream = self.client.stream(PROMPT, options=asking(TOKENS, mode=mode))
        async for token in stream:
            if token.position == 20:
                self.dies()
        assert len(stream.result.token_ids) == TOKENS
        return self.noticed_s if stream.result.reconnections else 0.0

    async def pipeline(self) -> float:
        return await self.in_the_middle(Mode.PIPELINE)

    async def plain_stream(self) -> float:
        return await self.in_the_middle(Mode.STREAM)

    async def waiting_for_a_verdict(self) -> float:
        backend = self.verifier.backend
        assert isinstance(backend, Held)
        stream = self.client.stream(PROMPT, options=asking(TOKENS))
        held = False
        async for _ in stream:
            if not held:
                held = True
                backend.going.clear()
                asyncio.get_running_loop().call_later(0.2, self.dies)
                asyncio.get_running_loop().call_later(0.4, backend.going.set)
        assert stream.result.reconnections == 1
        return self.noticed_s

    async def sending(self) -> float:
        """A prompt of more bytes than all buffers hold; it is too long, which comes back."""
        await self.client.describe()
        work = asyncio.create_task(
            self.client.complete("x" * (10 << 20), options=asking(3, mode=Mode.STREAM))
        )
        self.link.stall()
        await asyncio.sleep(0.3)
        self.dies()
        self.link.flow()
        with pytest.raises(BadRequest):
            await work
        return self.noticed_s

    async def connecting(self) -> float:
        """Nothing was ever carried: the first attempt fails in time, a later one gets through."""
        self.link.deaf = True
        self.dies()
        work = asyncio.create_task(self.client.complete(PROMPT, options=asking(3)))
        await until(lambda: bool(self.told), 2 * NOTICED_S)
        self.link.deaf = False
        self.link.cut()
        await work
        return self.noticed_s

    async def reconnecting(self) -> float:
        """The link breaks, and the new one is dead from the beginning."""
        stream = self.client.stream(PROMPT, options=asking(TOKENS))
        async for token in stream:
            if token.position == 20:
                self.dies()
                self.link.deaf = True
                self.link.cut()
                mending = asyncio.create_task(self._mend_when_told())
        assert len(stream.result.token_ids) == TOKENS
        await mending
        return self.told[1] - self._dead_since

    async def _mend_when_told(self) -> None:
        # That the link was lost is told first, that no new one can be had comes then.
        await until(lambda: len(self.told) > 1, 2 * NOTICED_S)
        self.link.deaf = False

    async def closing(self) -> float:
        """Leaving an answer, and the client with it."""
        stream = self.client.stream(PROMPT, options=asking(TOKENS))
        tokens = aiter(stream)
        await anext(tokens)
        self.dies()
        await tokens.aclose()  # type: ignore[attr-defined]
        await self.client.aclose()
        return self.since_s


STATES = [
    "idle",
    "idle_for_long",
    "pipeline",
    "plain_stream",
    "waiting_for_a_verdict",
    "sending",
    "connecting",
    "reconnecting",
    "closing",
]


async def noticed(verifier: VerifierThread, folder: Path, state: str) -> float:
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        try:
            return float(await settled(getattr(case, state)(), 4 * NOTICED_S))
        finally:
            await case.client.aclose()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.usefixtures("hurried")
async def test_a_dead_link_is_noticed(verifier: VerifierThread, folder: Path, state: str) -> None:
    assert await noticed(verifier, folder, state) < 5.0


@pytest.mark.slow
async def test_with_the_products_own_times(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        verifiers = [stack.enter_context(serving(folder)) for _ in STATES]
        work = (noticed(v, folder, state) for v, state in zip(verifiers, STATES, strict=True))
        times = dict(zip(STATES, await asyncio.gather(*work), strict=True))
    print({state: round(seconds, 1) for state, seconds in times.items()})
    assert max(times.values()) < NOTICED_S, times
    assert times["closing"] < 3.0
    assert times["idle_for_long"] < 3.0


async def test_a_link_that_stays_dead_is_given_up(
    verifier: VerifierThread, folder: Path, monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    from edge_client import retry

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(attempts=3, total_s=20.0, first_s=0.1))
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)

        async def read() -> None:
            async for token in case.client.stream(PROMPT, options=asking(TOKENS)):
                if token.position == 20:
                    link.deaf = True
                    link.cut()

        with pytest.raises(LinkError):
            await settled(read(), 60)
        await case.client.aclose()


async def test_requests_that_time_out_together_replace_the_connection_once(
    verifier: VerifierThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CONNECT_S", 0.5)
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        stream = case.client.stream(PROMPT, options=asking(TOKENS, mode=Mode.STREAM))
        tokens = aiter(stream)
        await anext(tokens)
        link.stall()
        others = [
            asyncio.create_task(case.client.complete(PROMPT, options=asking(3))) for _ in range(6)
        ]
        await asyncio.sleep(0.8)
        link.flow()
        async for _ in tokens:
            pass
        results = await settled(asyncio.gather(*others))
        assert [len(result.token_ids) for result in results] == [3] * len(others)
        assert len(stream.result.token_ids) == TOKENS
        assert stream.result.reconnections == 0 and link.accepted == 2
        await case.client.aclose()


async def test_a_generation_goes_on_when_its_connection_is_closed_for_newer_ones(
    verifier: VerifierThread, folder: Path
) -> None:
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        stream = case.client.stream(PROMPT, options=asking(TOKENS))
        way = case.client._links.here()
        assert isinstance(way, FailoverLink)
        grpc_link = way._verifiers[0].link
        async for token in stream:
            if token.position == 20:
                for _ in range(link_module._MOST_RETIRED + 1):
                    await grpc_link.renew(grpc_link.connection)
        assert len(stream.result.token_ids) == TOKENS and stream.result.reconnections == 1
        await case.client.aclose()


async def test_closing_the_client_ends_what_it_still_generates(
    verifier: VerifierThread, folder: Path
) -> None:
    client = EdgeClient(verifier.address, notify=lambda _: None)
    tokens = aiter(client.stream(PROMPT, options=asking(TOKENS, mode=Mode.STREAM)))
    await anext(tokens)
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        async for _ in tokens:
            pass


# ── long streams and idle links (G6, D4) ─────────────────────────────────────────────


async def test_a_text_may_take_longer_than_any_answer(
    verifier: VerifierThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for an answer is for connecting and opening alone."""
    monkeypatch.setattr(link_module, "CONNECT_S", 0.5)
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        await case.client.describe()
        stream = case.client.stream(PROMPT, options=asking(TOKENS))
        async for _ in stream:
            await asyncio.sleep(0.02)
        assert stream.result.duration_s > 1.0
        assert len(stream.result.token_ids) == TOKENS and case.told == []
        await case.client.aclose()


async def test_a_balancer_that_drops_idle_links_is_not_noticed(
    verifier: VerifierThread, folder: Path
) -> None:
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        for _ in range(3):
            result = await settled(case.client.complete(PROMPT, options=asking(3)))
            assert len(result.token_ids) == 3 and result.reconnections == 0
            link.cut()
            await asyncio.sleep(0.1)
        assert case.told == [] and link.accepted == 3
        await case.client.aclose()


@pytest.mark.parametrize("versions", [(), (0,), (2,), (2, 3)])
async def test_a_verifier_of_another_version_is_named(
    verifier: VerifierThread,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: tuple[int, ...],
) -> None:
    describe, asked = link_module.Link.describe, 0

    async def other(self: link_module.Link) -> Any:
        nonlocal asked
        asked += 1
        served = await describe(self)
        served.protocol_versions[:] = versions
        return served

    monkeypatch.setattr(link_module.Link, "describe", other)
    async with EdgeClient(verifier.address, notify=lambda _: None) as client:
        theirs = ", ".join(map(str, versions)) or "none"
        with pytest.raises(VersionMismatch, match=rf"version {theirs}, this client version 1"):
            await settled(client.complete(PROMPT))
    assert asked == 1


async def test_two_clients_share_a_draft_model_while_the_link_of_one_breaks(
    verifier: VerifierThread, folder: Path
) -> None:
    """One client object, two generations, a link that is cut under both."""
    async with RoughLink(verifier.address) as link:
        case = Case(verifier, link, folder)
        alone = await case.client.complete(PROMPT, options=asking(TOKENS, mode=Mode.STREAM))

        async def one() -> Any:
            stream = case.client.stream(PROMPT, options=asking(TOKENS))
            count = 0
            async for _ in stream:
                count += 1
                if count % 20 == 0:
                    link.cut()
            return stream.result

        results = await settled(asyncio.gather(one(), one()))
        for result in results:
            assert result.token_ids == alone.token_ids
            assert result.reconnections >= 1
        await case.client.aclose()
