"""`edge-client chat` on a terminal: what a person types, sees and is left with."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_client import EdgeClient, Mode
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.render import harmless
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.edge import (
    ByteEncoder,
    ScriptBackend,
    VerifierThread,
    asking,
    edge_client,
    tiny_verifier,
)
from tests.support.processes import quickly_s
from tests.support.terminal import Terminal
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, write_tiny_gguf

COLOURS = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")
READY = "Ctrl-D leaves"
PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("chat")
    return str(write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05))


@pytest.fixture(scope="module")
def slow(tiny_gguf: Path) -> Iterator[VerifierThread]:
    """A long text in characters of one and two cells, some twenty tokens a second at most."""
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("word after word 漢字と仮名 " * 150)
    backend = ScriptBackend(vocabulary, script, prompt_length=2, step_s=0.08)
    with VerifierThread(backend, ByteEncoder()) as verifier:
        yield verifier


def chat(
    verifier: VerifierThread,
    draft: str,
    *more: str,
    rows: int = 24,
    columns: int = 80,
    history: str = "none",
    **env: str,
) -> Terminal:
    args = ("--server", verifier.address, "--draft", draft, "--threads", "1", "--seed", "1")
    limit = () if "--max-tokens" in more else ("--max-tokens", "2000")
    return Terminal(
        *("chat", *args, *limit, "--history", history, *more), rows=rows, columns=columns, **env
    )


def detached(verifier: VerifierThread) -> bool:
    deadline = time.monotonic() + 30
    while verifier.attached and time.monotonic() < deadline:
        time.sleep(0.05)
    return verifier.attached == 0


def test_an_answer_in_colours_and_the_next_knows_the_first(
    verifier: VerifierThread, draft: str, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    with chat(verifier, draft, "--temperature", "0", "--max-tokens", "20") as terminal:
        terminal.wait(READY)
        for number, message in enumerate(("hello", "and you?"), 1):
            terminal.send(f"{message}\r")
            terminal.wait(lambda n=number: terminal.screen.text.count("tokens/s") == n)  # type: ignore[misc]
        assert COLOURS.search(terminal.raw)
        terminal.send(f"/save {saved}\r")
        terminal.wait("2 messages")
        terminal.send("/exit\r")
        assert terminal.exit_code() == 0
        assert terminal.attributes == terminal.attributes_before
    messages: list[tuple[str, str]] = []
    with EdgeClient(verifier.address) as client:
        for turn in json.loads(saved.read_text())["turns"]:
            messages.append(("user", turn["user"]))
            options = asking(20, mode=Mode.STREAM)
            wanted = client.generate(messages=messages, options=options).text
            assert turn["assistant"] == wanted
            messages.append(("assistant", wanted))
    assert [text for role, text in messages if role == "user"] == ["hello", "and you?"]
    first = harmless(messages[1][1]).split("\n")[0].strip()
    assert first in terminal.screen.text


def test_ctrl_c_stops_the_answer_and_the_next_message_is_answered(
    slow: VerifierThread, draft: str
) -> None:
    with chat(slow, draft) as terminal:
        terminal.wait(READY)
        for number in (1, 2):
            terminal.send("go\r")
            terminal.wait(lambda n=number: terminal.screen.text.count("after") >= n)  # type: ignore[misc]
            terminal.wait("a round trip")
            terminal.send("\x03")
            terminal.wait(lambda n=number: terminal.screen.text.count("stopped") == n)  # type: ignore[misc]
            terminal.look(quickly_s(0.3))
        assert "tokens/s" not in terminal.screen.text  # the status line is gone
        assert detached(slow)
        terminal.send("\x04")
        assert terminal.exit_code() == 0
        assert terminal.attributes == terminal.attributes_before


def test_several_lines_by_paste_key_and_backslash(
    verifier: VerifierThread, draft: str, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    with chat(verifier, draft, "--max-tokens", "3") as terminal:
        terminal.wait(READY)
        wanted = ["one\ntwo", "three\nfour", "five\nsix", "/not a command"]
        for number, keys in enumerate(
            (f"{PASTE}one\ntwo{END_PASTE}", "three\x1b\rfour", "five\\\rsix", "//not a command"), 1
        ):
            terminal.send(keys)
            terminal.look(0.2)
            terminal.send("\r")
            terminal.wait(lambda n=number: terminal.screen.text.count("tokens/s") == n)  # type: ignore[misc]
        terminal.send(f"/save {saved}\r")
        terminal.wait("4 messages")
    turns = json.loads(saved.read_text())["turns"]
    assert [turn["user"] for turn in turns] == wanted
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_commands(verifier: VerifierThread, draft: str) -> None:
    with chat(verifier, draft, "--max-tokens", "3", rows=70) as terminal:
        terminal.wait(READY)
        for keys, says in (
            ("/hlep", "did you mean /help?"),
            ("/help", "accepted: drafted here"),
            ("/retry", "no message to answer again"),
            ("/set temprature 1", "did you mean temperature?"),
            ("/set temperature warm", "must be a number"),
            ("/set max-tokens 5000000000", "must be between 1 and 4294967295, not 5000000000"),
            ("/set gamma 2", "gamma is 2 from now on"),
            ("/system Be brief.", "the system message is set"),
            ("/load /nowhere/at/all", "can't read /nowhere/at/all"),
            ("hello", "tokens/s"),
            ("/stats", "1 answer, 3 tokens"),
            ("/undo", "the conversation is empty"),
        ):
            terminal.send(f"{keys}\r")
            terminal.wait(says)
        terminal.send("/he\t")
        terminal.look(0.5)
        terminal.send("\x03\x03")
        assert terminal.exit_code() == 130
        assert terminal.attributes == terminal.attributes_before


def test_a_resize_in_the_middle_leaves_nothing_behind(slow: VerifierThread, draft: str) -> None:
    with chat(slow, draft, rows=12, columns=70) as terminal:
        terminal.wait(READY)
        terminal.send("go\r")
        terminal.wait("a round trip")
        for rows, columns in ((12, 31), (8, 17), (20, 90)):
            terminal.resize(rows, columns)
            terminal.look(1.0)
        terminal.send("\x03")
        terminal.wait("stopped")
        terminal.look(0.3)
        said = terminal.screen.text
        for debris in ("RTT", "tokens/s", "round trip", "γ", "waiting"):
            assert debris not in said
        assert "word" in said
        terminal.send("/exit\r")
        assert terminal.exit_code() == 0


def test_no_color(verifier: VerifierThread, draft: str) -> None:
    with chat(verifier, draft, "--max-tokens", "20", NO_COLOR="1") as terminal:
        terminal.wait(READY)
        terminal.send("hello\r")
        terminal.wait("tokens/s")
        terminal.send("/help\r")
        terminal.wait("not coloured here")
        terminal.send("/exit\r")
        assert terminal.exit_code() == 0
        assert not COLOURS.search(terminal.raw)
        assert b"\x1b[2m" not in terminal.raw


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_at_the_prompt(
    verifier: VerifierThread, draft: str, sig: signal.Signals, code: int
) -> None:
    with chat(verifier, draft) as terminal:
        terminal.wait(READY)
        terminal.send("half a mess")
        terminal.wait("half a mess")
        if sig is signal.SIGINT:
            terminal.process.send_signal(sig)
            terminal.wait("Ctrl-C again")
            assert "half a mess" not in terminal.screen.text
        began = time.monotonic()
        terminal.process.send_signal(sig)
        assert terminal.exit_code() == code
        assert time.monotonic() - began < quickly_s()
        assert terminal.attributes == terminal.attributes_before
        assert b"Traceback" not in terminal.raw


def test_sigterm_in_the_middle_of_an_answer(slow: VerifierThread, draft: str) -> None:
    with chat(slow, draft) as terminal:
        terminal.wait(READY)
        terminal.send("go\r")
        terminal.wait("after")
        began = time.monotonic()
        terminal.process.terminate()
        assert terminal.exit_code() == 143
        assert time.monotonic() - began < quickly_s()
        assert terminal.attributes == terminal.attributes_before
        assert b"Traceback" not in terminal.raw
    assert detached(slow)


def test_sigterm_while_the_terminal_takes_nothing(slow: VerifierThread, draft: str) -> None:
    with chat(slow, draft) as terminal:
        terminal.wait(READY)
        terminal.send("go\r")
        terminal.wait("after")
        terminal.send("\x13")  # Ctrl-S
        time.sleep(1.0)
        began = time.monotonic()
        terminal.process.terminate()
        assert terminal.process.wait(60) == 143
        assert time.monotonic() - began < 0.5 + quickly_s()
        assert terminal.attributes == terminal.attributes_before


def test_inputs_are_kept_for_the_owner_alone(
    verifier: VerifierThread, draft: str, tmp_path: Path
) -> None:
    kept = tmp_path / "state" / "specwire" / "chat-history"
    for earlier in (None, "remember me"):
        args = ("--server", verifier.address, "--draft", draft, "--max-tokens", "3")
        with Terminal("chat", *args, XDG_STATE_HOME=str(tmp_path / "state")) as terminal:
            terminal.wait(READY)
            if earlier is None:
                terminal.send("remember me\r")
                terminal.wait("tokens/s")
            else:
                terminal.send("\x1b[A")
                terminal.wait(f"> {earlier}")
                terminal.send("\x03")
            # Before the prompt is back, Ctrl-D would meet a line that is not ours.
            terminal.look(quickly_s(0.5))
            terminal.send("\x04")
            assert terminal.exit_code() == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text() == '"remember me"\n'


def test_a_verifier_that_comes_later(tiny_gguf: Path, draft: str) -> None:
    with tiny_verifier(tiny_gguf) as verifier:
        verifier.stop()
        with chat(verifier, draft, "--max-tokens", "3") as terminal:
            terminal.wait("each message tries again")
            terminal.wait(READY)
            terminal.send("hello\r")
            terminal.wait("/retry asks again")
            assert "next attempt" not in terminal.screen.text
            verifier.start()
            terminal.send("/retry\r")
            terminal.wait("tokens/s")
            terminal.send("/exit\r")
            assert terminal.exit_code() == 0


class Refusing(rpc.VerifierServicer):
    """A verifier that refuses to say what it serves."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self._status = status

    def Describe(self, request: Any, context: Any) -> Any:
        context.abort(self._status, "not now, not you")


@contextlib.contextmanager
def refusing(status: grpc.StatusCode) -> Iterator[str]:
    """The address of a `Refusing` verifier."""
    server = grpc.server(ThreadPoolExecutor(1))
    rpc.add_VerifierServicer_to_server(Refusing(status), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("passes", [True, False])
def test_a_refusal_at_the_start(passes: bool) -> None:
    status = grpc.StatusCode.RESOURCE_EXHAUSTED if passes else grpc.StatusCode.UNAUTHENTICATED
    with (
        refusing(status) as address,
        Terminal("chat", "--server", address, "--draft", "none", "--history", "none") as terminal,
    ):
        if passes:
            terminal.wait("not now, not you; each message tries again")
            terminal.wait(READY)
            terminal.send("\x04")
        assert terminal.exit_code() == (0 if passes else 1)
        assert "not now, not you" in terminal.screen.text
        assert b"Traceback" not in terminal.raw


def test_a_retry_that_fails_keeps_the_earlier_answer(
    tiny_gguf: Path, draft: str, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    with (
        tiny_verifier(tiny_gguf) as verifier,
        chat(verifier, draft, "--max-tokens", "3") as terminal,
    ):
        terminal.wait(READY)
        terminal.send("hello\r")
        terminal.wait("tokens/s")
        verifier.stop()
        terminal.send("/retry\r")
        terminal.wait("no answer: ")
        terminal.wait("the earlier answer stays")
        terminal.send(f"/save {saved}\r")
        terminal.wait("1 message")
    (turn,) = json.loads(saved.read_text())["turns"]
    assert turn["user"] == "hello" and turn["assistant"]


def test_ctrl_c_while_nobody_answers(draft: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        args = ("chat", "--server", address, "--draft", draft, "--history", "none")
        with Terminal(*args, columns=100) as terminal:
            terminal.wait("each message tries again")
            terminal.send("hello\r")
            terminal.wait("connecting to")
            terminal.send("\x03")
            terminal.wait("stopped", timeout_s=2 * quickly_s())
            terminal.look(0.3)
            assert "connecting to" not in terminal.screen.text
            began = time.monotonic()
            terminal.send("\x03\x03")
            assert terminal.exit_code() == 130
            assert time.monotonic() - began < quickly_s()


def test_keys_typed_during_an_answer_are_for_the_next_prompt(
    slow: VerifierThread, draft: str
) -> None:
    with chat(slow, draft, "--max-tokens", "60") as terminal:
        terminal.wait(READY)
        terminal.send("go\r")
        terminal.wait("after")
        terminal.send("/stats\r")
        terminal.wait("1 answer, 60 tokens")
        before = terminal.screen.text.split("1 answer")[0]
        assert before.count("/stats") == 1  # at the prompt, not in the text


def test_a_terminal_whose_encoding_lacks_characters(slow: VerifierThread, draft: str) -> None:
    with chat(slow, draft, "--mode", "sync", PYTHONIOENCODING="ascii") as terminal:
        terminal.wait(READY)
        terminal.send("go\r")
        terminal.wait("word after word ?????")
        terminal.wait(" ? RTT ")  # the dots of the status line
        terminal.send("\x03")
        terminal.wait("stopped")


def test_what_happens_to_each_answer_is_told_each_time(tiny_gguf: Path, draft: str) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("word after word " * 150)
    backend = ScriptBackend(vocabulary, script, prompt_length=2, step_s=0.08)
    with (
        VerifierThread(backend, ByteEncoder()) as verifier,
        chat(verifier, draft, columns=160) as terminal,
    ):
        terminal.wait(READY)
        for number in (1, 2):
            terminal.send("go\r")
            terminal.wait(lambda n=number: terminal.screen.text.count("word af") >= n)  # type: ignore[misc]
            verifier.stop()
            verifier.start()
            terminal.wait(lambda: verifier.attached == 1)
            terminal.look(0.5)
            terminal.send("\x03")
            terminal.wait(lambda n=number: terminal.screen.text.count("stopped") == n)  # type: ignore[misc]
            terminal.wait(lambda n=number: terminal.screen.text.count("link lost") == n)  # type: ignore[misc]
            terminal.look(quickly_s(0.3))
        # What holds for each answer is told with the first.
        assert terminal.screen.text.count("another chat template") == 1


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_notices_do_not_steer_the_terminal(tiny_gguf: Path, tmp_path: Path, term: str) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("so\x1b]0;owned\x07!")
    backend = ScriptBackend(vocabulary, script, prompt_length=2, step_s=0.5)
    backend.name = "na\x1b]0;owned\x07\nme"
    other = write_tiny_gguf(tmp_path / "other.gguf", vocabulary=FULL[:-1])
    with (
        VerifierThread(backend, ByteEncoder()) as verifier,
        chat(verifier, str(other), columns=200, TERM=term) as terminal,
    ):
        terminal.wait("/help lists" if term != "dumb" else ">")
        terminal.send("go\r" if term != "dumb" else "go\n")
        terminal.wait("has another vocabulary")
        terminal.wait("so]0;owned!")
        assert b"\x1b]0;" not in terminal.raw


def test_waits_are_told_in_lines_where_there_is_no_terminal(tiny_gguf: Path, draft: str) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    backend = ScriptBackend(
        vocabulary, ByteEncoder().encode_text("ok"), prompt_length=2, step_s=1.4
    )
    with VerifierThread(backend, ByteEncoder()) as verifier:
        done = edge_client(
            *("chat", "--server", verifier.address, "--draft", draft, "--mode", "stream"),
            text="go\n",
        )
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert done.stderr.count("waiting for the first token …") == 1
    assert "\x1b" not in done.stderr


def test_a_full_context_is_told_with_what_to_do(verifier: VerifierThread, draft: str) -> None:
    done = edge_client(
        *("chat", "--server", verifier.address, "--draft", draft, "--max-tokens", "400"),
        text=f"hello\n{'far too long ' * 50}\n/undo\n/stats\n",
    )
    assert done.returncode == 0
    assert "the context is full (256 tokens)" in done.stderr
    assert "/clear forgets the conversation" in done.stderr
    assert "no answer: the prompt has" in done.stderr
