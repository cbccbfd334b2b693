"""Several verifiers: tried in order, one taking over from another in the middle of a text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode, Result, Verification, failover, link
from edge_client.remote import RemoteVerifiers
from specwire.errors import BadRequest, LinkError, OtherTarget
from specwire.v1 import verifier_pb2 as pb
from tests.support.edge import (
    DRAFTING_MODES,
    VerifierThread,
    asking,
    edge_client,
    settled,
    tiny_verifier,
)
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, write_tiny_gguf

TOKENS = 300
PROMPT = "A long tale"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "verification": Verification.COUPLED},
}
ALL_MODES = (Mode.AUTO, *DRAFTING_MODES, Mode.STREAM)
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failover")
    more: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "context": 512}
    write_tiny_gguf(folder / "target.gguf", **more)
    write_tiny_gguf(folder / "draft.gguf", noise=0.1, **more)
    write_tiny_gguf(folder / "other.gguf", seed=9, name="other", **more)
    (folder / "words").mkdir()  # a model is called by its file
    write_tiny_gguf(folder / "words" / "target.gguf", vocabulary=FULL[:-1], **more)
    return folder


@pytest.fixture(scope="module")
def draft(folder: Path) -> str:
    return str(folder / "draft.gguf")


@pytest.fixture
def first(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


@pytest.fixture
def second(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Result]:
    with tiny_verifier(folder / "target.gguf") as verifier, EdgeClient(verifier.address) as client:
        return {
            name: client.generate(PROMPT, options=asking(TOKENS, mode=Mode.STREAM, **rule))
            for name, rule in RULES.items()
        }


@pytest.fixture
def describes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers that were asked to describe themselves."""
    asked: list[str] = []
    describe = link.Link.describe

    async def noted(self: link.Link) -> pb.DescribeResponse:
        asked.append(self.server)
        return await describe(self)

    monkeypatch.setattr(link.Link, "describe", noted)
    return asked


async def disturbed(
    client: EdgeClient, mode: Mode, rule: str, disturb: Callable[[], None], at: int = 60
) -> tuple[Result, str]:
    """A generation, and its text as it was streamed; something happens after so many tokens."""
    stream = client.stream(PROMPT, options=asking(TOKENS, mode=mode, **RULES[rule]))
    texts, done = [], False
    async for token in stream:
        texts.append(token.text)
        if len(texts) >= at and not done:
            done = True
            await asyncio.to_thread(disturb)
    assert done
    return stream.result, "".join(texts)


# ── in the middle of a text ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ALL_MODES)
async def test_another_takes_over_from_one_that_dies(
    first: VerifierThread,
    second: VerifierThread,
    draft: str,
    undisturbed: dict[str, Result],
    mode: Mode,
    rule: str,
) -> None:
    notices: list[str] = []
    servers = [first.address, second.address]
    async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
        result, text = await settled(disturbed(client, mode, rule, first.stop))
        assert result.token_ids == undisturbed[rule].token_ids
        assert text == result.text == undisturbed[rule].text
        told = [line for line in notices if line.startswith(f"using {second.address}")]
        # Under run-ahead all may have come before the first verifier stopped.
        assert len(told) == (result.reconnections > 0)
        assert result.reconnections or mode not in (Mode.SYNC, Mode.PIPELINE)
        notices.clear()
        again = await settled(client.complete(PROMPT, options=asking(5)))
        assert list(again.token_ids) == list(undisturbed["greedy"].token_ids[:5])
        assert len(notices) == (result.reconnections == 0)  # told before
    assert second.unended == 0


async def test_a_draining_verifier_is_left_at_once(
    first: VerifierThread, second: VerifierThread, draft: str, undisturbed: dict[str, Result]
) -> None:
    notices: list[str] = []
    servers = [first.address, second.address]
    async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
        work = disturbed(client, Mode.SYNC, "greedy", lambda: first.stop(2.0))
        result, _ = await settled(work)
    assert result.token_ids == undisturbed["greedy"].token_ids
    assert result.reconnections == 1
    # Where a proposal meets the end of the stream, nothing tells why it ended.
    assert len(notices) <= 2 and notices[-1].startswith(f"using {second.address} (")


async def test_a_verifier_that_takes_no_sessions_is_passed_over(
    first: VerifierThread,
    second: VerifierThread,
    draft: str,
    undisturbed: dict[str, Result],
    describes: list[str],
) -> None:
    """It still describes itself, but refuses to open a session."""
    assert first._server is not None
    first._server._service.refuse_new()
    notices: list[str] = []
    servers = [first.address, second.address]
    async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
        for _ in range(2):
            result = await settled(client.complete(PROMPT, options=asking(5)))
            assert list(result.token_ids) == list(undisturbed["greedy"].token_ids[:5])
            assert result.reconnections == 0
    (notice,) = notices
    assert notice.startswith(f"using {second.address} (") and "stopping" in notice
    assert describes == [first.address, second.address]


async def test_a_break_with_both_there_resumes_at_the_first(
    first: VerifierThread, second: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = link.Stream.receive
    seen = 0

    async def cut_once(self: link.Stream) -> pb.CloudFrame | None:
        nonlocal seen
        seen += 1
        if seen == 5:
            raise LinkError("cut")
        return await receive(self)

    monkeypatch.setattr(link.Stream, "receive", cut_once)
    notices: list[str] = []
    servers = [first.address, second.address]
    async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
        result = await settled(client.complete(PROMPT, options=asking(40)))
    assert result.reconnections == 1
    assert notices == ["link lost (cut); resuming"]
    assert second.kept == 0


async def test_after_an_outage_of_both_the_session_goes_on_where_it_was(
    first: VerifierThread, second: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address answers for a while; the first that does again knows the session."""
    attempts: list[tuple[str, str]] = []
    decode, receive = link.Link.decode, link.Stream.receive
    seen = 0

    async def cut_once(self: link.Stream) -> pb.CloudFrame | None:
        nonlocal seen
        seen += 1
        if seen == 5:
            raise LinkError("cut")
        return await receive(self)

    @contextlib.asynccontextmanager
    async def dead_for_a_while(self: link.Link, frame: pb.EdgeFrame) -> Any:
        kind = frame.WhichOneof("kind")
        attempts.append((self.server, kind or ""))
        if 1 < len(attempts) < 5:
            raise LinkError(f"no way to {self.server}")
        async with decode(self, frame) as stream:
            yield stream

    monkeypatch.setattr(link.Stream, "receive", cut_once)
    monkeypatch.setattr(link.Link, "decode", dead_for_a_while)
    servers = [first.address, second.address]
    async with EdgeClient(servers, draft=draft, threads=1, notify=lambda line: None) as client:
        result = await settled(client.complete(PROMPT, options=asking(40)))
    one, two = servers
    assert attempts == [
        (one, "open"),
        (one, "resume"),
        (two, "open"),
        (one, "resume"),
        (one, "resume"),
    ]
    assert len(result.token_ids) == 40
    assert first.unended == second.unended == second.kept == 0


# ── another model, another vocabulary ────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.STREAM])
@pytest.mark.parametrize("file", ["other.gguf", "words/target.gguf"])
async def test_another_target_is_not_used_to_go_on(
    first: VerifierThread,
    folder: Path,
    draft: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    file: str,
) -> None:
    from edge_client import retry

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(attempts=3, total_s=5.0, first_s=0.05))
    notices: list[str] = []
    with tiny_verifier(folder / file) as other:
        servers = [first.address, other.address]
        async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
            first.backend = SlowForward(first.backend)
            first.stop()
            first.start()
            with pytest.raises(LinkError):
                await settled(disturbed(client, mode, "greedy", first.stop, at=20))
            what = "serves other" if file == "other.gguf" else "another vocabulary"
            assert len([line for line in notices if what in line]) == 1
            assert other.kept == 0


async def test_the_third_takes_over_where_the_second_serves_something_else(
    first: VerifierThread,
    second: VerifierThread,
    folder: Path,
    draft: str,
    undisturbed: dict[str, Result],
) -> None:
    with tiny_verifier(folder / "other.gguf") as other:
        servers = [first.address, other.address, second.address]
        async with EdgeClient(servers, draft=draft, threads=1, notify=lambda _: None) as client:
            result, _ = await settled(disturbed(client, Mode.SYNC, "greedy", first.stop))
    assert result.token_ids == undisturbed["greedy"].token_ids


async def test_a_restarted_verifier_with_another_model_does_not_go_on(
    first: VerifierThread, folder: Path, draft: str
) -> None:
    with tiny_verifier(folder / "other.gguf") as other:

        def replace() -> None:
            first.stop()
            first.backend, first.encoder = other.backend, other.encoder
            first.start()

        async with EdgeClient(first.address, draft=draft, threads=1, notify=lambda _: None) as c:
            with pytest.raises(OtherTarget, match=r"serves other.*begun with target"):
                await settled(disturbed(c, Mode.SYNC, "greedy", replace))
            # What is asked next is begun with the new model.
            result = await settled(c.complete(PROMPT, options=asking(5)))
            assert result.model == "other" and len(result.token_ids) == 5
        assert first.unended == 0


async def test_a_restarted_verifier_with_another_vocabulary_is_met_as_at_first(
    first: VerifierThread, folder: Path, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the connection looks as if it had never gone: what was known is refused."""
    notices: list[str] = []
    with tiny_verifier(folder / "words/target.gguf") as other:
        async with EdgeClient(first.address, draft=draft, threads=1, notify=notices.append) as c:
            assert (await settled(c.complete(PROMPT, options=asking(5)))).mode == "sync"
            first.stop()
            first.backend, first.encoder = other.backend, other.encoder
            first.start()
            monkeypatch.setattr(link.Link, "known", property(lambda self: self._served))
            result = await settled(c.complete(PROMPT, options=asking(5)))
            assert result.mode == "target-only" and len(result.token_ids) == 5
            (notice,) = result.notices
            assert "another vocabulary" in notice


@pytest.mark.parametrize("limit", [{"gamma": 1}, {"context": 200}], ids=["gamma", "context"])
async def test_a_second_verifier_with_lower_limits_is_not_used_to_go_on(
    first: VerifierThread,
    folder: Path,
    draft: str,
    monkeypatch: pytest.MonkeyPatch,
    limit: dict[str, int],
) -> None:
    from dataclasses import replace

    from edge_client import retry
    from specwire.limits import Limits

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(attempts=2, total_s=5.0, first_s=0.05))
    notices: list[str] = []
    with tiny_verifier(folder / "target.gguf") as narrow:
        narrow.stop()
        narrow._limits = replace(Limits(context=512), **limit)
        narrow.start()
        servers = [first.address, narrow.address]
        async with EdgeClient(servers, draft=draft, threads=1, notify=notices.append) as client:
            with pytest.raises(LinkError):
                await settled(disturbed(client, Mode.SYNC, "greedy", first.stop))
    ((name, value),) = limit.items()
    assert any(f"lower limit ({name} {value})" in line for line in notices)


# ── at the start ─────────────────────────────────────────────────────────────────────


async def test_the_next_one_is_used_with_one_notice(
    first: VerifierThread, draft: str, describes: list[str]
) -> None:
    notices: list[str] = []
    async with EdgeClient(
        [NOWHERE, first.address], draft=draft, threads=1, notify=notices.append
    ) as client:
        for _ in range(3):
            await settled(client.complete("x", options=asking(3)))
    (notice,) = notices
    assert notice.startswith(f"using {first.address} (can't reach the verifier at {NOWHERE}")
    assert describes == [NOWHERE, first.address]


async def test_the_preferred_one_is_tried_again_after_a_while(
    first: VerifierThread, second: VerifierThread, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "AVOID_S", 0.5)
    first.stop()
    notices: list[str] = []
    async with EdgeClient(
        [first.address, second.address], draft=draft, threads=1, notify=notices.append
    ) as client:
        await settled(client.complete("x", options=asking(3)))
        first.start()
        await asyncio.sleep(0.6)
        second.stop()
        result = await settled(client.complete("x", options=asking(3)))
    assert len(result.token_ids) == 3
    assert len(notices) == 1


async def test_none_can_be_reached(draft: str) -> None:
    async with EdgeClient([NOWHERE, "127.0.0.1:2"], draft=draft, notify=lambda _: None) as client:
        with pytest.raises(LinkError, match=rf"no verifier can be used.*{NOWHERE}.*127\.0\.0\.1:2"):
            await settled(client.complete("x"), 30)


@pytest.mark.parametrize("servers", [[], ["127.0.0.1:1", "nothing"], ["127.0.0.1:1"] * 2])
def test_the_addresses_are_checked(servers: list[str]) -> None:
    with pytest.raises(BadRequest, match="server"):
        EdgeClient(servers)
    with pytest.raises(BadRequest, match="server"):
        RemoteVerifiers(servers)


def test_the_command_line_takes_several(first: VerifierThread, draft: str) -> None:
    servers = ("--server", NOWHERE, "--server", first.address)
    options = ("--draft", draft, "--threads", "1", "--max-tokens", "4", "--temperature", "0")
    done = edge_client("generate", "x", *servers, *options, "--quiet")
    assert done.returncode == 0 and done.stdout
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"using {first.address} (")


# ── what is known of a verifier ──────────────────────────────────────────────────────


async def test_a_verifier_is_described_once_for_as_long_as_the_link_stands(
    first: VerifierThread, draft: str, describes: list[str]
) -> None:
    async with EdgeClient(first.address, draft=draft, threads=1, notify=lambda _: None) as client:
        for _ in range(3):
            await settled(client.complete("x", options=asking(3)))
        assert len(describes) == 1
        first.stop()
        first.start()
        await settled(client.complete("x", options=asking(3)))
        assert len(describes) == 2
        await client.describe()
        assert len(describes) == 3  # who asks for it gets a fresh answer


class SlowForward:
    """A backend that takes its time, so that a text is not over before something happens."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, steps: Any) -> Any:
        import time

        time.sleep(0.01)
        return self._backend.forward(steps)
