"""A verifier in a process of its own, serving a table: all of `serve` but a real model.

    python -m tests.support.verifier_process HOW [options of cloud-verifier serve]

HOW: "quick", or how many seconds a forward takes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud_verifier import cli, serve
from cloud_verifier.backends.load import Target
from cloud_verifier.settings import Settings
from specwire.ports import Step
from tests.support.tables import LetterEncoder, TableBackend, random_table

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


class SlowTable(TableBackend):
    def __init__(self, forward_s: float) -> None:
        super().__init__(random_table(5, seed=6), context=64)
        self._forward_s = forward_s

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        time.sleep(self._forward_s)
        return super().forward(steps)


@dataclass
class Running:
    """process: with pipes. address: where it listens. log: the file of its standard error."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    def said(self, text: str) -> bool:
        """Wait until its standard error holds `text`."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if text in self.log.read_text():
                return True
            time.sleep(0.02)
        return False


@contextlib.contextmanager
def verifier_process(log: Path, *options: str, how: str = "quick", **env: str) -> Iterator[Running]:
    """A process that is ready; killed on leaving if it still runs."""
    command = [sys.executable, "-m", "tests.support.verifier_process", how, "serve"]
    command += ["--model", "table", "--listen", "127.0.0.1:0", *options]
    paths = [str(ROOT), *(p for p in sys.path if p)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready on "), log.read_text()
        yield Running(process, line.removeprefix("ready on ").partition(": ")[0], log)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> int:
    how, *arguments = sys.argv[1:]
    backend = SlowTable(0.0 if how == "quick" else float(how))

    def load(settings: Settings) -> Target:
        return Target(backend, LetterEncoder())

    serve.load = load
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
