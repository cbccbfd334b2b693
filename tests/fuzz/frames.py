"""Frames that a hostile or broken client might send: right ones, with something wrong in them."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from specwire.v1 import verifier_pb2 as pb

UINT32 = (0, 1, 2, 3, 4, 5, 31, 33, 64, 255, 256, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
UINT64 = (*UINT32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
ENUMS = (0, 1, 2, 3, 4, 7, -1, (1 << 31) - 1, -(1 << 31))
DOUBLES = (
    *(0.0, -0.0, 0.5, 1.0, 1.0000001, -1.0, 2.0, 100.0, 1e-300, 5e-324, 1e300, sys.float_info.max),
    *(float("nan"), float("inf"), float("-inf"), struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]),
)  # fmt: skip
TEXTS = (
    "",
    "a",
    "abc",
    "e" * 300,
    "\0",
    "\ud7ff",
    "\U0010ffff",
    "é\u0301",
    "<|im_end|>",
    "{{ 1/0 }}",
)
BYTES = (b"", b"\0", b"k" * 16, b"k" * 15, b"k" * 17, b"\xff" * 40, bytes(range(256)), b"\x80" * 11)


class Fuzzer:
    """Makes frames from a seed: the same seed, the same frames.

    Args:
        seed: of everything.
        size: tokens of the target's vocabulary.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self._size = size

    # ------------------------------------------------------------- right ones

    def open(self, **fields: Any) -> pb.Open:
        """A good Open."""
        rng = self.rng
        frame = pb.Open(
            protocol_version=1,
            ids=pb.TokenIds(ids=self.tokens(rng.randrange(1, 5))),
            sampling=pb.Sampling(temperature=rng.choice((0.0, 1.0))),
            seed=rng.randrange(1 << 64),
            max_tokens=rng.randrange(2, 9),
            mode=rng.choice((0, 1, 2)),  # type: ignore[arg-type]
            pacing=rng.choice((0, 1, 2)),  # type: ignore[arg-type]
            **fields,
        )
        if rng.random() < 0.2:
            frame.logprobs = rng.randrange(3)
        if rng.random() < 0.2:
            frame.stops.append("ab")
        return frame

    def proposal(self, frontier: int, number: int, *, coupled: bool) -> pb.Proposal:
        """A good proposal at the frontier."""
        rng = self.rng
        tokens = self.tokens(rng.randrange(4))
        frame = pb.Proposal(number=number, chain=number, start=frontier, tokens=tokens)
        if tokens and not coupled:
            kind = rng.randrange(3)
            if kind == 0:
                frame.point.SetInParent()
            elif kind == 1:  # all but one weight on the draft token
                frame.sparse.weight_bits = 4
                rows = (bytes([1, (t + 1) % self._size, 1]) for t in tokens)
                frame.sparse.rows = b"".join(rows)
            else:
                row = struct.pack(f"<{self._size}f", *[1 / self._size] * self._size)
                frame.dense.rows = row * len(tokens)
        return frame

    def tokens(self, count: int) -> list[int]:
        """Ids of the vocabulary."""
        return [self.rng.randrange(self._size) for _ in range(count)]

    # ---------------------------------------------------------------- mutation

    def mutate(self, frame: Message, changes: int = 0) -> None:
        """Make one or a few fields wrong, or at least strange."""
        for _ in range(changes or self.rng.choice((1, 1, 1, 2, 4))):
            self._change(frame, depth=0)

    def _change(self, frame: Message, depth: int) -> None:
        rng = self.rng
        descriptor: Any = rng.choice(list(frame.DESCRIPTOR.fields))
        name = descriptor.name
        if rng.random() < 0.15:
            frame.ClearField(name)
        elif descriptor.is_repeated:
            self._change_list(frame, descriptor)
        elif descriptor.message_type is not None:
            inner = getattr(frame, name)
            inner.SetInParent()  # another member of a oneof goes
            if depth < 3 and inner.DESCRIPTOR.fields:
                self._change(inner, depth + 1)
        else:
            setattr(frame, name, self._value(descriptor))

    def _change_list(self, frame: Message, descriptor: FieldDescriptor) -> None:
        rng = self.rng
        items = getattr(frame, descriptor.name)
        how = rng.randrange(5)
        if how == 0 and len(items):
            del items[rng.randrange(len(items)) :]
        elif descriptor.message_type is not None:
            for _ in range(rng.choice((1, 2, 40))):
                self._change(items.add(), 2)
        elif how == 1 and len(items):
            items[rng.randrange(len(items))] = self._value(descriptor)
        else:
            count = rng.choice((1, 1, 2, 5, 33, 300))
            value = self._value(descriptor)
            items.extend([value] * count)

    def _value(self, descriptor: FieldDescriptor) -> Any:
        rng, kind = self.rng, descriptor.cpp_type
        if descriptor.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(BYTES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(64))
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_UINT64:
            return rng.choice(UINT64) if rng.random() < 0.8 else rng.getrandbits(64)
        if kind == FieldDescriptor.CPPTYPE_UINT32:
            return rng.choice(UINT32) if rng.random() < 0.8 else rng.getrandbits(32)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice(ENUMS)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        return rng.choice(DOUBLES)

    def garble(self, raw: bytes) -> bytes:
        """Change bytes of a serialised frame: what comes out may be no message at all."""
        rng = self.rng
        data = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            choice = rng.randrange(5)
            if choice == 0 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            elif choice == 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif choice == 2:
                del data[at : at + rng.randrange(1, 9)]
            elif choice == 3:
                data[at:at] = data[at : at + rng.randrange(1, 20)]
            elif at < len(data):
                data[at] = rng.choice((0x00, 0x7F, 0x80, 0xFF))
        return bytes(data)


def pick(rng: random.Random, ways: Sequence[tuple[float, Callable[[], Any]]]) -> Any:
    """Do one of several things, by weight."""
    (way,) = rng.choices([way for _, way in ways], [weight for weight, _ in ways])
    return way()
