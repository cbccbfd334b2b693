"""The closed forms, against published numbers and against summing up by hand."""

from __future__ import annotations

import pytest

from specwire.formulas import (
    expected_speedup,
    expected_tokens,
    expected_tokens_by_position,
    per_token_time,
    streaming_time,
    synchronous_time,
)


@pytest.mark.parametrize(
    ("alpha", "gamma", "tokens"),
    [(0.9, 4, 4.10), (0.9, 7, 5.70), (0.7, 4, 2.77), (0.7, 7, 3.14), (0.5, 4, 1.94),
     (0.5, 7, 1.99)],
)  # fmt: skip
def test_expected_tokens(alpha: float, gamma: int, tokens: float) -> None:
    assert round(expected_tokens(alpha, gamma), 2) == tokens
    assert expected_tokens(alpha, gamma) == pytest.approx(
        (1 - alpha ** (gamma + 1)) / (1 - alpha), rel=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_expected_tokens_is_the_mean_of_a_round(alpha: float, gamma: int) -> None:
    """k drafts get through with α^k (1 − α), all γ with α^γ; one token comes on top."""
    mean = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma))
    mean += (gamma + 1) * alpha**gamma
    assert expected_tokens(alpha, gamma) == pytest.approx(mean, rel=1e-12)


def test_expected_tokens_by_position() -> None:
    assert expected_tokens_by_position([]) == 1.0
    assert expected_tokens_by_position([0.5, 0.2]) == pytest.approx(1 + 0.5 + 0.1)
    assert expected_tokens_by_position([1.0] * 4) == 5.0
    assert expected_tokens_by_position([0.0, 1.0]) == 1.0


def test_expected_speedup() -> None:
    """Leviathan et al. 2023, theorem 3.8: free drafts gain all, useless ones lose."""
    assert expected_speedup(0.7, 4, 0.0) == expected_tokens(0.7, 4)
    assert expected_speedup(0.8, 5, 0.05) == pytest.approx(2.95, abs=0.005)
    assert expected_speedup(0.0, 4, 0.5) == pytest.approx(1 / 3)


def test_n7_three_ways_on_a_slow_link() -> None:
    """RTT 200 ms, verify 30 ms, draft 20 ms, γ 4, α 0.7, 200 tokens."""
    assert per_token_time(200, 0.2, 0.03) == pytest.approx(46.0)
    assert streaming_time(200, 0.2, 0.03) == pytest.approx(6.2)
    speculative = synchronous_time(200, 0.7, 4, rtt_s=0.2, draft_s=0.02, verify_s=0.03)
    assert speculative == pytest.approx(22.4, abs=0.05)


def test_n4_every_token_accepted() -> None:
    total = synchronous_time(100, 1.0, 4, rtt_s=0.1, draft_s=0.01, verify_s=0.05)
    assert total == pytest.approx(100 / 5 * (0.1 + 0.05 + 4 * 0.01))


@pytest.mark.parametrize(("alpha", "gamma"), [(-0.1, 1), (1.1, 1), (0.5, -1), (float("nan"), 2)])
def test_values_out_of_range_are_refused(alpha: float, gamma: int) -> None:
    with pytest.raises(ValueError, match=r"alpha|gamma"):
        expected_tokens(alpha, gamma)
