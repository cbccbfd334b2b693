"""The Python API: loops and threads, several generations at once, cancelling, closing, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edge_client
from edge_client import EdgeClient, GenerateOptions, Mode, Result, link
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from specwire.committed import Origin
from specwire.edge_session import EdgeSession
from specwire.errors import BadRequest, LinkError, SpecwireError
from tests.support.edge import (
    DRAFTING_MODES,
    ByteEncoder,
    ScriptBackend,
    SourceClient,
    VerifierThread,
    asking,
    model_source,
    settled,
    tiny_verifier,
    until,
)
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

PROMPTS = ["Hello", "A tale of", "Repeat: a a a"]


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("client")
    return str(write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05))


@pytest.fixture
def client(verifier: VerifierThread, draft: str) -> Iterator[EdgeClient]:
    with EdgeClient(verifier.address, draft=draft, threads=1) as client:
        yield client


@pytest.fixture(scope="module")
def solo(verifier: VerifierThread) -> list[Result]:
    """What each prompt gives by itself, without drafts."""
    with EdgeClient(verifier.address) as client:
        options = asking(60, mode=Mode.STREAM)
        return [client.generate(prompt, options=options) for prompt in PROMPTS]


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in ("draft", "edge-client")]


# ── loops and threads (G4) ───────────────────────────────────────────────────────────


def test_the_public_list_is_complete() -> None:
    for name in edge_client.__all__:
        assert hasattr(edge_client, name)
    assert {"EdgeClient", "GenerateOptions", "Mode", "Result"} <= set(edge_client.__all__)


def test_a_gamma_beyond_the_verifiers_limit_is_cut_with_a_notice(client: EdgeClient) -> None:
    result = client.generate(PROMPTS[0], options=asking(40, gamma=100))
    assert result.gamma == 32 and any("gamma 100 is more" in line for line in result.notices)
    assert client.generate(PROMPTS[0], options=asking(5, gamma=32)).notices == []


def test_links_of_event_loops_that_are_gone_are_let_go(client: EdgeClient) -> None:
    for _ in range(4):
        asyncio.run(client.complete(PROMPTS[0], options=asking(3)))
    assert len(client._links._links) == 1


def test_generate_twice(client: EdgeClient, solo: list[Result]) -> None:
    first = client.generate(PROMPTS[0], options=asking(60))
    second = client.generate(PROMPTS[0], options=asking(60))
    assert first.token_ids == second.token_ids == solo[0].token_ids
    assert first.counts == second.counts  # nothing is remembered from one to the next


def test_a_client_made_outside_serves_one_loop_after_another(
    client: EdgeClient, solo: list[Result]
) -> None:
    for _ in range(2):
        result = asyncio.run(client.complete(PROMPTS[0], options=asking(60)))
        assert result.token_ids == solo[0].token_ids
    assert client.generate(PROMPTS[0], options=asking(60)).token_ids == solo[0].token_ids


@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_several_threads_at_once(client: EdgeClient, solo: list[Result], mode: Mode) -> None:
    results: dict[int, Result] = {}

    def work(index: int) -> None:
        results[index] = client.generate(PROMPTS[index], options=asking(60, mode=mode))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {i: r.token_ids for i, r in results.items()} == {
        i: r.token_ids for i, r in enumerate(solo)
    }


async def test_inside_a_running_loop(client: EdgeClient, solo: list[Result]) -> None:
    """As in a notebook: blocking in a cell, blocking in a thread, and natively."""
    assert client.generate(PROMPTS[0], options=asking(60)).token_ids == solo[0].token_ids
    threaded = await asyncio.to_thread(client.generate, PROMPTS[1], options=asking(60))
    assert threaded.token_ids == solo[1].token_ids
    stream = client.stream(PROMPTS[2], options=asking(60))
    tokens = [token async for token in stream]
    assert [token.id for token in tokens if token.id is not None] == solo[2].token_ids
    assert "".join(token.text for token in tokens) == stream.result.text == solo[2].text
    await client.aclose()


def test_a_loop_in_another_thread(client: EdgeClient, solo: list[Result]) -> None:
    results: list[Result] = []

    def work() -> None:
        results.append(asyncio.run(client.complete(PROMPTS[1], options=asking(60))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert results[0].token_ids == solo[1].token_ids


# ── several generations at once (E2) ─────────────────────────────────────────────────


@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_generations_at_once_give_their_solo_outputs(
    verifier: VerifierThread, draft: str, solo: list[Result], mode: Mode
) -> None:
    async with EdgeClient(verifier.address, draft=draft, threads=1) as client:
        works = [client.complete(prompt, options=asking(60, mode=mode)) for prompt in PROMPTS]
        results = await settled(asyncio.gather(*works))
    assert [r.token_ids for r in results] == [r.token_ids for r in solo]
    assert all(r.counts.accepted for r in results)


@pytest.fixture
def slow(tiny_gguf: Path) -> Iterator[VerifierThread]:
    """A target that takes its time over a long text."""
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = [3 + i % 250 for i in range(3000)]
    backend = ScriptBackend(vocabulary, script, prompt_length=5, step_s=0.002)
    with VerifierThread(backend, ByteEncoder()) as verifier:
        yield verifier


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.STREAM])
async def test_cancelling_one_leaves_the_other_alone(
    slow: VerifierThread, draft: str, mode: Mode
) -> None:
    sources: list[Any] = []
    make = model_source(256)

    def source(weights: LlamaWeights, machine: EdgeSession, options: GenerateOptions) -> Any:
        sources.append(make(weights, machine, options))
        return sources[-1]

    async with SourceClient(slow.address, draft, source) as client:
        one = asyncio.create_task(client.complete("first", options=asking(2500, mode=mode)))
        two = asyncio.create_task(client.complete("other", options=asking(150, mode=mode)))
        await until(lambda: slow.attached == 2)
        await asyncio.sleep(0.1)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settled(one, 20)
        await until(lambda: slow.attached == 1 or two.done(), 30)
        result = await settled(two)
        assert result.token_ids == [3 + i % 250 for i in range(150)]
        await until(lambda: slow.attached == 0, 30)
        if sources:
            await until(lambda: all(s._model.closed for s in sources), 30)


async def test_leaving_a_stream_in_the_middle_ends_it(slow: VerifierThread, draft: str) -> None:
    async with EdgeClient(slow.address, draft=draft, threads=1) as client:
        stream = client.stream("first", options=asking(2500, mode=Mode.RUN_AHEAD))
        tokens = aiter(stream)
        for _ in range(5):
            await anext(tokens)
        await tokens.aclose()  # type: ignore[attr-defined]
        await until(lambda: slow.kept == 0, 30)  # it is closed, not left to the idle time
        assert 5 <= len(stream.result.token_ids) < 2500
        assert stream.result.text.encode()[:2] == bytes([0, 1])
        assert stream.result.duration_s > 0


# ── results ──────────────────────────────────────────────────────────────────────────


async def test_times_count_from_when_the_text_was_asked_for(
    verifier: VerifierThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = link.Link.describe

    async def slowly(self: link.Link) -> Any:
        await asyncio.sleep(0.3)
        return await describe(self)

    monkeypatch.setattr(link.Link, "describe", slowly)
    async with EdgeClient(verifier.address) as client:
        result = await client.complete(PROMPTS[0], options=asking(3, mode=Mode.STREAM))
    assert 0.3 < result.ttft_s < result.duration_s


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.STREAM])
def test_the_account_adds_up(client: EdgeClient, mode: Mode) -> None:
    result = client.generate("Hello", options=asking(60, mode=mode))
    counts = result.counts
    assert sum(result.origins.values()) == len(result.token_ids) == 60
    assert result.origins.get(Origin.ACCEPTED, 0) == counts.accepted
    assert sum(counts.examined_by_position) == counts.examined
    assert sum(counts.accepted_by_position) == counts.accepted
    assert counts.accepted <= counts.examined <= counts.proposed
    assert result.round_trips_saved == 60 - counts.rounds
    assert (result.mode, result.finish_reason, result.seed) == (mode, "length", 1)
    assert result.prompt_tokens == 4 or result.prompt_tokens > 0
    assert 0 < result.ttft_s <= result.duration_s
    assert result.bytes_down > 0 and result.bytes_up > 0
    assert result.reconnections == 0 and result.notices == []
    if mode is Mode.SYNC:
        assert counts.rounds == counts.proposals


def test_the_verifier_chooses_a_seed_and_tells_it(client: EdgeClient) -> None:
    options = GenerateOptions(max_tokens=40, mode=Mode.RUN_AHEAD)
    first = client.generate("Hello", options=options)
    again = client.generate(
        "Hello", options=GenerateOptions(max_tokens=40, mode=Mode.RUN_AHEAD, seed=first.seed)
    )
    other = client.generate("Hello", options=options)
    assert first.verification == "coupled"
    assert first.token_ids == again.token_ids != other.token_ids
    assert first.seed != other.seed


async def test_positions_follow_each_other(verifier: VerifierThread, draft: str) -> None:
    async with EdgeClient(verifier.address, draft=draft, threads=1) as client:
        stream = client.stream([5, 6, 7], options=asking(40, mode=Mode.RUN_AHEAD))
        positions = [token.position async for token in stream if token.id is not None]
    assert positions == list(range(3, 43))


# ── closing ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[LlamaDraft]:
    """The draft's evaluation states, as they are made."""
    made: list[LlamaDraft] = []

    def make(*args: Any, **options: Any) -> LlamaDraft:
        made.append(LlamaDraft(*args, **options))
        return made[-1]

    monkeypatch.setattr("edge_client.draft.shelf.LlamaDraft", make)
    return made


def test_closing_leaves_nothing_behind(
    verifier: VerifierThread, draft: str, states: list[LlamaDraft]
) -> None:
    before = own_threads()
    client = EdgeClient(verifier.address, draft=draft, threads=1)
    client.close()  # nothing to close yet
    client = EdgeClient(verifier.address, draft=draft, drafts="model", threads=1)
    client.generate("Hello", options=asking(20))
    assert sorted(own_threads()) == sorted([*before, "draft", "edge-client"])
    assert [state.closed for state in states] == [False]
    client.close()
    client.close()
    assert own_threads() == before
    assert [state.closed for state in states] == [True]


def test_a_conversation_is_drafted_for_without_being_read_again(
    verifier: VerifierThread, draft: str, states: list[LlamaDraft]
) -> None:
    with EdgeClient(verifier.address, draft=draft, drafts="model", threads=1) as client:
        messages = [("user", "Hello, how are you? " * 10)]
        options = replace(asking(8), mode=Mode.SYNC, gamma=2)
        first = client.generate(messages=messages, options=options)
        (state,) = states
        evaluated: list[int] = []
        context = state._sequence._held_context()
        decode = context.decode

        def noted(tokens: Sequence[int], position: int, rows: int) -> None:
            evaluated.append(len(tokens))
            decode(tokens, position, rows)

        context.decode = noted  # type: ignore[method-assign]
        messages += [("assistant", first.text), ("user", "And now?")]
        second = client.generate(messages=messages, options=options)
    new = second.prompt_tokens - first.prompt_tokens
    assert len(states) == 1 and evaluated
    assert second.counts.proposed > 0
    # What is new is read, and a token or two for each that is drafted or committed.
    few = 3 * (second.counts.proposed + len(second.token_ids))
    assert sum(evaluated) < new + few < new + first.prompt_tokens


async def test_closing_in_a_loop_leaves_nothing_behind(
    verifier: VerifierThread, draft: str
) -> None:
    before = own_threads()
    client = EdgeClient(verifier.address, draft=draft, threads=1)
    await client.complete("Hello", options=asking(20))
    await client.aclose()
    await client.aclose()
    assert own_threads() == before


async def test_sessions_left_are_closed_before_the_client_is(
    slow: VerifierThread, draft: str
) -> None:
    async with EdgeClient(slow.address, draft=draft, threads=1) as client:
        tokens = aiter(client.stream("first", options=asking(2500)))
        await anext(tokens)
        await tokens.aclose()  # type: ignore[attr-defined]
    assert slow.kept == 0


async def test_the_verifier_and_the_draft_can_be_asked_for_ahead(
    verifier: VerifierThread, draft: str
) -> None:
    async with EdgeClient(verifier.address, draft=draft, threads=1) as client:
        served, weights = await client.describe(), await client.load_draft()
        assert weights is not None
        assert weights.vocabulary.fingerprint == served.vocabulary.fingerprint
        assert await client.load_draft() is weights
    async with EdgeClient(verifier.address) as client:
        assert await client.load_draft() is None


def test_closing_while_another_thread_generates(slow: VerifierThread, draft: str) -> None:
    client = EdgeClient(slow.address, draft=draft, threads=1)
    ended = threading.Event()
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(client.generate("first", options=asking(2500)))
        except BaseException as error:
            outcome.append(error)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(500):
        if slow.attached:
            break
        ended.wait(0.01)
    client.close()
    assert ended.wait(30), "generate() must not wait for a closed client for ever"
    thread.join()
    assert isinstance(outcome[0], BaseException)


def test_a_closed_client_refuses(verifier: VerifierThread, draft: str) -> None:
    client = EdgeClient(verifier.address, draft=draft, threads=1)
    client.close()
    with pytest.raises((RuntimeError, SpecwireError), match="closed"):
        client.generate("Hello", options=asking(5))
    client.close()


# ── errors ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server", ["", "host", "host:", ":1", "host:port", "host:1x"])
def test_the_address_is_checked(server: str) -> None:
    with pytest.raises(BadRequest, match="HOST:PORT"):
        EdgeClient(server)


@pytest.mark.parametrize(
    ("prompt", "messages", "says"),
    [
        (None, None, "either a prompt or messages"),
        ("x", [("user", "x")], "either a prompt or messages"),
        ("", None, "empty"),
        ([], None, "no prompt|empty"),
        ([1, -1], None, "token ids"),
        ([1, 10**6], None, "1000000"),
        (["a"], None, "token ids"),
        (7, None, "token ids"),
        ("lone \ud800 half", None, "text or token ids"),
        (None, [], "no prompt|no messages"),
        (None, [("user",)], "pairs of role and content"),
        (None, [("user", 5)], "pairs of role and content"),
    ],
)
def test_wrong_prompts(
    client: EdgeClient, prompt: Any, messages: Sequence[Any] | None, says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        client.generate(prompt, messages=messages, options=asking(5))


def test_the_verifiers_refusal_reaches_the_caller(client: EdgeClient) -> None:
    with pytest.raises(BadRequest, match="stop strings; the limit is 16"):
        client.generate("x", options=asking(5, stops=tuple("abcdefghijklmnopqrst")))
    with pytest.raises(BadRequest, match="logprobs is 99; the limit is 20"):
        client.generate("x", options=asking(5, logprobs=99))
    assert len(client.generate("x", options=asking(5)).token_ids) == 5


def test_an_error_in_one_generation_leaves_no_session(
    verifier: VerifierThread, client: EdgeClient
) -> None:
    with pytest.raises(BadRequest):
        client.generate([1] * 300, options=asking(5))
    assert verifier.attached == 0


def test_something_else_at_the_address_is_named(draft: str) -> None:
    async def ask() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, EdgeClient(address, notify=lambda line: None) as client:
            with pytest.raises(LinkError, match=address):
                await settled(client.complete("x"), 20)

    asyncio.run(ask())
