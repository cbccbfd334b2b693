"""Recorded capacity: exactly what the trace lets through, when it lets it through."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from netsim.links import Direction, LinkModel, Trace
from netsim.links.trace import PACKET_BYTES, TraceClock

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"


def recorded() -> list[Path]:
    return sorted(path for path in RECORDED.glob("*") if path.suffix in (".up", ".down"))


def check_replay(trace):
    """Sent as fast as it goes, three times through: every millisecond has its packets."""
    clock = TraceClock(trace)
    count = len(trace.times_ms)
    arrivals = [clock.depart(0.0, PACKET_BYTES) for _ in range(3 * count)]
    for turn in range(3):
        part = arrivals[turn * count : (turn + 1) * count]
        offset = turn * trace.times_ms[-1]
        assert [round(1000 * at) - offset for at in part] == list(trace.times_ms)
    bits = len(arrivals) * PACKET_BYTES * 8
    assert bits / arrivals[-1] == pytest.approx(trace.mean_bit_s)
    assert clock.depart(0.0, 1) > 3 * trace.period_s - 1e-6  # and not a byte more


def test_a_replay_delivers_exactly_the_traces_bytes():
    check_replay(Trace((0, 1, 1, 1, 5, 9, 9, 20)))
    check_replay(Trace((3,)))


@pytest.mark.parametrize("path", recorded() or [None], ids=lambda path: path.name if path else "-")
def test_recorded_traces_deliver_exactly_their_bytes(path):
    if path is None:
        pytest.skip("the recorded traces are not here (../shared/traces)")
    check_replay(Trace.read(path))


def test_tcp_over_a_trace_fills_it():
    """A transfer without headers ends with the opportunity that takes its last byte."""
    trace = Trace(tuple(range(1, 1001)))  # a packet each millisecond: 12 Mbit/s
    way = Direction(trace=trace, header_bytes=0)
    link = LinkModel("trace", way, way).open()
    size = 300 * PACKET_BYTES
    assert link.up.send(0.0, size) == pytest.approx(0.3, abs=0.0011)


def test_small_packets_share_an_opportunity():
    trace = Trace((10, 20, 30))
    clock = TraceClock(trace)
    assert [clock.depart(0.0, 500) for _ in range(4)] == [0.010, 0.010, 0.010, 0.020]
    assert clock.depart(0.0, 1500) == 0.030  # 1000 bytes of the second, 500 of the third


def test_what_nobody_waits_for_is_lost():
    clock = TraceClock(Trace((10, 20, 30)))
    assert clock.depart(0.015, 100) == 0.020
    assert clock.depart(0.0205, 100) == 0.030
    assert clock.depart(0.0305, 100) == pytest.approx(0.040)  # its repetition
    assert clock.depart(30.0, 100) == pytest.approx(30.0)


def test_no_later_than_asked_and_in_order():
    clock = TraceClock(Trace((1, 4, 4, 11)))
    sent = [i * 0.0007 for i in range(2000)]
    leaves = [clock.depart(at, 700) for at in sent]
    assert all(there >= at for at, there in zip(sent, leaves, strict=True))
    assert all(one <= two for one, two in itertools.pairwise(leaves))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "at least one line"),
        ("0\n0\n", "at least one line"),
        ("5\n4\n", "line 2: 4 ms comes after 5"),
        ("1\nx\n", "line 2: 'x'"),
        ("1\n-2\n", "line 2: '-2'"),
        ("1.5\n", "line 1"),
        ("1\n²\n", "can't be read"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, part):
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=part):
        Trace.read(path)


def test_a_missing_trace_is_said_to_be(tmp_path):
    with pytest.raises(ValueError, match="can't be read"):
        Trace.read(tmp_path / "none")


def test_blank_lines_and_dos_ends_are_taken(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(b"1\r\n\r\n7\r\n")
    assert Trace.read(path).times_ms == (1, 7)


def test_a_queue_over_a_trace_is_finite():
    trace = Trace((100,))
    way = Direction(trace=trace, queue_bytes=6000)
    link = LinkModel("slow", way, way).open()
    assert link.up.send(0.0, 20 * 1448) < math.inf
    assert link.up.path.lost > 0
