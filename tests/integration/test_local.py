"""The on-device pair: a target in this process, with and without a draft beside it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode, Result, Verification
from edge_client.draft.llama_context import LlamaContext
from edge_client.draft.llama_sequence import DEFAULT_BATCH
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from edge_client.local import device as device_module
from edge_client.local.device import TargetDevice
from edge_client.local.link import LocalLink
from edge_client.local.target import check_can_verify
from specwire.committed import Origin
from specwire.errors import BadRequest, Exhausted, ModelError, SessionNotFound
from specwire.llama_prompt import LlamaEncoder
from specwire.v1 import verifier_pb2 as pb
from tests.support.bare import bare_greedy
from tests.support.edge import DRAFTING_MODES, asking, edge_client, shared_cache
from tests.support.processes import run_python
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, LETTERS, SPECIALS, write_tiny_gguf

PROMPT = "A tale of the hen and"
SIZE = len(SPECIALS) + len(FULL)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("local")
    near = write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05)
    unrelated = write_tiny_gguf(folder / "other.gguf", chat_template=CHAT_TEMPLATE, seed=9)
    return {"self": str(tiny_gguf), "near": str(near), "unrelated": str(unrelated)}


@pytest.fixture
def client(tiny_gguf: Path, drafts: dict[str, str]) -> Iterator[EdgeClient]:
    with EdgeClient.local(str(tiny_gguf), draft=drafts["near"], threads=1) as client:
        yield client


@pytest.fixture(scope="module")
def prompt_ids(tiny_gguf: Path) -> list[int]:
    with LlamaWeights(tiny_gguf) as weights:
        return weights.tokenize(PROMPT.encode())


@pytest.fixture(scope="module")
def truth(tiny_gguf: Path, prompt_ids: list[int]) -> list[int]:
    """llama.cpp's own greedy tokens, 60 of them."""
    return bare_greedy(tiny_gguf, prompt_ids, 60)[0]


# ── what comes out ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.AUTO])
@pytest.mark.parametrize("name", ["near", "unrelated"])
def test_greedy_ids_are_those_of_a_bare_loop(
    tiny_gguf: Path, drafts: dict[str, str], truth: list[int], mode: Mode, name: str
) -> None:
    with EdgeClient.local(str(tiny_gguf), draft=drafts[name], threads=1) as client:
        result = client.generate(PROMPT, options=asking(60, mode=mode))
    assert result.token_ids == truth
    assert result.notices == []
    assert (result.bytes_up, result.bytes_down, result.reconnections) == (0, 0, 0)
    if mode in (Mode.SYNC, Mode.PIPELINE):  # otherwise drafts may come too late
        assert result.counts.examined > 0


def test_without_a_draft_the_target_runs_alone(tiny_gguf: Path, truth: list[int]) -> None:
    with EdgeClient.local(str(tiny_gguf), threads=1) as client:
        result = client.generate(PROMPT, options=asking(60))
    assert result.token_ids == truth
    assert result.mode == "target-only"
    assert (result.counts.rounds, result.counts.proposed) == (60, 0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_target_that_drafts_for_itself_accepts_all_at_temperature_zero(
    tiny_gguf: Path, drafts: dict[str, str], temperature: float
) -> None:
    with EdgeClient.local(str(tiny_gguf), draft=drafts["self"], threads=1) as client:
        options = asking(60, temperature=temperature, verification=Verification.COUPLED)
        result = client.generate(PROMPT, options=options)
    assert result.counts.examined == result.counts.accepted > 40
    assert set(result.origins) <= {Origin.ACCEPTED, Origin.BONUS}


def test_coupled_ids_do_not_depend_on_draft_mode_or_gamma(
    tiny_gguf: Path, drafts: dict[str, str]
) -> None:
    outputs = set()
    for draft in (*drafts.values(), None):
        with EdgeClient.local(str(tiny_gguf), draft=draft, threads=1) as client:
            for mode, gamma in ((Mode.SYNC, 1), (Mode.SYNC, 5), (Mode.RUN_AHEAD, 3)):
                options = asking(
                    40,
                    mode=mode,
                    gamma=gamma,
                    temperature=0.9,
                    verification=Verification.COUPLED,
                    frequency_penalty=0.2,
                )
                outputs.add(tuple(client.generate(PROMPT, options=options).token_ids))
    assert len(outputs) == 1


def test_text_stops_logprobs_and_penalties_as_without_drafts(
    tiny_gguf: Path, client: EdgeClient
) -> None:
    with EdgeClient.local(str(tiny_gguf), threads=1) as alone:
        whole = alone.generate(PROMPT, options=asking(40, logprobs=2, repetition_penalty=1.2))
        stop = whole.text[10:13]
        cut = alone.generate(PROMPT, options=asking(40, stops=(stop,), repetition_penalty=1.2))
    options = asking(40, logprobs=2, repetition_penalty=1.2)
    drafted = client.generate(PROMPT, options=options)
    assert (drafted.text, drafted.token_ids) == (whole.text, whole.token_ids)
    assert drafted.logprobs is not None and whole.logprobs is not None
    assert [p.logprob for p in drafted.logprobs] == pytest.approx(
        [p.logprob for p in whole.logprobs], abs=1e-2
    )
    again = client.generate(PROMPT, options=asking(40, stops=(stop,), repetition_penalty=1.2))
    assert (again.text, again.finish_reason) == (cut.text, "stop")
    assert stop not in again.text


def test_chat_goes_through_the_files_template_and_turns_share_their_beginning(
    client: EdgeClient, tiny_gguf: Path
) -> None:
    messages = [("user", "the hen and the fox")]
    first = chat(client, messages)
    with LlamaWeights(tiny_gguf) as weights:
        text = "<|im_start|>user\nthe hen and the fox<|im_end|>\n<|im_start|>assistant\n"
        assert first.prompt_tokens == len(weights.tokenize(text.encode()))
    assert first.cached_prompt_tokens == 0
    messages += [("assistant", first.text), ("user", "and then")]
    second = chat(client, messages)
    # Text that was cut in the middle of a character comes back as other tokens.
    assert second.cached_prompt_tokens >= first.prompt_tokens
    again = chat(client, messages)
    assert again.cached_prompt_tokens == again.prompt_tokens - 1
    assert again.token_ids == second.token_ids


def chat(client: EdgeClient, messages: list[tuple[str, str]]) -> Result:
    return client.generate(messages=messages, options=asking(20))


def test_the_drafts_own_weights_are_a_prompt_model(tiny_gguf: Path) -> None:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    with LlamaWeights(tiny_gguf) as weights:
        encoder = LlamaEncoder(weights, jinja2)
        assert encoder.encode_text("the") == weights.tokenize(b"the")
        assert weights.special_tokens()["eos_token"] == "<|im_end|>"
        chat = encoder.encode_chat([("user", "the")])
        assert weights.vocabulary.decode(chat) == b"user\nthe\nassistant\n"


def test_auto_never_drafts_while_the_target_works(tiny_gguf: Path, drafts: dict[str, str]) -> None:
    with EdgeClient.local(str(tiny_gguf), draft=drafts["self"], threads=1) as client:
        options = replace(asking(150, mode=Mode.AUTO), gamma=None)
        results = [client.generate(PROMPT, options=options) for _ in range(3)]
    assert all(set(result.ways) <= {"sync", "stream"} for result in results)
    # They were tried, after a few tokens without them.
    assert results[0].counts.accepted > 0
    assert results[0].origins[Origin.RUN_AHEAD] >= 4


# ── several at once, leaving, closing ────────────────────────────────────────────────


async def test_two_generations_at_once_take_turns(client: EdgeClient, truth: list[int]) -> None:
    prompts = [PROMPT, "Hello", PROMPT]
    together = await asyncio.gather(*(client.complete(p, options=asking(60)) for p in prompts))
    alone = [await client.complete(p, options=asking(60)) for p in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert together[0].token_ids == truth


def test_two_threads_at_once(client: EdgeClient, truth: list[int]) -> None:
    """Each with a loop of its own, beside the client's."""
    results: list[Result] = []

    def work(own_loop: bool) -> None:
        if own_loop:
            results.append(asyncio.run(client.complete(PROMPT, options=asking(60))))
        else:
            results.append(client.generate(PROMPT, options=asking(60)))

    threads = [threading.Thread(target=work, args=(own,)) for own in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [r.token_ids for r in results] == [truth, truth]


async def test_a_generation_inside_another_does_not_wait_for_it(
    client: EdgeClient, truth: list[int]
) -> None:
    ids = []
    async for token in client.stream(PROMPT, options=asking(20)):
        ids.append(token.id)
        if len(ids) == 5:
            inner = await client.complete(PROMPT, options=asking(60))
            assert inner.token_ids == truth
    assert ids == truth[:20]


async def test_more_at_once_than_there_is_room_for(
    client: EdgeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "MOST_SESSIONS", 1)
    async for token in client.stream(PROMPT, options=asking(3)):
        if token.position and token.id is not None:
            with pytest.raises(Exhausted, match="1 generations run on this device already"):
                await client.complete(PROMPT, options=asking(3))
            break
    monkeypatch.undo()
    assert len((await client.complete(PROMPT, options=asking(3))).token_ids) == 3


async def test_leaving_in_the_middle_leaves_nothing_behind(
    client: EdgeClient, truth: list[int]
) -> None:
    for mode in DRAFTING_MODES:
        tokens = aiter(client.stream(PROMPT, options=asking(200, mode=mode)))
        for _ in range(5):
            await anext(tokens)
        await tokens.aclose()  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.complete(PROMPT, options=asking(220, mode=mode)), 0.02)
    assert (await client.complete(PROMPT, options=asking(60))).token_ids == truth


async def test_cancelling_stops_a_long_prompt_between_batches_and_it_is_read_on_from_there(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, truth: list[int]
) -> None:
    decode, calls = LlamaContext.decode, [0]

    def slow(self: LlamaContext, *args: Any) -> None:
        calls[0] += 1
        time.sleep(0.2)
        decode(self, *args)

    async with EdgeClient.local(str(tiny_gguf), threads=1) as client:
        await client.describe()
        monkeypatch.setattr(LlamaContext, "decode", slow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.complete([5] * 250, options=asking(3)), 0.1)
        await asyncio.sleep(0.5)
        assert calls[0] == 1  # of four
        monkeypatch.undo()
        again = await client.complete([5] * 250, options=asking(3))
        assert again.cached_prompt_tokens == DEFAULT_BATCH
        assert (await client.complete(PROMPT, options=asking(60))).token_ids == truth


async def test_closing_the_client_ends_what_runs(tiny_gguf: Path) -> None:
    client = EdgeClient.local(str(tiny_gguf), threads=1)
    tokens = aiter(client.stream(PROMPT, options=asking(200)))
    for _ in range(3):
        await anext(tokens)
    await client.aclose()
    with pytest.raises(ModelError, match=r"closed|stopped"):
        async for _ in tokens:  # what had come before is still there
            pass
    assert not [t for t in threading.enumerate() if t.name.startswith(("models", "draft"))]
    with pytest.raises(ModelError, match="was closed"):
        await client.complete(PROMPT, options=asking(3))


async def test_nothing_is_resumed(tiny_gguf: Path) -> None:
    device = TargetDevice(str(tiny_gguf), threads=1, progress=print)
    try:
        with pytest.raises(SessionNotFound, match="open it anew"):
            async with LocalLink(device).decode(pb.EdgeFrame(resume=pb.Resume(frontier=3))):
                pass
    finally:
        device.close()


async def test_a_refused_proposal_reaches_whoever_waits(tiny_gguf: Path) -> None:
    device = TargetDevice(str(tiny_gguf), threads=1, progress=print)
    opening = pb.Open(protocol_version=1, max_tokens=9, pacing=pb.PACING_WAIT)
    opening.ids.ids.extend([5, 6])
    try:
        async with LocalLink(device).decode(pb.EdgeFrame(open=opening)) as stream:
            assert stream.opened.prompt_length == 2
            waiting = asyncio.create_task(stream.receive())
            await asyncio.sleep(0.01)
            bad = pb.Proposal(number=1, chain=1, start=2, tokens=[SIZE + 7])
            with pytest.raises(BadRequest):
                await stream.send(pb.EdgeFrame(proposal=bad))
            with pytest.raises(BadRequest, match="not in the vocabulary"):
                await waiting
    finally:
        device.close()


# ── models that don't do ─────────────────────────────────────────────────────────────


def test_a_draft_of_another_vocabulary_is_told_and_left_out(
    tiny_gguf: Path, tmp_path: Path, truth: list[int]
) -> None:
    other = write_tiny_gguf(tmp_path / "letters.gguf", vocabulary=LETTERS)
    lines: list[str] = []
    with EdgeClient.local(
        str(tiny_gguf), draft=str(other), threads=1, notify=lines.append
    ) as client:
        result = client.generate(PROMPT, options=asking(60))
    assert (result.token_ids, result.mode) == (truth, "target-only")
    assert len(lines) == 1 and "another vocabulary (12 tokens)" in lines[0]


def test_a_draft_that_is_missing_is_told_and_left_out(tiny_gguf: Path, truth: list[int]) -> None:
    lines: list[str] = []
    with EdgeClient.local(
        str(tiny_gguf), draft="gone.gguf", threads=1, notify=lines.append
    ) as client:
        assert client.generate(PROMPT, options=asking(60)).token_ids == truth
    assert len(lines) == 1 and "no draft model at gone.gguf" in lines[0]


def test_prompts_that_do_not_fit(tiny_gguf: Path) -> None:
    with EdgeClient.local(str(tiny_gguf), threads=1, context=32) as client:
        with pytest.raises(BadRequest, match="the context holds 32"):
            client.generate([5] * 32, options=asking(3))
        result = client.generate([5] * 20, options=asking(100))
        assert (len(result.token_ids), result.finish_reason) == (12, "length")
        with pytest.raises(BadRequest, match="prompt is empty"):
            client.generate("", options=asking(3))


@pytest.mark.parametrize(
    ("option", "says"),
    [("threads", "must be between 1 and 512, not 0"), ("context", "must be at least 1, not 0")],
)
def test_options_below_one(option: str, says: str) -> None:
    with pytest.raises(BadRequest, match=f"{option} {says}"):
        EdgeClient.local("any.gguf", **{option: 0})  # type: ignore[arg-type]


def test_a_model_that_can_not_go_back_runs_only_alone(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        check_can_verify(weights, drafted_for=True)
        api = weights.shared().llama.api
        monkeypatch.setattr(api, "llama_model_is_hybrid", lambda _: True)
        check_can_verify(weights, drafted_for=False)
        with pytest.raises(ModelError, match=r"recurrent layers.*--draft none"):
            check_can_verify(weights, drafted_for=True)


# ── the command ──────────────────────────────────────────────────────────────────────


def run(*args: str, **options: Any) -> tuple[int, str, str]:
    done = edge_client("local", *args, "--threads", "1", "--seed", "1", **options)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_text_and_an_account(
    tiny_gguf: Path, drafts: dict[str, str], client: EdgeClient
) -> None:
    wanted = client.generate(PROMPT, options=asking(30)).text
    common = ("--target", str(tiny_gguf), "--temperature", "0", "--max-tokens", "30")
    code, out, said = run(PROMPT, *common, "--draft", drafts["near"])
    assert (code, out) == (0, wanted if wanted.endswith("\n") else wanted + "\n")
    assert "mode auto" in said
    code, drafted, said = run(PROMPT, *common, "--draft", drafts["near"], "--mode", "sync")
    assert (code, drafted) == (0, out)
    assert "mode sync" in said and "accepted (α" in said
    code, alone, said = run(*common, "--draft", "none", text=PROMPT)
    assert (code, alone) == (0, out)
    assert "mode target-only" in said and "no draft model is set" in said


def test_more_context_than_there_is_is_told(tiny_gguf: Path) -> None:
    common = ("--target", str(tiny_gguf), "--draft", "none", "--max-tokens", "3", PROMPT)
    code, _, said = run(*common, "--context", "1000")
    assert code == 0 and "a context of 256 tokens at most, not 1000" in said
    for fits in ((), ("--context", "256")):
        assert "at most" not in run(*common, *fits)[2]


def test_the_commands_json_object(tiny_gguf: Path, drafts: dict[str, str]) -> None:
    code, out, said = run(
        *("hen", "--chat", "--system", "be", "--json", "--logprobs", "1", "--mode", "run-ahead"),
        *("--target", str(tiny_gguf), "--draft", drafts["near"], "--max-tokens", "20"),
    )
    assert (code, said) == (0, "")
    found = json.loads(out)
    assert (found["mode"], found["model"], found["draft"]) == ("run-ahead", "tiny", "tiny")
    assert (found["bytes_up"], found["bytes_down"]) == (0, 0)
    assert len(found["token_ids"]) == len(found["logprobs"]) == 20


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("gone.gguf", 1, "no target model at gone.gguf; give the path of a GGUF file"),
        (".", 1, "the target model . is a folder"),
        ("builtin:nosuch", 1, "unknown built-in model 'nosuch'"),
        (__file__, 1, "is not a GGUF file"),
    ],
)
def test_targets_that_can_not_be_used(target: str, code: int, words: str) -> None:
    got, out, said = run("x", "--target", target, "--draft", "none")
    assert (got, out) == (code, "")
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--target", "x.gguf", "--server", "a:1"),
        ("--target", "x.gguf", "--context", "0"),
        ("--target", "x.gguf", "--gamma", "-1"),
        ("--target", "x.gguf", "--system", "be"),
    ],
)
def test_arguments_that_are_wrong(args: tuple[str, ...]) -> None:
    done = edge_client("local", "x", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


_ALONE = """
import sys
connected = []
sys.addaudithook(lambda name, args: name == "socket.connect" and connected.append(args))
import grpc
def refuse(*_, **__):
    raise AssertionError("a channel was made")
grpc.aio.insecure_channel = grpc.aio.secure_channel = refuse
from edge_client.cli import main
code = main(["local", "the hen", "--target", sys.argv[1], "--draft", sys.argv[2],
             "--threads", "1", "--max-tokens", "8", "--quiet", "--chat"])
strangers = {"torch", "transformers", "cloud_verifier", "tokenizers", "accelerate"}
print("\\n", code, connected, sorted(strangers & set(sys.modules)))
"""


def test_nothing_else_is_imported_and_nothing_is_connected(
    tiny_gguf: Path, drafts: dict[str, str]
) -> None:
    done = run_python(_ALONE, tiny_gguf, drafts["near"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == " 0 [] []"
    assert done.stderr == ""


# ── the built-in pair ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from shared_cache(tmp_path_factory)


@pytest.mark.real
@pytest.mark.slow
def test_the_built_in_pair_writes_what_the_target_writes(cache: Path) -> None:
    path = resolve_model("builtin:smollm2", print)
    with LlamaWeights(path) as weights:
        prompt = weights.tokenize(b"The capital of France is")
    with EdgeClient.local("builtin:smollm2", draft="builtin:smollm2-q2", threads=1) as client:
        result = client.generate(prompt, options=asking(40))
    assert result.token_ids == bare_greedy(path, prompt, 40)[0]
    assert result.counts.alpha is not None and result.counts.alpha > 0.5
