"""The vocabulary both ends must share: token contents, end ids, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from specwire.errors import BadRequest


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model in id order.

    `names[i]` is token i as its tokenizer file spells it ("Ġhello", "▁hello",
    "<|im_end|>"); None marks an id that stands for nothing (a padding column).
    `pieces[i]` is the bytes that token i adds to a text: empty for control
    tokens and for padding. `end_ids` end a text, `bos_id` begins one if the
    model wants it.
    """

    names: Sequence[str | None]
    pieces: Sequence[bytes] = field(repr=False)
    end_ids: frozenset[int]
    bos_id: int | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.pieces):
            raise ValueError(f"{len(self.names)} names but {len(self.pieces)} pieces")
        if self.names and self.names[-1] is None:
            raise ValueError("padding ids at the end belong outside the vocabulary; trim them")
        for id_ in self.end_ids:
            if not 0 <= id_ < len(self.names):
                raise ValueError(f"end id {id_} is outside 0 … {len(self.names) - 1}")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def padding_ids(self) -> tuple[int, ...]:
        """Ids inside the range that stand for nothing and must never be drawn."""
        return tuple(i for i, name in enumerate(self.names) if name is None)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 over every token's spelling in id order (32 bytes).

        Each spelling is hashed as its UTF-8 length (4 bytes, little endian) and
        its UTF-8; a padding id as the length 0xffffffff. The width of the
        model's output is not part of it.
        """
        digest = hashlib.sha256()
        for name in self.names:
            if name is None:
                digest.update(b"\xff\xff\xff\xff")
                continue
            raw = name.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(4, "little"))
            digest.update(raw)
        return digest.digest()

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of a run of tokens; control tokens add nothing."""
        pieces = self.pieces
        return b"".join([pieces[i] for i in ids])

    def check_ids(self, ids: Sequence[int], what: str) -> None:
        """Raise `BadRequest` unless every id names a token. `what` is for the message."""
        names, size = self.names, len(self.names)
        for index, id_ in enumerate(ids):
            if not 0 <= id_ < size or names[id_] is None:
                raise BadRequest(
                    f"{what}: token id {id_} at index {index} is not in the vocabulary "
                    f"(ids 0 … {size - 1})"
                )


def template_digest(template: str) -> bytes:
    """SHA-256 of a chat template, to tell whether two ends have the same."""
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).digest()


def byte_level_piece(name: str) -> bytes:
    """The bytes behind a byte-level BPE spelling ("Ġhello" → b" hello").

    Byte-level BPE (GPT-2) writes each byte as one printable character. A
    character outside that table is kept as its UTF-8.
    """
    table = _byte_level_table()
    out = bytearray()
    for char in name:
        value = table.get(char)
        if value is None:
            out += char.encode("utf-8", "surrogatepass")
        else:
            out.append(value)
    return bytes(out)


def sentencepiece_piece(name: str) -> bytes:
    r"""The bytes behind a SentencePiece spelling ("▁hello" → b" hello", "<0x0A>" → b"\n")."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return name.replace("\u2581", " ").encode("utf-8", "surrogatepass")


@cache
def _byte_level_table() -> dict[str, int]:
    # Printable bytes stand for themselves; the others follow from U+0100 on, in byte order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table
