"""Times of real models, as `edge-client generate --record` wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netsim.times import Duration
from specwire.errors import BadRequest


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The record's objects, one a line.

    Raises:
        BadRequest: the file can't be read, or a line is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read the record {path}: {error}") from error
    items: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise BadRequest(f"{path}, line {number} is no JSON: {error}") from error
        if not isinstance(item, dict):
            raise BadRequest(f"{path}, line {number} is no JSON object; is this a record?")
        items.append(item)
    return items


def read_times(path: Path) -> tuple[Duration | None, Duration | None, float]:
    """Draft times, times of a forward with one token, and what each further token adds.

    The last is the slope of a line through the forwards, by least squares; it is taken out
    of each recorded forward, so that what is left is a forward's own spread.

    Raises:
        BadRequest: the file can't be read, is no record, or holds no times at all.
    """
    items = read_lines(path)
    drafts = [float(item["draft_s"]) for item in items if "draft_s" in item]
    forwards = [
        (int(item.get("evaluated", 0)), float(item["verify_s"]))
        for item in items
        if "verify_s" in item
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
