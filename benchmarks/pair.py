"""The built-in models and the prompts that the benchmarks share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from netsim import real

DRAFTS = {"small": "builtin:smollm2-q2", "close": "builtin:smollm2"}
TARGET = "builtin:smollm2"

PROMPTS = {
    "chat": "Explain in a few sentences how a rainbow forms.",
    "code": "Write a Python function that merges two sorted lists.",
    "creative": "Write the beginning of a story about a lighthouse keeper.",
    "json": "Give me a JSON object that describes a bicycle in five fields.",
}


@contextlib.contextmanager
def verifier(on: Sequence[int]) -> Iterator[str]:
    """A verifier process with the built-in target on those cores; its address."""
    with real.verifier(lambda line: None, model=TARGET, on=on, dtype="auto") as address:
        yield address
