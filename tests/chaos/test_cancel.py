"""Cancelling a generation at each of its suspensions: nothing leaks, and the client goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from edge_client import EdgeClient, Mode, Result
from specwire.errors import LinkError
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb
from tests.support.edge import VerifierThread, asking, settled, tiny_verifier, until
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

TOKENS = 12
PROMPT = "A tale"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cancel")
    write_tiny_gguf(folder / "target.gguf", chat_template=CHAT_TEMPLATE)
    write_tiny_gguf(folder / "draft.gguf", chat_template=CHAT_TEMPLATE, noise=0.1)
    return folder


@pytest.fixture
def verifier(folder: Path) -> Iterator[VerifierThread]:
    """A session whose opening was cancelled before it was answered is known to nobody but it."""
    with tiny_verifier(folder / "target.gguf") as verifier:
        verifier.stop()
        verifier._limits = Limits(context=256, idle_s=1.0)
        verifier.start()
        yield verifier


@types.coroutine
def cancelled_at(work: Coroutine[Any, Any, Any], step: int) -> Generator[Any, Any, bool]:
    """Run `work`, cancelled as it suspends for the `step`th time; whether it came to its end."""
    suspensions = 0
    error: BaseException | None = None
    while True:
        try:
            awaited = work.throw(error) if error is not None else work.send(None)
        except StopIteration:
            return True
        except asyncio.CancelledError:
            if suspensions < step:
                raise
            return False
        suspensions += 1
        if suspensions == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        error = None
        try:
            yield awaited
        except BaseException as thrown:
            error = thrown


def threads() -> set[str]:
    # asyncio's own pool grows when it likes, and stays.
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name != "verifier" and not name.startswith("asyncio_")}


async def at_each_step(
    client: EdgeClient, verifier: VerifierThread, mode: Mode, expected: list[int], stride: int
) -> int:
    """How many times a generation was cancelled until one came to its end."""
    options = asking(TOKENS, mode=mode, gamma=2)
    assert (await client.complete(PROMPT, options=options)).token_ids == expected
    tasks, names = asyncio.all_tasks(), threads()
    step = 0
    while True:
        step += stride
        stream = client.stream(PROMPT, options=options)
        seen: list[int | None] = []

        async def read(stream: Any = stream, seen: list[int | None] = seen) -> None:
            async for token in stream:
                seen.append(token.id)  # noqa: PERF401  (what came before it was cancelled counts)

        async def run(step: int = step, read: Any = read) -> bool:
            return bool(await cancelled_at(read(), step))

        done = await settled(asyncio.create_task(run()), 30)
        assert seen == expected[: len(seen)]
        if done:
            assert len(seen) >= TOKENS
            break
        if step % 10 == 0:
            assert (await client.complete(PROMPT, options=options)).token_ids == expected
    gc.collect()  # generators that were left would tell of it now
    await until(lambda: asyncio.all_tasks() <= tasks, 15)
    assert threads() <= names
    await until(lambda: not client._drafter._worker._runs, 5)
    await until(lambda: verifier.unended == 0, 10)
    return step // stride


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.PIPELINE, Mode.SYNC, Mode.STREAM])
async def test_a_generation_may_be_cancelled_anywhere(
    verifier: VerifierThread, folder: Path, mode: Mode
) -> None:
    draft = str(folder / "draft.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        alone: Result = await c.complete(PROMPT, options=asking(TOKENS, mode=Mode.STREAM))
        times = await at_each_step(c, verifier, mode, alone.token_ids, 1)
    assert times > 10
    assert verifier.attached == 0


@pytest.mark.slow
async def test_one_that_reconnects_may_be_cancelled_anywhere(
    verifier: VerifierThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third frame is lost with its stream, and the draft goes on meanwhile."""
    from edge_client import link, retry

    monkeypatch.setattr(retry, "RESUME", retry.RetryPolicy(30, 60.0, first_s=0.001))
    receive, frames = link.Stream.receive, 0

    async def often_cut(self: link.Stream) -> pb.CloudFrame | None:
        nonlocal frames
        frames += 1
        if frames % 3 == 0:
            raise LinkError("cut")
        return await receive(self)

    draft = str(folder / "draft.gguf")
    async with EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None) as c:
        alone = await c.complete(PROMPT, options=asking(TOKENS, mode=Mode.STREAM))
        monkeypatch.setattr(link.Stream, "receive", often_cut)
        plain = EdgeClient.stream

        def with_tail(self: EdgeClient, prompt: str, **more: Any) -> Any:
            more["options"] = replace(more["options"], offline_tail=True)
            return plain(self, prompt, provisional=lambda text: None, **more)

        monkeypatch.setattr(EdgeClient, "stream", with_tail)
        times = await at_each_step(c, verifier, Mode.PIPELINE, alone.token_ids, 1)
    assert times > 15


async def test_closing_the_client_may_be_cancelled_too(
    verifier: VerifierThread, folder: Path
) -> None:
    draft = str(folder / "draft.gguf")
    tasks = asyncio.all_tasks()
    for step in range(1, 4):
        client = EdgeClient(verifier.address, draft=draft, threads=1, notify=lambda _: None)
        await client.complete(PROMPT, options=asking(3))

        async def run(client: EdgeClient = client, step: int = step) -> bool:
            return bool(await cancelled_at(client.aclose(), step))

        await settled(asyncio.create_task(run()), 30)
        await client.aclose()
    await until(lambda: asyncio.all_tasks() <= tasks, 5)
