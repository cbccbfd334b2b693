"""Drafts change nothing but the speed: ids, limits, text, stops, log-probabilities, prompts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers

from edge_client import EdgeClient, Mode, Result, Verification
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import BadRequest, ModelError
from specwire.vocabulary import Vocabulary
from tests.support.edge import (
    DRAFTING_MODES,
    ByteEncoder,
    GuessSource,
    ScriptBackend,
    SourceClient,
    SourceFactory,
    VerifierThread,
    asking,
    guess_source,
    model_source,
    random_guess,
    settled,
    tiny_verifier,
)
from tests.support.tiny_models import (
    CHAT_TEMPLATE,
    FULL,
    IM_START,
    LETTERS,
    SPECIALS,
    write_tiny_gguf,
)

SIZE = len(SPECIALS) + len(FULL)
CONTEXT = 256
DRAFT_CONTEXT = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edge")


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def near_draft(folder: Path) -> Path:
    return write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05)


@pytest.fixture(scope="module")
def vocabulary(tiny_gguf: Path) -> Vocabulary:
    with LlamaWeights(tiny_gguf) as weights:
        return weights.vocabulary


def quiet(line: str) -> None:
    """Nobody is told; results keep their notices."""


# ── drafts from the target's own weights ─────────────────────────────────────────────


@pytest.mark.parametrize("gamma", range(1, 9))
def test_a_draft_equal_to_the_target_is_always_accepted(
    verifier: VerifierThread, tiny_gguf: Path, gamma: int
) -> None:
    """Greedy: llama.cpp's half-precision cache moves its logits, but no maximum here."""
    with EdgeClient(verifier.address, draft=str(tiny_gguf), threads=1) as client:
        result = client.generate("Hello there", options=asking(120, gamma=gamma))
    assert len(result.token_ids) == 120
    assert result.counts.accepted == result.counts.examined > 0
    assert result.counts.rounds == math.ceil(120 / (gamma + 1))


def test_a_coupled_draft_equal_to_the_target_is_nearly_always_accepted(
    verifier: VerifierThread, tiny_gguf: Path
) -> None:
    """Not exactly always: shared noise decides near ties by the last digits of the logits."""
    options = asking(200, temperature=0.7, verification=Verification.COUPLED)
    with EdgeClient(verifier.address, draft=str(tiny_gguf), threads=1) as client:
        result = client.generate("Hello there", options=options)
    alpha = result.counts.alpha
    assert alpha is not None and alpha > 0.97
    assert result.counts.rounds <= 200 / 5 + 6


# ── the output depends on the target alone ───────────────────────────────────────────


def drafts_for(near: Path, same: Path, server: str) -> list[EdgeClient]:
    """Clients with a draft equal to the target, near it, unrelated to it, and none."""
    return [
        EdgeClient(server, draft=str(same), threads=1, notify=quiet),
        EdgeClient(server, draft=str(near), threads=1, notify=quiet),
        SourceClient(server, str(near), guess_source(random_guess(SIZE)), notify=quiet),
        EdgeClient(server, notify=quiet),
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7},
        {"temperature": 0.9, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.2, "min_p": 0.02, "top_k": 100, "top_p": 0.95},
        {"temperature": 0.8, "presence_penalty": 1.0, "repetition_penalty": 1.2},
    ],
    ids=lambda sampling: ",".join(sampling),
)
@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_coupled_output_depends_on_the_seed_alone(
    verifier: VerifierThread,
    tiny_gguf: Path,
    near_draft: Path,
    mode: Mode,
    sampling: dict[str, Any],
) -> None:
    options = asking(80, mode=mode, verification=Verification.COUPLED, **sampling)
    outputs = []
    for client in drafts_for(near_draft, tiny_gguf, verifier.address):
        with client:
            outputs.append(client.generate("A tale", options=options).token_ids)
    assert len(outputs[0]) == 80
    assert outputs.count(outputs[0]) == len(outputs)
    other = replace(options, seed=2)
    with EdgeClient(verifier.address, notify=quiet) as client:
        assert client.generate("A tale", options=other).token_ids != outputs[0]


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
    ],
    ids=lambda penalties: ",".join(penalties),
)
def test_penalties_count_committed_tokens_only(
    verifier: VerifierThread, near_draft: Path, penalties: dict[str, Any]
) -> None:
    prompt = "Repeat: a a a a"
    with EdgeClient(verifier.address, draft=str(near_draft), threads=1) as client:
        alone = client.generate(prompt, options=asking(100, mode=Mode.STREAM, **penalties))
        plain = client.generate(prompt, options=asking(100, mode=Mode.STREAM))
        assert alone.token_ids != plain.token_ids  # the penalty does something
        for mode in DRAFTING_MODES:
            for gamma in (1, 4, 8):
                options = asking(100, mode=mode, gamma=gamma, **penalties)
                result = client.generate(prompt, options=options)
                assert result.token_ids == alone.token_ids, (mode, gamma)
                assert 0 < result.counts.accepted < result.counts.examined


@pytest.mark.parametrize("mode", DRAFTING_MODES)
@pytest.mark.parametrize("gamma", [1, 3])
def test_a_proposal_never_holds_more_than_gamma(
    verifier: VerifierThread, near_draft: Path, mode: Mode, gamma: int
) -> None:
    with EdgeClient(verifier.address, draft=str(near_draft), threads=1) as client:
        counts = client.generate("Hello", options=asking(60, mode=mode, gamma=gamma)).counts
    assert 0 < counts.proposed <= gamma * counts.proposals


# ── limits of either context ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_a_full_draft_context_leaves_the_target_alone(
    verifier: VerifierThread, near_draft: Path, mode: Mode, temperature: float
) -> None:
    prompt = [3 + i for i in range(10)]
    client = SourceClient(verifier.address, str(near_draft), model_source(DRAFT_CONTEXT))
    async with client:
        options = asking(200, mode=mode, gamma=8, temperature=temperature)
        result = await settled(client.complete(prompt, options=options))
        assert len(result.token_ids) == 200
        assert result.finish_reason == "length"
        assert 0 < result.counts.accepted <= DRAFT_CONTEXT
        longer = await settled(client.complete(prompt, options=replace(options, max_tokens=300)))
        assert longer.finish_reason == "length"
        assert longer.prompt_tokens + len(longer.token_ids) == CONTEXT
        if temperature == 0.0:
            assert longer.token_ids[:200] == result.token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_prompts_at_the_limits(
    verifier: VerifierThread, near_draft: Path, mode: Mode, temperature: float
) -> None:
    client = SourceClient(verifier.address, str(near_draft), model_source(DRAFT_CONTEXT))
    options = asking(20, mode=mode, gamma=8, temperature=temperature)
    async with client:
        for length in (63, 64, 65, 255):
            prompt = [3 + i % 250 for i in range(length)]
            result = await settled(client.complete(prompt, options=options))
            assert len(result.token_ids) == min(20, CONTEXT - length), length
        for length in (256, 257):
            prompt = [3 + i % 250 for i in range(length)]
            with pytest.raises(BadRequest, match=f"prompt has {length} tokens"):
                await settled(client.complete(prompt, options=options))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_a_draft_that_pauses_now_and_then(
    verifier: VerifierThread, near_draft: Path, mode: Mode, temperature: float
) -> None:
    def moody(prefix: Sequence[int]) -> int | None:
        return None if len(prefix) % 3 == 0 else random_guess(SIZE)(prefix)

    client = SourceClient(verifier.address, str(near_draft), guess_source(moody))
    async with client:
        for gamma in (1, 2, 5):
            options = asking(80, mode=mode, gamma=gamma, temperature=temperature)
            result = await settled(client.complete("Hello", options=options))
            assert len(result.token_ids) == 80


@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_a_draft_that_breaks_is_told_and_left_out(
    verifier: VerifierThread, near_draft: Path, mode: Mode
) -> None:
    def breaks(prefix: Sequence[int]) -> int:
        if len(prefix) > 25:
            raise OSError("the disk is gone")
        return random_guess(SIZE)(prefix)

    client = SourceClient(verifier.address, str(near_draft), guess_source(breaks), notify=quiet)
    async with client:
        alone = await client.complete("Hello", options=asking(60, mode=Mode.STREAM))
        result = await settled(client.complete("Hello", options=asking(60, mode=mode)))
    assert result.token_ids == alone.token_ids
    assert result.notices == ["the draft failed (the disk is gone); going on without it"]


@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_a_draft_without_the_q_that_its_rule_needs_is_told_and_left_out(
    verifier: VerifierThread, near_draft: Path, mode: Mode
) -> None:
    def no_q(*_: object) -> GuessSource:
        return GuessSource(random_guess(SIZE), with_q=False)

    client = SourceClient(verifier.address, str(near_draft), no_q, notify=quiet)
    options = replace(asking(30, mode=mode), verification=Verification.REJECTION)
    async with client:
        alone = await client.complete("Hello", options=asking(30, mode=Mode.STREAM))
        result = await settled(client.complete("Hello", options=options))
    assert result.token_ids == alone.token_ids
    (told,) = result.notices
    assert "has no q, which rejection mode sends with it); going on without it" in told


@pytest.mark.parametrize("mode", DRAFTING_MODES)
async def test_a_draft_that_can_not_begin_is_told_and_left_out(
    verifier: VerifierThread, near_draft: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: object, **options: object) -> None:
        raise ModelError("can't make a context of 512 tokens")

    monkeypatch.setattr("edge_client.draft.shelf.LlamaDraft", no_memory)
    async with EdgeClient(verifier.address, draft=str(near_draft), notify=quiet) as client:
        result = await settled(client.complete("Hello", options=asking(30, mode=mode)))
    assert len(result.token_ids) == 30
    assert len(result.notices) == 1 and "can't make a context" in result.notices[0]


# ── text ─────────────────────────────────────────────────────────────────────────────

PROMPT = "echo"
TEXTS = {
    "emoji": "Hi 👋🏽👩🏿‍🚀! 🙂🙂 done",
    "Korean": "안녕하세요, 세계! 끝",
    "Hindi": "नमस्ते दुनिया, कैसे हो?",
}


def echoing(vocabulary: Vocabulary, text: str, step_s: float = 0.0) -> VerifierThread:
    """A verifier that is certain to write `text`, byte by byte, in forwards of `step_s`."""
    encoder = ByteEncoder(len(SPECIALS))
    script = encoder.encode_text(text)
    backend = ScriptBackend(vocabulary, script, prompt_length=len(PROMPT), step_s=step_s)
    return VerifierThread(backend, encoder)


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.AUTO])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_what_was_written_before_is_a_draft_without_a_model(
    vocabulary: Vocabulary, mode: Mode, temperature: float
) -> None:
    text = "a line that comes again; " * 12
    options = asking(len(text) + 1, mode=mode, temperature=temperature)
    with (
        echoing(vocabulary, text, step_s=0.01) as verifier,
        EdgeClient(verifier.address, drafts="lookup", notify=quiet) as client,
    ):
        result = client.generate("echo", options=options)
    assert result.text == text and result.draft == "prompt lookup" and not result.notices
    assert result.counts.accepted > 100
    assert result.counts.rounds < len(text) / 2


def test_a_model_is_helped_by_what_was_written_before(
    vocabulary: Vocabulary, near_draft: Path
) -> None:
    """The model knows nothing of this text, so what is accepted was copied."""
    text = "a line that comes again; " * 12
    options = asking(len(text) + 1, mode=Mode.SYNC, gamma=4)
    with echoing(vocabulary, text) as verifier:
        accepted = {}
        for drafts in ("model", "auto"):
            with EdgeClient(
                verifier.address, draft=str(near_draft), drafts=drafts, threads=1
            ) as client:
                result = client.generate("echo", options=options)
            assert result.text == text
            accepted[drafts] = result.counts.accepted
    assert accepted["model"] < 30 < 150 < accepted["auto"]


def nearly(text: str, seed: int = 0) -> SourceFactory:
    """A draft that knows the text, and errs at every fifth position or so."""
    script = ByteEncoder(len(SPECIALS)).encode_text(text)

    def guess(prefix: Sequence[int]) -> int:
        at = len(prefix) - len(PROMPT)
        errs = random.Random(f"{seed} {at}").random() < 0.2
        return script[at] if at < len(script) and not errs else 3 + 0x20

    return guess_source(guess)


async def chunks_of(
    client: EdgeClient, stops: tuple[str, ...], mode: Mode, gamma: int
) -> tuple[list[str], Result]:
    stream = client.stream(PROMPT, options=asking(400, mode=mode, gamma=gamma, stops=stops))
    chunks = [token.text async for token in stream]
    return chunks, stream.result


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.STREAM])
@pytest.mark.parametrize("name", TEXTS)
async def test_characters_are_never_cut(
    vocabulary: Vocabulary, tiny_gguf: Path, name: str, mode: Mode
) -> None:
    text = TEXTS[name]
    with echoing(vocabulary, text) as verifier:
        async with SourceClient(verifier.address, str(tiny_gguf), nearly(text)) as client:
            for gamma in (1, 3, 8):
                chunks, result = await chunks_of(client, (), mode, gamma)
                assert "".join(chunks) == result.text == text
                assert not any("�" in chunk for chunk in chunks)
                assert vocabulary.decode(result.token_ids).decode() == text
                assert result.finish_reason == "stop"
                assert len(result.token_ids) == len(text.encode()) + 1  # and an end token


@pytest.mark.parametrize("mode", [*DRAFTING_MODES, Mode.STREAM])
@pytest.mark.parametrize(
    ("text", "stops", "shown", "last"),
    [
        ("one STO two STOPPED three", ("STOP",), "one STO two ", "P"),
        ("ha ha ha ha ha ha", (" ha ha ha",), "ha", "a"),
        ("Hi 👋🏽 all", ("🏽",), "Hi 👋", "🏽"),
        ("aab aac aad", ("aac", "ac a"), "aab ", "c"),
        ("nothing STO", ("STOP",), "nothing STO", None),
    ],
)
async def test_stops_are_held_back_and_end_the_ids(
    vocabulary: Vocabulary,
    tiny_gguf: Path,
    mode: Mode,
    text: str,
    stops: tuple[str, ...],
    shown: str,
    last: str | None,
) -> None:
    with echoing(vocabulary, text) as verifier:
        async with SourceClient(verifier.address, str(tiny_gguf), nearly(text)) as client:
            for gamma in (1, 3, 8):
                chunks, result = await chunks_of(client, stops, mode, gamma)
                assert "".join(chunks) == result.text == shown
                assert result.finish_reason == "stop"
                raw = vocabulary.decode(result.token_ids)
                if last is None:
                    assert raw == text.encode()
                else:
                    # Up to the token that completes the stop, and nothing after it.
                    ends = [raw.endswith(stop.encode()) for stop in stops]
                    assert any(ends) and raw.endswith(last.encode())
                    assert not any(stop.encode() in raw[:-1] for stop in stops)


@pytest.fixture(scope="module")
def letters(folder: Path) -> Iterator[tuple[VerifierThread, Path]]:
    """A target that writes only letters, and a draft near it."""
    same = write_tiny_gguf(folder / "letters.gguf", vocabulary=LETTERS)
    near = write_tiny_gguf(folder / "letters-near.gguf", vocabulary=LETTERS, noise=0.1)
    with tiny_verifier(same) as verifier:
        yield verifier, near


@pytest.mark.parametrize("mode", DRAFTING_MODES)
@pytest.mark.parametrize("gamma", [1, 8])
def test_logprobs_and_usage_do_not_depend_on_drafts(
    letters: tuple[VerifierThread, Path], mode: Mode, gamma: int
) -> None:
    verifier, near = letters
    with EdgeClient(verifier.address, draft=str(near), threads=1) as client:
        whole = client.generate("abcabc", options=asking(80, mode=Mode.STREAM))
        stop = whole.text[40:43]
        stops = (stop,)
        alone = client.generate(
            "abcabc", options=asking(80, mode=Mode.STREAM, stops=stops, logprobs=3)
        )
        result = client.generate(
            "abcabc", options=asking(80, mode=mode, gamma=gamma, stops=stops, logprobs=3)
        )
    assert result.text == alone.text == whole.text[: whole.text.index(stop)]
    assert result.token_ids == alone.token_ids
    assert result.logprobs is not None and alone.logprobs is not None
    usage = result.to_json()["usage"]["output_tokens"]
    assert len(result.token_ids) == len(result.logprobs) == usage == sum(result.origins.values())
    for mine, theirs in zip(result.logprobs, alone.logprobs, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert mine.logprob < 0.0
        assert [i for i, _ in mine.top] == [i for i, _ in theirs.top]
        assert mine.logprob == pytest.approx(mine.top[0][1], abs=1e-6)  # greedy: the likeliest
    assert len({round(item.logprob, 6) for item in result.logprobs}) > 3


def test_no_logprobs_unless_asked_for(letters: tuple[VerifierThread, Path]) -> None:
    verifier, near = letters
    with EdgeClient(verifier.address, draft=str(near), threads=1) as client:
        result = client.generate("abcabc", options=asking(8))
        assert result.logprobs is None and "logprobs" not in result.to_json()
        zero = client.generate("abcabc", options=asking(8, logprobs=0))
    assert zero.logprobs is not None and len(zero.logprobs) == 8
    assert all(item.top == () for item in zero.logprobs)


# ── prompts ──────────────────────────────────────────────────────────────────────────

PROMPTS = ["Hello", " leading", "trailing ", "é ü 你好 🙂", "a\tb\r\nc", "</s>G", "<|im_end|>x"]
CHAT = [("system", "Be brief."), ("user", "Hi there"), ("assistant", "Yes?"), ("user", "é 🙂")]


def prompt_seen(
    server: str, draft: Path, ask: Callable[[EdgeClient], Result]
) -> tuple[tuple[int, ...], Result]:
    """The prompt ids that the edge got from the cloud."""
    seen: list[tuple[int, ...]] = []
    make = model_source(CONTEXT)

    def source(weights: Any, machine: Any, options: Any) -> Any:
        seen.append(machine.request.prompt)
        return make(weights, machine, options)

    with SourceClient(server, str(draft), source, notify=quiet) as client:
        result = ask(client)
    assert len(seen) == 1
    return seen[0], result


def ask(text: str, client: EdgeClient) -> Result:
    return client.generate(text, options=asking(2))


@pytest.mark.parametrize("add_bos", [False, True])
def test_prompt_ids_are_the_references(folder: Path, add_bos: bool) -> None:
    path = write_tiny_gguf(
        folder / f"bos-{add_bos}.gguf", chat_template=CHAT_TEMPLATE, add_bos=add_bos
    )
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    bos = SPECIALS.index(IM_START)
    with tiny_verifier(path) as verifier:
        for text in PROMPTS:
            ids, result = prompt_seen(verifier.address, path, partial(ask, text))
            wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert list(ids) == [bos] * add_bos + wanted, text
            assert result.prompt_tokens == len(ids)
        ids, _ = prompt_seen(
            verifier.address, path, lambda c: c.generate(messages=CHAT, options=asking(2))
        )
    messages = [{"role": role, "content": content} for role, content in CHAT]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert list(ids) == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert ids[0] == bos and ids[1] != bos


def test_token_ids_are_sent_as_they_are(verifier: VerifierThread, tiny_gguf: Path) -> None:
    wanted = (5, 2, 77, 1, 1, 200)
    ids, _ = prompt_seen(
        verifier.address, tiny_gguf, lambda c: c.generate(wanted, options=asking(2))
    )
    assert ids == wanted


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }} other"])
def test_the_drafts_own_template_is_not_used(
    verifier: VerifierThread, folder: Path, tiny_gguf: Path, template: str | None
) -> None:
    name = "no-template" if template is None else "other-template"
    other = write_tiny_gguf(folder / f"{name}.gguf", chat_template=template)
    ids, result = prompt_seen(
        verifier.address, other, lambda c: c.generate(messages=CHAT, options=asking(30))
    )
    same, reference = prompt_seen(
        verifier.address, tiny_gguf, lambda c: c.generate(messages=CHAT, options=asking(30))
    )
    assert ids == same == tuple(verifier.encoder.encode_chat(CHAT))
    assert result.token_ids == reference.token_ids
    assert result.counts.alpha == 1.0  # it drafts all the same
    kind = "no" if template is None else "another"
    assert [f"has {kind} chat template" in line for line in result.notices] == [True]
    assert reference.notices == []


# ── no usable draft ──────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def odd_drafts(folder: Path) -> dict[str, Path]:
    """Drafts of the right size that number their tokens differently."""
    alphabet = {i: f"<swapped-{i}>" for i in range(20, 40)}
    specials = (*SPECIALS[:2], "<|other|>")
    return {
        "swapped": write_tiny_gguf(folder / "swapped.gguf", renamed=alphabet),
        "special": write_tiny_gguf(folder / "special.gguf", specials=specials, eos="<|other|>"),
    }


@pytest.mark.parametrize(
    ("case", "gamma", "says"),
    [
        ("swapped", 4, "another vocabulary"),
        ("special", 4, "another vocabulary"),
        ("missing", 4, "no draft model at"),
        ("no model", 4, "not a GGUF file"),
        ("unknown", 4, "unknown built-in model"),
        ("good", 0, "gamma is 0"),
        ("none", 4, "no draft model is set"),
    ],
)
@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_without_a_usable_draft_one_line_says_so(
    verifier: VerifierThread,
    tiny_gguf: Path,
    odd_drafts: dict[str, Path],
    folder: Path,
    case: str,
    gamma: int,
    says: str,
    mode: Mode,
) -> None:
    text_file = folder / "text.gguf"
    text_file.write_text("no model at all")
    draft = {
        "missing": str(folder / "nowhere.gguf"),
        "no model": str(text_file),
        "unknown": "builtin:nothing",
        "good": str(tiny_gguf),
        "none": None,
    } | {name: str(path) for name, path in odd_drafts.items()}
    heard: list[str] = []
    with EdgeClient(verifier.address, draft=draft[case], notify=heard.append) as client:
        alone = client.generate("Hello", options=asking(40, mode=Mode.STREAM))
        assert heard == [] and alone.mode == "stream"
        for _ in range(2):  # each generation says so, also when the load error is remembered
            result = client.generate("Hello", options=asking(40, mode=mode, gamma=gamma))
            assert result.mode == "target-only"
            assert result.draft is None and result.gamma == 0
            assert (result.text, result.token_ids) == (alone.text, alone.token_ids)
            assert result.counts.examined == 0 and result.counts.alpha is None
            assert result.notices == heard
            assert len(heard) == 1 and says in heard[0] and "\n" not in heard[0]
            assert "the target generates alone" in heard[0]
            heard.clear()
