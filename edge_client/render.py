"""What a person sees: coloured tokens, notices, and the account at the end."""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from edge_client.result import Result, Token
from specwire.committed import Origin

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_COLOURS = {
    Origin.ACCEPTED: "\x1b[32m",  # green
    Origin.CORRECTION: "\x1b[31m",  # red
    Origin.BONUS: "\x1b[36m",  # cyan
    Origin.RUN_AHEAD: "\x1b[33m",  # yellow
    Origin.CAUGHT_UP: "\x1b[35m",  # magenta
}

_CONTROLS = {code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}
"""Control characters: a model's words must not move the cursor or answer questions for us."""

_AUTHORS = {
    Origin.ACCEPTED: "drafted here, and the target agreed",
    Origin.CORRECTION: "the target's, in place of a draft token",
    Origin.BONUS: "the target's, after all draft tokens were accepted",
    Origin.RUN_AHEAD: "the target's, without a draft",
    Origin.CAUGHT_UP: "learnt when the link was back",
}


def wants_colour(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour: on a terminal that can, unless NO_COLOR is set (no-color.org)."""
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty()


def print_json(value: object) -> None:
    """Print one JSON object; characters that the output's encoding may lack are escaped."""
    unicode = codecs.lookup(sys.stdout.encoding).name == "utf-8"
    print(shown(json.dumps(value, ensure_ascii=not unicode), sys.stdout))


def harmless(text: str) -> str:
    """The text without control characters, except for line ends and tabs."""
    return text.translate(_CONTROLS)


def shown(text: str, stream: TextIO) -> str:
    """What of a text goes to a stream: to a terminal nothing that would steer it."""
    return harmless(text) if stream.isatty() else text


class Sink(Protocol):
    """What text can be written to."""

    def write(self, text: str, /) -> int:
        """Add text; returns how many characters."""

    def flush(self) -> None:
        """Hold nothing back."""


class TokenWriter:
    """Writes tokens as they come, each in the colour of who wrote it.

    Args:
        stream: gets them.
        colour: whether it can colour.
        terminal: whether it is one, which the text must not steer.
    """

    def __init__(self, stream: Sink, *, colour: bool, terminal: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._terminal = terminal
        self._ends_line = True

    def write(self, token: Token) -> None:
        """Show one token's text at once."""
        text = harmless(token.text) if self._terminal else token.text
        if not text:
            return
        self._ends_line = text.endswith("\n")
        if self._colour:
            text = f"{_COLOURS[token.origin]}{text}{_RESET}"
        self._stream.write(text)
        self._stream.flush()

    def end(self) -> None:
        """End the line, if the text has not."""
        if not self._ends_line:
            self._stream.write("\n")
            self._stream.flush()
            self._ends_line = True


def notice(line: str) -> None:
    """Tell a person something, beside the text."""
    _tell(shown(line, sys.stderr))


def account(result: Result) -> None:
    """Tell a person what a generation took, beside the text."""
    _tell(summary(result, colour=wants_colour(sys.stderr)))


def _tell(line: str) -> None:
    if wants_colour(sys.stderr):
        line = f"{_DIM}{line}{_RESET}"
    print(line, file=sys.stderr, flush=True)


def seldom(tell: Callable[[str], None], pause_s: float = 60.0) -> Callable[[str], None]:
    """`tell`, but a line that was told is not told again for `pause_s`.

    For a process that meets the same trouble with one request after another.
    """
    told: dict[str, float] = {}

    def tell_once(line: str) -> None:
        now = time.monotonic()
        for old in [text for text, at in told.items() if now - at > pause_s]:
            del told[old]
        if line not in told:
            told[line] = now
            tell(line)

    return tell_once


def summary(result: Result, *, colour: bool) -> str:
    """A few lines about a generation: who wrote the text, and what it took."""
    counts, tokens = result.counts, len(result.token_ids)
    lines = [
        (
            f"{tokens} tokens in {result.duration_s:.2f} s: {result.tokens_per_s:.1f} tokens/s, "
            f"first after {_time(result.ttft_s)}"
            f" · mode {_mode(result)}, {result.verification} · finish: {result.finish_reason}"
        ),
        (
            f"{counts.rounds} rounds, {result.round_trips_saved} round trips saved · "
            f"{counts.proposed} drafted and sent, {counts.examined} examined, "
            f"{counts.accepted} accepted{_alpha(result)} · "
            f"{result.bytes_up} bytes up, {result.bytes_down} down"
        ),
    ]
    if result.draft is not None:
        authors = [
            _paint(f"{result.origins[origin]} {origin}", origin, colour)
            for origin in Origin
            if result.origins.get(origin)
        ]
        lines.append("written by: " + ", ".join(authors))
    return "\n".join(lines)


def legend(*, colour: bool) -> list[str]:
    """Who writes in which colour; one line where there is none."""
    if not colour:
        return ["tokens are not coloured here: no terminal, or NO_COLOR is set"]
    return [f"{_paint(origin, origin, colour)}: {_AUTHORS[origin]}" for origin in Origin]


def _mode(result: Result) -> str:
    """The mode; of `auto`, also what it did most."""
    if result.mode != "auto" or not result.ways:
        return result.mode
    return f"auto ({max(result.ways, key=lambda way: result.ways[way])})"


def _alpha(result: Result) -> str:
    alpha = result.counts.alpha
    return "" if alpha is None else f" (α {alpha:.2f})"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def _paint(text: str, origin: Origin, colour: bool) -> str:
    return f"{_COLOURS[origin]}{text}{_RESET}" if colour else text
