"""SIGTERM and SIGINT before a verifier is ready: it leaves at once, whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SOON_S = 2.0
PATIENCE_S = 60.0

BUSY = """
import hashlib, sys
from cloud_verifier import cli, serve

def load(settings):
    print("loading", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)  # like a library: no return to Python

serve.load = load
sys.exit(cli.main(["serve", "--model", "m", "--listen", "127.0.0.1:0"]))
"""


@contextlib.contextmanager
def process_of(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPECWIRE_")}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended_soon(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said on standard error, if it ends soon."""
    began = time.monotonic()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began < SOON_S
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_a_library_is_busy(number: signal.Signals) -> None:
    with process_of([sys.executable, "-c", BUSY]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        code, errors = ended_soon(process)
    assert code == 128 + number
    assert errors.endswith("\nstopped before it was ready\n")
    assert "Traceback" not in errors


def test_as_the_first_process_of_a_container() -> None:
    """To which the system delivers no signal that it does not handle."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-p", "-f", "true"], check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    command = [unshare, "--pid", "--fork", "--kill-child", sys.executable, "-c", BUSY]
    with process_of(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        code, errors = ended_soon(process)
    assert code == 128 + signal.SIGTERM
    assert errors.endswith("\nstopped before it was ready\n")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["defaults: ", "reading the configuration"])
def test_while_the_real_loader_works(tiny_gguf: Path, line: str) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "cloud_verifier.cli", "serve", "--model", str(tiny_gguf)]
    with process_of([*command, "--listen", "127.0.0.1:0", "--threads", "1"]) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith(line):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        code, errors = ended_soon(process)
    assert code == 128 + signal.SIGTERM
    assert errors.endswith("stopped before it was ready\n") and "Traceback" not in errors
