"""Lists and ranges of values, as people write them on a command line."""

from __future__ import annotations

from collections.abc import Iterator

from netsim.axes import Axis, Value
from netsim.scenario import EDGE, Way
from specwire.errors import BadRequest

MOST_VALUES = 10_000
_ALIASES = {"all": tuple(Way), "edge": EDGE}


def read_values(axis: Axis, text: str) -> tuple[Value, ...]:
    """Values of an axis from a text such as "0,20,50:200:50": commas, and ranges with a step.

    A range includes its end; without a step it counts by one.

    Raises:
        BadRequest: a value is none of the axis, or there are too many.
    """
    found: list[Value] = []
    for part in text.split(","):
        word = part.strip()
        if not word:
            raise BadRequest(f"{axis.name}: there is an empty value in {text!r}")
        if axis.name == "way" and word in _ALIASES:
            found += [str(way) for way in _ALIASES[word]]
        elif ":" in word and axis.name not in ("way", "profile"):
            found += [axis.read(_plain(value)) for value in _range(axis.name, word)]
        else:
            found.append(axis.read(word))
        if len(found) > MOST_VALUES:
            raise BadRequest(f"{axis.name} has more than {MOST_VALUES} values; use a wider step")
    return tuple(dict.fromkeys(found))


def _plain(value: float) -> str:
    return f"{value:.10g}"


def _range(name: str, text: str) -> Iterator[float]:
    parts = text.split(":")
    try:
        first, last = float(parts[0]), float(parts[1])
        step = float(parts[2]) if len(parts) == 3 else 1.0
    except ValueError:
        parts = []
    if len(parts) not in (2, 3):
        raise BadRequest(f"{name}: {text!r} is no range; write FIRST:LAST or FIRST:LAST:STEP")
    if not (step > 0 and last >= first):
        raise BadRequest(f"{name}: the range {text!r} must rise, by a step above 0")
    count = (last - first) / step
    if not count < MOST_VALUES:
        raise BadRequest(f"{name} has more than {MOST_VALUES} values; use a wider step")
    for index in range(int(count + 1e-9) + 1):
        yield first + index * step
