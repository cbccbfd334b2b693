"""The shelf of draft states: what a session has read, the next one need not read again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.shelf import LEAST_CONTEXT, BorrowedDraft, DraftShelf, roomy
from specwire.errors import ModelError
from specwire.ports import DraftModel
from tests.support.tiny_models import FULL, SPECIALS, write_tiny_gguf

SIZE = len(SPECIALS) + len(FULL)
TRAINED = 4096


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaWeights]:
    path = write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=TRAINED)
    with LlamaWeights(path) as weights:
        yield weights


@pytest.fixture
def shelf() -> Iterator[DraftShelf]:
    shelf = DraftShelf(1 << 20)
    yield shelf
    shelf.close()


Borrow = Callable[..., BorrowedDraft]


@pytest.fixture
def borrow(tiny: LlamaWeights, shelf: DraftShelf) -> Iterator[Borrow]:
    lent: list[BorrowedDraft] = []

    def build(context: int = 256) -> BorrowedDraft:
        lent.append(BorrowedDraft(shelf, tiny, context=context, threads=1))
        return lent[-1]

    yield build
    for draft in lent:
        draft.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LlamaDraft]:
    """The states that are made."""
    made: list[LlamaDraft] = []

    class Noted(LlamaDraft):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("edge_client.draft.shelf.LlamaDraft", Noted)
    return made


def ids(count: int, seed: int = 0) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(3, SIZE, count).tolist()
    return numbers


def test_it_is_a_draft_model(borrow: Borrow) -> None:
    draft: DraftModel = borrow(77)
    assert (draft.context, draft.tokens, draft.fresh) == (77, [], 0)
    draft.logits_after([5, 6, 7])
    assert (draft.context, list(draft.tokens), draft.fresh) == (77, [5, 6, 7], 3)


def test_a_conversation_is_read_on_from_where_it_was(
    borrow: Borrow, tiny: LlamaWeights, made: list[LlamaDraft]
) -> None:
    said = ids(100)
    first = borrow()
    first.logits_after(said)
    assert first.fresh == 100
    first.close()

    more = said[:90] + ids(20, seed=1)
    second = borrow()
    logits = second.logits_after(more).copy()
    assert second.fresh == 20
    assert len(made) == 1
    with LlamaDraft(tiny, context=256, threads=1) as alone:
        # Batches of another size move what is kept in half precision by about 1e-2.
        np.testing.assert_allclose(logits, alone.logits_after(more), atol=0.05)


def test_another_text_is_read_from_its_beginning(borrow: Borrow, made: list[LlamaDraft]) -> None:
    first = borrow()
    first.logits_after(ids(50))
    first.close()
    second = borrow()
    second.logits_after([9, *ids(30, seed=2)])
    assert (second.fresh, len(made)) == (31, 1)


def test_sessions_at_once_have_states_of_their_own(borrow: Borrow, made: list[LlamaDraft]) -> None:
    one, other = borrow(), borrow()
    one.logits_after(ids(10))
    other.logits_after(ids(20, seed=1))
    assert (list(one.tokens), list(other.tokens)) == (ids(10), ids(20, seed=1))
    assert len(made) == 2
    one.close()
    other.close()
    # The one used last is kept, the other is freed.
    assert [draft.closed for draft in made] == [True, False]
    again = borrow()
    again.logits_after([*ids(20, seed=1), 5])
    assert (again.fresh, len(made)) == (1, 2)


def test_a_session_that_needs_more_room_gets_it(borrow: Borrow, made: list[LlamaDraft]) -> None:
    first = borrow(LEAST_CONTEXT)
    first.logits_after(ids(10))
    first.close()
    long = ids(LEAST_CONTEXT + 1)
    second = borrow(len(long))
    second.logits_after(long)
    assert second.fresh == len(long)
    assert [draft.closed for draft in made] == [True, False]
    assert made[1].context == 2 * LEAST_CONTEXT


def test_room_doubles_within_what_the_model_was_trained_for(
    tiny: LlamaWeights, shelf: DraftShelf
) -> None:
    assert [roomy(n, 4096) for n in (1, 512, 513, 2000, 2049, 4096)] == [
        512, 512, 1024, 2048, 4096, 4096,
    ]  # fmt: skip
    assert [roomy(n, 3000) for n in (10, 2049, 3000, 4000)] == [512, 3000, 3000, 4000]
    assert roomy(100, 200) == 200
    for wanted in (TRAINED // 2 + 1, TRAINED):
        draft = shelf.take(tiny, context=wanted, threads=1)
        assert draft.context == TRAINED
        draft.close()


def test_a_session_stopped_between_tokens_leaves_its_state_to_the_next(
    borrow: Borrow, made: list[LlamaDraft]
) -> None:
    said = ids(40)
    first = borrow()
    first.logits_after(said)
    first.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        first.logits_after([*said, 5])
    first.close()
    second = borrow()
    second.logits_after([*said, 6])
    assert (second.fresh, len(made)) == (1, 1)


def test_a_late_stop_reaches_no_other_session(borrow: Borrow, made: list[LlamaDraft]) -> None:
    first = borrow()
    first.logits_after(ids(5))
    first.close()
    second = borrow()
    second.logits_after(ids(5))
    assert len(made) == 1
    first.stop()
    first.close()
    second.logits_after([*ids(5), 7])
    assert second.fresh == 1


def test_one_that_is_stopped_before_it_began_begins_nothing(
    borrow: Borrow, made: list[LlamaDraft]
) -> None:
    draft = borrow()
    draft.stop()
    with pytest.raises(RuntimeError, match="over"):
        draft.logits_after([5])
    assert made == []


def test_where_memory_is_short_there_is_room_for_what_is_needed(
    borrow: Borrow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def make(weights: LlamaWeights, *, context: int, threads: int | None) -> LlamaDraft:
        asked.append(context)
        if context > 1100:
            raise ModelError(f"can't make a context of {context} tokens")
        return LlamaDraft(weights, context=context, threads=threads)

    monkeypatch.setattr("edge_client.draft.shelf.LlamaDraft", make)
    borrow(1100).logits_after([5])
    assert asked == [2048, 1100]
    with pytest.raises(ModelError, match="1200 tokens"):
        borrow(1200).logits_after([5])


def test_a_prompt_that_was_cut_short_is_read_on_by_the_next(
    borrow: Borrow, made: list[LlamaDraft], monkeypatch: pytest.MonkeyPatch, tiny: LlamaWeights
) -> None:
    first = borrow(2048)
    first.logits_after([5])
    context = made[0]._sequence._held_context()
    real, read = context.decode, []

    def decode(tokens: Sequence[int], position: int, rows: int) -> None:
        real(tokens, position, rows)
        read.append(len(tokens))
        if len(read) == 3:
            first.stop()  # as another thread would

    monkeypatch.setattr(context, "decode", decode)
    said = ids(2000)
    with pytest.raises(RuntimeError, match="stopped during a call"):
        first.logits_after(said)
    assert list(first.tokens) == said[: sum(read)]
    first.close()
    second = borrow(2048)
    logits = second.logits_after(said).copy()
    assert (second.fresh, len(made)) == (2000 - sum(read[:3]), 1)
    with LlamaDraft(tiny, context=2048, threads=1) as alone:
        np.testing.assert_array_equal(logits, alone.logits_after(said))


def test_one_that_failed_is_not_kept(
    borrow: Borrow, made: list[LlamaDraft], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = borrow()
    first.logits_after(ids(5))

    def fail(*args: object) -> None:
        raise ModelError("llama.cpp could not evaluate")

    monkeypatch.setattr(made[0]._sequence._held_context(), "decode", fail)
    with pytest.raises(ModelError):
        first.logits_after([*ids(5), 5])
    first.close()
    assert made[0].closed
    second = borrow()
    second.logits_after(ids(5))
    assert (second.fresh, len(made)) == (5, 2)


def test_a_closed_shelf_keeps_nothing(tiny: LlamaWeights, made: list[LlamaDraft]) -> None:
    shelf = DraftShelf(1024)
    one, other = (BorrowedDraft(shelf, tiny, context=64, threads=1) for _ in range(2))
    one.logits_after([5])
    other.logits_after([5])
    one.close()
    shelf.close()
    assert [draft.closed for draft in made] == [True, False]
    other.close()
    assert [draft.closed for draft in made] == [True, True]
    shelf.close()


def test_a_shelf_that_nobody_closed_is_freed_with_its_state(tmp_path: Path) -> None:
    weights = LlamaWeights(write_tiny_gguf(tmp_path / "tiny.gguf"))
    shelf = DraftShelf(1024)
    draft = BorrowedDraft(shelf, weights, context=64, threads=1)
    draft.logits_after([5])
    draft.close()
    assert shelf._idle is not None
    context = weakref.ref(shelf._idle._sequence._held_context()._owner)
    del shelf, draft
    gc.collect()
    assert context() is None
    weights.close()
