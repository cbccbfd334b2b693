"""The text and the status line below it, on a screen of any size."""

from __future__ import annotations

import io
import random

import pytest

from edge_client.chat.canvas import Canvas
from edge_client.chat.cells import Cursor, cut, end_of, width_of
from edge_client.chat.status import account, status_line, waiting_line
from edge_client.options import Mode
from edge_client.result import Result, Status
from tests.support.terminal import Screen

STATUS = Status(
    way="run-ahead", gamma=4, alpha=0.714, rtt_s=0.0423, tokens=58, tokens_per_s=23.14,
    per_round_trip=2.418,
)  # fmt: skip


# ── widths ───────────────────────────────────────────────────────────────────────────


def test_widths() -> None:
    assert width_of("abc") == 3
    assert width_of("漢字") == 4
    assert width_of("e\u0301") == 1
    assert width_of("\x1b[31mred\x1b[0m") == 3


@pytest.mark.parametrize("text", ["plain words", "漢字と仮名", "a漢b字c", "e\u0301e\u0301e\u0301"])
def test_cut_never_exceeds(text: str) -> None:
    for width in range(15):
        shown = cut(text, width)
        assert width_of(shown) <= width
        assert shown == text or width == 0 or shown.endswith("…")
        shown = end_of(text, width)
        assert width_of(shown) <= width
        assert shown == text or width == 0 or shown.startswith("…")


def test_a_wide_character_that_does_not_fit_goes_to_the_next_row() -> None:
    cursor = Cursor()
    cursor.write("abc漢", 4)
    assert cursor.column == 2
    cursor.write("漢", 4)
    assert cursor.fills(4)


# ── status lines ─────────────────────────────────────────────────────────────────────


def test_a_wide_status_line_tells_all() -> None:
    line = status_line(STATUS, Mode.AUTO, 200)
    assert line == (
        "auto: run-ahead · γ 4 · α 0.71 · RTT 42 ms · 23.1 tokens/s · 2.42 a round trip · 58 tokens"
    )


@pytest.mark.parametrize("width", range(1, 100))
def test_a_status_line_fits_and_keeps_what_matters(width: int) -> None:
    line = status_line(STATUS, Mode.SYNC, width)
    assert width_of(line) <= width
    if width >= 13:
        assert "23.1 tokens/s" in line
    if width >= 25:
        assert "run-ahead" in line


def test_without_drafts_there_is_no_gamma() -> None:
    line = status_line(Status("stream", 0, None, None, 3, 10.0, 1.0), Mode.STREAM, 80)
    assert line == "stream · 10.0 tokens/s · 3 tokens"


@pytest.mark.parametrize("width", range(60))
def test_a_waiting_line_fits(width: int) -> None:
    for seconds in (0.0, 1.5, 12345.0):
        line = waiting_line("waiting for the 漢字 and the first token", seconds, width)
        assert width_of(line) <= width
    assert "12 s" in waiting_line("waiting", 12.2, 40)


def test_the_account_of_an_answer_in_one_line() -> None:
    result = Result(token_ids=[1] * 6, duration_s=3.0, ttft_s=0.4, mode="auto", ways={"sync": 6})
    result.counts.rounds, result.counts.examined, result.counts.accepted = 3, 4, 3
    result.finish_reason = "length"
    assert account(result) == (
        "6 tokens · 2.0 tokens/s · first after 400 ms · sync · α 0.75 · 2.00 a round trip · "
        "cut at max-tokens"
    )


# ── the screen ───────────────────────────────────────────────────────────────────────

WORDS = ["word ", "漢字", "\n", "longer words, ", "😀", "e\u0301", "\n\n", "\t", "x" * 17, "ア"]


def shown(rows: int, columns: int, pieces: list[str], *, status: bool) -> list[str]:
    """The lines of a terminal after these pieces, with a status line between them or without."""
    stream, screen = io.StringIO(), Screen(rows, columns)
    canvas = Canvas(stream, colour=True, width=lambda: columns)

    def pass_on() -> None:
        screen.feed(stream.getvalue().replace("\n", "\r\n").encode())
        stream.seek(0)
        stream.truncate()

    for number, piece in enumerate(pieces):
        if status:
            canvas.status(f"STATUS {number} 漢字 that is far too long for a narrow terminal " * 2)
            pass_on()
            if number % 7 == 3:
                canvas.status("")
        canvas.write(piece)
        pass_on()
    canvas.status("")
    canvas.write("\n")
    pass_on()
    lines = screen.lines
    while lines and not lines[-1]:
        lines.pop()
    return lines


@pytest.mark.parametrize("seed", range(40))
def test_a_status_line_changes_nothing_of_the_text(seed: int) -> None:
    draw = random.Random(seed)
    rows, columns = draw.randint(2, 12), draw.randint(3, 50)
    pieces = [draw.choice(WORDS) for _ in range(draw.randint(1, 120))]
    assert shown(rows, columns, pieces, status=True) == shown(rows, columns, pieces, status=False)


def test_the_status_line_is_below_the_text() -> None:
    stream, screen = io.StringIO(), Screen(6, 20)
    canvas = Canvas(stream, colour=False, width=lambda: 20)
    for piece in ("one\n", "two"):
        canvas.write(piece)
    canvas.status("status")
    screen.feed(stream.getvalue().replace("\n", "\r\n").encode())
    assert screen.lines == ["one", "two", "status", "", "", ""]
