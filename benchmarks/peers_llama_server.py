"""llama.cpp's own server on loopback, alone or with a draft model: `$LLAMA_SERVER`, or on PATH.

All settings but model, draft, threads and slots are its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator

from benchmarks.peers_worker import Ask, PeerFailed, Row, process

START_S = 60.0


def binary() -> str:
    """Where the program is.

    Raises:
        PeerFailed: there is none.
    """
    found = shutil.which(os.environ.get("LLAMA_SERVER", "llama-server"))
    if found is None:
        raise PeerFailed("no llama-server: neither $LLAMA_SERVER nor PATH names one")
    return found


@contextlib.contextmanager
def llama_server(
    on: Collection[int], target: str, draft: str | None, threads: int
) -> Iterator[Ask]:
    """A server process on those cores.

    Raises:
        PeerFailed: there is no such program, or it ended or did not get ready.
    """
    port = _free_port()
    command = [binary(), "--host", "127.0.0.1", "--port", str(port), "-m", target]
    command += ["-c", "1024", "--parallel", "1", "-t", str(threads), "-tb", str(threads)]
    if draft is not None:
        command += ["-md", draft, "--spec-type", "draft-simple"]
    with process(command, on, stdout=subprocess.DEVNULL) as (child, last):
        until = time.monotonic() + START_S
        while not _is_ready(port):
            if child.poll() is not None or time.monotonic() > until:
                raise PeerFailed(last())
            time.sleep(0.2)
        yield lambda task: _generate(port, task)


def _generate(port: int, task: Row) -> list[float]:
    wanted = {"prompt": task["ids"], "n_predict": task["tokens"], "temperature": 0.0}
    body = json.dumps({**wanted, "stream": True, "return_tokens": True})
    arrivals: list[float] = []
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise PeerFailed(f"llama-server answers with status {response.status}")
        for line in response:
            if line.startswith(b"data: {"):
                said = json.loads(line.removeprefix(b"data: "))
                arrivals += [time.perf_counter()] * len(said["tokens"])
    return arrivals


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
