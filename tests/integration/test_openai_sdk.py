"""The endpoint as programs meet it that were written for OpenAI: the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import (
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)

from edge_client import EdgeClient, Mode, Result
from tests.support.edge import VerifierThread, asking, tiny_verifier
from tests.support.openai_endpoint import Served, endpoint
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

HELLO: Any = [{"role": "user", "content": "Hello"}]
GREEDY: Any = {"temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def served(verifier: VerifierThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("openai")
    draft = write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05)
    args = ("--server", verifier.address, "--draft", str(draft), "--mode", "sync")
    with endpoint(folder / "log", *args, "--verification", "coupled") as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    (model,) = client.models.list()
    return model.id


def alone(
    verifier: VerifierThread, prompt: Any = None, messages: Any = None, **more: Any
) -> Result:
    """What the target gives without a draft, asked for through the Python API."""
    with EdgeClient(verifier.address) as client:
        options = asking(mode=Mode.STREAM, **more)
        return client.generate(prompt, messages=messages, options=options)


# ── chat ─────────────────────────────────────────────────────────────────────────────


def test_an_answer_at_once(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    wanted = alone(verifier, messages=[("user", "Hello")], max_tokens=40)
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=40, **GREEDY)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert answer.model == model and answer.system_fingerprint
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == wanted.text
    assert choice.finish_reason == "length" and choice.logprobs is None
    usage = answer.usage
    assert usage is not None and usage.completion_tokens == 40
    assert usage.prompt_tokens == wanted.prompt_tokens
    assert usage.total_tokens == usage.prompt_tokens + 40
    details = usage.completion_tokens_details
    assert details is not None and usage.prompt_tokens_details is not None
    assert 0 < (details.accepted_prediction_tokens or 0) < 40
    assert (details.rejected_prediction_tokens or 0) > 0
    again = client.chat.completions.create(model=model, messages=HELLO, max_tokens=40, **GREEDY)
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert again.id != answer.id and again.system_fingerprint == answer.system_fingerprint


def test_a_streamed_answer(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    wanted = alone(verifier, messages=[("user", "Hello")], max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=HELLO,
            max_completion_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == wanted.text
    assert [chunk.choices[0].finish_reason for chunk in told][-2:] == [None, "length"]
    assert len(told) > 10 and all(chunk.usage is None for chunk in told)
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 40


def test_without_asking_no_usage_is_streamed(client: OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=3, stream=True, **GREEDY
    )
    assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_parts_of_text_and_roles(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    wanted = alone(
        verifier,
        messages=[
            ("system", "Be brief."),
            ("user", "Hello you"),
            ("assistant", "Hi"),
            ("user", "?"),
        ],
        max_tokens=20,
    )
    parts: Any = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " you"}]
    answer = client.chat.completions.create(
        model="specwire",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts, "name": "me"},
            {"role": "assistant", "content": "Hi", "refusal": None},
            {"role": "user", "content": "?"},
        ],
        max_tokens=20,
        user="someone",
        metadata={"a": "b"},
        store=True,
        **GREEDY,
    )
    assert answer.choices[0].message.content == wanted.text


def test_several_choices_have_seeds_of_their_own(client: OpenAI, model: str) -> None:
    def texts(**more: Any) -> list[str | None]:
        answer = client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=20, temperature=1.0, **more
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 20 * len(answer.choices)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.message.content for choice in answer.choices]

    three = texts(n=3, seed=7)
    assert len(set(three)) == 3
    assert texts(n=3, seed=7) == three
    assert texts(seed=8) == [three[1]]
    assert texts(seed=7) == [three[0]]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=20, temperature=1.0, n=3, seed=7, stream=True
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == three


def test_stops(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    whole = alone(verifier, "Hello", max_tokens=40).text
    stop = next(c for c in whole[5:] if c.isascii() and c not in whole[:5])
    for given in (stop, [stop, "never there"]):
        answer = client.completions.create(
            model=model, prompt="Hello", max_tokens=40, stop=given, logprobs=0, **GREEDY
        )
        (choice,) = answer.choices
        assert choice.text == whole[: whole.index(stop)] and choice.finish_reason == "stop"
        assert choice.logprobs is not None
        assert stop not in (choice.logprobs.tokens or [])


# ── log-probabilities ────────────────────────────────────────────────────────────────


def test_chat_logprobs(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    wanted = alone(verifier, messages=[("user", "Hello")], max_tokens=20, logprobs=2)
    assert wanted.logprobs is not None
    answer = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=20, logprobs=True, top_logprobs=2, **GREEDY
    )
    streamed: list[Any] = []
    for chunk in client.chat.completions.create(
        model=model,
        messages=HELLO,
        max_tokens=20,
        logprobs=True,
        top_logprobs=2,
        stream=True,
        **GREEDY,
    ):
        if chunk.choices[0].logprobs is not None:
            streamed.extend(chunk.choices[0].logprobs.content or [])
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None and len(content) == 20
    assert [entry.bytes for entry in content] == [entry.bytes for entry in streamed]
    for entry, reference in zip(content, wanted.logprobs, strict=True):
        assert entry.logprob == pytest.approx(reference.logprob, abs=1e-3)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            [logprob for _, logprob in reference.top], abs=1e-3
        )
    raw = b"".join(bytes(entry.bytes or []) for entry in content)
    assert raw.decode("utf-8", "replace") == answer.choices[0].message.content


def test_completion_logprobs(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="Hello", max_tokens=20, logprobs=3, **GREEDY
    )
    (choice,) = answer.choices
    found = choice.logprobs
    assert found is not None and found.tokens is not None and found.token_logprobs is not None
    assert found.top_logprobs is not None and found.text_offset is not None
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == 20
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 3
    assert found.text_offset == sorted(found.text_offset)
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith(token)


# ── completions ──────────────────────────────────────────────────────────────────────


def test_prompts_of_every_form(verifier: VerifierThread, client: OpenAI, model: str) -> None:
    ids = [[5, 6, 7], [80, 81]]
    by_ids = [alone(verifier, prompt, max_tokens=10).text for prompt in ids]
    by_text = [alone(verifier, prompt, max_tokens=10).text for prompt in ("Hello", "A tale")]

    def ask(prompt: Any, **more: Any) -> list[str]:
        answer = client.completions.create(
            model=model, prompt=prompt, max_tokens=10, **GREEDY, **more
        )
        assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    assert ask("Hello") == by_text[:1]
    assert ask(["Hello", "A tale"]) == by_text
    assert ask(ids[0]) == by_ids[:1]
    assert ask(ids) == by_ids
    assert ask(["Hello", "A tale"], n=2) == [by_text[i // 2] for i in range(4)]
    assert ask("Hello", echo=True) == ["Hello" + by_text[0]]
    assert ask(["Hello", "A tale"], n=2, echo=True)[2] == "A tale" + by_text[1]
    decoded = ask(ids[1], echo=True)
    assert decoded[0].endswith(by_ids[1]) and len(decoded[0]) > len(by_ids[1])


def test_streamed_completions(client: OpenAI, model: str) -> None:
    whole = client.completions.create(
        model=model, prompt=["Hello", "A tale"], max_tokens=20, echo=True, **GREEDY
    )
    texts, ends = ["", ""], ["", ""]
    for chunk in client.completions.create(
        model=model, prompt=["Hello", "A tale"], max_tokens=20, echo=True, stream=True, **GREEDY
    ):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices] and ends == ["length", "length"]


def test_sixteen_tokens_unless_told_otherwise(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="Hello")
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_a_chat_goes_on_until_the_context_is_full(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HELLO, **GREEDY)
    assert answer.usage is not None and answer.usage.total_tokens == 256
    assert answer.choices[0].finish_reason == "length"
    too_many = client.completions.create(model=model, prompt="Hello", max_tokens=10**9, **GREEDY)
    assert too_many.usage is not None and too_many.usage.total_tokens == 256


# ── several at once ──────────────────────────────────────────────────────────────────


async def test_requests_at_once_give_their_solo_outputs(
    verifier: VerifierThread, served: Served, model: str
) -> None:
    prompts = ["Hello", "A tale of", "Repeat: a a a", "one", "two", "three"]
    wanted = [await asyncio.to_thread(alone, verifier, prompt, max_tokens=40) for prompt in prompts]
    async with AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:

        async def ask(prompt: str) -> str:
            stream = await client.completions.create(
                model=model, prompt=prompt, max_tokens=40, stream=True, **GREEDY
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*map(ask, prompts))
    assert texts == [result.text for result in wanted]


async def test_more_choices_than_sessions_wait_their_turn(served: Served, model: str) -> None:
    async with AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        answer = await client.completions.create(
            model=model, prompt="Hello", n=20, max_tokens=3, temperature=1.0
        )
    assert len(answer.choices) == 20 and all(choice.finish_reason for choice in answer.choices)


# ── models, errors, keys ─────────────────────────────────────────────────────────────


def test_models(served: Served, client: OpenAI, model: str) -> None:
    found = client.models.retrieve(model)
    assert (found.id, found.object, found.owned_by) == (model, "model", "specwire")
    assert client.models.retrieve("specwire").id == "specwire"
    assert model in served.ready and "draft tiny" in served.ready
    for name in ("gpt-4o", "a/b"):
        with pytest.raises(NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"
    with pytest.raises(NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_errors_name_their_parameter(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=HELLO, temperature=3)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=HELLO, extra_body={"top_z": 1})
    assert "Unrecognized request argument supplied: top_z" in caught.value.message
    for words, stream in ((300, False), (300, True), (10**6, False)):
        with pytest.raises(BadRequestError) as caught:
            client.completions.create(model=model, prompt="long " * words, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    for echo in (False, True):
        with pytest.raises(BadRequestError) as caught:
            client.completions.create(model=model, prompt=[5, 10**6], echo=echo)
        assert caught.value.param == "prompt" and "1000000" in caught.value.message


def test_parameters_beyond_openais(client: OpenAI, model: str) -> None:
    more = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0}
    greedy = client.completions.create(model=model, prompt="Hello", **GREEDY)
    only_one = client.completions.create(model=model, prompt="Hello", extra_body=more)
    assert only_one.choices[0].text == greedy.choices[0].text


def test_a_key(verifier: VerifierThread, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-key\n")
    args = ("--server", verifier.address, "--draft", "none")
    with endpoint(tmp_path / "log", *args, "--api-key-file", str(tmp_path / "key")) as served:
        with OpenAI(base_url=served.base_url, api_key="secret-key", max_retries=0) as client:
            (model,) = client.models.list()
            answer = client.chat.completions.create(
                model=model.id, messages=HELLO, max_tokens=3, logprobs=True, **GREEDY
            )
        # Without a draft nothing here knows the vocabulary.
        assert answer.choices[0].logprobs is not None
        content = answer.choices[0].logprobs.content or []
        assert len(content) == 3 and content[0].token.startswith("token_id:")
        with (
            OpenAI(base_url=served.base_url, api_key="secret-kez", max_retries=0) as client,
            pytest.raises(AuthenticationError) as caught,
        ):
            client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert served.ask("GET", "/v1/models").status == 401
        assert served.ask("GET", "/health").json == {"status": "ok"}
        assert "secret-ke" not in served.ready + served.log.read_text()
