"""`distribution` against transformers' own processors, its edges, and parameter checks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specwire.errors import BadRequest
from specwire.sampling import (
    MAX_TOP_K,
    History,
    SamplingParams,
    distribution,
    greedy_tokens,
    raw_logprobs,
)
from specwire.v1 import verifier_pb2 as pb

Make = Callable[[Any], Any]


def numpy_array(values: Any) -> Any:
    return np.asarray(values)


def torch_array(values: Any) -> Any:
    return torch.asarray(np.asarray(values))


LIBRARIES = pytest.mark.parametrize("make", [numpy_array, torch_array], ids=["numpy", "torch"])
SIZE = 60


def logits_of(seed: int, rows: int = 4, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=(rows, size))


# ── against transformers ─────────────────────────────────────────────────────────────


def reference(
    logits: np.ndarray, params: SamplingParams, history: Sequence[int] = ()
) -> np.ndarray:
    """One row through transformers' processors, in the order of its `generate`."""
    scores = torch.tensor(logits[None], dtype=torch.float64)
    ids = torch.tensor([list(history)], dtype=torch.long)
    if params.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    if params.temperature != 1.0:
        scores = TemperatureLogitsWarper(float(params.temperature))(ids, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1.0:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return np.asarray(torch.softmax(scores, -1)[0].numpy())


ALONE = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=2.5),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7),
    SamplingParams(top_k=SIZE),
    SamplingParams(top_k=SIZE + 5),
    SamplingParams(top_p=0.01),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.95),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1.0),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.5),
]
TOGETHER = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, repetition_penalty=r)
    for t, k, p, m, r in itertools.product([0.6, 1.4], [0, 9], [0.8, 1.0], [0.0, 0.1], [1.0, 1.2])
]


@LIBRARIES
@pytest.mark.parametrize("params", ALONE + TOGETHER, ids=str)
def test_it_equals_transformers(make: Make, params: SamplingParams) -> None:
    history = [3, 3, 17, 59]
    for seed in range(3):
        logits = logits_of(seed)
        # The prompt counts for the repetition penalty alone, so it may hold all of it.
        drafted = [7, 8, 7]
        p = distribution(make(logits), params, history=History(prompt=history), drafted=drafted)
        expected = [
            reference(row, params, [*history, *drafted[:i]]) for i, row in enumerate(logits)
        ]
        assert np.asarray(p) == pytest.approx(np.stack(expected), abs=1e-6)


@LIBRARIES
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float64", 1e-12)])
def test_rows_sum_to_one_in_the_precision_of_the_logits(
    make: Make, dtype: str, error: float
) -> None:
    for params in ALONE + TOGETHER:
        exact = distribution(logits_of(9), params, drafted=[1, 2, 3])
        p = distribution(make(logits_of(9).astype(dtype)), params, drafted=[1, 2, 3])
        assert dtype in str(p.dtype)
        assert np.asarray(p).sum(1) == pytest.approx(np.ones(4), abs=error)
        assert np.asarray(p) == pytest.approx(exact, abs=error)


@LIBRARIES
def test_greedy_tokens_are_where_temperature_zero_has_its_one(make: Make) -> None:
    for penalty in (0, 4):
        params = SamplingParams(temperature=0, presence_penalty=penalty)
        logits = make(logits_of(5))
        history, drafted = History([1, 2], [3, 4]), [5, 6, 7]
        p = distribution(logits, params, history=history, drafted=drafted, size=50)
        best = greedy_tokens(logits, params, history=history, drafted=drafted, size=50)
        assert np.asarray(best).tolist() == np.asarray(p).argmax(1).tolist()
    rows = np.array([[np.nan, 1.0, 2.0], [-np.inf] * 3, [0.0, 2.0, 1.0]])
    assert np.asarray(greedy_tokens(make(rows), SamplingParams(temperature=0))).tolist() == [
        -1,
        -1,
        1,
    ]


@LIBRARIES
def test_ties_with_the_kth_stay(make: Make) -> None:
    p = distribution(make(np.array([[1.0, 2.0, 1.0, 0.0]])), SamplingParams(top_k=2))
    assert (np.asarray(p)[0] > 0).tolist() == [True, True, True, False]


@LIBRARIES
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(make: Make) -> None:
    logits = make(np.log([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, kept in ((0.4, 1), (0.5001, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)):
        p = distribution(logits, SamplingParams(top_p=top_p))
        assert int((np.asarray(p) > 0).sum()) == kept


# ── penalties ────────────────────────────────────────────────────────────────────────


def penalised(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    """One row, one token at a time, as the definitions say."""
    z = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        z[token] = z[token] / factor if z[token] > 0 else z[token] * factor
    for token in set(output):
        z[token] -= params.presence_penalty
        z[token] -= params.frequency_penalty * list(output).count(token)
    e = np.exp((z - z.max()) / params.temperature)
    return np.asarray(e / e.sum())


@LIBRARIES
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(presence_penalty=1.5),
        SamplingParams(frequency_penalty=1.5),
        SamplingParams(frequency_penalty=-0.7, temperature=0.5),
        SamplingParams(presence_penalty=-2.0, frequency_penalty=0.3),
        SamplingParams(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2),
    ],
    ids=str,
)
def test_s6_each_row_sees_the_drafts_before_it_and_no_others(
    make: Make, params: SamplingParams
) -> None:
    prompt, output, drafted = [1, 2, 2, 5], [5, 5, 9], [9, 40, 9, 9]
    logits = logits_of(21, rows=5)
    p = distribution(make(logits), params, history=History(prompt, output), drafted=drafted)
    for row in range(5):
        expected = penalised(logits[row], params, prompt, [*output, *drafted[:row]])
        assert np.asarray(p)[row] == pytest.approx(expected, abs=1e-12)


@LIBRARIES
def test_s6_rejected_drafts_leave_no_trace(make: Make) -> None:
    """A second round with the same history gives what a fresh one gives."""
    params = SamplingParams(frequency_penalty=1.5, presence_penalty=1.5, temperature=0)
    logits = make(logits_of(2))
    history = History([1], [2, 3])
    first = distribution(logits, params, history=history, drafted=[7, 7, 7])
    distribution(logits, params, history=history, drafted=[8, 9, 10])
    again = distribution(logits, params, history=history, drafted=[7, 7, 7])
    assert np.array_equal(np.asarray(first), np.asarray(again))
    assert (history.prompt, history.output) == ([1], [2, 3])


@LIBRARIES
def test_s6_greedy_with_penalties_does_not_depend_on_gamma(make: Make) -> None:
    """Greedy tokens row by row are those of one row after the other."""
    params = SamplingParams(temperature=0, frequency_penalty=1.5, presence_penalty=1.5)
    table = logits_of(4, rows=SIZE)
    output = [0]
    for _ in range(12):
        p = distribution(make(table[output[-1:]]), params, history=History([], output))
        output.append(int(np.asarray(p)[0].argmax()))
    for gamma in (1, 4, 8):
        drafted = output[1 : gamma + 1]
        rows = make(table[[0, *drafted]])
        p = distribution(rows, params, history=History([], [0]), drafted=drafted)
        assert np.asarray(p).argmax(1).tolist() == output[1 : gamma + 2]


def test_penalties_need_the_drafts() -> None:
    with pytest.raises(ValueError, match="4 rows need 3 drafted tokens"):
        distribution(logits_of(0), SamplingParams(presence_penalty=1.0), drafted=[1, 2])


# ── edges ────────────────────────────────────────────────────────────────────────────


@LIBRARIES
@pytest.mark.parametrize("params", [SamplingParams(), ALONE[4], TOGETHER[3]], ids=str)
def test_inputs_are_not_changed(make: Make, params: SamplingParams) -> None:
    for dtype in (np.float32, np.float64):
        logits = make(logits_of(1).astype(dtype))
        before = np.asarray(logits).copy()
        distribution(
            logits, params, history=History([1], [2]), drafted=[3, 4, 5], padding_ids=[0, 9]
        )
        raw_logprobs(logits, SIZE)
        assert np.array_equal(np.asarray(logits), before)


@LIBRARIES
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-45, 5e-324, 1e-300])
def test_the_smallest_temperatures_are_greedy(make: Make, temperature: float) -> None:
    logits = logits_of(3)
    p = np.asarray(distribution(make(logits), SamplingParams(temperature=temperature)))
    expected = np.zeros_like(p)
    expected[np.arange(4), logits.argmax(1)] = 1.0
    assert np.array_equal(p, expected)


@LIBRARIES
def test_greedy_takes_the_first_of_equals(make: Make) -> None:
    p = distribution(make(np.array([[1.0, 3.0, 3.0]])), SamplingParams(temperature=0))
    assert np.asarray(p).tolist() == [[0.0, 1.0, 0.0]]


@LIBRARIES
@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(), TOGETHER[-1]], ids=str
)
@pytest.mark.parametrize(
    "bad", [[-np.inf] * 4, [0, np.nan, 1, 2], [0, np.inf, 1, 2], [np.nan] * 4], ids=str
)
def test_an_unusable_row_is_nan_and_the_others_are_not(
    make: Make, params: SamplingParams, bad: list[float]
) -> None:
    good = [0.1, 0.2, -np.inf, 3.0]
    rows = make(np.array([good, bad, good]))
    p = np.asarray(distribution(rows, params, drafted=[0, 1]))
    assert np.isnan(p[1]).all()
    expected = np.asarray(distribution(make(np.array([good] * 3)), params, drafted=[0, 1]))
    assert np.array_equal(p[[0, 2]], expected[[0, 2]])
    assert p[0, 2] == 0.0


@LIBRARIES
@pytest.mark.parametrize("params", [*ALONE[:6], TOGETHER[3], SamplingParams(temperature=0)])
def test_padding_has_probability_zero_exactly(make: Make, params: SamplingParams) -> None:
    """Whatever its logits are: the model was never taught any."""
    logits = logits_of(5)
    logits[:, [4, 11, *range(50, SIZE)]] = 50.0
    p = np.asarray(
        distribution(make(logits), params, size=50, padding_ids=(4, 11), drafted=[1, 2, 3])
    )
    assert p.shape == (4, 50)
    assert (p[:, [4, 11]] == 0.0).all()
    assert p.sum(1) == pytest.approx(np.ones(4))
    alone = np.delete(logits[:, :50], [4, 11], axis=1)
    expected = np.asarray(distribution(make(alone), params, drafted=[1, 2, 3]))
    if not params.penalises:
        assert np.delete(p, [4, 11], axis=1) == pytest.approx(expected, abs=1e-12)


def test_a_vocabulary_wider_than_the_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="60 logits but a vocabulary of 61"):
        distribution(logits_of(0), SamplingParams(), size=61)


@LIBRARIES
def test_raw_logprobs_are_the_models_own(make: Make) -> None:
    logits = logits_of(6)
    got = np.asarray(raw_logprobs(make(logits), 40))
    assert np.exp(got).sum(1) == pytest.approx(np.ones(4))
    expected = torch.log_softmax(torch.tensor(logits[:, :40]).double(), -1).numpy()
    assert got == pytest.approx(expected, abs=1e-12)


# ── parameters ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(
            [
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
            ],
            [math.nan, math.inf, -math.inf, "1", None, True],
        ),
        ("temperature", -0.1),
        ("temperature", -5e-324),
        ("temperature", 100.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", MAX_TOP_K + 1),
        ("top_p", 0.0),
        ("top_p", -0.1),
        ("top_p", 1.0001),
        ("min_p", -0.1),
        ("top_k", 10**400),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 101.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", -101.0),
    ],
)
def test_wrong_parameters_are_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**{field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("params", ALONE + TOGETHER, ids=str)
def test_parameters_travel(params: SamplingParams) -> None:
    message = pb.Sampling.FromString(params.to_proto().SerializeToString())
    assert SamplingParams.from_proto(message) == params


def test_absent_fields_mean_their_defaults() -> None:
    assert SamplingParams.from_proto(pb.Sampling()) == SamplingParams()
    assert SamplingParams.from_proto(pb.Sampling(temperature=0.0)).greedy
    with pytest.raises(BadRequest, match="temperature"):
        SamplingParams.from_proto(pb.Sampling(temperature=math.nan))


@pytest.mark.parametrize(
    ("params", "greedy", "penalises"),
    [
        (SamplingParams(), False, False),
        (SamplingParams(temperature=0), True, False),
        (SamplingParams(repetition_penalty=0.9), False, True),
        (SamplingParams(presence_penalty=0.1), False, True),
        (SamplingParams(temperature=0, frequency_penalty=-1), True, True),
    ],
)
def test_greedy_and_penalises(params: SamplingParams, greedy: bool, penalises: bool) -> None:
    assert (params.greedy, params.penalises) == (greedy, penalises)
