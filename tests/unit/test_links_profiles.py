"""Named links and links from files."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from netsim.links import (
    NAMES,
    Gaps,
    JitterKind,
    LinkModel,
    Loss,
    Trace,
    described,
    load_profile,
    profile,
    profiles,
)

WANTED = {
    *("ethernet", "wifi-good", "wifi-bad", "5g", "4g-good", "4g-weak", "3g", "3g-slow", "edge"),
    *("dsl", "cable", "leo", "geo", "train", "elevator"),
}


def test_all_are_there_and_say_where_they_are_from():
    assert set(NAMES) == WANTED
    for model in profiles():
        assert len(model.source) > 20
        assert model.up.rate_bit_s
        assert model.down.rate_bit_s
        assert model.up.queue_bytes
        assert model.down.queue_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_delivers(name):
    link = profile(name).open(1)
    now = link.connect(0.0)
    for _ in range(200):
        there = link.up.send(now, 100)
        assert now + profile(name).up.delay_s <= there < math.inf
        now = link.down.send(there + 0.05, 50)
        assert now < math.inf


@pytest.mark.parametrize(
    ("name", "rtt_ms"), [("3g", 300), ("4g-weak", 150), ("leo", 50), ("geo", 600), ("cable", 13)]
)
def test_the_round_trip_is_the_one_stated(name, rtt_ms):
    assert profile(name).rtt_s * 1000 == pytest.approx(rtt_ms)


@pytest.mark.parametrize(("name", "rtt_s"), [("rtt-100", 0.1), ("rtt-0", 0), ("RTT-2.5", 0.0025)])
def test_any_round_trip_has_a_name(name, rtt_s):
    model = profile(name)
    assert model.rtt_s == rtt_s
    assert model.up == model.down
    assert model.up.plain


@pytest.mark.parametrize(
    ("name", "meant"),
    [("4g", "4g-good"), ("4g-wek", "4g-weak"), ("wifi", "wifi-good"), ("rtt-1oo", "rtt-100")],
)
def test_an_unknown_name_is_told_the_nearest_and_all(name, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'") as caught:
        profile(name)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("name", ["", "zzzzzz", "rtt-", "rtt--5", "rtt-1e3", "rtt-9999999"])
def test_what_is_like_nothing_gets_the_list(name):
    with pytest.raises(ValueError, match="There are: ethernet"):
        profile(name)


def test_a_link_is_described_by_its_name_and_by_what_differs():
    assert described(profile("4g-weak")) == "4g-weak, round trip 150 ms"
    assert described(profile("rtt-50")) == "rtt-50, round trip 50 ms"
    weak = profile("4g-weak").with_rtt(0.2)
    rate = replace(weak, up=replace(weak.up, rate_bit_s=1e6), down=replace(weak.down, loss=Loss()))
    assert described(rate) == (
        "4g-weak, with round trip 200 ms, 1 Mbit/s up, 1.6 Mbit/s down,"
        " 0.5 % lost in bursts of 2 up, no loss down"
    )
    assert described(rate, varied=("rtt_ms", "rate_mbit_s", "loss")) == "4g-weak"
    near = described(profile("4g-weak").with_rtt(0.01))
    assert near == "4g-weak, with round trip 10 ms, exponential jitter of 5 ms"


def test_a_trace_and_breaks_are_described():
    trace = Trace(tuple(range(1, 1001)), "office.down")
    link = LinkModel.symmetric(0.05, trace=trace, outages=Gaps(every_s=60, last_s=2))
    told = described(link)
    assert told == (
        "rtt-50, with round trip 50 ms, trace office.down (12 Mbit/s on average),"
        " outages of 2 s every 60 s"
    )
    assert described(replace(link, name="office")) == told.replace("rtt-50, with", "office,")


def test_a_link_from_a_file(tmp_path):
    (tmp_path / "cell.down").write_text("1\n2\n3\n")
    path = tmp_path / "office.toml"
    path.write_text(
        'source = "measured"\nrtt_ms = 40\nloss = 0.01\nburst = 3\njitter_ms = 5\n'
        "outages = [[1, 2.5]]\n[up]\nrate_mbit_s = 5\nqueue_bytes = 64000\n"
        '[down]\ntrace = "cell.down"\njitter = "uniform"\nloss = 0\n'
    )
    model = profile(str(path))
    assert (model.name, model.source) == ("office", "measured")
    assert model.rtt_s == pytest.approx(0.04)
    assert model.up.delay_s == pytest.approx(0.015)
    assert model.up.rate_bit_s == 5e6
    assert model.up.loss.mean_burst == 3
    assert not model.down.loss
    assert model.down.jitter.kind is JitterKind.UNIFORM
    assert model.up.jitter.kind is JitterKind.EXPONENTIAL
    assert model.up.outages.fixed == ((1.0, 2.5),)
    assert model.down.trace is not None
    assert model.down.trace.times_ms == (1, 2, 3)


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ({"rtt": 5}, "did you mean 'rtt_ms'"),
        ({"up": 3}, "table"),
        ({"rtt_ms": "fast"}, "it is a number"),
        ({"rtt_ms": True}, "it is a number"),
        ({"rtt_ms": 10, "jitter_ms": 20}, "less than the jitter"),
        ({"rtt_ms": 10, "delay_ms": 5}, "not both"),
        ({"jitter": "gauss"}, "uniform"),
        ({"outages": 5}, "pairs"),
        ({"outages": [[1]]}, "pairs"),
        ({"loss": 2}, "loss = 2: give 0 to 1"),
        ({"trace": 5}, "it is a text"),
        ({"name": 5}, "it is a text"),
    ],
)
def test_a_table_that_will_not_do_is_refused(table, part):
    with pytest.raises(ValueError, match=part):
        load_profile(table)


def test_a_file_that_will_not_do_is_named(tmp_path):
    path = tmp_path / "x.toml"
    with pytest.raises(ValueError, match=r"x\.toml can't be read"):
        profile(str(path))
    path.write_text("rtt_ms = [")
    with pytest.raises(ValueError, match=r"x\.toml can't be read"):
        profile(str(path))
    path.write_text("rtt_mss = 4")
    with pytest.raises(ValueError, match=r"x\.toml: .*rtt_ms"):
        profile(str(path))
