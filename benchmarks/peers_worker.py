"""A peer in a process of its own, on cores of its own: a line asks for tokens, a line times them.

Both ends of the two pipes. It imports the standard library alone, so that a peer may live in
another environment than ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
Ask = Callable[[Row], list[float]]
"""From what to generate to when each token came, in seconds."""

STEP_S = 0.002
"""Tokens that come closer together than this are of one step, whoever sends them one by one."""


class PeerFailed(Exception):
    """A peer can't be measured here; the message says why."""


@contextlib.contextmanager
def process(
    command: Sequence[str], on: Collection[int], **pipes: Any
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """A process on those cores, and what gives the last line that it complained with."""
    with tempfile.TemporaryFile("w+") as complaints:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, on)  # inherited by the process, and by its threads from the start
        try:
            started = subprocess.Popen(command, stderr=complaints, text=True, **pipes)
        finally:
            os.sched_setaffinity(0, before)

        def last() -> str:
            complaints.seek(0)
            lines = [line.strip() for line in complaints if line.strip()]
            return lines[-1] if lines else "no word of why"

        try:
            yield started, last
        finally:
            started.terminate()
            started.wait()


@contextlib.contextmanager
def worker(
    module: str, on: Collection[int], load: Row, *, python: str = sys.executable
) -> Iterator[Ask]:
    """A process that runs `serve` in that module, once it has loaded what it is told to.

    Raises:
        PeerFailed: it ended; also when it is asked later.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with process([python, "-m", module], on, **pipes) as (child, last):

        def ask(task: Row) -> Any:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(json.dumps(task) + "\n")
                child.stdin.flush()
                line = child.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                child.wait()
                raise PeerFailed(last())
            return json.loads(line)

        ask(load)
        yield ask


def serve(load: Callable[[Row], Ask]) -> None:
    """The other end: load what the first line names, then answer line by line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    generate = load(json.loads(sys.stdin.readline()))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(json.loads(line))), file=answers, flush=True)


def tokens_per_s(arrivals: Sequence[float]) -> float:
    """Speed after the first step, which the prompt's evaluation belongs to."""
    first = sum(at < arrivals[0] + STEP_S for at in arrivals)
    return (len(arrivals) - first) / (arrivals[-1] - arrivals[0])
