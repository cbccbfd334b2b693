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

from netsim.links.direction import HEADER_BYTES, Direction
from netsim.links.gaps import Gaps
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
    jitter = Jitter(_kind(table), _number(table, "jitter_ms", 0.0) / 1000)
    rate = _number(table, "rate_mbit_s", None)
    queue = _number(table, "queue_bytes", None)
    burst = _number(table, "burst", None)
    trace = table.get("trace")
    return Direction(
        delay_s=_delay_s(table, jitter),
        jitter=jitter,
        rate_bit_s=None if rate is None else rate * 1e6,
        queue_bytes=None if queue is None else int(queue),
        loss=Loss(_number(table, "loss", 0.0), burst),
        outages=_gaps(table, "outage"),
        handovers=_gaps(table, "handover"),
        trace=None if trace is None else Trace.read(folder / _text(trace, "trace")),
        header_bytes=int(_number(table, "header_bytes", HEADER_BYTES)),
    )


def _delay_s(table: Mapping[str, Any], jitter: Jitter) -> float:
    if "rtt_ms" not in table:
        return float(_number(table, "delay_ms", 0.0)) / 1000
    if "delay_ms" in table:
        raise ValueError("give rtt_ms, there and back, or delay_ms, one way, not both")
    delay_s = float(_number(table, "rtt_ms", 0.0)) / 2000 - jitter.average_s
    if delay_s < 0:
        raise ValueError(
            f"an rtt_ms of {table['rtt_ms']} is less than the jitter of both directions alone"
        )
    return delay_s


def _kind(table: Mapping[str, Any]) -> JitterKind:
    given = table.get("jitter", "exponential" if "jitter_ms" in table else "none")
    try:
        return JitterKind(given)
    except ValueError:
        raise ValueError(f"jitter = {given!r}: it is one of {', '.join(JitterKind)}") from None


def _gaps(table: Mapping[str, Any], what: str) -> Gaps:
    fixed = table.get(f"{what}s", ())
    try:
        pairs = tuple((float(begin), float(end)) for begin, end in fixed)
    except (TypeError, ValueError):
        raise ValueError(f"{what}s = {fixed!r}: give pairs of seconds, [[begin, end]]") from None
    every = _number(table, f"{what}_every_s", None)
    return Gaps(pairs, every, _number(table, f"{what}_s", 0.0), bool(table.get("regular", False)))


def _number(table: Mapping[str, Any], key: str, default: float | None) -> Any:
    value = table.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{key} = {value!r}: it is a number")
    return float(value)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} = {value!r}: it is a text")
    return value
