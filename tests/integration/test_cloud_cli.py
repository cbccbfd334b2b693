"""`cloud-verifier` as a process of its own, with a tiny model file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_verifier.server import SERVICE_NAME
from specwire.qrow import point_row
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.drafter import Drafter, Stream, failure_of, open_frame, persist

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

PATIENCE_S = 90
"""To import torch and transformers on a busy machine."""

GRACE_S = 10.0
PROMPT = [5, 6, 7]
OUTPUT = 24


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cloud_verifier.cli", *arguments]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("SPECWIRE_")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_help_needs_no_utf_8() -> None:
    done = subprocess.run(
        command("serve", "--help"),
        env={**environment(), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0 and "usage: cloud-verifier serve" in done.stdout


class Verifier:
    """A process that has said it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        found = re.match(r"ready on ([\d.]+:\d+): ", self.line)
        assert found is not None, self.line
        self.address = found[1]

    def stop(self, number: signal.Signals) -> tuple[int, str, float]:
        """Exit code, what else came on standard output, and seconds until then."""
        began = time.monotonic()
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, rest, time.monotonic() - began


@contextlib.contextmanager
def verifier(model: Path, folder: Path, *options: str) -> Iterator[Verifier]:
    arguments = ["serve", "--model", str(model), "--listen", "127.0.0.1:0", "--threads", "1"]
    arguments += ["--dtype", "float32", "--device", "cpu", "--grace", str(GRACE_S), *options]
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            command(*arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield Verifier(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        elif process.stdout is not None:
            process.stdout.close()


def draft(ids: list[int], count: int) -> tuple[list[int], list[Any]]:
    tokens = [3 + (ids[-1] + i) % 200 for i in range(count)]
    return tokens, [point_row(t) for t in tokens]


@contextlib.asynccontextmanager
async def stub_of(address: str) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_with_open_streams_is_quick_clean_and_survived(
    tiny_gguf: Path, tmp_path: Path, number: signal.Signals
) -> None:
    drafters = [
        Drafter(open_frame([*PROMPT, i], max_tokens=OUTPUT, seed=i), draft) for i in range(8, 11)
    ]
    with verifier(tiny_gguf, tmp_path) as running:
        assert running.line.count("\n") == 1
        assert tiny_gguf.stem in running.line
        async with stub_of(running.address) as channel:
            await is_healthy_and_reflects(channel, running.address)
            stub = rpc.VerifierStub(channel)
            whole = Drafter(drafters[0].open, draft)
            await persist(stub, whole)
            streams = []
            for drafter in drafters:
                stream = Stream.decode(stub)
                await stream.send(drafter.first())
                for _ in range(3):  # Opened and two verdicts
                    frame = await stream.read()
                    assert frame is not None and drafter.take(frame)
                    for up in drafter.proposals():
                        await stream.send(up)
                streams.append(stream)
            stopping = asyncio.create_task(asyncio.to_thread(running.stop, number))
            for stream, drafter in zip(streams, drafters, strict=True):
                failure = await last_words(stream, drafter)
                assert failure.status is grpc.StatusCode.UNAVAILABLE
                assert failure.code == pb.ERROR_CODE_DRAINING
                assert "stopping" in failure.message
            code, rest, seconds = await stopping
        assert (code, rest) == (0, "")
        assert seconds < GRACE_S
    errors = (tmp_path / "errors.txt").read_text()
    assert "Traceback" not in errors
    assert "Task exception was never retrieved" not in errors
    if number is signal.SIGINT:
        return
    with verifier(tiny_gguf, tmp_path) as again:
        async with stub_of(again.address) as channel:
            stub = rpc.VerifierStub(channel)
            for drafter in drafters:
                stream = Stream.decode(stub)
                await stream.send(drafter.first())
                assert (await stream.failure()).code == pb.ERROR_CODE_NO_SESSION
                drafter.rebuild()
                await persist(stub, drafter)
            assert drafters[0].output == whole.output
        assert again.stop(number)[0] == 0


async def last_words(stream: Stream, drafter: Drafter) -> Any:
    """Take what still comes, and return how the stream ends."""
    try:
        while (frame := await stream.read()) is not None:
            drafter.take(frame)
    except grpc.aio.AioRpcError as error:
        return failure_of(error)
    raise AssertionError("the stream ended as if nothing had happened")


async def is_healthy_and_reflects(channel: grpc.aio.Channel, address: str) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE_NAME):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = await asyncio.to_thread(reflected, address)
    assert {"specwire.v1.Verifier", "grpc.health.v1.Health"} <= set(services)


def reflected(address: str) -> list[str]:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    with grpc.insecure_channel(address) as channel:
        database: Any = ProtoReflectionDescriptorDatabase(channel)
        assert database.FindFileContainingSymbol("specwire.v1.Verifier").package == "specwire.v1"
        return list(database.get_services())


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("cloud-verifier: ")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("spec", ["/no/such/model.gguf", "./nothing", "no such model"])
def test_a_model_that_is_not_there(spec: str) -> None:
    done = run("serve", "--model", spec, "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert_one_clear_line(done, spec)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    done = run("serve", "--model", str(path), "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert_one_clear_line(done, str(path))


def test_an_address_in_use(tiny_gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--model", str(tiny_gguf), "--listen", address)
    assert done.returncode == 1
    assert_one_clear_line(done, address, "in use")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_address_that_is_none(tiny_gguf: Path, address: str) -> None:
    done = run("serve", "--model", str(tiny_gguf), "--listen", address)
    assert done.returncode in (1, 2)
    assert_one_clear_line(done, address)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "--model", "m", "--no-such-flag"],
        ["serve", "--model", "m", "--gamma", "0"],
        ["serve", "--model", "m", "--gamma", "many"],
        ["serve", "--model", "m", "--idle", "0"],
        ["serve", "--model", "m", "--idle", "nan"],
        ["serve", "--model", "m", "--grace", "-1"],
        ["serve", "--model", "m", "--dtype", "int3"],
        ["no-such-command"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cloud-verifier")
    assert arguments[-1:] == [] or len(last) > 20


def test_help_and_version() -> None:
    for arguments in (["--help"], ["serve", "--help"]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "cloud-verifier" in done.stdout
    assert "--listen" in done.stdout and "--model" in done.stdout
    version = run("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("specwire ")
