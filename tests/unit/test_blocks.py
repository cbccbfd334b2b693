"""The block pool against a model that remembers every slot's content."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloud_verifier.backends.blocks import BlockPool, BlockTable, OutOfBlocks

SIZE = 4
COUNT = 10

few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Pool(RuleBasedStateMachine):
    """Writes, truncations, sharing and closing at random.

    `memory` stands for the keys and values: what a slot holds is a function of all
    tokens up to it, so that a block adopted wrongly shows at once.
    """

    @initialize()
    def begin(self) -> None:
        self.pool = BlockPool(COUNT, SIZE)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.tables: list[BlockTable] = []

    def fill(self, table: BlockTable, first: int) -> None:
        for at in range(first, len(table.tokens)):
            slot = table.blocks[at // SIZE] * SIZE + at % SIZE
            self.memory[slot] = tuple(table.tokens[: at + 1])

    @rule(tokens=few_tokens)
    def open(self, tokens: list[int]) -> None:
        self.tables.append(self.pool.adopt(tokens, len(tokens) - 1))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=few_tokens)
    def step(self, data: st.DataObject, tokens: list[int]) -> None:
        table = data.draw(st.sampled_from(self.tables))
        keep = data.draw(st.integers(0, len(table.tokens)))
        fits = self.pool.needed(table, keep, len(tokens)) <= self.pool.available
        self.pool.truncate(table, keep)
        try:
            copied = self.pool.write(table, tokens)
        except OutOfBlocks:
            assert not fits
            assert len(table.tokens) == keep
            return
        if copied is not None:
            source, target = copied
            for offset in range(SIZE):
                if source * SIZE + offset in self.memory:
                    self.memory[target * SIZE + offset] = self.memory[source * SIZE + offset]
        assert fits
        self.fill(table, keep)
        self.pool.publish(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.pool.release(table)

    @invariant()
    def every_slot_holds_its_own_history(self) -> None:
        for table in self.tables:
            assert len(table.blocks) == -(-len(table.tokens) // SIZE)
            for at in range(len(table.tokens)):
                slot = table.blocks[at // SIZE] * SIZE + at % SIZE
                assert self.memory[slot] == tuple(table.tokens[: at + 1])

    @invariant()
    def blocks_are_neither_lost_nor_doubled(self) -> None:
        held = {block for table in self.tables for block in table.blocks}
        assert self.pool.used == len(held)
        assert self.pool.used + self.pool.available == COUNT


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_a_sequence_that_begins_like_another_shares_its_full_blocks() -> None:
    pool = BlockPool(COUNT, SIZE)
    one = pool.adopt([], 0)
    pool.write(one, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    pool.publish(one)
    two = pool.adopt([1, 2, 3, 4, 5, 6, 7, 8], limit=7)
    assert two.tokens == [1, 2, 3, 4]  # the second block would leave nothing to evaluate
    assert two.blocks == one.blocks[:1]
    assert pool.used == 3


def test_closed_blocks_stay_until_their_room_is_needed_oldest_first() -> None:
    pool = BlockPool(2, SIZE)
    for token in (1, 2):
        table = pool.adopt([], 0)
        pool.write(table, [token] * SIZE)
        pool.publish(table)
        pool.release(table)
    assert (pool.used, pool.kept, pool.available) == (0, 2, 2)
    other = pool.adopt([], 0)
    pool.write(other, [3])
    assert pool.adopt([1] * SIZE, SIZE).tokens == []
    assert pool.adopt([2] * SIZE, SIZE).tokens == [2] * SIZE


def test_writing_into_a_shared_block_copies_it() -> None:
    pool = BlockPool(COUNT, SIZE)
    one = pool.adopt([], 0)
    pool.write(one, [1, 2, 3, 4])
    pool.publish(one)
    two = pool.adopt([1, 2, 3, 4], SIZE)
    pool.truncate(two, 2)
    copied = pool.write(two, [9])
    assert copied == (one.blocks[0], two.blocks[0])
    assert one.blocks != two.blocks


def test_a_block_written_over_is_no_longer_known_by_its_old_content() -> None:
    pool = BlockPool(COUNT, SIZE)
    one = pool.adopt([], 0)
    pool.write(one, [1, 2, 3, 4])
    pool.publish(one)
    pool.truncate(one, 2)
    assert pool.write(one, [8, 9]) is None
    pool.publish(one)
    assert pool.adopt([1, 2, 3, 4], SIZE).tokens == []
    assert pool.adopt([1, 2, 8, 9], SIZE).tokens == [1, 2, 8, 9]


def test_a_pool_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        BlockPool(0, SIZE)
