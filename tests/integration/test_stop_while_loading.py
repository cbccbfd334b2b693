"""Signals before a verifier is ready: it leaves at once, whatever it is doing, or reads on."""

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
from typing import Any

import grpc
import pytest

from cloud_verifier.tokens import add_token
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.clients import ROOT

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
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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


WAITING = """
import sys
from cloud_verifier import cli, serve
from cloud_verifier.backends.load import Target
from tests.support.tables import LetterEncoder, TableBackend, random_table

def load(settings):
    print("loading", flush=True)
    sys.stdin.readline()
    return Target(TableBackend(random_table(5, seed=6)), LetterEncoder())

serve.load = load
sys.exit(cli.main(["serve", "--model", "m", "--listen", "127.0.0.1:0", "--tokens", sys.argv[1]]))
"""


def test_a_reload_while_loading_is_not_lost(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    add_token(tokens, "alice")
    with process_of([sys.executable, "-c", WAITING, str(tokens)]) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        bob = add_token(tokens, "bob")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        process.stdin.write("\n")
        process.stdin.flush()
        ready = process.stdout.readline()
        assert ready.startswith("ready on ")
        with grpc.insecure_channel(ready.split()[2].rstrip(":")) as channel:
            metadata = [("authorization", f"Bearer {bob}")]
            stub: Any = rpc.VerifierStub(channel)
            assert stub.Describe(pb.DescribeRequest(), timeout=10, metadata=metadata).model
        process.send_signal(signal.SIGTERM)
        code, errors = ended_soon(process)
    assert code == 0
    assert errors.count("reloaded tokens and certificates") == 1


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
