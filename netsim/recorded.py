"""What `edge-client generate --record` wrote: times of real models, and whom a draft knew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsim.times import Duration
from specwire.errors import BadRequest

LONGEST_S = 1e6
"""No draft and no forward takes longer."""


@dataclass(frozen=True)
class Line:
    """One object of a record, and where it was found, for messages."""

    where: str
    values: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def seconds(self, key: str) -> float:
        """A time.

        Raises:
            BadRequest: it is none.
        """
        value: Any = self.values[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 <= value <= LONGEST_S):
            raise self._wrong(key, f"a time from 0 to {LONGEST_S:g} s")
        return float(value)

    def count(self, key: str) -> int:
        """A whole number, 0 where there is none.

        Raises:
            BadRequest: it is something else.
        """
        value: Any = self.values.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number, 0 or more")
        return value

    def truth(self, key: str) -> bool:
        """True or false.

        Raises:
            BadRequest: it is something else.
        """
        value: Any = self.values[key]
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def _wrong(self, key: str, what: str) -> BadRequest:
        return BadRequest(f"{self.where}: {key} must be {what}, not {self.values[key]!r}")


def read_lines(path: Path) -> list[Line]:
    """The record's objects, one a line.

    Raises:
        BadRequest: the file can't be read, or a line is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read the record {path}: {error}") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise BadRequest(f"{where} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise BadRequest(f"{where} is no JSON object; is this a record?")
        lines.append(Line(where, values))
    return lines


def read_times(path: Path) -> tuple[Duration | None, Duration | None, float]:
    """Draft times, times of a forward with one token, and what each further token adds.

    The last is the slope of a line through the forwards, by least squares; it is taken out
    of each recorded forward, so that what is left is a forward's own spread.

    Raises:
        BadRequest: the file can't be read, is no record, or holds no times at all.
    """
    lines = read_lines(path)
    drafts = [line.seconds("draft_s") for line in lines if "draft_s" in line]
    forwards = [
        (line.count("evaluated"), line.seconds("verify_s")) for line in lines if "verify_s" in line
    ]
    if not drafts and not forwards:
        raise BadRequest(f"{path} holds no times; write it with edge-client generate --record")
    extra = _slope(forwards)
    verify = [max(seconds - evaluated * extra, 0.0) for evaluated, seconds in forwards]
    return (
        Duration(0.0, recorded=tuple(drafts)) if drafts else None,
        Duration(0.0, recorded=tuple(verify)) if verify else None,
        extra,
    )


def _slope(points: list[tuple[int, float]]) -> float:
    if not points:
        return 0.0
    mean_n = sum(n for n, _ in points) / len(points)
    mean_s = sum(s for _, s in points) / len(points)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    if not spread:
        return 0.0
    slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread
    return min(max(slope, 0.0), mean_s)
