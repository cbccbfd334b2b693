"""The q that travels: truncation, quantisation, drawing. q is what is drawn from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from specwire.acceptance import coupled_tokens
from specwire.errors import ModelError
from specwire.qrow import (
    QRow,
    Truncation,
    coupled_draft,
    draft_noise,
    draft_row,
    draw_row,
    point_row,
    stack_rows,
)
from specwire.randomness import Purpose, exponentials, uniform
from specwire.sampling import History, SamplingParams, distribution
from tests.support.statistics import ERROR, chi_square_p

PLAIN = SamplingParams()
LOW, HIGH = 2.0**-53, 1.0 - 2.0**-53

logits_arrays = npst.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(-30, 30, width=32) | st.just(-np.inf),
).filter(lambda row: bool(np.isfinite(row).any()))

truncations = st.integers(1, 12).flatmap(
    lambda bits: st.builds(
        Truncation,
        cover=st.floats(0.05, 1.0),
        cap=st.integers(1, min(255, 1 << bits)),
        weight_bits=st.just(bits),
    )
)

params_of = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.05]),
)


def assert_well_formed(row: QRow, truncation: Truncation) -> None:
    weights = row.probs * (1 << truncation.weight_bits)
    assert np.array_equal(weights, np.rint(weights))
    assert weights.sum() == 1 << truncation.weight_bits
    assert (weights >= 1).all()
    assert (np.diff(row.ids) > 0).all()
    assert row.ids.dtype == np.int64 and row.probs.dtype == np.float64
    assert 1 <= len(row.ids) <= truncation.cap


@settings(max_examples=300, deadline=None)
@given(logits_arrays, params_of, truncations)
def test_a_row_is_well_formed(
    logits: np.ndarray, params: SamplingParams, truncation: Truncation
) -> None:
    row = draft_row(logits, params, truncation, size=len(logits))
    assert_well_formed(row, truncation)


@settings(max_examples=300, deadline=None)
@given(logits_arrays, params_of, truncations)
def test_the_support_lies_within_the_smallest_covering_set(
    logits: np.ndarray, params: SamplingParams, truncation: Truncation
) -> None:
    """Nothing outside it: everything in the row is among the likeliest that cover enough."""
    row = draft_row(logits, params, truncation, size=len(logits))
    p = distribution(logits[None], params)[0]
    smallest = p[row.ids].min()
    # What is strictly likelier than the least likely id kept does not cover enough by itself.
    assert p[p > smallest * (1 + 1e-5)].sum() < truncation.cover + 1e-5
    assert smallest > 0.0


@settings(max_examples=100, deadline=None)
@given(logits_arrays, truncations, st.floats(LOW, HIGH))
def test_a_drawn_token_has_mass(logits: np.ndarray, truncation: Truncation, noise: float) -> None:
    row = draft_row(logits, PLAIN, truncation, size=len(logits))
    assert row.prob(draw_row(row, noise)) > 0.0


def test_draws_at_both_ends_stay_inside() -> None:
    row = QRow(np.array([3, 8, 9]), np.array([0.25, 0.5, 0.25]))
    noises = [LOW, 0.2499, 0.25, 0.7499, 0.75, HIGH]
    assert [draw_row(row, noise) for noise in noises] == [3, 3, 8, 8, 9, 9]


def test_draws_follow_q() -> None:
    """Chi-square over 20 000 draws with the edge's own noise. Error probability 1e-6."""
    logits = np.random.default_rng(0).normal(scale=2, size=500).astype(np.float32)
    row = draft_row(logits, PLAIN, Truncation(), size=500)
    assert len(row.ids) > 3
    draws = Counter(draw_row(row, draft_noise(5, i, 1)) for i in range(20_000))
    expected = dict(zip(row.ids.tolist(), row.probs.tolist(), strict=True))
    assert chi_square_p(draws, expected) > ERROR


def test_draft_noise_is_drawn_anew_in_each_chain() -> None:
    assert draft_noise(1, 5, 2) == uniform(1, 5, Purpose.DRAFT, 2)
    assert len({draft_noise(1, 5, chain) for chain in range(50)}) == 50


def test_quantisation_is_close_to_the_shares() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    row = draft_row(logits, PLAIN, Truncation(1.0, 16, 6), size=4)
    assert row.ids.tolist() == [0, 1, 2, 3]
    assert row.probs.tolist() == [0.5, 0.25, 0.125, 0.125]


def test_flat_logits_keep_as_many_as_the_cap() -> None:
    row = draft_row(np.zeros(50_000, np.float32), PLAIN, Truncation(), size=50_000)
    assert len(row.ids) == 16
    assert row.probs.tolist() == [1 / 16] * 16


def test_one_dominating_token_is_a_point() -> None:
    logits = np.zeros(1000, np.float32)
    logits[123] = 40.0
    row = draft_row(logits, PLAIN, Truncation(), size=1000)
    assert (row.ids.tolist(), row.probs.tolist()) == ([123], [1.0])


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 5e-324])
@pytest.mark.parametrize("penalty", [0.0, 5.0])
def test_greedy_is_a_point(temperature: float, penalty: float) -> None:
    params = SamplingParams(temperature=temperature, presence_penalty=penalty)
    logits = np.array([0.0, 4.0, 3.0, 1.0], np.float32)
    row = draft_row(logits, params, Truncation(), size=4, history=History([], [1]))
    assert (row.ids.tolist(), row.probs.tolist()) == ([2 if penalty else 1], [1.0])
    token = coupled_draft(logits, params, seed=1, position=2, size=4, history=History([], [1]))
    assert token == (2 if penalty else 1)


@pytest.mark.parametrize("params", [PLAIN, SamplingParams(top_k=2), SamplingParams(temperature=0)])
@pytest.mark.parametrize(
    "bad",
    [[np.nan, 0, 1], [-np.inf] * 3, [0, np.inf, 0], [np.nan] * 3],
    ids=["a nan", "all -inf", "inf", "all nan"],
)
def test_logits_that_are_no_numbers_are_an_error_that_says_so(
    params: SamplingParams, bad: list[float]
) -> None:
    logits = np.array(bad, np.float32)
    with pytest.raises(ModelError, match="NaN or infinite"):
        draft_row(logits, params, Truncation(), size=3)
    with pytest.raises(ModelError, match="NaN or infinite"):
        coupled_draft(logits, params, seed=1, position=5, size=3)


@pytest.mark.parametrize(
    "params", [PLAIN, SamplingParams(top_p=0.9), SamplingParams(temperature=0)]
)
def test_ids_without_any_chance_are_left_out(params: SamplingParams) -> None:
    logits = np.array([-np.inf, 2.0, -np.inf, 1.0], np.float32)
    row = draft_row(logits, params, Truncation(1.0, 16, 6), size=4)
    assert set(row.ids.tolist()) <= {1, 3}


@pytest.mark.parametrize("params", [PLAIN, SamplingParams(top_k=5), SamplingParams(temperature=0)])
def test_padding_is_never_drafted(params: SamplingParams) -> None:
    """Neither columns beyond the vocabulary nor ids inside that stand for nothing."""
    logits = np.random.default_rng(2).normal(size=64).astype(np.float32)
    logits[[7, 30, *range(60, 64)]] = 20.0
    before = logits.copy()
    row = draft_row(logits, params, Truncation(), size=60, padding_ids=(7, 30))
    assert row.ids.max() < 60 and not {7, 30} & set(row.ids.tolist())
    for position in range(50):
        token = coupled_draft(
            logits, params, seed=0, position=position, size=60, padding_ids=(7, 30)
        )
        assert token < 60 and token not in (7, 30)
    assert np.array_equal(logits, before)


def test_a_row_obeys_the_sessions_sampling() -> None:
    """S2: q is truncated by the same parameters that p is."""
    logits = np.log([0.4, 0.3001, 0.2999])
    row = draft_row(logits, SamplingParams(top_k=2), Truncation(1.0, 16, 8), size=3)
    assert row.ids.tolist() == [0, 1]
    assert row.probs == pytest.approx([4 / 7, 3 / 7], abs=1 / 256)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cover", 0.0), ("cover", 1.1), ("cap", 0), ("cap", 65), ("weight_bits", 0),
     ("weight_bits", 17)],
)  # fmt: skip
def test_truncations_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(Truncation(), **{field: value})  # type: ignore[arg-type]


# ── coupled ──────────────────────────────────────────────────────────────────────────


def test_a_coupled_draft_is_the_argmax_over_the_whole_vocabulary() -> None:
    """Leaving improbable ids out hardly ever changes the winner: never in 2 000 rows.

    An id below 1e-7 wins with a chance below 1e-7 times their number, here 5e-6 a row;
    the chance of any in 2 000 rows is 1e-2 at the very most, and the seed is fixed.
    """
    random = np.random.default_rng(0)
    ids = np.arange(50)
    for position in range(2_000):
        logits = random.normal(scale=3, size=50).astype(np.float32)
        p = distribution(logits[None].astype(np.float64), PLAIN)
        noise = exponentials(9, [position], ids)
        token = coupled_draft(logits, PLAIN, seed=9, position=position, size=50)
        assert token == int(coupled_tokens(p, noise)[0])


def test_coupled_drafts_follow_q() -> None:
    """Chi-square over 20 000 positions. Error probability 1e-6."""
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1], np.float32))
    draws = Counter(coupled_draft(logits, PLAIN, seed=3, position=i, size=4) for i in range(20_000))
    assert chi_square_p(draws, {0: 0.5, 1: 0.2, 2: 0.2, 3: 0.1}) > ERROR


# ── stacking ─────────────────────────────────────────────────────────────────────────


def test_stacked_rows_are_padded_with_the_size() -> None:
    rows = [point_row(4), QRow(np.array([1, 2, 6]), np.array([0.5, 0.25, 0.25]))]
    for p in (np.zeros((3, 7)), torch.zeros((3, 7), dtype=torch.float64)):
        stacked = stack_rows(rows, 7, p)
        assert np.asarray(stacked.ids).tolist() == [[4, 7, 7], [1, 2, 6]]
        assert np.asarray(stacked.probs).tolist() == [[1, 0, 0], [0.5, 0.25, 0.25]]
        assert type(stacked.ids) is type(p)


def test_no_rows_stack_to_nothing() -> None:
    stacked = stack_rows([], 7, np.zeros((1, 7)))
    assert stacked.ids.shape[0] == 0 and stacked.probs.shape[0] == 0


def test_prob_of_a_row() -> None:
    row = QRow(np.array([1, 6]), np.array([0.75, 0.25]))
    assert [row.prob(token) for token in (0, 1, 6, 7)] == [0.0, 0.75, 0.25, 0.0]
