"""How well the draft knows the target: independently, by place, in stretches, or as recorded.

The simulated target is greedy: its token at a position is a function of the position. So
whether the draft knows it is a property of the position too, drawn once: a token that is
drafted twice is right twice or wrong twice, as with real models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from netsim.recorded import read_lines
from specwire.errors import BadRequest

Knows: TypeAlias = Callable[[int, int], bool]
"""(output position, place in its chain) → whether the draft token there is the target's."""


@dataclass(frozen=True)
class Acceptance:
    """Acceptance rates of a text.

    alphas: by place in a chain; the last holds for all that follow. One value: the same
        everywhere.
    hard: acceptance rate in stretches where the draft knows little; None for none. Real
        texts are of two kinds like this: a draft either follows easily or hardly at all.
    hard_share: part of the text in such stretches. hard_length: their mean length in tokens.
    recorded: whether the draft knew each token, from a real run, repeated as needed; nothing
        else counts then.

    Raises:
        ValueError: a rate is not within 0 … 1, or there is none.
    """

    alphas: Sequence[float] = (0.7,)
    hard: float | None = None
    hard_share: float = 0.3
    hard_length: float = 12.0
    recorded: Sequence[bool] = ()

    def __post_init__(self) -> None:
        if not self.alphas:
            raise ValueError("give at least one acceptance rate")
        for value in (*self.alphas, self.hard or 0.0, self.hard_share):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"an acceptance rate must be between 0 and 1, not {value!r}")
        if self.hard is not None and not (self.hard_length >= 1 and self.hard_share < 1):
            raise ValueError(
                f"hard stretches must have a length of 1 or more and a share below 1, not "
                f"{self.hard_length!r} and {self.hard_share!r}"
            )

    @classmethod
    def steady(cls, alpha: float) -> Acceptance:
        """The same everywhere, each token independent of the others."""
        return cls(alphas=(alpha,))

    @property
    def mean(self) -> float:
        """Acceptance rate of the first token of a chain, over the whole text."""
        if self.recorded:
            return sum(self.recorded) / len(self.recorded)
        if self.hard is None:
            return self.alphas[0]
        return self.hard_share * self.hard + (1 - self.hard_share) * self.alphas[0]

    def draw(self, seed: int) -> Knows:
        """One text's agreement, the same for the same seed."""
        if self.recorded:
            recorded = self.recorded
            return lambda position, place: recorded[position % len(recorded)]
        rng = random.Random(f"acceptance {seed}")
        noise: list[float] = []
        alphas, last = self.alphas, len(self.alphas) - 1
        hard = self._stretches(random.Random(f"stretches {seed}"))

        def knows(position: int, place: int) -> bool:
            while len(noise) <= position:
                noise.append(rng.random())
            alpha = alphas[place if place < last else last]
            if hard is not None and hard(position):
                alpha = min(self.hard or 0.0, alpha)
            return noise[position] < alpha

        return knows

    def _stretches(self, rng: random.Random) -> Callable[[int], bool] | None:
        """Whether a position is hard: a chain of two states with geometric lengths."""
        if self.hard is None or not self.hard_share:
            return None
        leave = 1 / self.hard_length
        enter = leave * self.hard_share / (1 - self.hard_share)
        states: list[bool] = [rng.random() < self.hard_share]

        def is_hard(position: int) -> bool:
            while len(states) <= position:
                change = leave if states[-1] else enter
                states.append(states[-1] != (rng.random() < change))
            return states[position]

        return is_hard


def read_record(path: Path) -> Acceptance:
    """Agreement as `edge-client generate --record` wrote it: one JSON object a line.

    Each line with `"draft_knew"` tells of one output token, in order.

    Raises:
        BadRequest: the file can't be read, is no record, or tells of no draft token.
    """
    known = [line.truth("draft_knew") for line in read_lines(path) if "draft_knew" in line]
    if not known:
        raise BadRequest(f"{path} tells of no draft token; record with a drafting mode")
    return Acceptance(recorded=tuple(known))
