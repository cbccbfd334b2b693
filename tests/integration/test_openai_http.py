"""The endpoint over plain HTTP: what no well-behaved program sends, and who is let in."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client.draft.llama_weights import LlamaWeights
from tests.support.edge import ByteEncoder, ScriptBackend, VerifierThread, tiny_verifier
from tests.support.openai_endpoint import Served, endpoint

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ASK: dict[str, Any] = {"model": "specwire", "prompt": "Hello", "max_tokens": 3}
INVALID = "invalid_request_error"


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def served(verifier: VerifierThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("http") / "log"
    with endpoint(log, "--server", verifier.address, "--draft", "none") as served:
        yield served
        assert "Traceback" not in log.read_text()


# ── bodies ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"model": "specwire", "temperature": NaN}', "NaN"),
        (b'{"n": ' + b"9" * 5000 + b"}", "no valid JSON"),
        (b"[" * 200_000, "no valid JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b"null", "not null"),
        (b'"text"', "not a string"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_malformed_bodies(served: Served, path: str, body: bytes, says: str) -> None:
    reply = served.post(path, body)
    assert reply.status == 400
    assert reply.error["type"] == INVALID and says in reply.error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"stop": "\udfff"}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a"] * 20}, "stop"),
        ({"stop": "a" * 300}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 100, "prompt": ["a", "b"]}, "n"),
        ({"best_of": 5}, "best_of"),
        ({"seed": "1"}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"presence_penalty": 5}, "presence_penalty"),
        ({"frequency_penalty": [1]}, "frequency_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"echo": True, "prompt": [5]}, "echo"),  # no draft, so no vocabulary
        ({"suffix": "end"}, "suffix"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"messages": []}, "messages"),
        ({"": 1}, ""),
        ({"\ud800": 1}, "\\ud800"),
        ({"stream": True, "stream_options": {"\udfff": 1}}, "stream_options.\\udfff"),
    ],
)
def test_wrong_values(served: Served, change: dict[str, Any], param: str) -> None:
    reply = served.post(TEXT, {**ASK, **change})
    assert reply.status == 400
    assert (reply.error["type"], reply.error["param"]) == (INVALID, param)


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        (TEXT, {"max_tokens": 0}, "max_tokens must be 1 or more, not 0"),
        (TEXT, {"max_tokens": 1.5}, "max_tokens must be a whole number, not 1.5"),
        (TEXT, {"n": 2.0}, "n must be a whole number, not 2.0"),
        (TEXT, {"n": 500}, "n must be from 1 to 128, not 500"),
        (TEXT, {"temperature": 3}, "temperature must be from 0 to 2, not 3"),
        (TEXT, {"temperature": "hot"}, 'temperature must be a number, not "hot"'),
        (TEXT, {"stop": "ab" * 200}, f'the stop "{"ab" * 19}a… has 400 bytes; the limit is 256'),
        (TEXT, {"stop": ["a"] * 20}, "stop holds 20 strings; the limit is 16"),
        (TEXT, {"suffix": "x"}, "can't write between two texts; leave it out"),
        ("/v1/embeddings", {}, "there are POST /v1/chat/completions, POST /v1/completions, GET"),
        ("/completions", {}, "a client's base URL must end with /v1"),
    ],
)
def test_errors_name_the_value_and_the_cure(
    served: Served, path: str, change: dict[str, Any], says: str
) -> None:
    assert says in served.post(path, {**ASK, **change}).error["message"]


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "me", "metadata": {}, "service_tier": "auto", "store": False},
        {"logit_bias": {}, "suffix": "", "best_of": 1, "stop": [], "seed": -5},
        {"stream": None, "temperature": None, "stream_options": None, "logprobs": None},
        {"top_p": 0, "temperature": 2, "max_tokens": 10**15},
    ],
)
def test_values_that_change_nothing(served: Served, extra: dict[str, Any]) -> None:
    reply = served.post(TEXT, {**ASK, **extra})
    assert reply.status == 200 and reply.json["choices"][0]["text"]


USER = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hello", "messages"),
        (["Hello"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([USER, {"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
        ([{**USER, "colour": "red"}], "messages[0].colour"),
        ([{**USER, "\ud800": "red"}], "messages[0].\\ud800"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            "messages[0].tool_calls",
        ),
    ],
)
def test_wrong_messages(served: Served, messages: Any, param: str) -> None:
    reply = served.post(CHAT, {"model": "specwire", "messages": messages})
    assert reply.status == 400
    assert (reply.error["type"], reply.error["param"]) == (INVALID, param)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": -100}},
        {"modalities": ["audio"]},
        {"audio": {"voice": "x"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"reasoning_effort": "high"},
        {"web_search_options": {}},
        {"top_logprobs": 2},
        {"prompt": "x"},
        {"max_completion_tokens": 0},
    ],
)
def test_what_chats_can_not_have(served: Served, more: dict[str, Any]) -> None:
    reply = served.post(CHAT, {"model": "specwire", "messages": [USER], **more})
    (name,) = more
    assert (reply.status, reply.error["param"]) == (400, name)


def test_asking_for_nothing_special_is_no_error(served: Served) -> None:
    reply = served.post(
        CHAT,
        {
            "model": "specwire",
            "messages": [{**USER, "tool_calls": None}],
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": True,
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "logit_bias": None,
            "max_tokens": 3,
        },
    )
    assert reply.status == 200


def test_a_body_that_is_too_large(served: Served) -> None:
    reply = served.post(TEXT, b" " * ((16 << 20) + 1))
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


# ── paths, methods, protocol ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", TEXT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
        ("GET", "/models", 404),
        ("POST", "/chat/completions", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", f"{CHAT}/", 404),
        ("GET", "/v1/models/%2e%2e", 404),
    ],
)
def test_paths_and_methods(served: Served, method: str, path: str, status: int) -> None:
    reply = served.ask(method, path)
    assert reply.status == status and reply.error["type"] == INVALID
    if status == 405:
        assert reply.headers["allow"]


def test_what_is_no_http(served: Served) -> None:
    for data in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST " + b"a" * 100_000):
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1000)[:13] in (b"", b"HTTP/1.1 400 ")
    assert served.post(TEXT, ASK).status == 200


def test_streams_are_events(served: Served) -> None:
    reply = served.post(TEXT, {**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body.isascii()
    *events, end = reply.body.split(b"\n\n")[:-1]
    assert end == b"data: [DONE]"
    told = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [len(chunk["choices"]) for chunk in told][-2:] == [1, 0]
    assert told[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_without_a_vocabulary(tiny_gguf: Path, tmp_path: Path, stream: bool) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("é word after word")
    backend = ScriptBackend(vocabulary, script, prompt_length=5)
    more = {"logprobs": 1, "stop": "fter", "temperature": 0, "max_tokens": 40, "stream": stream}
    with (
        VerifierThread(backend, ByteEncoder()) as verifier,
        endpoint(tmp_path / "log", "--server", verifier.address, "--draft", "none") as served,
    ):
        reply = served.post(TEXT, {**ASK, **more})
    if stream:
        events = [event.removeprefix(b"data: ") for event in reply.body.split(b"\n\n")]
        choices = [json.loads(event)["choices"][0] for event in events[:-2]]
    else:
        choices = reply.json["choices"]
    assert "".join(choice["text"] for choice in choices) == "é word a"
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    offsets = [offset for item in told for offset in item["text_offset"]]
    assert offsets == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    names = [name for item in told for name in item["tokens"]]
    assert names == [f"token_id:{id_}" for id_ in ByteEncoder().encode_text("é word a")]


# ── who is let in ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8010", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("127.8.9.1:1", 200),
        ("[::1]:8010", 200),
        ("evil.example:8010", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.0.5:8010", 403),
        ("[::1", 403),
        ("localhost:1@evil.example", 403),
        ("", 403),
    ],
)
def test_hosts(served: Served, host: str, status: int) -> None:
    reply = served.ask("GET", "/v1/models", headers={"Host": host})
    assert reply.status == status
    if status == 403:
        assert reply.error["code"] == "host_not_allowed"


def test_names_that_a_proxy_passes_on(verifier: VerifierThread, tmp_path: Path) -> None:
    args = ("--server", verifier.address, "--draft", "none", "--listen", "LocalHost:0")
    names = ("--allow-host", "Edge.example.org", "--allow-host", "192.168.0.5")
    with endpoint(tmp_path / "log", *args, *names) as served:
        for host in ("edge.example.org", "EDGE.example.org.:443", "192.168.0.5:80", "localhost"):
            assert served.post(TEXT, ASK, Host=host).status == 200
        page = {"Host": "edge.example.org", "Origin": "https://edge.example.org"}
        assert served.post(TEXT, ASK, **page).status == 200
        reply = served.post(TEXT, ASK, Host="evil.example")
        assert reply.status == 403 and "--allow-host" in reply.error["message"]


def test_pages_of_other_origins_are_refused(served: Served) -> None:
    for origin in ("https://evil.example", "null", "http://[", "http://[::1]@x:y"):
        reply = served.post(TEXT, ASK, Origin=origin)
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
    assert served.post(TEXT, ASK, Origin=f"http://127.0.0.1:{served.port}").status == 200
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    reply = served.ask("OPTIONS", CHAT, headers=preflight)
    assert reply.status == 403 and "access-control-allow-origin" not in reply.headers


def test_pages_of_named_origins_may_come(verifier: VerifierThread, tmp_path: Path) -> None:
    args = ("--server", verifier.address, "--draft", "none")
    pages = ("--allow-origin", "http://localhost:3000", "--allow-origin", "app://notes")
    with endpoint(tmp_path / "log", *args, *pages, SPECWIRE_API_KEY="key") as served:
        for origin in ("http://localhost:3000", "app://notes"):
            preflight = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            }
            reply = served.ask("OPTIONS", CHAT, headers=preflight)
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == origin
            assert "authorization" in reply.headers["access-control-allow-headers"]
            # Errors can be read by the page too.
            reply = served.post(TEXT, ASK, Origin=origin)
            assert reply.status == 401
            assert reply.headers["access-control-allow-origin"] == origin
        reply = served.post(TEXT, ASK, Origin="https://evil.example", Authorization="Bearer key")
        assert "access-control-allow-origin" not in reply.headers
        for wrong in ("key", "Bearer", "Bearer ", "Basic key", "Bearer keykey", "Bearer k\xe9y"):
            assert served.post(TEXT, ASK, Authorization=wrong).status == 401
        # A key is as good as a name: behind a tunnel the host may be any.
        ok = {"Authorization": "bearer key", "Host": "tunnel.example"}
        assert served.ask("POST", TEXT, ASK, ok).status == 200
