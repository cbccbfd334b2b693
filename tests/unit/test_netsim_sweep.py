"""Values, points and the journal of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsim import axes
from netsim.scenario import EDGE, Way
from netsim.scenario_file import default_study
from netsim.sweep.grid import RESULTS, Chunk, Grid, Row, work
from netsim.sweep.journal import Journal
from netsim.sweep.values import read_values
from specwire.errors import BadRequest, SpecwireError


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("rtt_ms", "0,20,50:200:50", (0, 20, 50, 100, 150, 200)),
        ("alpha", "0.5:0.9:0.1", (0.5, 0.6, 0.7, 0.8, 0.9)),
        ("gamma", "1:4,auto,2", (1, 2, 3, 4, None)),
        ("rate_mbit_s", "0.5,none", (0.5, None)),
        ("way", "edge", tuple(map(str, EDGE))),
        ("way", "stream, sync", ("stream", "sync")),
        ("profile", "rtt-100,4g-weak", ("rtt-100", "4g-weak")),
    ],
)
def test_lists_and_ranges(name: str, text: str, values: tuple[object, ...]):
    assert read_values(axes.axis(name), text) == values


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rtt_ms", "10,,20"),
        ("rtt_ms", "10:"),
        ("rtt_ms", "20:10"),
        ("rtt_ms", "0:10:0"),
        ("rtt_ms", "0:1e9"),
        ("rtt_ms", "nan"),
        ("rtt_ms", "-5"),
        ("alpha", "0.5:1.5:0.5"),
        ("gamma", "1.5"),
        ("loss", "1"),
        ("way", "sinc"),
    ],
)
def test_values_that_are_none_are_refused(name: str, text: str):
    with pytest.raises(BadRequest):
        read_values(axes.axis(name), text)


def grid(**vary: tuple[axes.Value, ...]) -> Grid:
    return Grid(default_study().base, vary, (Way.STREAM, Way.SYNC), (0, 1))


def test_what_has_no_influence_is_not_repeated():
    points = list(grid(rtt_ms=(0, 10, 20), alpha=(0.5, 0.9), gamma=(2, 4)).points())
    stream = [point for point in points if point[3] == "stream"]
    assert len(stream) == 3 * 2  # round trips, seeds
    assert all(point[1] is None and point[2] is None for point in stream)
    assert len(points) - len(stream) == 3 * 2 * 2 * 2
    assert len(points) == len(set(points))


def test_a_row_has_what_its_head_says():
    one = grid(alpha=(0.5,), gamma=(2,))
    rows = work(Chunk(one.base, one.names, 0, list(one.points())))
    assert all(len(row) == len(one.columns) for row in rows)
    assert one.columns == ("alpha", "gamma", "way", "seed", *RESULTS)
    time = one.columns.index("time_s")
    assert rows[0][time] == pytest.approx(256 * 0.040 + 0.050)


def test_another_sweep_has_another_key():
    assert grid(alpha=(0.5,)).key == grid(alpha=(0.5,)).key
    assert grid(alpha=(0.5,)).key != grid(alpha=(0.6,)).key


ROW: Row = [0.5, 1, "sync", None]


def test_a_journal_is_gone_on_with(tmp_path: Path):
    path = tmp_path / "journal"
    with Journal(path, "key", 10) as journal:
        assert list(journal.missing(4)) == [range(4), range(4, 8), range(8, 10)]
        journal.add(4, [ROW] * 4)
    with Journal(path, "key", 10) as journal:
        assert journal.done == 4
        assert list(journal.missing(100)) == [range(4), range(8, 10)]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_cut_off_by_a_kill_counts_for_nothing(tmp_path: Path, cut: int):
    path = tmp_path / "journal"
    with Journal(path, "key", 10) as journal:
        journal.add(0, [ROW] * 3)
        journal.add(3, [ROW] * 3)
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, "key", 10) as journal:
        assert journal.done == 3
        journal.add(3, [ROW] * 7)
    with Journal(path, "key", 10) as journal:
        assert journal.done == 10


def test_the_journal_of_another_sweep_is_left_alone(tmp_path: Path):
    path = tmp_path / "journal"
    with Journal(path, "one", 10) as journal:
        journal.add(0, [ROW])
    before = path.read_bytes()
    with pytest.raises(BadRequest, match="--fresh"):
        Journal(path, "other", 10)
    assert path.read_bytes() == before
    with Journal(path, "other", 10, fresh=True) as journal:
        assert journal.done == 0


def test_two_sweeps_do_not_write_one_journal(tmp_path: Path):
    with (
        Journal(tmp_path / "journal", "key", 10),
        pytest.raises(SpecwireError, match="another sweep is at work"),
    ):
        Journal(tmp_path / "journal", "key", 10)
