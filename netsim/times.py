"""How long models take: constants, distributions, or what was recorded. Seconds throughout."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

EXTRA_S = 1e-3
"""What each further token adds to a forward where nothing is known of it."""


@dataclass(frozen=True)
class Duration:
    """A time that is always the same, or drawn anew each time.

    mean: in seconds. spread: standard deviation over mean, of a log-normal distribution;
    0 is constant. recorded: drawn from instead, if not empty; the mean is then theirs.

    Raises:
        ValueError: a value is negative or not finite.
    """

    mean: float
    spread: float = 0.0
    recorded: Sequence[float] = ()

    def __post_init__(self) -> None:
        for value in (self.mean, self.spread, *self.recorded):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"a duration must be 0 or more and finite, not {value!r}")
        if self.recorded:
            object.__setattr__(self, "mean", sum(self.recorded) / len(self.recorded))

    def sampler(self, rng: random.Random) -> Callable[[], float]:
        """A function that gives the next time."""
        if self.recorded:
            values = list(self.recorded)
            return lambda: rng.choice(values)
        mean = self.mean
        if not self.spread or not mean:
            return lambda: mean
        sigma = math.sqrt(math.log1p(self.spread**2))
        mu = math.log(mean) - sigma**2 / 2
        return lambda: rng.lognormvariate(mu, sigma)


@dataclass(frozen=True)
class Models:
    """Times of draft and target.

    draft: of a draft token on the edge. verify: of a target forward with one token.
    extra_s: what each further token adds to a forward. batch_s: what it takes longer once it has
    draft tokens, however few, as on a CPU. prefill_s: of each prompt token in the cloud, on top
    of the forward that reads it; 0: it knows the prompt, and reads nothing. draft_prefill_s: of
    each prompt token on the edge. cloud_draft: of a draft token where the cloud drafts itself.
    overhead_s: of a round outside the models, in the cloud.
    """

    draft: Duration
    verify: Duration
    extra_s: float = 0.0
    batch_s: float = 0.0
    prefill_s: float = 0.0
    draft_prefill_s: float = 0.0
    cloud_draft: Duration | None = None
    overhead_s: float = 0.0

    @classmethod
    def constant(cls, draft_s: float, verify_s: float, extra_s: float = 0.0) -> Models:
        """Models whose times never vary, and whose prompts cost nothing."""
        return cls(Duration(draft_s), Duration(verify_s), extra_s)

    def further_s(self, sessions: int, drafts: int) -> float:
        """What a forward of several sessions takes longer than one with one token."""
        batch_s = self.batch_s if drafts else 0.0
        return batch_s + (sessions + drafts - 1) * self.extra_s

    def forward_s(self, tokens: int) -> float:
        """Mean time of a forward with so many tokens."""
        return self.verify.mean + max(tokens - 1, 0) * self.extra_s
