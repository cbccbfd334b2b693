"""Ctrl-C, once, in every state: out within two seconds, nothing left behind."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import EDGE_CLIENT, VerifierThread, edge_environment, tiny_verifier
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

OUT_S = 2.0
LONG = "word and the " * 750


class Slow:
    """A backend whose forwards take as long as it is told."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.step_s = 0.02
        self.held = threading.Event()
        self.held.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, steps: Any) -> Any:
        time.sleep(self.step_s)
        self.held.wait(30)
        return self._backend.forward(steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupt")
    more: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "context": 4096}
    write_tiny_gguf(folder / "target.gguf", **more)
    write_tiny_gguf(folder / "draft.gguf", noise=0.1, **more)
    wide: dict[str, Any] = {"layers": 16, "width": 512, "heads": 8, "kv_heads": 8}
    write_tiny_gguf(folder / "heavy.gguf", **wide, **more)
    return folder


@pytest.fixture
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        verifier.backend = Slow(verifier.backend)
        verifier.stop()
        verifier.start()
        yield verifier
        verifier.backend.held.set()


def slow(verifier: VerifierThread) -> Slow:
    assert isinstance(verifier.backend, Slow)
    return verifier.backend


class Command:
    """`edge-client generate` under way."""

    def __init__(self, *args: str, stdout: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [*EDGE_CLIENT, "generate", *args],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=edge_environment(),
        )

    def line(self, part: str) -> None:
        """Wait for a notice."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if part in line.decode():
                return
        raise AssertionError(f"it ended without saying {part!r}")

    def text(self) -> None:
        """Wait until the text is under way."""
        assert self.process.stdout is not None
        assert self.process.stdout.read(20)

    def interrupt(self) -> None:
        """Press Ctrl-C once; it must be out in time, with nothing but its exit code."""
        assert self.process.poll() is None
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        seconds = time.monotonic() - began
        assert self.process.returncode == 130, said
        assert b"Traceback" not in said and b"llama" not in said
        assert seconds < OUT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def asking(
    verifier: VerifierThread, folder: Path, *more: str, draft: str = "draft.gguf"
) -> Command:
    return Command(
        *more,
        *("--server", verifier.address, "--draft", str(folder / draft), "--threads", "1"),
        *("--temperature", "0", "--max-tokens", "300", "--mode", "sync"),
    )


def test_while_connecting() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(60)
        port = listener.getsockname()[1]
        command = Command("x", "--server", f"127.0.0.1:{port}", "--draft", "none")
        connection, _ = listener.accept()
        with connection:
            command.interrupt()


def test_between_two_attempts_to_connect() -> None:
    command = Command("x", "--server", "127.0.0.1:1", "--draft", "none")
    command.line("next attempt in")
    command.interrupt()


@pytest.mark.parametrize("tail", [(), ("--offline-tail",)], ids=["", "offline tail"])
def test_while_the_link_is_lost(verifier: VerifierThread, folder: Path, tail: tuple[str]) -> None:
    command = asking(verifier, folder, "x", *tail)
    command.text()
    verifier.stop()
    command.line("next attempt in")
    command.line("next attempt in")
    command.interrupt()


def test_while_the_draft_reads_the_prompt(verifier: VerifierThread, folder: Path) -> None:
    command = asking(verifier, folder, LONG, draft="heavy.gguf")
    deadline = time.monotonic() + 60
    while not verifier.attached and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    command.interrupt()


def test_while_a_verdict_is_awaited(verifier: VerifierThread, folder: Path) -> None:
    command = asking(verifier, folder, "x")
    command.text()
    slow(verifier).held.clear()
    time.sleep(0.5)
    command.interrupt()
    slow(verifier).held.set()


def test_while_text_comes(verifier: VerifierThread, folder: Path) -> None:
    command = asking(verifier, folder, "x")
    command.text()
    command.interrupt()
    deadline = time.monotonic() + 20
    while verifier.unended and time.monotonic() < deadline:
        time.sleep(0.02)
    assert verifier.unended == 0


@pytest.mark.real
@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_while_the_draft_is_loaded(
    verifier: VerifierThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """The small draft is made first, which takes a while in which llama.cpp can't be stopped."""
    monkeypatch.setenv("SPECWIRE_CACHE", str(tmp_path))
    command = Command(
        *("x", "--server", verifier.address, "--draft", "builtin:smollm2-q2", "--quiet"),
        *("--max-tokens", "3000"),
    )
    command.line("once")
    time.sleep(after_s)
    command.interrupt()


def test_the_terminal_is_left_as_it_was(verifier: VerifierThread, folder: Path) -> None:
    """Also where provisional text was on it."""
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    command = asking(verifier, folder, "x", "--offline-tail")
    command.process.kill()
    command.process.communicate()
    process = subprocess.Popen(
        [str(part) for part in command.process.args],  # type: ignore[union-attr]
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env=edge_environment(),
    )
    seen, cut, began = b"", False, time.monotonic()
    while time.monotonic() - began < 60 and b"\x1b[2m" not in seen:
        if select.select([controller], [], [], 0.05)[0]:
            seen += os.read(controller, 65536)
        if not cut and len(seen) > 100:
            cut = True
            verifier.stop()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    while select.select([controller], [], [], 0.2)[0]:
        seen += os.read(controller, 65536)
    assert termios.tcgetattr(terminal) == before
    _, _, after = seen.rpartition(b"\x1b[2m")
    assert b"\x1b[0m" in after and b"\x1b[J" in after  # dim no more, and erased
    assert after.endswith(b"\n")
    os.close(terminal)
    os.close(controller)
