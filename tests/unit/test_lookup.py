from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from edge_client.draft.lookup import GOOD_MATCH, MATCH, CombinedSource, Index, LookupSource
from edge_client.draft.source import Drafted


def slow_match(tokens: Sequence[int]) -> tuple[int, int]:
    """The same by brute force: the latest earlier end with at least MATCH tokens alike."""
    if len(tokens) < MATCH:
        return -1, 0
    for end in range(len(tokens) - 1, MATCH - 1, -1):
        if list(tokens[end - MATCH : end]) == list(tokens[-MATCH:]):
            length = MATCH
            while length < min(16, end) and tokens[end - length - 1] == tokens[-length - 1]:
                length += 1
            return tokens[end], length
    return -1, 0


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    index, text = Index(), [rng.randrange(3) for _ in range(5)]
    for _ in range(300):
        if rng.random() < 0.1:  # a chain was dropped
            del text[rng.randrange(len(text) + 1) :]
        text += [rng.randrange(3) for _ in range(rng.randrange(4))]
        index.follow(text)
        assert index.match() == slow_match(text)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7]])
def test_nothing_repeats_nothing_is_drafted(text: list[int]) -> None:
    assert LookupSource(coupled=True).next(text, 1) is None


def test_what_followed_the_latest_match_is_drafted() -> None:
    drafted = LookupSource(coupled=False).next([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1)
    assert drafted is not None and drafted.token == 5
    assert drafted.row is not None
    assert list(drafted.row.ids) == [5] and list(drafted.row.probs) == [1.0]
    coupled = LookupSource(coupled=True).next([1, 2, 3, 4, 1, 2, 3], 1)
    assert coupled is not None and coupled.token == 4 and coupled.row is None


def test_longer_matches_are_surer() -> None:
    short = LookupSource(coupled=True).next([9, 1, 2, 3, 4, 8, 1, 2, 3], 1)
    long = LookupSource(coupled=True).next([9, 1, 2, 3, 4, 9, 1, 2, 3], 1)
    assert short is not None and long is not None
    assert short.confidence < long.confidence < 1.0


class Model:
    """A draft model that always says 7."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        self.asked += 1
        return Drafted(7, None, 0.5)

    def close(self) -> None:
        self.closed = True


REPEAT = [11, 12, 13, 14, 15, 16, 17, 18]


def test_a_good_match_spares_the_model_and_a_poor_one_does_not() -> None:
    model = Model()
    source = CombinedSource(model, coupled=True)
    good = source.next([*REPEAT, 1, *REPEAT[:GOOD_MATCH]], 1)
    assert good is not None and good.token == REPEAT[GOOD_MATCH] and model.asked == 0
    poor = source.next([*REPEAT, 1, *REPEAT[: GOOD_MATCH - 1]], 2)
    assert poor is not None and poor.token == 7 and model.asked == 1
    source.close()
    assert model.closed


def test_a_lookup_that_errs_loses_to_the_model_and_can_win_back() -> None:
    model = Model()
    source = CombinedSource(model, coupled=True)
    text = [*REPEAT, 1]

    def tell(chain: int, truth: int) -> bool:
        """One chain of one token, and the target's own there; whether the model was asked."""
        nonlocal text
        asked = model.asked
        assert source.next([*text, *REPEAT[:GOOD_MATCH]], chain) is not None
        text = [*text, *REPEAT[:GOOD_MATCH], truth]
        return model.asked > asked

    chains = iter(range(1, 1000))
    for wrong in range(30):
        tell(next(chains), 1000 + wrong)
        text = [*REPEAT, 1]  # the repeat is there again; a new chain settles the last guess
        source.next([*REPEAT, 1, *REPEAT[:GOOD_MATCH], 1000 + wrong], next(chains))
    assert tell(next(chains), 1)  # the model is asked instead
    for _ in range(60):
        text = [*REPEAT, 1]
        tell(next(chains), REPEAT[GOOD_MATCH])
        source.next([*REPEAT, 1, *REPEAT[: GOOD_MATCH + 1]], next(chains))
    text = [*REPEAT, 1]
    assert not tell(next(chains), 1)
