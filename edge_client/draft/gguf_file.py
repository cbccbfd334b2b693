"""Checks of a GGUF file before llama.cpp, which can end the process over one, sees it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from specwire.errors import ModelError

_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)
"""Bytes of a metadata value by its type; 0 where they vary."""


def check_gguf(path: Path) -> None:
    """Refuse what is no readable GGUF file, or one that would make llama.cpp end the process.

    Raises:
        ModelError: `path` is missing, a folder, unreadable or no GGUF file, or two of its
            tokens have one spelling.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(f"no model file at {path}; give the path of a GGUF file") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; give the path of the GGUF file in it") from None
    except OSError as error:
        raise ModelError(f"can't read the model file {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file (it begins with {magic!r}, not b'GGUF'); "
            f"convert the model, or download it in GGUF form"
        )
    check_spellings(path)


def check_spellings(path: Path) -> None:
    """Refuse a file in which two tokens have one spelling: llama.cpp would abort the process.

    Says nothing about files that can't be read; llama.cpp explains those itself.
    """
    seen: dict[bytes, int] = {}
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for id_, spelling in enumerate(token_spellings(data)):
                first = seen.setdefault(spelling, id_)
                if first != id_ and spelling:  # llama.cpp makes empty ones differ
                    raise ModelError(
                        f"can't load the model {path}: its tokens {first} and {id_} are both "
                        f"spelled {spelling.decode('utf-8', 'replace')!r}; convert it again"
                    )
    except (OSError, ValueError, OverflowError, struct.error):
        return


def token_spellings(data: mmap.mmap) -> Iterator[bytes]:
    """The token list in a GGUF file's metadata, as llama.cpp reads it: up to a zero byte."""

    def number(at: int, kind: str) -> int:
        value: int = struct.unpack_from(kind, data, at)[0]
        return value

    def value_end(at: int, kind: int) -> int:
        if kind == _GGUF_STRING:
            return at + 8 + number(at, "<Q")
        if kind != _GGUF_ARRAY:
            return at + _GGUF_SIZES[kind]
        item, count, at = number(at, "<I"), number(at + 4, "<Q"), at + 12
        if item < len(_GGUF_SIZES) and _GGUF_SIZES[item]:
            return at + count * _GGUF_SIZES[item]
        for _ in range(count):
            at = value_end(at, item)
        return at

    at = 24  # magic, version, number of tensors, number of values
    for _ in range(number(16, "<Q")):
        key_end = at + 8 + number(at, "<Q")
        if key_end > len(data):
            raise ValueError("cut short")
        kind = number(key_end, "<I")
        if data[at + 8 : key_end] == b"tokenizer.ggml.tokens" and kind == _GGUF_ARRAY:
            count, at = number(key_end + 8, "<Q"), key_end + 16
            for _ in range(count):
                end = at + 8 + number(at, "<Q")
                if end > len(data):
                    raise ValueError("cut short")
                yield data[at + 8 : end].partition(b"\0")[0]
                at = end
            return
        if kind >= len(_GGUF_SIZES):
            raise ValueError("unknown type of value")
        at = value_end(key_end + 4, kind)
