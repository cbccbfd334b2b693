"""A session's round: row by row, all at once, and what a session asked to know of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specwire.cloud_session import Work
from specwire.examination import examine, examine_at_once, examine_by_row, round_logprobs
from specwire.qrow import Truncation, coupled_draft, draft_noise, draft_row, draw_row
from specwire.request import SessionRequest
from specwire.sampling import History, SamplingParams, raw_logprobs
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

SIZE, WIDTH, START = 7, 9, 3
NAMES = [None if i == 4 else chr(ord("a") + i) for i in range(SIZE)]
VOCABULARY = Vocabulary(NAMES, [(name or "").encode() for name in NAMES], frozenset())
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.3, repetition_penalty=1.3, frequency_penalty=0.4),
]
MODES = (pb.VERIFICATION_MODE_REJECTION, pb.VERIFICATION_MODE_COUPLED)
Make = Callable[[np.ndarray], Any]


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    return np.asarray if request.param == "numpy" else torch.from_numpy


def case(
    seed: int, gamma: int, params: SamplingParams, mode: pb.VerificationMode
) -> tuple[SessionRequest, Work, np.ndarray, History]:
    """A round whose drafts come from logits near the target's."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=1.5, size=(gamma + 1, WIDTH)).astype(np.float32)
    near = logits + rng.normal(scale=0.4, size=logits.shape).astype(np.float32)
    prompt, output = (0, 1), [int(rng.integers(3))]
    tokens: list[int] = []
    rows = []
    for i in range(gamma):
        history = History(prompt, [*output, *tokens])
        if mode == pb.VERIFICATION_MODE_COUPLED:
            tokens.append(
                coupled_draft(
                    near[i],
                    params,
                    seed=seed,
                    position=START + i,
                    size=SIZE,
                    padding_ids=VOCABULARY.padding_ids,
                    history=history,
                )
            )
            continue
        row = draft_row(
            near[i],
            params,
            Truncation(),
            size=SIZE,
            padding_ids=VOCABULARY.padding_ids,
            history=history,
        )
        rows.append(row)
        tokens.append(draw_row(row, draft_noise(seed, START + i, 1)))
    request = SessionRequest(prompt, seed=seed, max_tokens=100, sampling=params, mode=mode)
    return request, Work(START, 1, tuple(tokens), tuple(rows)), logits, History(prompt, output)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("params", PARAMS)
def test_row_by_row_and_all_at_once_decide_the_same(
    make: Make, params: SamplingParams, mode: pb.VerificationMode
) -> None:
    accepted = set()
    for seed in range(40):
        for gamma in (0, 1, 4):
            request, work, logits, history = case(seed, gamma, params, mode)
            arguments = (request, work, make(logits), history, VOCABULARY)
            one, other = examine_by_row(*arguments), examine_at_once(*arguments)
            assert (int(one.accepted), int(one.token)) == (int(other.accepted), int(other.token))
            assert 0 <= int(one.token) < SIZE
            assert int(one.token) != 4  # padding
            accepted.add(int(one.accepted))
    assert {0, 1, 4} <= accepted  # the cases reach the ends


@pytest.mark.parametrize("mode", MODES)
def test_at_temperature_zero_the_likeliest_token_decides(
    make: Make, mode: pb.VerificationMode
) -> None:
    request, work, logits, _ = case(5, 3, SamplingParams(temperature=0.0), mode)
    best = np.where(np.arange(SIZE) == 4, -math.inf, logits[:, :SIZE]).argmax(-1).tolist()
    for right in range(4):
        tokens = [*best[:right], *(0 if b else 1 for b in best[right:3])]
        done = examine(request, work._replace(tokens=tuple(tokens)), make(logits), None, VOCABULARY)
        assert (int(done.accepted), int(done.token)) == (right, best[right])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_gives_no_token(
    make: Make, mode: pb.VerificationMode, temperature: float
) -> None:
    request, work, logits, history = case(1, 0, SamplingParams(temperature=temperature), mode)
    logits[:] = math.nan
    done = examine(request, work, make(logits), history, VOCABULARY)
    assert (int(done.accepted), int(done.token)) == (0, -1)


def test_logprobs_are_of_accepted_tokens_and_the_targets_own(make: Make) -> None:
    request, work, logits, _ = case(2, 3, SamplingParams(), MODES[0])
    table = np.asarray(raw_logprobs(logits, SIZE))
    wanting = replace(request, logprobs=2)
    entries = round_logprobs(wanting, work, make(logits), (2, 5), SIZE)
    assert [e.logprob for e in entries] == pytest.approx(
        [table[0][work.tokens[0]], table[1][work.tokens[1]], table[2][5]], abs=1e-5
    )
    assert [list(e.top_ids) for e in entries] == np.argsort(-table, -1)[:3, :2].tolist()
    assert (
        round_logprobs(replace(request, logprobs=0), work, make(logits), (0, 1), SIZE)[0].top_ids
        == []
    )
    assert round_logprobs(request, work, make(logits), (2, 5), SIZE) == []
    assert round_logprobs(wanting, work, make(logits), (2, -1), SIZE) == []
