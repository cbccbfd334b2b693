"""Drafting on while the link is lost: shown as provisional, verified at once when it is back."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode, Result, Verification
from edge_client.offline import MOST_TOKENS
from specwire.edge_session import EdgeSession
from specwire.errors import LinkError
from specwire.v1 import verifier_pb2 as pb
from tests.support.edge import (
    DRAFTING_MODES,
    EDGE_CLIENT,
    VerifierThread,
    asking,
    edge_environment,
    settled,
    tiny_verifier,
)
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

TOKENS = 200
PROMPT = "A long tale"
AT = 40
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "verification": Verification.COUPLED},
    "rejection": {"temperature": 0.8, "verification": Verification.REJECTION},
}


class Slow:
    """A backend that takes its time, so that a text is not over before the link breaks."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, steps: Any) -> Any:
        time.sleep(0.01)
        return self._backend.forward(steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tail")
    more: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "context": 512}
    write_tiny_gguf(folder / "target.gguf", **more)
    write_tiny_gguf(folder / "draft.gguf", noise=0.05, **more)
    write_tiny_gguf(folder / "same.gguf", **more)
    return folder


@pytest.fixture
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        verifier.backend = Slow(verifier.backend)
        verifier.stop()
        verifier.start()
        yield verifier


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Result]:
    with tiny_verifier(folder / "target.gguf") as verifier, EdgeClient(verifier.address) as client:
        return {
            name: client.generate(PROMPT, options=asking(TOKENS, mode=Mode.STREAM, **rule))
            for name, rule in RULES.items()
        }


async def cut(
    verifier: VerifierThread,
    client: EdgeClient,
    mode: Mode,
    rule: str,
    *,
    gone_s: float = 1.0,
    stops: tuple[str, ...] = (),
) -> tuple[Result, list[str], str]:
    """A generation whose verifier is away for a while; what was provisional, and the text."""
    shown: list[str] = []
    options = replace(asking(TOKENS, mode=mode, stops=stops, **RULES[rule]), offline_tail=True)
    stream = client.stream(PROMPT, options=options, provisional=shown.append)
    texts: list[str] = []
    away: asyncio.Task[None] | None = None

    async def leave() -> None:
        await asyncio.to_thread(verifier.stop)
        await asyncio.sleep(gone_s)
        await asyncio.to_thread(verifier.start)

    async for token in stream:
        assert not shown or shown[-1] == ""  # withdrawn before anything is committed
        texts.append(token.text)
        if len(texts) == AT:
            away = asyncio.create_task(leave())
    assert away is not None
    await away
    return stream.result, shown, "".join(texts)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [Mode.AUTO, *DRAFTING_MODES])
async def test_what_is_committed_is_the_same(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result], mode: Mode, rule: str
) -> None:
    draft = str(folder / "draft.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        result, shown, text = await settled(cut(verifier, c, mode, rule))
    assert text == result.text
    assert len(result.token_ids) == TOKENS
    if rule != "rejection":
        assert result.token_ids == undisturbed[rule].token_ids
        assert text == undisturbed[rule].text
    tail = result.offline_tail
    assert tail is not None and 0 <= tail.kept <= tail.drafted
    if result.reconnections:
        assert tail.drafted >= MOST_TOKENS and shown[-1] == ""
        assert max(shown, key=len)
        (line,) = (line for line in result.notices if "provisional" in line)
        assert line == f"the link is back: {tail.kept} of {tail.drafted} provisional tokens stand"
    assert result.to_json()["offline_tail"] == {"drafted": tail.drafted, "kept": tail.kept}


async def test_a_good_tail_stands_and_takes_few_rounds(
    verifier: VerifierThread,
    folder: Path,
    undisturbed: dict[str, Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts: list[pb.Verdict] = []
    take = EdgeSession.on_verdict

    def noted(self: EdgeSession, verdict: pb.Verdict) -> Any:
        verdicts.append(verdict)
        return take(self, verdict)

    monkeypatch.setattr(EdgeSession, "on_verdict", noted)
    same = {"draft": str(folder / "same.gguf"), "drafts": "model", "threads": 1}
    async with EdgeClient(verifier.address, notify=lambda _: None, **same) as c:  # type: ignore[arg-type]
        result, shown, _ = await settled(cut(verifier, c, Mode.SYNC, "greedy"))
    assert result.token_ids == undisturbed["greedy"].token_ids
    tail = result.offline_tail
    # Both ends agree but for near ties. The limit is 32 draft tokens in a forward.
    assert tail is not None and tail.drafted == MOST_TOKENS and tail.kept > 32
    big = [verdict.accepted for verdict in verdicts if verdict.accepted > 4]
    assert len(big) == 2 and sum(big) >= tail.kept - 1
    assert max(shown, key=len)[:30] in undisturbed["greedy"].text


async def test_a_stop_string_ends_the_provisional_text_too(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result]
) -> None:
    """The stop lies beyond the cut, in what is drafted without a link."""
    ids = undisturbed["greedy"].token_ids
    text = undisturbed["greedy"].text
    stop = text[len(text) // 3 : len(text) // 3 + 3]
    expected = text[: text.index(stop)]
    draft = str(folder / "same.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        result, shown, told = await settled(cut(verifier, c, Mode.SYNC, "greedy", stops=(stop,)))
    assert told == result.text == expected
    assert result.finish_reason == "stop"
    assert list(result.token_ids) == list(ids[: len(result.token_ids)])
    assert all(stop not in tail for tail in shown)


async def test_a_link_that_stays_lost_withdraws_it(
    verifier: VerifierThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client import retry

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(attempts=3, total_s=3.0, first_s=0.2))
    shown: list[str] = []
    options = replace(asking(TOKENS), offline_tail=True)
    draft = str(folder / "draft.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        stream = c.stream(PROMPT, options=options, provisional=shown.append)

        async def read() -> None:
            async for token in stream:
                if token.position == AT:
                    await asyncio.to_thread(verifier.stop)

        with pytest.raises(LinkError):
            await settled(read())
    assert len(shown) > 1 and shown[-1] == ""
    tail = stream.result.offline_tail
    assert tail is not None and tail.drafted > 0 and tail.kept == 0


async def test_without_it_nothing_is_provisional(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result]
) -> None:
    shown: list[str] = []
    draft = str(folder / "draft.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        stream = c.stream(PROMPT, options=asking(TOKENS), provisional=shown.append)
        count = 0
        async for _ in stream:
            count += 1
            if count == AT:
                await asyncio.to_thread(verifier.stop)
                await asyncio.to_thread(verifier.start)
    assert shown == []
    assert stream.result.offline_tail is None
    assert "offline_tail" not in stream.result.to_json()
    assert stream.result.token_ids == undisturbed["greedy"].token_ids


# ── the command line ─────────────────────────────────────────────────────────────────


def flags(verifier: VerifierThread, folder: Path) -> list[str]:
    return [
        *("--server", verifier.address, "--draft", str(folder / "draft.gguf")),
        *("--threads", "1", "--temperature", "0", "--mode", "sync", "--gamma", "4"),
        *("--max-tokens", str(TOKENS), "--offline-tail"),
    ]


@pytest.mark.parametrize("form", ["--json", "--quiet"])
def test_pipes_and_json_hold_committed_text_alone(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result], form: str
) -> None:
    command = [*EDGE_CLIENT, "generate", PROMPT, *flags(verifier, folder), form]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=edge_environment()
    ) as process:
        deadline = time.monotonic() + 60
        while not verifier.attached and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        verifier.stop()
        time.sleep(1.0)
        verifier.start()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    expected = undisturbed["greedy"]
    if form == "--json":
        result = json.loads(out)
        assert result["token_ids"] == list(expected.token_ids)
        assert result["offline_tail"]["drafted"] >= MOST_TOKENS
    else:
        assert out.decode() in (expected.text, expected.text + "\n")
    assert b"provisional tokens stand" in err
    assert b"\x1b" not in err


def test_a_terminal_takes_it_back(
    verifier: VerifierThread, folder: Path, undisturbed: dict[str, Result]
) -> None:
    controller, terminal = pty.openpty()
    command = [*EDGE_CLIENT, "generate", PROMPT, *flags(verifier, folder), "--quiet"]
    seen = b""
    with subprocess.Popen(
        command, stdout=terminal, stderr=subprocess.DEVNULL, env=edge_environment()
    ) as process:
        os.close(terminal)
        began, phase = time.monotonic(), 0
        while time.monotonic() - began < 60:
            ready, _, _ = select.select([controller], [], [], 0.05)
            if ready:
                try:
                    data = os.read(controller, 65536)
                except OSError:
                    break
                seen += data
            if phase == 0 and len(seen) > 300:
                verifier.stop()
                phase, cut_at = 1, time.monotonic()
            elif phase == 1 and time.monotonic() - cut_at > 1.0:
                verifier.start()
                phase = 2
        process.wait(20)
    os.close(controller)
    assert process.returncode == 0
    assert b"\x1b[2m" in seen and b"\x1b[J" in seen
    # Each dim part is followed by its erasure, whose row and column the unit test checks.
    parts = seen.split(b"\x1b[2m")
    assert all(b"\x1b[J" in part for part in parts[1:])
