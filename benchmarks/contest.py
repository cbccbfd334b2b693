"""How `auto` does against each fixed way: ratios of single turns, and how sure they are.

In bfloat16 tokens evaluated together are rounded otherwise than alone, so that a near tie may
fall otherwise and two ways that draw alike go on with different texts. Which of these is easier
to draft for is luck, and moves a speed by a fifth; so such ways are compared where they wrote the
same, if those turns tell more than all do. What is not decided after a round goes on, and only
that: a sequential experiment.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from netsim.scenario import Way

AIM = 0.95
"""What `auto` is to reach, of each other way's speed."""
_SURE = 0.995
"""That a ratio is above the lower end of its interval after one round; as much that it is below
the upper. Whoever looks after each of eight rounds, and stops once it is decided, errs five times
as often (Armitage, McPherson and Rowe, 1969): a ratio of exactly `AIM` is found to be above once
in forty times."""

Turn = Mapping[str, Any]
Speeds = Mapping[tuple[int, str], tuple[float, str]]
"""Tokens/s, and what was written, by round and prompt."""
Contender = tuple[float, str | None, str]
"""Temperature, draft and way."""


@dataclass(frozen=True)
class Ratio:
    """One way's speed to another's.

    mean: geometric, of single turns. low, high: its interval of 99 %, by Student's t of the
    logarithms; without end where there is one turn. turns: that it is of.
    """

    mean: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, ours: Speeds, theirs: Speeds, *, alike: bool) -> Ratio:
        """Of the turns that both took.

        alike: both draw alike, so that in turns in which they wrote different texts luck is
            added. The ratio is of those in which they wrote the same, or of all: whichever has
            the narrower interval.
        """
        both = [(ours[turn], theirs[turn]) for turn in ours if turn in theirs]
        of_all = cls._of_logs([math.log(mine / other) for (mine, _), (other, _) in both])
        same = [pair for pair in both if pair[0][1] == pair[1][1]]
        if not alike or len(same) < 2:
            return of_all
        of_same = cls._of_logs([math.log(mine / other) for (mine, _), (other, _) in same])
        return min(of_same, of_all, key=lambda ratio: ratio.high / ratio.low)

    @classmethod
    def _of_logs(cls, logs: Sequence[float]) -> Ratio:
        mean = statistics.mean(logs)
        if len(logs) < 2:
            return cls(math.exp(mean), 0.0, math.inf, len(logs))
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        reach = float(stats.t.ppf(_SURE, len(logs) - 1)) * error
        return cls(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))

    @property
    def decided(self) -> bool:
        """Whether it is surely enough, or surely too little."""
        return self.low >= AIM or self.high < AIM


def against(turns: Sequence[Turn]) -> dict[tuple[float, str], dict[str, Ratio]]:
    """`auto` against each other way, streaming among them, by temperature and draft."""
    speeds: dict[Contender, dict[tuple[int, str], tuple[float, str]]] = defaultdict(dict)
    for turn in turns:
        contender = turn["temperature"], turn["draft"], turn["way"]
        speeds[contender][turn["round"], turn["prompt"]] = turn["tokens_per_s"], turn["text"]
    found: dict[tuple[float, str], dict[str, Ratio]] = {}
    for (temperature, draft, way), ours in speeds.items():
        if way != Way.AUTO or draft is None:
            continue
        found[temperature, draft] = {
            other: Ratio.of(ours, theirs, alike=_alike(other, temperature))
            for (heat, drafted_by, other), theirs in speeds.items()
            if heat == temperature and drafted_by in (None, draft) and other != Way.AUTO
        }
    return found


def _alike(way: str, temperature: float) -> bool:
    """Whether a way draws as `auto` does, so that only rounding makes their texts differ.

    Above temperature 0 those do whose noise both ends share. Of calls for each token only the
    first few were made.
    """
    if temperature == 0:
        return way != Way.PER_TOKEN
    return way in (Way.STREAM, Way.RUN_AHEAD)


def standing(ratios: Iterable[Ratio]) -> str:
    """Whether `auto` reaches `AIM` against all of them: "yes", "no", or "undecided"."""
    found = list(ratios)
    if any(ratio.high < AIM for ratio in found):
        return "no"
    return "yes" if all(ratio.low >= AIM for ratio in found) else "undecided"


def undecided(turns: Sequence[Turn]) -> set[Contender]:
    """What has to take more turns."""
    more: set[Contender] = set()
    for (temperature, draft), ratios in against(turns).items():
        for way, ratio in ratios.items():
            if not ratio.decided:
                alone = way in (Way.STREAM, Way.PER_TOKEN)
                more.add((temperature, None if alone else draft, way))
                more.add((temperature, draft, Way.AUTO))
    return more
