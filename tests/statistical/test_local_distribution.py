"""What the on-device pair writes is distributed as the target's own sampling.

Chi-square tests of error probability 1e-6 (`tests.support.statistics`); seeds are fixed.
The exact probabilities are those of the target's logits, evaluated a token at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edge_client import EdgeClient, Mode, Verification
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.local.target import LlamaTarget
from specwire.sampling import SamplingParams, distribution
from tests.support.edge import asking
from tests.support.statistics import ERROR, chi_square_p
from tests.support.tiny_models import LETTERS, write_tiny_gguf

pytestmark = pytest.mark.slow

PROMPT = (4, 7)
LENGTH = 2
SESSIONS = 3_000
"""Enough to notice, with 60 likely pairs of tokens, a relative error of some 20 %."""
AT_ONCE = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    return write_tiny_gguf(folder / "target.gguf", vocabulary=LETTERS)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    return write_tiny_gguf(folder / "draft.gguf", vocabulary=LETTERS, noise=0.3)


def exact(path: Path, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probabilities of the first two tokens after the prompt."""
    with LlamaWeights(path) as weights:
        model, size = LlamaTarget(weights, context=16, threads=1), len(weights.vocabulary)

        def p(*tokens: int) -> np.ndarray:
            logits = model.logits_after(tokens, 1).astype(np.float64)
            row: np.ndarray = distribution(logits, params, size=size)[0]
            return row

        first = p(*PROMPT).copy()
        table: dict[tuple[int, ...], float] = {}
        for a in range(size):
            for b, chance in enumerate(p(*PROMPT, a)):
                table[a, b] = float(first[a] * chance)
        model.close()
    return table


@pytest.mark.parametrize(
    ("mode", "verification"),
    [
        (Mode.SYNC, Verification.REJECTION),
        (Mode.PIPELINE, Verification.REJECTION),
        (Mode.SYNC, Verification.COUPLED),
    ],
)
async def test_first_tokens_follow_the_targets_distribution(
    target: Path, draft: Path, mode: Mode, verification: Verification
) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.97)
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = examined = 0
    async with EdgeClient.local(str(target), draft=str(draft), threads=1, context=64) as client:

        async def some(first: int) -> None:
            nonlocal accepted, examined
            for seed in range(first, SESSIONS, AT_ONCE):
                options = asking(
                    LENGTH + 2,
                    mode=mode,
                    gamma=3,
                    seed=seed,
                    temperature=params.temperature,
                    top_p=params.top_p,
                    verification=verification,
                )
                result = await client.complete(PROMPT, options=options)
                # An end token ends a text before its time; it is too rare here to be seen.
                seen[tuple(result.token_ids[:LENGTH])] += 1
                accepted += result.counts.accepted
                examined += result.counts.examined

        await asyncio.gather(*(some(first) for first in range(AT_ONCE)))
    assert 0.3 < accepted / examined < 0.95  # both ways of going on are there
    assert chi_square_p(seen, exact(target, params)) > ERROR
    assert chi_square_p(seen, exact(draft, params)) < ERROR  # what the draft adds is noticed
