"""What a sweep says as a whole: where each edge way wins and loses against the baselines."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from netsim import axes
from netsim.comparison import SAME
from netsim.scenario import EDGE, Way
from netsim.scenario_file import BASELINES
from netsim.sweep.grid import Grid, Row
from netsim.words import NAMES


def conclusion(grid: Grid, rows: Sequence[Row]) -> list[str]:
    """Lines for people."""
    if Way.STREAM not in grid.ways:
        return ["cloud streaming was not among the ways: nothing here tells of a saving"]
    lines = []
    times = _times(grid, rows)
    for way in (way for way in EDGE if way in grid.ways):
        for over in (over for over in BASELINES if over in grid.ways):
            won = [_ratio(grid, times, key, over) for key in times if key[-1] == way]
            faster = sum(ratio > 1 + SAME for ratio in won)
            slower = sum(ratio < 1 - SAME for ratio in won)
            lines.append(
                f"{NAMES[way]:<18} against {NAMES[over]:<22}: faster at {faster} of {len(won)} "
                f"points, slower at {slower}, ×{min(won):.2f} to ×{max(won):.2f}"
            )
    return lines


_Times = dict[tuple[axes.Value, ...], float]


def _times(grid: Grid, rows: Sequence[Row]) -> _Times:
    """Mean time over the seeds, by what is varied and the way."""
    place = grid.columns.index("time_s")
    found: dict[tuple[axes.Value, ...], list[float]] = defaultdict(list)
    for row in rows:
        found[tuple(row[: len(grid.vary) + 1])].append(float(str(row[place])))
    return {key: statistics.fmean(values) for key, values in found.items()}


def _ratio(grid: Grid, times: _Times, key: tuple[axes.Value, ...], over: Way) -> float:
    """Speed over a baseline under the same conditions, as far as they concern it."""
    same = [
        value if axes.matters(name, over) else None
        for name, value in zip(grid.vary, key, strict=False)
    ]
    return times[(*same, str(over))] / times[key]
