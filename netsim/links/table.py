"""A link from a table, as in a TOML file.

name = "office"
source = "measured on 3 May"
rtt_ms = 40          # jitter's average included; or delay_ms, one way, without
loss = 0.002         # what stands here holds for both directions

[up]
rate_mbit_s = 5
queue_bytes = 64000

[down]
trace = "office.down"
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from netsim.links.direction import HEADER_BYTES, MOST_HEADER_BYTES, Direction
from netsim.links.gaps import LEAST_PAUSE_S, LONGEST_S, Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.link import LinkModel
from netsim.links.loss import Loss
from netsim.links.trace import Trace

KEYS = (
    "delay_ms",
    "rtt_ms",
    "jitter",
    "jitter_ms",
    "rate_mbit_s",
    "queue_bytes",
    "loss",
    "burst",
    "outages",
    "outage_every_s",
    "outage_s",
    "handovers",
    "handover_every_s",
    "handover_s",
    "regular",
    "trace",
    "header_bytes",
)
"""Of a direction. Times of `outages` and `handovers` are lists of [begin, end] in seconds."""

LONGEST_MS = 3_600_000
LEAST_RATE_MBIT_S = 1e-3
"""A kilobit a second: below, a single packet takes more than ten seconds."""


def load_profile(given: str | Path | Mapping[str, Any]) -> LinkModel:
    """A link from a TOML file, or from a table that was read already.

    Raises:
        ValueError: the file can't be read, or a key or a value won't do.
    """
    if isinstance(given, Mapping):
        return from_table(given)
    path = Path(given)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} can't be read as a link: {error}") from error
    try:
        return from_table({"name": path.stem, **table}, folder=path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def from_table(table: Mapping[str, Any], *, folder: Path | None = None) -> LinkModel:
    """The link that a table describes; traces are looked for in `folder`."""
    both = {key: value for key, value in table.items() if key not in ("up", "down")}
    name = _text(both.pop("name", "by hand"), "name")
    source = _text(both.pop("source", "given by hand"), "source")
    ways = []
    for side in ("up", "down"):
        own = table.get(side, {})
        if not isinstance(own, Mapping):
            raise ValueError(f"[{side}] is a table of a direction's keys, not {own!r}")
        ways.append(_direction({**both, **own}, folder or Path()))
    return LinkModel(name, ways[0], ways[1], source)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: whether something known is meant."""
    known = list(known)
    close = [name for name in known if word and name.startswith(word)]
    close = close or difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else "."


def _direction(table: Mapping[str, Any], folder: Path) -> Direction:
    for key in table:
        if key not in KEYS:
            raise ValueError(
                f"a link has no {key!r}{nearest(key, KEYS)} It has: name, source, up, down,"
                f" {', '.join(KEYS)}"
            )
    jitter = _jitter(table)
    rate = _number(table, "rate_mbit_s", least=LEAST_RATE_MBIT_S, most=1e9)
    trace = table.get("trace")
    return Direction(
        delay_s=_delay_s(table, jitter),
        jitter=jitter,
        rate_bit_s=None if rate is None else rate * 1e6,
        queue_bytes=_whole(table, "queue_bytes", least=2000, most=10**12),
        loss=Loss(
            _number(table, "loss", most=1.0) or 0.0, _number(table, "burst", least=1.0, most=1e6)
        ),
        outages=_gaps(table, "outage"),
        handovers=_gaps(table, "handover"),
        trace=None if trace is None else Trace.read(folder / _text(trace, "trace")),
        header_bytes=_header_bytes(table),
    )


def _header_bytes(table: Mapping[str, Any]) -> int:
    given = _whole(table, "header_bytes", most=MOST_HEADER_BYTES)
    return HEADER_BYTES if given is None else given


def _delay_s(table: Mapping[str, Any], jitter: Jitter) -> float:
    delay_ms = _number(table, "delay_ms", most=LONGEST_MS)
    rtt_ms = _number(table, "rtt_ms", most=LONGEST_MS)
    if rtt_ms is None:
        return (delay_ms or 0.0) / 1000
    if delay_ms is not None:
        raise ValueError("give rtt_ms, there and back, or delay_ms, one way, not both")
    least_ms = 2000 * jitter.average_s
    if rtt_ms < least_ms:
        raise ValueError(
            f"an rtt_ms of {rtt_ms:g} is less than the jitter of both directions alone: with"
            f" jitter_ms = {jitter.average_s * 1000:g} give {least_ms:g} or more, or less jitter"
        )
    return rtt_ms / 2000 - jitter.average_s


def _jitter(table: Mapping[str, Any]) -> Jitter:
    mean_ms = _number(table, "jitter_ms", most=LONGEST_MS)
    given = table.get("jitter", "none" if mean_ms is None else "exponential")
    if given not in list(JitterKind):
        raise ValueError(f"jitter = {given!r}: it is one of {', '.join(JitterKind)}")
    if mean_ms is None and given != JitterKind.NONE:
        raise ValueError(f"jitter = {given!r} has no jitter_ms: give its mean, or leave it out")
    return Jitter(JitterKind(given), (mean_ms or 0.0) / 1000)


def _gaps(table: Mapping[str, Any], what: str) -> Gaps:
    fixed = table.get(f"{what}s", ())
    if not isinstance(fixed, list | tuple) or not all(_is_pair(each) for each in fixed):
        raise ValueError(f"{what}s = {fixed!r}: give pairs of seconds, [[begin, end]]")
    every = _number(table, f"{what}_every_s", least=LEAST_PAUSE_S, most=LONGEST_S)
    last = _number(table, f"{what}_s", least=LEAST_PAUSE_S, most=LONGEST_S)
    regular = table.get("regular", False)
    if not isinstance(regular, bool):
        raise ValueError(f"regular = {regular!r}: it is true or false, without quotes")
    if last is not None and every is None:
        raise ValueError(f"{what}_s = {last:g} has no {what}_every_s: give how often they come")
    if every is not None and last is None:
        raise ValueError(f"{what}_every_s = {every:g} has no {what}_s: give how long each lasts")
    pairs = tuple((float(begin), float(end)) for begin, end in fixed)
    return Gaps(pairs, every, last or 0.0, regular)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(_is_number(each) and (abs(each) <= LONGEST_S or each == math.inf) for each in value)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(table: Mapping[str, Any], key: str, *, least: float = 0.0, most: float) -> float | None:
    """A number within a range; None where the key is absent."""
    value = table.get(key)
    if value is None:
        return None
    if not _is_number(value):
        raise ValueError(f"{key} = {value!r}: it is a number")
    if not least <= value <= most:
        negative = " It can't be negative." if value < 0 else ""
        raise ValueError(f"{key} = {value}: give {least:.10g} to {most:.10g}.{negative}")
    return float(value)


def _whole(table: Mapping[str, Any], key: str, *, least: int = 0, most: int) -> int | None:
    value = _number(table, key, least=least, most=most)
    if value is not None and value != int(value):
        raise ValueError(f"{key} = {value:g}: it is a whole number")
    return None if value is None else int(value)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} = {value!r}: it is a text")
    return value
