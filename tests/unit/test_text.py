"""Stop strings and characters in a stream: never cut, whatever the pieces are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwire.text import StopMatcher, TextStream


def reference(text: bytes, stops: Sequence[bytes]) -> tuple[bytes, int | None]:
    """Byte by byte: the stop whose last byte comes first, of those the longest."""
    for end in range(1, len(text) + 1):
        ending = [i for i, stop in enumerate(stops) if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=lambda i: (len(stops[i]), -i))
            return text[: end - len(stops[longest])], longest
    return text, None


def chunks(text: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


letters = st.text("ab", max_size=30).map(str.encode)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), max_size=4)
cut_lists = st.lists(st.integers(0, 1000), max_size=12)


@settings(max_examples=500, deadline=None)
@given(letters, stop_lists, cut_lists)
def test_a_stop_is_found_whatever_the_pieces(
    text: bytes, stops: list[bytes], cuts: list[int]
) -> None:
    matcher, out = StopMatcher(stops), b""
    for piece in chunks(text, cuts):
        out += matcher.feed(piece)
        assert text.startswith(out)
    out += matcher.flush()
    assert (out, matcher.hit) == reference(text, stops)


@settings(max_examples=300, deadline=None)
@given(letters, stop_lists)
def test_nothing_is_held_back_that_can_be_no_stop(text: bytes, stops: list[bytes]) -> None:
    """What is withheld is the longest beginning of a stop, and no more."""
    matcher = StopMatcher(stops)
    out = matcher.feed(text)
    if matcher.hit is not None:
        return
    held = text[len(out) :]
    beginnings = {stop[:n] for stop in stops for n in range(len(stop))} | {b""}
    assert held == max((b for b in beginnings if text.endswith(b)), key=len)


@pytest.mark.parametrize(
    ("pieces", "stops", "out", "hit"),
    [
        (["abc", "def"], ["cd"], "ab", 0),
        (["ab", "cd"], ["cd", "bcd"], "a", 1),
        (["abcd"], ["abcd", "bc"], "a", 1),
        (["aaab"], ["aab"], "a", 0),
        (["ha ha", " ha ha"], [" ha ha ha"], "ha", 0),
        (["x"], ["x"], "", 0),
        (["a", "b", "c"], ["abd"], "abc", None),
        (["a", "b", "x"], ["b", "b"], "a", 0),
        (["same end"], ["end", "end"], "same ", 0),
    ],
)
def test_examples(pieces: list[str], stops: list[str], out: str, hit: int | None) -> None:
    matcher = StopMatcher([stop.encode() for stop in stops])
    got = b"".join(matcher.feed(piece.encode()) for piece in pieces) + matcher.flush()
    assert (got.decode(), matcher.hit) == (out, hit)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher([b"s"])
    assert matcher.feed(b"as") == b"a"
    assert matcher.feed(b"more") == b""
    assert matcher.flush() == b""


def test_what_is_held_back_comes_at_the_end_once() -> None:
    matcher = StopMatcher([b"stop"])
    assert matcher.feed(b"a st") == b"a "
    assert (matcher.flush(), matcher.flush()) == (b"st", b"")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="matches everywhere"):
        StopMatcher([b"a", b""])


# ── characters ───────────────────────────────────────────────────────────────────────

SAMPLES = ["👍🏽 👩‍👩‍👧 done", "안녕하세요 세계", "नमस्ते दुनिया", "naïve — “quoted”", "a\r\n\tb", ""]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_t5_characters_are_never_cut(text: str, width: int) -> None:
    raw, stream = text.encode(), TextStream()
    pieces = [stream.feed(raw[i : i + width]) for i in range(0, len(raw), width)]
    assert "�" not in "".join(pieces)
    assert "".join(pieces) + stream.finish() == text


@pytest.mark.parametrize("text", SAMPLES)
def test_t5_split_once_anywhere(text: str) -> None:
    raw = text.encode()
    for cut in range(len(raw) + 1):
        stream = TextStream()
        first = stream.feed(raw[:cut])
        assert text.startswith(first)
        assert first + stream.feed(raw[cut:]) + stream.finish() == text


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=40), cut_lists)
def test_bytes_that_are_no_text_come_out_as_python_replaces_them(
    raw: bytes, cuts: list[int]
) -> None:
    stream = TextStream()
    out = "".join(stream.feed(piece) for piece in chunks(raw, cuts)) + stream.finish()
    assert out == raw.decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(st.text("a한é👍", max_size=15), st.sampled_from(["한", "é", "👍a", "a한"]), cut_lists)
def test_stops_of_several_bytes(text: str, stop: str, cuts: list[int]) -> None:
    stream = TextStream([stop])
    out = "".join(stream.feed(p) for p in chunks(text.encode(), cuts)) + stream.finish()
    assert out == text.split(stop)[0]
    assert stream.stopped == (stop in text)


def test_an_unfinished_character_before_a_stop_is_replaced() -> None:
    stream = TextStream(["."])
    assert stream.feed(b"a\xed\x95.b") + stream.finish() == "a�"
