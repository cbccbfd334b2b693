"""Values, points and the journal of a sweep."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from netsim import axes
from netsim.commands.study import add_changes, changed
from netsim.commands.sweep import add_arguments, grid_of
from netsim.links import Direction, Jitter, JitterKind, LinkModel, Loss, profile, profiles
from netsim.scenario import EDGE, Way
from netsim.scenario_file import Study, default_study
from netsim.sweep.grid import RESULTS, Chunk, Grid, Row, work
from netsim.sweep.journal import Journal
from netsim.sweep.values import read_values
from specwire.errors import BadRequest, SpecwireError

BASE = default_study().base


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("rtt_ms", "0,20,50:200:50", (0, 20, 50, 100, 150, 200)),
        ("alpha", "0.5:0.9:0.1", (0.5, 0.6, 0.7, 0.8, 0.9)),
        ("gamma", "1:4,auto,2", (1, 2, 3, 4, None)),
        ("rate_mbit_s", "0.5,none", (0.5, None)),
        ("burst", "1,none,2.5", (1, None, 2.5)),
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
        ("burst", "0.5"),
        ("burst", "inf"),
        ("rate_mbit_s", "0"),
        ("rate_mbit_s", "1e308"),
        ("gamma", "²"),
        ("gamma", "9" * 5000),
        ("way", "sinc"),
    ],
)
def test_values_that_are_none_are_refused(name: str, text: str):
    with pytest.raises(BadRequest):
        read_values(axes.axis(name), text)


@pytest.mark.parametrize("rtt_ms", [0, 5, 10, 20, 50, 100, 400])
def test_the_round_trip_asked_for_is_the_one_simulated(rtt_ms: float):
    lopsided = LinkModel(
        "lopsided",
        Direction(0.010, jitter=Jitter(JitterKind.PARETO, 0.020)),
        Direction(0.040, jitter=Jitter(JitterKind.UNIFORM, 0.005)),
    )
    for link in (*profiles(), profile("rtt-50"), lopsided):
        found = axes.apply(replace(BASE, link=link), {"rtt_ms": rtt_ms}).link
        assert found.rtt_s * 1e3 == pytest.approx(rtt_ms, abs=1e-9), link.name
        for way, before in ((found.up, link.up), (found.down, link.down)):
            assert way.jitter.kind is before.jitter.kind
            assert way.jitter.mean_s <= before.jitter.mean_s
            assert way.delay_s == 0 or way.jitter == before.jitter
            assert replace(way, delay_s=before.delay_s, jitter=before.jitter) == before


def test_a_round_trip_that_is_there_already_changes_nothing():
    for link in profiles():
        found = axes.apply(replace(BASE, link=link), {"rtt_ms": link.rtt_s * 1e3}).link
        assert found.up.delay_s == pytest.approx(link.up.delay_s)
        assert found.up.jitter.mean_s == pytest.approx(link.up.jitter.mean_s)
    assert axes.apply(BASE, {"rtt_ms": 20.0}).link.name == "rtt-20"
    assert axes.apply(replace(BASE, link=profile("5g")), {"rtt_ms": 20.0}).link.name == "5g"


def test_another_loss_keeps_the_bursts():
    bursty = replace(BASE, link=profile("wifi-bad"))
    assert axes.apply(bursty, {"loss": 0.05}).link.up.loss == Loss(0.05, 3)
    assert axes.apply(BASE, {"loss": 0.05}).link.up.loss == Loss(0.05)
    # Independent loss of 0.8 comes in runs of five.
    assert axes.apply(bursty, {"loss": 0.8}).link.up.loss == Loss(0.8)
    assert axes.apply(bursty, {"burst": 5.0}).link.down.loss == Loss(0.01, 5)
    assert axes.apply(bursty, {"loss": 0.02, "burst": None}).link.down.loss == Loss(0.02)
    assert axes.apply(BASE, {"loss": 0.0, "burst": 2.0}).link.up.plain


def test_bursts_that_go_with_no_loss_or_not_with_that_are_refused():
    with pytest.raises(BadRequest, match=r"bursts of 2\.0 packets .* give a loss"):
        axes.apply(BASE, {"burst": 2.0})
    with pytest.raises(BadRequest, match=r"at least 9; give a longer burst, or less loss"):
        axes.apply(BASE, {"loss": 0.9, "burst": 2.0})


def test_none_is_shown_as_it_is_written():
    assert axes.axis("rate_mbit_s").shown(None) == axes.axis("burst").shown(None) == "none"
    assert axes.axis("gamma").shown(None) == "auto"
    assert axes.axis("rtt_ms").shown(20.0) == "20"


def changed_by(vary: dict[str, tuple[axes.Value, ...]], *words: str) -> Study:
    parser = argparse.ArgumentParser()
    add_changes(parser)
    return changed(replace(default_study(), vary=vary), parser.parse_args(words))


def test_a_flag_of_the_link_holds_for_each_profile_that_is_varied():
    found = changed_by({"profile": ("5g", "geo")}, "--rtt", "20", "--alpha", "0.5")
    assert found.vary == {"profile": ("5g", "geo"), "rtt_ms": (20.0,)}
    assert found.base.acceptance.alphas == (0.5,)
    assert changed_by({"loss": (0.1,)}, "--burst", "2").vary == {"loss": (0.1,), "burst": (2.0,)}


@pytest.mark.parametrize("seed", ["-3", "9" * 20])
def test_a_seed_that_is_none_is_refused(seed: str):
    with pytest.raises(BadRequest, match=f"--seed must be 0 to .*, not {seed}"):
        changed_by({}, "--seed", seed)


def sweep_of(*words: str) -> Grid:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return grid_of(parser.parse_args([*words, "--out", "x.csv"]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seed", "-3"), "--seed must be 0 to"),
        (("--seeds", "9" * 12), "--seeds must be 2000000 at most"),
        (("--loss", "0.9", "--burst", "2"), "at least 9"),
        (("--profile", "5g", "--burst", "2"), "give a loss"),
    ],
)
def test_a_sweep_is_refused_before_it_begins(words: tuple[str, ...], told: str):
    with pytest.raises(BadRequest, match=told):
        sweep_of(*words)
    assert sweep_of("--loss", "0:0.9:0.1", "--profile", "wifi-bad").largest


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
