"""Which block of cache memory holds which tokens: paging, sharing by content, eviction.

Bookkeeping only; the keys and values themselves are elsewhere. A block is a run
of `size` slots. Full blocks are known by their content, the hash of all tokens
up to their end, so that a sequence beginning like another, live or recently
closed, adopts its blocks. A block that no sequence uses any more stays until
its room is needed; the least recently used goes first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


class OutOfBlocks(Exception):
    """There is no free block, and none that may be evicted."""


@dataclass(eq=False)
class BlockTable:
    """The blocks of one sequence, and the tokens in them."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of the full blocks, in order


class BlockPool:
    """A fixed number of blocks, shared by reference counting."""

    def __init__(self, count: int, size: int) -> None:
        if count < 1 or size < 1:
            raise ValueError(f"a pool of {count} blocks of {size} tokens holds nothing")
        self.size = size
        self.count = count
        self._uses = [0] * count
        self._digest: list[bytes | None] = [None] * count
        self._by_digest: dict[bytes, int] = {}
        self._free = list(range(count - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()  # unused but known, oldest first

    @property
    def used(self) -> int:
        """Blocks that a sequence holds."""
        return self.count - len(self._free) - len(self._kept)

    @property
    def kept(self) -> int:
        """Blocks that no sequence holds, kept for what may come."""
        return len(self._kept)

    @property
    def available(self) -> int:
        """Blocks that could be had now."""
        return len(self._free) + len(self._kept)

    def needed(self, table: BlockTable, keep: int, more: int) -> int:
        """Blocks that truncating to `keep` and writing `more` takes; below 0 if it gives some.

        A block that others hold too is replaced if it is written to, and not given back.
        """
        kept = -(-keep // self.size)
        fresh = -(-(keep + more) // self.size) - kept
        if keep % self.size and self._uses[table.blocks[kept - 1]] > 1:
            fresh += 1
        return fresh - sum(self._uses[block] == 1 for block in table.blocks[kept:])

    def adopt(self, tokens: Sequence[int], limit: int) -> BlockTable:
        """A new sequence that already holds the known blocks which begin `tokens`.

        At most `limit` tokens are adopted, so that a caller can keep some to evaluate.
        """
        table = BlockTable()
        digest = b""
        for start in range(0, min(limit, len(tokens)) - self.size + 1, self.size):
            part = tokens[start : start + self.size]
            digest = _chain(digest, part)
            block = self._by_digest.get(digest)
            if block is None:
                break
            self._hold(block)
            table.blocks.append(block)
            table.digests.append(digest)
            table.tokens.extend(part)
        return table

    def truncate(self, table: BlockTable, keep: int) -> None:
        """Forget the tokens from `keep` on."""
        if keep > len(table.tokens):
            raise ValueError(f"can't keep {keep} of {len(table.tokens)} tokens")
        whole = -(-keep // self.size)
        for block in table.blocks[whole:]:
            self._release(block)
        del table.blocks[whole:]
        del table.digests[keep // self.size :]
        del table.tokens[keep:]

    def write(self, table: BlockTable, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Make room for `tokens` after what the sequence holds.

        Returns (from, to) if the last, partly filled block is shared and was replaced:
        the caller must copy its contents before it writes.

        Raises:
            OutOfBlocks: nothing was changed.
        """
        if self.needed(table, len(table.tokens), len(tokens)) > self.available:
            raise OutOfBlocks
        copied = self._own_last(table)
        table.tokens.extend(tokens)
        while len(table.blocks) * self.size < len(table.tokens):
            table.blocks.append(self._take())
        return copied

    def publish(self, table: BlockTable) -> None:
        """Make the full blocks known by their content, once they are filled."""
        for index in range(len(table.digests), len(table.tokens) // self.size):
            before = table.digests[-1] if table.digests else b""
            part = table.tokens[index * self.size : (index + 1) * self.size]
            digest = _chain(before, part)
            table.digests.append(digest)
            block = table.blocks[index]
            if digest not in self._by_digest and self._digest[block] is None:
                self._by_digest[digest] = block
                self._digest[block] = digest

    def release(self, table: BlockTable) -> None:
        """Give all blocks back; full ones stay known until their room is needed.

        The last blocks are given up first: without their predecessors they are of no use.
        """
        for block in reversed(table.blocks):
            self._release(block)
        table.blocks.clear()
        table.digests.clear()
        table.tokens.clear()

    def _own_last(self, table: BlockTable) -> tuple[int, int] | None:
        # What is written to must be the sequence's alone, and unknown by its old content.
        if len(table.tokens) % self.size == 0:
            return None
        last = table.blocks[-1]
        if self._uses[last] == 1:
            self._forget(last)
            return None
        fresh = self._take()
        self._release(last)
        table.blocks[-1] = fresh
        return last, fresh

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._forget(block)
        self._uses[block] = 1
        return block

    def _hold(self, block: int) -> None:
        self._kept.pop(block, None)
        self._uses[block] += 1

    def _release(self, block: int) -> None:
        self._uses[block] -= 1
        if self._uses[block] == 0:
            if self._digest[block] is not None:
                self._kept[block] = None
            else:
                self._free.append(block)

    def _forget(self, block: int) -> None:
        digest = self._digest[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[block] = None


def _chain(before: bytes, tokens: Sequence[int]) -> bytes:
    # A cryptographic hash: a clash would show one client's text to another.
    return hashlib.blake2b(before + array("q", tokens).tobytes(), digest_size=16).digest()
