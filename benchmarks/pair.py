"""The built-in models and the prompts that the benchmarks share."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

DRAFTS = {"small": "builtin:smollm2-q2", "close": "builtin:smollm2"}
TARGET = "builtin:smollm2"

PROMPTS = {
    "chat": "Explain in a few sentences how a rainbow forms.",
    "code": "Write a Python function that merges two sorted lists.",
    "creative": "Write the beginning of a story about a lighthouse keeper.",
    "json": "Give me a JSON object that describes a bicycle in five fields.",
}


def cores() -> tuple[set[int], set[int]]:
    """Different cores for cloud and edge; the same where there is only one."""
    available = sorted(os.sched_getaffinity(0))
    return {available[0]}, set(available[1:2] or available[:1])


@contextlib.contextmanager
def verifier(on: set[int], *extra: str) -> Iterator[str]:
    """A verifier process with the built-in target on those cores; its address."""
    command = [
        *(sys.executable, "-m", "cloud_verifier.cli", "serve", "--model", TARGET),
        *("--listen", "127.0.0.1:0", "--threads", str(len(on)), *extra),
    ]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, on)  # inherited by the child, and by its threads from the start
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    finally:
        os.sched_setaffinity(0, before)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready on "):
            raise RuntimeError(f"the verifier did not start: {line!r}")
        yield line.removeprefix("ready on ").partition(": ")[0]
    finally:
        process.terminate()
        process.wait()
