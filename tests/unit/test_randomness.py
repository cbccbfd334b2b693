"""Randomness as a function: pinned values, range, and independence.

The statistical tests use fixed seeds; each rejects a right implementation with
probability 1e-6 (`tests.support.statistics.ERROR`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from specwire.randomness import Purpose, exponentials, stream, uniform, uniforms
from tests.support.statistics import ERROR, chi_square_p

WORD = 2**64
TOP = WORD - 1


# ── the same function, written again in plain integers ───────────────────────────────


def splitmix(value: int) -> int:
    """The finaliser of SplitMix64, with the two multipliers of its paper."""
    value %= WORD
    value = (value ^ (value // 2**30)) * 13787848793156543929 % WORD
    value = (value ^ (value // 2**27)) * 10723151780598845931 % WORD
    return value ^ (value // 2**31)


GOLDEN = 11400714819323198485  # 2^64 / φ, odd


def reference_state(seed: int, position: int, purpose: int, salt: int = 0) -> int:
    state = splitmix(seed + GOLDEN)
    for word in (position, purpose, salt):
        state = splitmix(state ^ ((splitmix(word + GOLDEN) + GOLDEN) % WORD))
    return state


def reference_uniform(seed: int, position: int, purpose: int, salt: int = 0) -> float:
    bits = splitmix(reference_state(seed, position, purpose, salt) + GOLDEN)
    return (2 * (bits // 2**12) + 1) / 2**53


def reference_exponential(seed: int, position: int, token: int) -> float:
    bits = splitmix(reference_state(seed, position, 3) + (token + 1) * GOLDEN)
    return -math.log1p(-(2 * (bits // 2**12) + 1) / 2**53)


CASES = list(
    itertools.product(
        [0, 1, 42, 2**63, TOP], [0, 1, 57, 2**31, 2**40], list(Purpose), [0, 7, 2**33]
    )
)


def test_splitmix_itself_is_the_published_one() -> None:
    """First outputs of SplitMix64 seeded with 1234567, as its users list them."""
    values = [splitmix(1234567 + (i + 1) * GOLDEN) for i in range(3)]
    assert values == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("seed", "position", "purpose", "salt"), CASES)
def test_uniform_equals_the_reference(
    seed: int, position: int, purpose: Purpose, salt: int
) -> None:
    assert stream(seed, position, purpose, salt) == reference_state(seed, position, purpose, salt)
    value = uniform(seed, position, purpose, salt)
    assert value == reference_uniform(seed, position, purpose, salt)
    assert 0.0 < value < 1.0
    assert (value * 2**53) % 2 == 1.0


@pytest.mark.parametrize(
    ("seed", "position", "purpose", "salt", "value"),
    [
        (0, 0, Purpose.ACCEPT, 0, 0.07149070563197191),
        (0, 0, Purpose.TARGET, 0, 0.3105087801666736),
        (1, 2, Purpose.ACCEPT, 0, 0.643491087156188),
        (TOP, 2**40, Purpose.DRAFT, 9, 0.3310062620451807),
    ],
)
def test_pinned_values(seed: int, position: int, purpose: Purpose, salt: int, value: float) -> None:
    """They are part of the protocol: a change makes old sessions continue differently."""
    assert uniform(seed, position, purpose, salt) == value


def test_pinned_exponentials() -> None:
    ids = np.array([0, 1, 49151], np.int64)
    assert exponentials(42, [57], ids)[0].tolist() == pytest.approx(
        [2.000497439183659, 2.7930548596306553, 2.0714101812630488], rel=1e-15
    )


def test_uniforms_are_uniform_position_by_position() -> None:
    expected = [uniform(5, 100 + i, Purpose.TARGET) for i in range(6)]
    assert uniforms(5, 100, 6, Purpose.TARGET) == expected
    assert uniforms(5, 100, 0, Purpose.TARGET) == []


@pytest.mark.parametrize("seed", [0, 7, 2**63, TOP])
@pytest.mark.parametrize("position", [0, 3, 2**31 + 5, 2**40])
def test_exponentials_equal_the_reference(seed: int, position: int) -> None:
    """To the last bits of the logarithm, which libraries may round differently."""
    ids = np.array([0, 1, 2, 1000, 151_935, 2**31, 2**40], np.int64)
    expected = [reference_exponential(seed, position, int(id_)) for id_ in ids]
    assert exponentials(seed, [position], ids)[0] == pytest.approx(expected, rel=5e-16)
    in_torch = exponentials(seed, [position], torch.from_numpy(ids))
    assert in_torch.dtype == torch.float64
    assert in_torch[0].numpy() == pytest.approx(expected, rel=5e-16)


def test_exponentials_draw_the_same_bits_in_numpy_and_torch() -> None:
    """Below the logarithm everything is integers: what is left is its rounding."""
    ids, positions = np.arange(20_000), [0, 9, 2**40]
    one = exponentials(TOP, positions, ids)
    other = exponentials(TOP, positions, torch.from_numpy(ids)).numpy()
    assert np.abs(one - other).max() <= 4 * np.spacing(one.max())
    assert (np.abs(one - other) <= 2 * np.spacing(one)).all()


def test_exponentials_of_a_matrix_of_ids_and_of_a_row_agree() -> None:
    ids = np.array([4, 9, 2], np.int64)
    whole = exponentials(3, [7, 8], ids)
    assert whole.shape == (2, 3)
    assert np.array_equal(exponentials(3, [7, 8], np.stack([ids, ids])), whole)
    assert np.array_equal(exponentials(3, [8], ids[::-1].copy())[0], whole[1, ::-1])


def test_every_argument_matters() -> None:
    seen = {
        uniform(seed, position, purpose, salt)
        for seed, position, purpose, salt in itertools.product(
            range(6), range(6), Purpose, range(6)
        )
    }
    assert len(seen) == 6 * 6 * 4 * 6


# ── distribution and independence ────────────────────────────────────────────────────


def _pairs(step: str, count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    neighbours = {
        "position": lambda i: uniform(11, i + 1, Purpose.ACCEPT),
        "purpose": lambda i: uniform(11, i, Purpose.TARGET),
        "draft": lambda i: uniform(11, i, Purpose.DRAFT, 1),
        "seed": lambda i: uniform(12, i, Purpose.ACCEPT),
        "high seed": lambda i: uniform(11 + 2**63, i, Purpose.ACCEPT),
        "salt": lambda i: uniform(11, i, Purpose.ACCEPT, 1),
        "swapped": lambda i: uniform(i, 11, Purpose.ACCEPT),
    }
    one = np.array([uniform(11, i, Purpose.ACCEPT) for i in range(count)])
    return one, np.array([neighbours[step](i) for i in range(count)])


@pytest.mark.parametrize(
    "step", ["position", "purpose", "draft", "seed", "high seed", "salt", "swapped"]
)
def test_neighbours_are_independent(step: str) -> None:
    """Pairs fall into a 10 × 10 grid evenly. Error probability 1e-6."""
    one, other = _pairs(step)
    cells = Counter(zip((one * 10).astype(int), (other * 10).astype(int), strict=True))
    expected = dict.fromkeys(itertools.product(range(10), repeat=2), 0.01)
    assert chi_square_p(cells, expected) > ERROR


@pytest.mark.parametrize("seed", [0, 1, TOP])
def test_uniforms_are_uniform(seed: int) -> None:
    """Kolmogorov-Smirnov, error probability 1e-6."""
    values = uniforms(seed, 0, 20_000, Purpose.TARGET)
    assert stats.kstest(values, "uniform").pvalue > ERROR
    assert min(values) > 0.0 and max(values) < 1.0


@pytest.mark.parametrize("seed", [0, 5, TOP])
def test_exponentials_are_exponential(seed: int) -> None:
    """Kolmogorov-Smirnov, and a mean within 4.9 standard errors: error probability 2e-6."""
    values = exponentials(seed, [0, 1, 2], np.arange(20_000)).ravel()
    assert (values > 0).all() and np.isfinite(values).all()
    assert stats.kstest(values, "expon").pvalue > ERROR
    assert abs(values.mean() - 1.0) < 4.9 / math.sqrt(len(values))


@pytest.mark.parametrize("what", ["token", "position", "seed"])
def test_noise_of_neighbours_is_independent(what: str) -> None:
    """Rank correlation of 20 000 pairs. Error probability 1e-6."""
    ids = np.arange(20_000)
    one = exponentials(3, [50], ids)[0]
    other = {
        "token": exponentials(3, [50], ids + 1)[0],
        "position": exponentials(3, [51], ids)[0],
        "seed": exponentials(4, [50], ids)[0],
    }[what]
    assert stats.spearmanr(one, other).pvalue > ERROR


def test_the_tests_of_independence_can_fail() -> None:
    one, _ = _pairs("position")
    cells = Counter(zip((one * 10).astype(int), (one * 10).astype(int), strict=True))
    expected = dict.fromkeys(itertools.product(range(10), repeat=2), 0.01)
    assert chi_square_p(cells, expected) < ERROR
