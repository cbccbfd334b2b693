"""Token contents, the fingerprint that tells vocabularies apart, and spellings."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwire.errors import BadRequest
from specwire.vocabulary import (
    Vocabulary,
    byte_level_piece,
    sentencepiece_piece,
    template_digest,
)

NAMES = ["<s>", "Ġhello", None, "wörld", "<|im_end|>"]
PIECES = [b"", b" hello", b"", "wörld".encode(), b""]
VOCABULARY = Vocabulary(NAMES, PIECES, frozenset({4}), bos_id=0)


def named(names: list[str | None]) -> Vocabulary:
    return Vocabulary(names, [b""] * len(names), frozenset())


# ── fingerprint ──────────────────────────────────────────────────────────────────────


def test_the_fingerprint_is_what_the_protocol_says() -> None:
    raw = b""
    for name in NAMES:
        if name is None:
            raw += b"\xff\xff\xff\xff"
        else:
            raw += len(name.encode()).to_bytes(4, "little") + name.encode()
    assert VOCABULARY.fingerprint == hashlib.sha256(raw).digest()
    assert len(VOCABULARY.fingerprint) == 32


@pytest.mark.parametrize(
    "names",
    [
        ["<s>", "Ġhello", None, "wörld"],
        ["<s>", "Ġhello", None, "wörld", "<|im_end|>", "<|tool|>"],
        ["<s>", "Ġhello", None, "wörld", "<|im_end>"],
        ["Ġhello", "<s>", None, "wörld", "<|im_end|>"],
        ["<s>", "Ġhello", "", "wörld", "<|im_end|>"],
        ["<s>", "Ġhellow", None, "örld", "<|im_end|>"],
    ],
    ids=["one less", "a special token more", "a special token different", "two swapped",
         "empty is not padding", "a letter moved"],
)  # fmt: skip
def test_v2_other_contents_have_another_fingerprint(names: list[str | None]) -> None:
    assert named(names).fingerprint != VOCABULARY.fingerprint


def test_v2_twenty_swapped_tokens_of_many_are_seen() -> None:
    names: list[str | None] = [f"token{i}" for i in range(5000)]
    swapped = list(names)
    swapped[100:120] = reversed(names[100:120])
    assert len(swapped) == len(names)
    assert named(swapped).fingerprint != named(names).fingerprint


def test_the_fingerprint_is_of_spellings_alone() -> None:
    other = replace(VOCABULARY, pieces=[b"?"] * 5, end_ids=frozenset(), bos_id=None)
    assert other.fingerprint == VOCABULARY.fingerprint


@given(st.lists(st.text(max_size=4), min_size=2, max_size=6), st.data())
def test_the_cut_between_tokens_matters(names: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(names) - 2))
    joined = [*names[:at], names[at] + names[at + 1], "", *names[at + 2 :]]
    same = joined == names
    assert (named(list(joined)).fingerprint == named(list(names)).fingerprint) == same


def test_names_that_are_no_unicode_are_hashed_too() -> None:
    assert named(["\udcff"]).fingerprint != named(["\udcfe"]).fingerprint


def test_the_digest_of_a_template() -> None:
    assert template_digest("{{ x }}") == hashlib.sha256(b"{{ x }}").digest()
    assert template_digest("a") != template_digest("a ")


# ── ids and pieces ───────────────────────────────────────────────────────────────────


def test_padding_and_decoding() -> None:
    assert len(VOCABULARY) == 5
    assert VOCABULARY.padding_ids == (2,)
    assert VOCABULARY.decode([0, 1, 3, 1, 4]).decode() == " hellowörld hello"
    assert VOCABULARY.decode([]) == b""


@pytest.mark.parametrize(
    ("ids", "bad", "index"), [([5], 5, 0), ([1, 2], 2, 1), ([1, 1, -1], -1, 2)]
)
def test_ids_that_name_no_token_are_refused(ids: list[int], bad: int, index: int) -> None:
    with pytest.raises(BadRequest, match=rf"prompt: token id {bad} at index {index} .*0 … 4"):
        VOCABULARY.check_ids(ids, "prompt")


def test_ids_that_name_tokens_pass() -> None:
    VOCABULARY.check_ids([0, 1, 3, 4], "prompt")
    VOCABULARY.check_ids([], "prompt")


def test_a_vocabulary_that_does_not_fit_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="2 names but 1 pieces"):
        Vocabulary(["a", "b"], [b"a"], frozenset())
    with pytest.raises(ValueError, match="trim them"):
        Vocabulary(["a", None], [b"a", b""], frozenset())
    with pytest.raises(ValueError, match=r"end id 2 is outside 0 … 1"):
        Vocabulary(["a", "b"], [b"a", b"b"], frozenset({2}))


# ── spellings ────────────────────────────────────────────────────────────────────────


def test_byte_level_spellings_cover_every_byte_once() -> None:
    """The table of GPT-2, written down independently."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    spelling = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in spelling:
            spelling[byte] = chr(256 + len(spelling) - len(kept))
    assert len(set(spelling.values())) == 256
    for byte, char in spelling.items():
        assert byte_level_piece(char) == bytes([byte])


@pytest.mark.parametrize(
    ("name", "piece"),
    [("Ġhello", b" hello"), ("Ċ", b"\n"), ("Ã©", "é".encode()), ("ðŁĳį", "👍".encode()),
     ("한", "한".encode()), ("", b"")],
)  # fmt: skip
def test_byte_level_pieces(name: str, piece: bytes) -> None:
    assert byte_level_piece(name) == piece


@pytest.mark.parametrize(
    ("name", "piece"),
    [("▁hello", b" hello"), ("▁▁", b"  "), ("<0x0A>", b"\n"), ("<0xFF>", b"\xff"),
     ("<0xZZ>", b"<0xZZ>"), ("<0x0A>x", b"<0x0A>x"), ("é", "é".encode())],
)  # fmt: skip
def test_sentencepiece_pieces(name: str, piece: bytes) -> None:
    assert sentencepiece_piece(name) == piece
