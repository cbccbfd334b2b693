"""Random streams of a link: one for each purpose, so that one thing more changes no other."""

from __future__ import annotations

import random


def stream(seed: int, *purpose: str) -> random.Random:
    """A generator that depends on the seed and on what it is for, and on nothing else."""
    return random.Random(f"{seed}/{'/'.join(purpose)}")
