"""A terminal that takes provisional text back, watched by a small terminal."""

from __future__ import annotations

import io
import random
import re
import unicodedata

import pytest

from edge_client.screen import Screen


class Terminal:
    """What a terminal of `columns` × `rows` makes of text, wraps and the codes that we use."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[" "] * columns]
        self.row = self.column = 0

    @property
    def text(self) -> str:
        joined = ("".join(line).rstrip() for line in self.lines)
        return "\n".join(joined).rstrip("\n")

    def feed(self, data: str) -> None:
        for code, number, final, char in re.findall(r"(\x1b\[(\d*)([A-Za-z]))|(.|\n)", data):
            if code:
                self._control(int(number or 1), final)
            elif char == "\n":
                self._down()
                self.column = 0
            elif char == "\r":
                self.column = 0
            else:
                self._put(char)

    def _put(self, char: str) -> None:
        cells = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self.column + cells > self.columns:
            self._down()
            self.column = 0
        self.lines[self.row][self.column : self.column + cells] = [char] + [""] * (cells - 1)
        self.column += cells

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([" "] * self.columns)

    def _control(self, number: int, final: str) -> None:
        column = min(self.column, self.columns - 1)
        if final == "A":
            top = max(len(self.lines) - self.rows, 0)
            self.row, self.column = max(self.row - number, top), column
        elif final == "C":
            self.column = min(column + number, self.columns - 1)
        elif final == "J":
            self.lines[self.row][column:] = [" "] * (self.columns - column)
            del self.lines[self.row + 1 :]


class Scene:
    """A screen onto a small terminal, and what should stay on it."""

    def __init__(self, columns: int = 10, rows: int = 6) -> None:
        self.terminal = Terminal(columns, rows)
        self.plain = Terminal(columns, rows)
        self._stream = io.StringIO()
        self.screen = Screen(self._stream, self._told, lambda: (columns, rows))

    def _told(self, line: str) -> None:
        self._flush()
        self.terminal.feed(f"{line}\n")

    def _flush(self) -> None:
        self.terminal.feed(self._stream.getvalue())
        self._stream.seek(0)
        self._stream.truncate()

    def write(self, text: str) -> None:
        self.screen.write(text)
        self.plain.feed(text)
        self._flush()

    def provisional(self, text: str) -> None:
        self.screen.provisional(text)
        self._flush()


@pytest.mark.parametrize(
    "before", ["", "abc", "a" * 9, "a" * 10, "a" * 11, "x\n", "你好你", "aaaa你好你"]
)
@pytest.mark.parametrize(
    "tail", ["b", "b" * 7, "b" * 10, "b" * 25, "b\nb", "\n\n", "b" * 500, "你好你好你好", "\t\x07b"]
)
def test_nothing_of_it_stays(before: str, tail: str) -> None:
    scene = Scene()
    scene.write(before)
    for end in range(1, len(tail) + 1):
        scene.provisional(tail[:end])
    scene.provisional("")
    assert scene.terminal.text == scene.plain.text
    scene.write("cd")
    scene.write("\nend")
    # Where the line was full, the wrap that was due has been made.
    assert scene.terminal.text == scene.plain.text


def test_it_is_seen_meanwhile_as_far_as_it_fits() -> None:
    scene = Scene(columns=10, rows=4)
    scene.write("abc")
    scene.provisional("d" * 100)
    assert scene.terminal.text == "abcddddddd\ndddddddddd\ndddddddddd"


def test_a_notice_has_a_line_of_its_own() -> None:
    scene = Scene(columns=20)
    scene.write("abc")
    scene.provisional("def")
    scene.screen.notice("link lost")
    scene._flush()
    assert scene.terminal.text == "abc\nlink lost\ndef"  # what is provisional comes after it
    scene.write("ghi")
    assert scene.terminal.text == "abc\nlink lost\nghi"


def test_any_order_leaves_the_text_alone() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scene = Scene(columns=rng.randint(4, 12), rows=rng.randint(3, 6))
        for _ in range(30):
            text = "".join(rng.choice("ab你 \n") for _ in range(rng.randint(0, 15)))
            if rng.random() < 0.5:
                scene.write(text)
            else:
                scene.provisional(text)
        scene.provisional("")
        assert scene.terminal.text == scene.plain.text
