"""Several rows of logits of one sequence: their places, batches that cut them, going back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_client.draft.llama_sequence import LlamaSequence
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import BadRequest
from tests.support.tiny_models import FULL, SPECIALS

SIZE = len(SPECIALS) + len(FULL)
GGML_F32 = 0
ROWS = 5


@pytest.fixture(scope="module")
def tiny(tiny_gguf: Path) -> Iterator[LlamaWeights]:
    with LlamaWeights(tiny_gguf) as weights:
        yield weights


def make(weights: LlamaWeights, batch: int = 64, most_rows: int = ROWS) -> LlamaSequence:
    return LlamaSequence(
        weights,
        role="target",
        context=256,
        threads=1,
        batch=batch,
        most_rows=most_rows,
        cache=GGML_F32,
    )


def ids(count: int, seed: int = 0) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(3, SIZE, count).tolist()
    return numbers


@pytest.fixture(scope="module")
def one_by_one(tiny: LlamaWeights) -> np.ndarray:
    """Row i holds the logits after the first i + 1 of 40 tokens."""
    sequence = make(tiny, most_rows=1)
    table = np.stack([sequence.extend([token])[0].copy() for token in ids(40)])
    sequence.close()
    return table


@pytest.mark.parametrize("batch", [1, 3, 5, 7, 38, 64])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_are_of_the_last_tokens_whatever_the_batches(
    tiny: LlamaWeights, one_by_one: np.ndarray, batch: int, rows: int
) -> None:
    sequence = make(tiny, batch)
    got = sequence.logits_after(ids(40), rows)
    assert got.shape == (rows, tiny.width)
    np.testing.assert_allclose(got, one_by_one[-rows:], atol=1e-2)
    assert (got.argmax(-1) == one_by_one[-rows:].argmax(-1)).all()
    sequence.close()


def test_rounds_of_a_target(tiny: LlamaWeights, one_by_one: np.ndarray) -> None:
    """Drafts that are wrong from some place on, the right tokens then: rows agree throughout."""
    sequence, truth, rng = make(tiny), ids(40), np.random.default_rng(1)
    frontier = 9
    while frontier < 35:
        right = int(rng.integers(0, 5))
        drafts = [*truth[frontier : frontier + right], *ids(4, seed=frontier)][:4]
        got = sequence.logits_after([*truth[:frontier], *drafts], 5)
        good = next((i for i in range(4) if drafts[i] != truth[frontier + i]), 4)
        np.testing.assert_allclose(
            got[: good + 1], one_by_one[frontier - 1 : frontier + good], atol=1e-2
        )
        frontier += good + 1
    sequence.close()


def test_the_same_again_costs_nothing_and_other_rows_are_made_anew(tiny: LlamaWeights) -> None:
    sequence = make(tiny)
    first = sequence.logits_after(ids(20), 3)
    assert sequence.logits_after(ids(20), 3) is first
    kept = first.copy()
    fewer = sequence.logits_after(ids(20), 2)
    np.testing.assert_allclose(fewer, kept[1:], atol=1e-2)
    assert sequence.tokens == ids(20)
    sequence.close()


def test_more_rows_than_tokens_or_than_there_is_room_for(tiny: LlamaWeights) -> None:
    sequence = make(tiny)
    with pytest.raises(BadRequest, match="2 tokens can't give 3 rows"):
        sequence.logits_after([4, 5], 3)
    with pytest.raises(ValueError, match="the most is 5"):
        sequence.extend(ids(9), 6)
    assert sequence.tokens == []
    sequence.close()
    assert sequence.closed


def test_a_stopped_sequence_begins_nothing_until_it_is_resumed(tiny: LlamaWeights) -> None:
    sequence = make(tiny)
    sequence.extend([5])
    sequence.stop()
    with pytest.raises(RuntimeError, match="the target tiny is stopped"):
        sequence.extend([5])
    sequence.resume()
    sequence.extend([6])
    assert sequence.tokens == [5, 6]
    sequence.close()
    sequence.resume()
    with pytest.raises(RuntimeError, match="the target tiny is closed"):
        sequence.extend([5])
