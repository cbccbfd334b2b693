"""The built-in models and the prompts that the benchmarks share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from netsim import real

DRAFTS = {"small": "builtin:smollm2-q2", "close": "builtin:smollm2"}
TARGET = "builtin:smollm2"

TEXTS = {
    "chat": (
        "Explain in a few sentences how a rainbow forms.",
        "Why do cats purr? Answer in a few sentences.",
        "What should I see in two days in Rome?",
        "How does a bicycle stay upright when it moves?",
        "My plant has yellow leaves. What may be the cause?",
        "What is the difference between weather and climate?",
        "Why is the sky dark at night?",
        "How do I remove a red wine stain from a carpet?",
    ),
    "code": (
        "Write a Python function that merges two sorted lists.",
        "Write a Python function that counts the words in a text file.",
        "Write a SQL query for the ten customers with the most orders.",
        "Write a JavaScript function that removes duplicates from an array.",
        "Write a Python class for a stack with push and pop.",
        "Write a shell script that renames all .txt files to .md.",
        "Write a Python function that checks whether a word is a palindrome.",
        "Write a CSS rule that centres a box in its parent.",
    ),
    "creative": (
        "Write the beginning of a story about a lighthouse keeper.",
        "Write a short poem about the first snow.",
        "Describe a market at night in a city that does not exist.",
        "Write a letter from a ship's cook to his sister.",
        "Invent a legend of why the sea is salty.",
        "Write a dialogue between a clock and a candle.",
        "Describe the last day of a travelling circus.",
        "Write a story in which a map changes every night.",
    ),
    "json": (
        "Give me a JSON object that describes a bicycle in five fields.",
        "Give me a JSON array of three books with title, author and year.",
        "Give me a JSON object with the settings of a thermostat.",
        "Give me a JSON object for a customer with a name and two addresses.",
        "Give me a JSON array of the four seasons with their months.",
        "Give me a JSON object that describes a recipe for pancakes.",
        "Give me a JSON array of five European capitals with their countries.",
        "Give me a JSON object that describes a train journey with two stops.",
    ),
}
"""Several prompts of each kind."""
PROMPTS = {kind: texts[0] for kind, texts in TEXTS.items()}


@contextlib.contextmanager
def verifier(on: Sequence[int]) -> Iterator[str]:
    """A verifier process with the built-in target on those cores; its address."""
    with real.verifier(lambda line: None, model=TARGET, on=on, dtype="auto") as address:
        yield address
