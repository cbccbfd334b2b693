"""`edge-client serve` in a process of its own, and plain HTTP to speak with it."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.edge import edge_environment

CONSOLE_SCRIPT = str(Path(sys.executable).with_name("edge-client"))


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass
class Served:
    """A running endpoint. ready: the line it printed. log: the file of its standard error."""

    process: subprocess.Popen[str]
    ready: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.ready.partition("/v1")[0].rpartition(":")[2])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request; a body that is no bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            shown = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, shown, response.read())

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)


@contextlib.contextmanager
def endpoint(log: Path, *args: str, **env: str) -> Iterator[Served]:
    """A process that is ready, on a free port; killed on leaving if it still runs."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [CONSOLE_SCRIPT, "serve", "--listen", "127.0.0.1:0", "--threads", "1", *args],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=edge_environment(**env),
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready on http://"), log.read_text()
        yield Served(process, ready, log)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until(condition: Any, timeout_s: float = 30.0) -> float:
    """Seconds until something became true; fails the test if it does not."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s
        time.sleep(0.01)
    return time.monotonic() - began
