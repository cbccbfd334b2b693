"""The endpoint's life: starting, readers who leave, a verifier that fails, and stopping."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client.draft.llama_weights import LlamaWeights
from specwire.limits import Limits
from tests.support.edge import (
    ByteEncoder,
    ScriptBackend,
    VerifierThread,
    edge_client,
    edge_environment,
)
from tests.support.openai_endpoint import CONSOLE_SCRIPT, Reply, Served, endpoint, wait_until
from tests.support.processes import quickly_s

CHAT = "/v1/chat/completions"
LONG: dict[str, Any] = {
    "model": "specwire",
    "messages": [{"role": "user", "content": "go"}],
    "max_tokens": 2000,
    "temperature": 0,
}


def script_verifier(vocabulary_of: Path, *, step_s: float) -> VerifierThread:
    """A long text for two callers at a time."""
    with LlamaWeights(vocabulary_of) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("word after word " * 250)
    backend = ScriptBackend(vocabulary, script, prompt_length=2, step_s=step_s)
    return VerifierThread(backend, ByteEncoder(), Limits(4096, sessions=2))


@pytest.fixture
def slow(tiny_gguf: Path) -> Iterator[VerifierThread]:
    """Some fifty tokens a second at most."""
    with script_verifier(tiny_gguf, step_s=0.02) as verifier:
        yield verifier


@pytest.fixture
def served(slow: VerifierThread, tiny_gguf: Path, tmp_path: Path) -> Iterator[Served]:
    args = ("--server", slow.address, "--draft", str(tiny_gguf), "--mode", "run-ahead")
    with endpoint(tmp_path / "log", *args) as served:
        yield served


def begin(served: Served, *, receive_bytes: int | None = None, **more: Any) -> socket.socket:
    """A request whose answer is not read yet."""
    body = json.dumps({**LONG, **more}).encode()
    connection = socket.socket()
    connection.settimeout(60)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(("127.0.0.1", served.port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


# ── readers who leave ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "more", [{"stream": True}, {"stream": False}, {"stream": True, "n": 2}], ids=str
)
def test_who_leaves_ends_the_session(
    slow: VerifierThread, served: Served, more: dict[str, Any]
) -> None:
    wanted = more.get("n", 1)
    with begin(served, **more) as connection:
        wait_until(lambda: slow.attached == wanted)
        if more["stream"]:
            assert b"200 OK" in connection.recv(65536)
    # The verifier has dropped it, instead of keeping it for the idle time.
    assert wait_until(lambda: slow.kept == 0) < quickly_s(1.0)
    assert served.post(CHAT, {**LONG, "max_tokens": 3}).status == 200
    assert "Traceback" not in served.log.read_text()


def test_a_reader_who_does_not_read_holds_up_nobody(slow: VerifierThread, served: Served) -> None:
    with begin(served, stream=True) as connection:
        wait_until(lambda: slow.attached == 1)
        assert served.post(CHAT, {**LONG, "max_tokens": 3}).status == 200
        assert connection.recv(20)


# ── a verifier that fails ────────────────────────────────────────────────────────────


def test_a_verifier_that_is_full(slow: VerifierThread, served: Served) -> None:
    with begin(served, stream=True, n=2):
        wait_until(lambda: slow.attached == 2)
        for stream in (False, True):
            reply = served.post(CHAT, {**LONG, "stream": stream})
            assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
            assert reply.error["code"] == "verifier_exhausted"
            assert reply.headers["retry-after"]


def test_a_verifier_that_is_not_there(slow: VerifierThread, served: Served) -> None:
    assert served.ask("GET", "/health").status == 200
    slow.stop()
    health = served.ask("GET", "/health")
    assert health.status == 503 and health.json["status"] == "unavailable"
    reply = served.post(CHAT, LONG)
    assert (reply.status, reply.error["code"]) == (502, "verifier_unreachable")
    assert reply.error["type"] == "server_error"
    slow.start()
    # The channel tries anew within a second or two, whatever is asked of it meanwhile.
    wait_until(lambda: served.post(CHAT, {**LONG, "max_tokens": 3}).status == 200)


def test_it_starts_before_the_verifier_does(slow: VerifierThread, tmp_path: Path) -> None:
    slow.stop()
    args = ("--server", slow.address, "--draft", "none")
    with endpoint(tmp_path / "log", *args) as served:
        assert "not reached yet" in served.ready
        assert "can't reach the verifier" in served.log.read_text()
        assert served.ask("GET", "/v1/models").status == 502
        slow.start()
        wait_until(lambda: served.ask("GET", "/v1/models").status == 200)
        (model,) = served.ask("GET", "/v1/models").json["data"]
        assert model["id"] == "script"


def test_a_broken_draft_is_told_and_done_without(slow: VerifierThread, tmp_path: Path) -> None:
    args = ("--server", slow.address, "--draft", str(tmp_path / "missing.gguf"))
    with endpoint(tmp_path / "log", *args) as served:
        assert served.ready.endswith("no draft\n")
        for _ in range(2):
            assert served.post(CHAT, {**LONG, "max_tokens": 3}).status == 200
        assert served.log.read_text().count("missing.gguf") == 1


def test_drafts_that_are_copied_need_no_model(slow: VerifierThread, tmp_path: Path) -> None:
    args = ("--server", slow.address, "--drafts", "lookup", "--draft", "none")
    with endpoint(tmp_path / "log", *args) as served:
        assert served.ready.endswith("draft copied from the text\n")
        reply = served.post(CHAT, {**LONG, "max_tokens": 100})
        assert reply.status == 200 and served.log.read_text() == ""
        details = reply.json["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 10


# ── stopping ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_what_runs(
    slow: VerifierThread, served: Served, number: signal.Signals
) -> None:
    at_once: list[Reply] = []
    asking = threading.Thread(target=lambda: at_once.append(served.post(CHAT, LONG)))
    asking.start()
    with begin(served, stream=True) as streaming:
        wait_until(lambda: slow.attached == 2)
        answer = streaming.recv(10_000)
        began = time.perf_counter()
        served.process.send_signal(number)
        answer += read_to_end(streaming)
        asking.join()
        assert served.process.wait(60) == 0
        assert time.perf_counter() - began < quickly_s(2.0)
    assert b'"code":"shutting_down"' in answer and b"[DONE]" not in answer
    assert answer.endswith(b"0\r\n\r\n")  # the response itself is whole
    assert (at_once[0].status, at_once[0].error["code"]) == (503, "shutting_down")
    assert slow.kept == 0
    assert "Traceback" not in served.log.read_text()


def test_a_stop_does_not_wait_for_who_does_not_read(tiny_gguf: Path, tmp_path: Path) -> None:
    args = ("--draft", str(tiny_gguf), "--mode", "stream")
    more = {"stream": True, "max_tokens": 4000, "logprobs": True, "top_logprobs": 20}
    with (
        script_verifier(tiny_gguf, step_s=0.0) as quick,
        endpoint(tmp_path / "log", "--server", quick.address, *args) as served,
        begin(served, receive_bytes=4096, **more) as connection,
    ):
        wait_until(lambda: quick.kept == 1)
        time.sleep(4.0)  # more than generating takes, so that it is the reader who is waited for
        began = time.perf_counter()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        assert time.perf_counter() - began < quickly_s(2.0)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                received += part
        assert b"[DONE]" not in received
    assert "Traceback" not in served.log.read_text()


# ── starting ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--listen", "0.0.0.0:0"), 2, "--api-key-file"),
        (("--listen", "[::]:0"), 2, "--insecure"),
        (("--listen", "8010"), 2, "HOST:PORT"),
        (("--listen", "::1:8010"), 2, "HOST:PORT"),
        (("--listen", "localhost:99999"), 2, "HOST:PORT"),
        (("--listen", "no.such.host.invalid:0", "--insecure"), 2, "no address"),
        (("--sessions", "0"), 2, "--sessions"),
        (("--allow-origin", "localhost"), 2, "--allow-origin"),
        (("--allow-host", "*"), 2, "--allow-host"),
        (("--allow-host", "edge.example.org:443"), 2, "without a port"),
        (("--api-key-file", "/no/such/file"), 2, "key file"),
        (("--gamma", "-1"), 2, "gamma"),
        (("--server", "nowhere"), 2, "HOST:PORT"),
    ],
)
def test_wrong_arguments(args: tuple[str, ...], code: int, says: str) -> None:
    done = edge_client("serve", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr and "Traceback" not in done.stderr


def test_a_key_must_be_one(tmp_path: Path) -> None:
    for content in ("", "two words", "schlüssel", "a\nb"):
        (tmp_path / "key").write_text(content)
        done = edge_client("serve", "--api-key-file", str(tmp_path / "key"))
        assert done.returncode == 2 and "no key" in done.stderr
        assert not content or content not in done.stderr


def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = edge_client("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1 and "can't listen" in done.stderr


def test_beyond_this_machine_with_a_key_or_insecurely(slow: VerifierThread, tmp_path: Path) -> None:
    args = ("--server", slow.address, "--draft", "none", "--listen", "0.0.0.0:0")
    with endpoint(tmp_path / "key.log", *args, SPECWIRE_API_KEY="k-e-y") as served:
        assert "the key travels in plain text" in served.log.read_text()
        assert "k-e-y" not in served.log.read_text() + served.ready
        assert served.ask("GET", "/v1/models").status == 401
    with endpoint(tmp_path / "insecure.log", *args, "--insecure") as served:
        assert "anyone may use it" in served.log.read_text()
        reply = served.ask("GET", "/v1/models", headers={"Host": f"192.168.0.5:{served.port}"})
        assert reply.status == 200  # an address can't be rebound to another
        reply = served.ask("GET", "/v1/models", headers={"Host": "evil.example"})
        assert reply.status == 403


def test_the_extra_is_named_where_a_package_is_missing(tmp_path: Path) -> None:
    for package in ("starlette", "uvicorn"):
        code = (
            f"import sys; sys.modules[{package!r}] = None\n"
            "from edge_client.cli import main\n"
            "sys.exit(main(['serve']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=edge_environment(),
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert package in done.stderr and "specwire[edge]" in done.stderr


def test_other_commands_need_neither_package(slow: VerifierThread) -> None:
    code = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "from edge_client.cli import main\n"
        f"sys.exit(main(['generate', 'go', '--server', {slow.address!r}, '--draft', 'none',"
        " '--max-tokens', '3', '--quiet']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=edge_environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "wor\n"), done.stderr


def test_help_tells_of_it() -> None:
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run([CONSOLE_SCRIPT, "serve", "--help"], capture_output=True, text=True)
        assert "--api-key-file" in done.stdout and "--temperature" not in done.stdout
