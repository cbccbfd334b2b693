"""Chi-square tests with a stated error probability."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from scipy import stats

K = TypeVar("K", bound=Hashable)

ERROR = 1e-6
"""Probability that one test rejects although the distributions are equal.

Seeds are fixed, so a passing test passes always; this is the chance that a right
implementation would have been given an unlucky seed.
"""


def chi_square_p(observed: Mapping[K, int], expected: Mapping[K, float]) -> float:
    """p-value of `observed` counts against `expected` probabilities.

    Cells expected fewer than 5 times are put together; an outcome of probability
    0 that was observed gives 0.
    """
    total = sum(observed.values())
    assert abs(sum(expected.values()) - 1.0) < 1e-9
    if any(expected.get(outcome, 0.0) == 0.0 for outcome in observed):
        return 0.0
    cells, rare_seen, rare_expected = [], 0, 0.0
    for outcome, chance in expected.items():
        if chance * total >= 5:
            cells.append((observed.get(outcome, 0), chance * total))
        else:
            rare_seen += observed.get(outcome, 0)
            rare_expected += chance * total
    if rare_expected >= 5:
        cells.append((rare_seen, rare_expected))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))
