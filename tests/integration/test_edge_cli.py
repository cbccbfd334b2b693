"""`edge-client` as people run it: pipes, terminals, JSON, exit codes, interrupts."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_client import EdgeClient, Mode
from edge_client.draft.llama_weights import LlamaWeights
from tests.support.edge import (
    EDGE_CLIENT,
    ByteEncoder,
    ScriptBackend,
    VerifierThread,
    asking,
    edge_client,
    edge_environment,
    tiny_verifier,
)
from tests.support.processes import quickly_s
from tests.support.terminal import Terminal
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, write_tiny_gguf

ESCAPE = "\x1b["
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli")
    return str(write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05))


@pytest.fixture(scope="module")
def slow(tiny_gguf: Path) -> Iterator[VerifierThread]:
    """A long text, some twenty tokens a second at most."""
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text("word after word " * 250)
    backend = ScriptBackend(vocabulary, script, prompt_length=2, step_s=0.05)
    with VerifierThread(backend, ByteEncoder()) as verifier:
        yield verifier


def flags(verifier: VerifierThread, draft: str) -> list[str]:
    return ["--server", verifier.address, "--draft", draft, "--threads", "1", "--seed", "1"]


def begin(*args: str, stdin: int = subprocess.DEVNULL, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*EDGE_CLIENT, *args],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=edge_environment(**env),
    )


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, float, str]:
    """Exit code, seconds until it, and what was said, after one SIGINT."""
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, time.perf_counter() - began, said.decode()


# ── generate ─────────────────────────────────────────────────────────────────────────


def test_text_to_a_pipe_is_plain(verifier: VerifierThread, draft: str) -> None:
    with EdgeClient(verifier.address) as client:
        wanted = client.generate("Hello", options=asking(40, mode=Mode.STREAM)).text
    done = edge_client(
        "generate", "Hello", *flags(verifier, draft), "--temperature", "0", "--max-tokens", "40"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == line(wanted)
    assert ESCAPE not in done.stdout + done.stderr
    assert "40 tokens in" in done.stderr and "mode auto (" in done.stderr


def test_quiet_and_prompts_from_standard_input(verifier: VerifierThread, draft: str) -> None:
    args = (*flags(verifier, draft), "--temperature", "0", "--max-tokens", "20", "--quiet")
    given = edge_client("generate", "A tale", *args)
    assert given.returncode == 0 and given.stderr == "" and given.stdout
    for piped in (
        edge_client("generate", *args, text="A tale"),
        edge_client("generate", "-", *args, text="A tale"),
    ):
        assert (piped.returncode, piped.stdout, piped.stderr) == (0, given.stdout, "")


def on_terminal(
    *args: str, env: Mapping[str, str] | None = None, errors_too: bool = False, code: int = 0
) -> str:
    """What the command writes to a terminal as its standard output."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*EDGE_CLIENT, *args],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave if errors_too else subprocess.PIPE,
        env=edge_environment(**(env or {})),
    ) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal's end reads on Linux
            while data := os.read(master, 4096):
                shown += data
        os.close(master)
        process.wait(180)
        assert process.returncode == code
    return shown.decode("utf-8", "replace")


def test_a_terminal_gets_colours_unless_told_otherwise(
    verifier: VerifierThread, draft: str
) -> None:
    args = ("generate", "Hello", *flags(verifier, draft), "--temperature", "0")
    args = (*args, "--max-tokens", "30", "--mode", "sync")
    coloured = on_terminal(*args)
    assert f"{ESCAPE}32m" in coloured  # accepted
    assert f"{ESCAPE}36m" in coloured or f"{ESCAPE}31m" in coloured  # bonus, correction
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert ESCAPE not in on_terminal(*args, env=env)


OWNED = "\x1b]0;owned\x07"
"""Would give a terminal's window another title."""


@pytest.fixture(scope="module")
def steering(tiny_gguf: Path) -> Iterator[VerifierThread]:
    """A target whose text and name hold what steers a terminal."""
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    script = ByteEncoder().encode_text(f"so{OWNED}\x9b2J")
    backend = ScriptBackend(vocabulary, script, prompt_length=2)
    backend.name = f"name{OWNED}"
    with VerifierThread(backend, ByteEncoder()) as verifier:
        yield verifier


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_neither_model_nor_verifier_steers_a_terminal(
    steering: VerifierThread, tmp_path: Path, env: dict[str, str]
) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", vocabulary=FULL[:-1])
    for more in ((), ("--json",)):
        args = ("generate", "go", *flags(steering, str(other)), *more)
        shown = COLOUR.sub("", on_terminal(*args, errors_too=True, env=env))
        assert shown.count("owned") >= 2 and OWNED[:4] not in shown and "\x9b" not in shown
    failed = ("local", "--target", f"{OWNED}.gguf", "hello")
    shown = on_terminal(*failed, code=1, errors_too=True, env=env)
    assert "owned" in shown and OWNED[:4] not in shown


def test_pipes_get_the_text_as_it_is(steering: VerifierThread) -> None:
    done = edge_client("generate", "go", "--server", steering.address, "--draft", "none")
    assert done.stdout == f"so{OWNED}\x9b2J\n"


def test_an_encoding_that_lacks_characters_ends_nothing(tiny_gguf: Path) -> None:
    with LlamaWeights(tiny_gguf) as weights:
        vocabulary = weights.vocabulary
    backend = ScriptBackend(vocabulary, ByteEncoder().encode_text("caf\u00e9 漢"), prompt_length=2)
    with VerifierThread(backend, ByteEncoder()) as verifier:
        args = ("--server", verifier.address, "--drafts", "lookup", "--draft", "none")
        for command, text in (("generate", "go"), ("chat", "go\n")):
            done = edge_client(command, *args, text=text, PYTHONIOENCODING="ascii")
            assert (done.returncode, done.stdout) == (0, "caf? ?\n"), done.stderr
            assert "tokens in" in done.stderr
        done = edge_client("generate", "go", *args, "--json", PYTHONIOENCODING="ascii")
        assert json.loads(done.stdout)["text"] == "caf\u00e9 漢"


NUMBER = (int, float)
KEYS: dict[str, Any] = {
    "text": str,
    "token_ids": list,
    "finish_reason": str,
    "usage": dict,
    "mode": str,
    "verification": str,
    "gamma": int,
    "ways": dict,
    "rounds": int,
    "round_trips_saved": int,
    "proposals": int,
    "proposed": int,
    "examined": int,
    "accepted": int,
    "alpha": (*NUMBER, type(None)),
    "examined_by_position": list,
    "accepted_by_position": list,
    "alpha_by_position": list,
    "origins": dict,
    "bytes_up": int,
    "bytes_down": int,
    "reconnections": int,
    "ttft_s": NUMBER,
    "timing_ms": dict,
    "tokens_per_round": (*NUMBER, type(None)),
    "duration_s": NUMBER,
    "tokens_per_s": NUMBER,
    "seed": int,
    "model": str,
    "draft": (str, type(None)),
    "notices": list,
}


@pytest.mark.parametrize("mode", ["auto", "sync", "pipeline", "run-ahead", "stream"])
def test_json_is_one_object_with_every_key(verifier: VerifierThread, draft: str, mode: str) -> None:
    done = edge_client(
        *("generate", "Hello", *flags(verifier, draft), "--json", "--mode", mode),
        *("--max-tokens", "25", "--logprobs", "2"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.count("\n") == 1
    shown = json.loads(done.stdout)
    for key, kind in KEYS.items():
        assert isinstance(shown[key], kind), key
    assert set(shown) == {*KEYS, "logprobs"}
    count = len(shown["token_ids"])
    assert count == 25 == len(shown["logprobs"]) == shown["usage"]["output_tokens"]
    assert set(shown["usage"]) == {"prompt_tokens", "cached_prompt_tokens", "output_tokens"}
    assert all(item["logprob"] <= 0 and len(item["top"]) == 2 for item in shown["logprobs"])
    assert shown["mode"] == mode and shown["seed"] == 1
    if mode in ("sync", "pipeline"):
        assert 0 < shown["alpha"] <= 1
    else:  # where the cloud does not wait, drafts may all come too late for so few tokens
        assert shown["alpha"] is None or (mode != "stream" and 0 < shown["alpha"] <= 1)
    assert sum(shown["origins"].values()) == count


def test_what_was_measured_can_be_recorded(
    verifier: VerifierThread, draft: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    options = ("--max-tokens", "40", "--temperature", "0", "--record", str(file), "--json")
    done = edge_client("generate", "Hello", *flags(verifier, draft), *options)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    knew = [line["draft_knew"] for line in lines if "draft_knew" in line]
    assert set(knew) == {True, False}
    assert all(line["draft_s"] > 0 for line in lines if "draft_s" in line)
    rounds = json.loads(done.stdout)["rounds"]
    assert sum("verify_s" in line for line in lines) == rounds - 1  # not the prompt's
    failed = edge_client(
        "generate", "Hello", *flags(verifier, draft), "--record", str(tmp_path), "--max-tokens", "3"
    )
    assert failed.returncode == 2 and str(tmp_path) in failed.stderr


@pytest.mark.parametrize("way", [("--draft", "none"), ("--mode", "stream"), ("--gamma", "0")])
def test_what_needs_a_draft_is_told_without_one(
    verifier: VerifierThread, draft: str, tmp_path: Path, way: tuple[str, str]
) -> None:
    options = ("--record", str(tmp_path / "run.jsonl"), "--offline-tail", "--max-tokens", "3")
    done = edge_client("generate", "Hello", *flags(verifier, draft), *options, *way)
    assert done.returncode == 0
    assert "nothing is recorded: without a draft" in done.stderr
    assert "without a draft nothing goes on while the link is lost" in done.stderr


def test_json_without_a_draft(verifier: VerifierThread) -> None:
    done = edge_client(
        *("generate", "Hello", "--server", verifier.address, "--draft", "none", "--json"),
        *("--max-tokens", "5"),
    )
    shown = json.loads(done.stdout)
    assert set(shown) == set(KEYS)
    assert (shown["mode"], shown["draft"], shown["gamma"]) == ("target-only", None, 0)
    assert done.stderr.splitlines() == shown["notices"] and len(shown["notices"]) == 1


def test_json_ends_with_the_token_that_completes_a_stop(slow: VerifierThread, draft: str) -> None:
    done = edge_client(
        *("generate", "go", *flags(slow, draft), "--json", "--mode", "sync", "--gamma", "8"),
        *("--stop", "fter", "--stop", "nowhere", "--logprobs", "0"),
    )
    shown = json.loads(done.stdout)
    assert (shown["text"], shown["finish_reason"]) == ("word a", "stop")
    assert shown["token_ids"] == ByteEncoder().encode_text("word after")
    assert len(shown["logprobs"]) == shown["usage"]["output_tokens"] == len("word after")


# ── exit codes ───────────────────────────────────────────────────────────────────────


def test_wrong_requests_exit_with_2(verifier: VerifierThread, draft: str, tmp_path: Path) -> None:
    for args, says in (
        (("generate", "x", "--gamma", "-1"), "gamma"),
        (("generate", "x", "--system", "s"), "--system needs --chat"),
        (("generate", ""), "empty"),
        (("generate", "x", "--logprobs", "99", "--json"), "logprobs"),
        (("generate", "x", "--logprobs", "2"), "--logprobs needs --json"),
    ):
        done = edge_client(*args, *flags(verifier, draft))
        assert done.returncode == 2, done.stderr
        assert done.stdout == "" and says in done.stderr and "Traceback" not in done.stderr


def test_a_prompt_that_is_no_text_exits_with_2(verifier: VerifierThread, draft: str) -> None:
    piped = edge_client("generate", *flags(verifier, draft), text=b"\xff\xfe")
    given = subprocess.run(
        [*EDGE_CLIENT, "generate", b"\xff\xfe", *flags(verifier, draft)],
        capture_output=True,
        env=edge_environment(),
        check=False,
        timeout=180,
    )
    for code, said in (
        (piped.returncode, piped.stderr),
        (given.returncode, given.stderr.decode("utf-8", "replace")),
    ):
        assert code == 2, said
        assert "text" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("command", "closed", "says"),
    [
        ("generate", "<&-", "there is no prompt, and standard input is closed"),
        ("chat", "<&-", "chat reads messages from standard input, and that is closed"),
        ("generate x", ">&-", "standard output or error is closed"),
        ("doctor", ">&-", "standard output or error is closed"),
        ("generate x", "2>&-", "standard output or error is closed"),
    ],
)
def test_closed_streams_exit_with_2(command: str, closed: str, says: str) -> None:
    line = f"{shlex.join(EDGE_CLIENT)} {command} --draft none {closed}"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=edge_environment(), check=False
    )
    assert done.returncode == 2
    assert says in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_prompt_is_asked_for_on_a_terminal(verifier: VerifierThread) -> None:
    args = ("--server", verifier.address, "--draft", "none", "--max-tokens", "3")
    with Terminal("generate", *args) as terminal:
        terminal.wait("type the prompt; Ctrl-D ends it")
        terminal.send("Hello\r\x04")
        terminal.wait("3 tokens in")
        assert terminal.exit_code() == 0


def test_no_verifier_exits_with_3(draft: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = edge_client("generate", "x", "--server", address, "--draft", draft)
    assert done.returncode == 3
    assert address in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("next attempt in") == 2


def test_no_specwire_at_the_address_exits_with_1(draft: str) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = edge_client("generate", "x", "--server", f"127.0.0.1:{port}", "--draft", draft)
    finally:
        server.stop(0).wait()
    assert done.returncode == 1
    assert "no specwire verifier" in done.stderr and done.stderr.count("\n") == 1


def test_an_interrupt_in_the_middle(slow: VerifierThread, draft: str) -> None:
    process = begin("generate", "go", *flags(slow, draft), "--max-tokens", "2000")
    assert process.stdout is not None
    assert process.stdout.read(20)  # the text is under way
    code, seconds, said = interrupted(process)
    assert (code, said) == (130, "")
    assert seconds < quickly_s()
    deadline = time.monotonic() + 30
    while slow.attached and time.monotonic() < deadline:
        time.sleep(0.05)
    assert slow.attached == 0


def test_an_interrupt_while_nobody_answers(draft: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(120)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        process = begin("generate", "x", "--server", address, "--draft", draft)
        connection, _ = listener.accept()
        with connection:
            time.sleep(0.2)
            code, seconds, said = interrupted(process)
    assert code == 130 and "Traceback" not in said
    assert seconds < quickly_s()


def test_an_interrupt_at_the_prompt(verifier: VerifierThread, draft: str) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        process = begin("generate", *flags(verifier, draft), stdin=theirs.fileno())
        theirs.close()
        time.sleep(1.5 * quickly_s())  # nothing tells from outside that it has begun to read
        code, seconds, said = interrupted(process)
    assert code == 130 and "Traceback" not in said
    assert seconds < quickly_s()


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_reader_that_leaves_early(
    verifier: VerifierThread, slow: VerifierThread, draft: str, json_flag: list[str]
) -> None:
    server = verifier if json_flag else slow
    before = server.kept
    process = begin("generate", "go", *flags(server, draft), "--max-tokens", "100", *json_flag)
    assert process.stdout is not None and process.stderr is not None
    if not json_flag:
        process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(180) == 0
    assert "Traceback" not in said and "BrokenPipe" not in said and "Task" not in said
    assert json_flag or server.kept == before


# ── chat ─────────────────────────────────────────────────────────────────────────────


def line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def answers(verifier: VerifierThread, *questions: str, system: str | None = None) -> list[str]:
    """What a conversation gives, asked for turn by turn through the API."""
    messages = [("system", system)] if system else []
    given = []
    with EdgeClient(verifier.address) as client:
        for question in questions:
            messages.append(("user", question))
            options = asking(20, mode=Mode.STREAM)
            given.append(client.generate(messages=messages, options=options).text)
            messages.append(("assistant", given[-1]))
    return given


@pytest.mark.parametrize("ending", ["/exit\nnot asked\n", ""])
def test_a_conversation_over_a_pipe(verifier: VerifierThread, draft: str, ending: str) -> None:
    first, second = answers(verifier, "hello", "and you?")
    done = edge_client(
        *("chat", *flags(verifier, draft), "--temperature", "0", "--max-tokens", "20"),
        text=f"hello\nand you?\n/clear\n\nhello\n{ending}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == line(first) + line(second) + line(first)
    assert done.stderr.count("tokens in") == 3
    assert ESCAPE not in done.stdout + done.stderr


def test_help_and_a_system_message(verifier: VerifierThread, draft: str) -> None:
    (first,) = answers(verifier, "hello", system="Be brief.")
    done = edge_client(
        *("chat", *flags(verifier, draft), "--temperature", "0", "--max-tokens", "20"),
        *("--system", "Be brief."),
        text="/help\nhello\n/clear\nhello\n",
    )
    assert done.stdout == line(first) * 2
    assert "/clear" in done.stderr and "Ctrl-D" in done.stderr


def test_a_refused_message_does_not_end_the_conversation(
    verifier: VerifierThread, draft: str
) -> None:
    (first,) = answers(verifier, "hello")
    done = edge_client(
        *("chat", *flags(verifier, draft), "--temperature", "0", "--max-tokens", "20"),
        text=f"{'far too long ' * 50}\nhello\n",
    )
    assert done.returncode == 0
    assert done.stdout == line(first)  # the refused message is no part of the conversation
    assert "no answer: the prompt has" in done.stderr


def test_an_interrupt_stops_the_answer_alone(slow: VerifierThread, draft: str) -> None:
    master, slave = pty.openpty()
    process = begin(
        "chat", *flags(slow, draft), "--max-tokens", "2000", stdin=slave, PYTHONUNBUFFERED="1"
    )
    os.close(slave)
    assert process.stdout is not None
    try:
        os.write(master, b"go\n")
        shown = b""
        while b"after" not in shown:
            ready, _, _ = select.select([process.stdout], [], [], 120)
            assert ready
            shown += os.read(process.stdout.fileno(), 64)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        os.write(master, b"/exit\n")
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(master)
    assert process.returncode == 0
    assert b"stopped" in said and b"Traceback" not in said


def test_two_interrupts_end_a_piped_chat_while_it_answers(slow: VerifierThread, draft: str) -> None:
    process = begin("chat", *flags(slow, draft), "--max-tokens", "2000", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        process.stdin.write(b"go\n" * 50)
        process.stdin.flush()
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        while b"stopped; Ctrl-C again" not in process.stderr.readline():
            pass
        assert process.stdout.read(60)  # the next message's answer
        code, seconds, said = interrupted(process)
    finally:
        process.kill()
    assert code == 130 and "Traceback" not in said
    assert seconds < quickly_s()
