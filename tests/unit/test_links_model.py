"""Rates, delays and connections: what a link takes, in closed form."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim.links import Direction, Gaps, Jitter, JitterKind, LinkModel, Loss, wire_bytes

MBIT = LinkModel.symmetric(0.0, rate_bit_s=1e6, header_bytes=0)


def test_a_megabit_carries_500_kilobytes_in_four_seconds():
    link = MBIT.open()
    first, second = link.up.send(0.0, 500_000), link.up.send(0.0, 500_000)
    assert first == pytest.approx(4.0, rel=0.02)
    assert second == pytest.approx(8.0, rel=0.02)


def test_a_small_message_pays_for_its_own_bytes_at_once():
    # A token bucket that starts full would let it through in no time.
    assert MBIT.open().up.send(0.0, 50) == pytest.approx(0.4e-3)


@pytest.mark.parametrize("header", [0, 40, 52, 72])
def test_headers_are_paid_for_by_each_segment(header):
    link = MBIT.with_header_bytes(header).open()
    assert link.up.send(0.0, 50) == pytest.approx((50 + header) * 8e-6)
    segments = math.ceil(500_000 / 1448)
    took = link.down.send(0.0, 500_000)
    assert took == pytest.approx((500_000 + segments * header) * 8e-6, rel=1e-6)
    assert link.down.bytes == 500_000 + segments * header


def test_a_finite_queue_loses_packets_and_no_bytes():
    model = LinkModel.symmetric(0.02, rate_bit_s=1e6, queue_bytes=30_000, header_bytes=0)
    link = model.open()
    took = link.up.send(0.0, 500_000)
    assert link.up.path.lost > 0
    assert 4.0 < took < 4.0 * 1.1
    assert link.up.bytes > 500_000  # what did not fit was sent again


@pytest.mark.parametrize("rtt_s", [0.0, 0.02, 0.1, 0.6])
def test_rtt_is_there_and_back(rtt_s):
    link = LinkModel.symmetric(rtt_s).open()
    there = link.up.send(10.0, 20)
    assert link.down.send(there, 20) == pytest.approx(10.0 + rtt_s)
    assert LinkModel.symmetric(rtt_s).rtt_s == pytest.approx(rtt_s)


def test_rounds_count_the_round_trip_once():
    """N rounds over RTT R with draft d, verify v, γ g: N/(g+1)·(R + v + g·d)."""
    tokens, g, rtt, draft, verify = 200, 4, 0.2, 0.02, 0.03
    link = LinkModel.symmetric(rtt).open()
    now = link.connect(0.0)
    begun = now
    for _ in range(tokens // (g + 1)):
        now = link.up.send(now + g * draft, wire_bytes(40))
        now = link.down.send(now + verify, wire_bytes(12))
    expected = tokens / (g + 1) * (rtt + verify + g * draft)
    assert now - begun == pytest.approx(expected, rel=1e-9)


def test_connecting_takes_a_round_trip_and_tls_another():
    model = LinkModel.symmetric(0.1)
    assert model.open().connect(5.0, tls=False) == pytest.approx(5.1)
    assert model.open().connect(5.0, tls=True) == pytest.approx(5.2)


def test_a_lost_handshake_begins_again_after_a_second():
    model = LinkModel.symmetric(0.1, outages=Gaps(fixed=((0.0, 2.5),)))
    # tried at 0, 1 and 3 seconds
    assert model.open().connect(0.0, tls=False) == pytest.approx(3.1)


def test_a_long_message_waits_for_its_window_to_grow():
    def took(segments):
        return LinkModel.symmetric(0.1).open().up.send(0.0, segments * 1448)

    assert took(10) == pytest.approx(0.05)
    assert took(11) == pytest.approx(0.15)
    assert took(30) == pytest.approx(0.15)  # 10, then 20
    assert took(31) == pytest.approx(0.25)
    assert took(70) == pytest.approx(0.25)


def test_the_window_is_small_again_after_a_silence():
    link = LinkModel.symmetric(0.1).open()
    link.up.send(0.0, 100 * 1448)
    assert link.up.send(0.5, 40 * 1448) == pytest.approx(0.55)
    assert link.up.send(2.0, 40 * 1448) == pytest.approx(2.25)


def test_small_messages_that_wait_for_the_window_go_together():
    link = LinkModel.symmetric(1.0).open()
    arrivals = [link.up.send(i * 0.01, 20) for i in range(50)]
    assert arrivals[:10] == pytest.approx([0.5 + i * 0.01 for i in range(10)])
    assert arrivals[10:] == pytest.approx([1.5] * 40)


def test_a_new_connection_is_not_behind_the_old_ones_losses():
    model = LinkModel.symmetric(
        0.1, rate_bit_s=1e6, queue_bytes=64_000, outages=Gaps(fixed=((1.0, 20.0),))
    )
    link = model.open()
    late = link.up.send(2.0, 200)
    assert late > 20
    assert link.connect(20.1, tls=False) < 20.3
    assert link.up.send(20.4, 200) < 20.5


def test_a_handover_holds_what_comes_meanwhile():
    model = LinkModel.symmetric(0.02, handovers=Gaps(fixed=((1.0, 1.3),)))
    link = model.open()
    assert link.up.send(0.9, 100) == pytest.approx(0.91)
    assert link.up.send(1.1, 100) == pytest.approx(1.31)
    assert link.up.send(1.4, 100) == pytest.approx(1.41)
    assert link.up.path.lost == 0


def test_a_handover_rests_the_bottleneck():
    model = LinkModel.symmetric(
        0.0, rate_bit_s=1e6, header_bytes=0, handovers=Gaps(fixed=((1.0, 1.5), (2.0, 2.25)))
    )
    assert model.open().up.send(0.0, 500_000) == pytest.approx(4.75, rel=0.001)


def test_an_outage_costs_timeouts_that_double():
    model = LinkModel.symmetric(0.1, outages=Gaps(fixed=((1.0, 3.0),)))
    link = model.open()
    now = 0.0
    for _ in range(8):
        now = link.down.send(link.up.send(now, 20), 20)
    arrives = link.up.send(1.0, 20)
    assert 3.0 < arrives < 3.0 + 2 * (3.0 - 1.0)  # at most as late again as it was dark
    assert link.up.path.lost >= 3


def test_a_loss_on_a_link_without_delay_is_not_looked_for_at_the_same_instant():
    link = LinkModel.symmetric(0.0, outages=Gaps(fixed=((0.0, 1.0),))).open()
    # Timeouts after 0.2, 0.6 and 1.4 seconds.
    assert link.up.send(0.0, 3000) == pytest.approx(1.4)
    lossy = LinkModel.symmetric(0.0, loss=Loss(0.5)).open()
    assert all(lossy.up.send(i * 0.01, 20) < math.inf for i in range(200))


@pytest.mark.parametrize("segments", [1, 2, 8, 20, 100])
def test_what_is_lost_itself_reveals_no_loss(segments):
    """The last timeout within an outage of 8 seconds doubles to after its end, at any length."""
    link = LinkModel.symmetric(0.1, outages=Gaps(fixed=((1.0, 9.0),))).open()
    arrives = link.up.send(1.5, segments * 1448)
    # Timeouts at 1.8, 2.4, 3.6, 6.0 and 10.8 s; then the window grows from one segment.
    assert 10.85 - 1e-9 <= arrives <= 10.85 + 0.2 * math.ceil(math.log2(segments)) + 1e-9
    assert link.up.path.lost <= 10 + 1 + 4  # a window, a probe, and one for each timeout


def test_messages_that_an_outage_swallows_reveal_no_loss():
    link = LinkModel.symmetric(0.1, outages=Gaps(fixed=((1.0, 9.0),))).open()
    arrivals = [link.up.send(i * 0.02, 50) for i in range(150)]
    assert 9.05 < arrivals[-1] < 12
    assert link.up.path.lost < 25
    short = LinkModel.symmetric(0.1, outages=Gaps(fixed=((1.0, 1.03),))).open()
    arrivals = [short.up.send(i * 0.02, 50) for i in range(150)]
    assert arrivals[50] < 1.05 + 0.2  # found by the messages after it, sooner than by a timeout


@pytest.mark.parametrize("dark_s", [15, 30, 40])
def test_timeouts_do_not_keep_time_with_outages_like_clockwork(dark_s):
    # The longest timeouts are two minutes, which is a multiple of the outages' period.
    gaps = Gaps(every_s=60 - dark_s, last_s=dark_s, regular=True)
    link = LinkModel.symmetric(0.1, outages=gaps).open()
    for begin in range(60 - dark_s + 1, 3600, 60):
        assert link.up.send(begin, 20) < begin + 1800
    assert link.connect(60 - dark_s + 0.5) < 1800


def test_three_later_segments_reveal_a_loss_and_one_does_after_a_while():
    def took(segments):
        # Only what leaves at 1.0 s exactly is lost: the first segment.
        outages = Gaps(fixed=((1.0, 1.0 + 1e-6),))
        model = LinkModel.symmetric(0.1, rate_bit_s=1e8, header_bytes=0, outages=outages)
        return model.open().up.send(1.0 - 1448 * 8e-8, segments * 1448) - 1.0

    assert took(4) == pytest.approx(0.15, abs=2e-3)  # its round trip, then its way
    assert took(3) == pytest.approx(0.175, abs=2e-3)
    assert took(1) == pytest.approx(0.35, abs=2e-3)  # by a timeout


def test_a_link_that_is_dark_for_ever_delivers_nothing():
    model = LinkModel.symmetric(0.1, outages=Gaps(fixed=((1.0, math.inf),)))
    link = model.open()
    assert link.up.send(0.5, 20) == pytest.approx(0.55)
    assert link.up.send(1.5, 20) == math.inf
    assert link.up.send(1.6, 20) == math.inf
    assert link.connect(2.0) == math.inf


def test_up_and_down_share_their_outages():
    gaps = Gaps(every_s=5.0, last_s=1.0)
    link = LinkModel.symmetric(0.0, outages=gaps).open(3)
    gaps_up, gaps_down = link.up.path._outages, link.down.path._outages
    assert gaps_up is not None
    assert gaps_down is not None
    up = [gaps_up.end(t * 0.1) for t in range(2000)]
    down = [gaps_down.end(t * 0.1) for t in range(2000)]
    assert up == down
    dark = sum(end > t * 0.1 for t, end in enumerate(up)) / 2000
    assert 0.05 < dark < 0.4


def test_the_seed_decides_everything():
    model = LinkModel.symmetric(
        0.05,
        jitter=Jitter(JitterKind.PARETO, 0.01),
        loss=Loss(0.05, 3),
        rate_bit_s=2e6,
        queue_bytes=20_000,
        outages=Gaps(every_s=3.0, last_s=0.5),
    )

    def run(seed):
        link = model.open(seed)
        now = link.connect(0.0)
        times = [now]
        for i in range(300):
            times.append(link.up.send(now + i * 0.02, 30 + 97 * i % 4000))
            times.append(link.down.send(now + i * 0.02, 20))
        return times

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_directions_and_links_do_not_disturb_each_other():
    """Several streams may interleave: each has a state of its own."""
    model = LinkModel.symmetric(0.02, loss=Loss(0.1, 2), jitter=Jitter(JitterKind.UNIFORM, 0.05))
    alone = model.open(1)
    expected = [alone.up.send(i * 0.01, 50) for i in range(500)]
    one, two = model.open(1), model.open(2)
    mixed = []
    for i in range(500):
        mixed.append(one.up.send(i * 0.01, 50))
        two.up.send(i * 0.01, 700)
    assert mixed == expected


def test_wire_sizes():
    assert wire_bytes(0) == 5 + 9 + 22
    assert wire_bytes(100) == 136
    assert wire_bytes(100, tls=False) == 114
    assert wire_bytes(16379) == 16379 + 36  # with gRPC's 5 just one frame
    assert wire_bytes(16380) == 16380 + 5 + 2 * 31


@pytest.mark.parametrize(
    ("given_", "part"),
    [
        ({"delay_s": -0.1}, "delay of -0.1"),
        ({"delay_s": math.nan}, "delay of nan"),
        ({"delay_s": math.inf}, "delay of inf"),
        ({"rate_bit_s": 0}, "rate of 0"),
        ({"rate_bit_s": math.nan}, "rate of nan"),
        ({"queue_bytes": 100}, "queue of 100"),
        ({"header_bytes": -1}, "headers of -1"),
    ],
)
def test_a_direction_says_what_is_wrong_with_it(given_, part):
    with pytest.raises(ValueError, match=part):
        Direction(**given_)


@pytest.mark.parametrize(
    "gaps",
    [
        {"fixed": ((1.0, 0.5),)},
        {"fixed": ((0.0, 2.0), (1.0, 3.0))},
        {"fixed": ((-1.0, 2.0),)},
        {"every_s": 0.0, "last_s": 1.0},
        {"every_s": 1.0},
        {"every_s": 1.0, "last_s": 1.0, "fixed": ((0.0, 1.0),)},
    ],
)
def test_gaps_that_make_no_sense_are_refused(gaps):
    with pytest.raises(ValueError, match="gap"):
        Gaps(**gaps)


def test_a_message_of_negative_size_is_refused():
    with pytest.raises(ValueError, match="-1 bytes"):
        MBIT.open().up.send(0.0, -1)


DIRECTIONS = st.builds(
    Direction,
    delay_s=st.floats(0, 0.5),
    jitter=st.builds(Jitter, st.sampled_from(JitterKind), st.floats(0, 0.1)),
    rate_bit_s=st.none() | st.floats(1e5, 1e8),
    queue_bytes=st.none() | st.integers(2000, 100_000),
    loss=st.builds(Loss, st.floats(0, 0.4), st.none() | st.floats(1.7, 6)),
    outages=st.just(Gaps()) | st.builds(Gaps, every_s=st.floats(1, 9), last_s=st.floats(0.01, 2)),
    handovers=st.just(Gaps()) | st.builds(Gaps, every_s=st.floats(1, 9), last_s=st.floats(0.01, 2)),
)
MESSAGES = st.lists(st.tuples(st.floats(0, 0.4), st.integers(0, 8000)), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(DIRECTIONS, DIRECTIONS, MESSAGES, st.integers(0, 99))
def test_nothing_is_early_nothing_overtakes_and_the_rate_is_kept(up, down, messages, seed):
    link = LinkModel("any", up, down).open(seed)
    now = link.connect(0.0, tls=False)
    assert now >= up.delay_s + down.delay_s
    begun = now
    handed, arrivals = [], []
    for gap, size in messages:
        now += gap
        handed.append((now, size))
        arrivals.append(link.up.send(now, size))
    for (sent, size), arrives in zip(handed, arrivals, strict=True):
        bits = 8 * (size + up.header_bytes * max(1, math.ceil(size / 1448)))
        work = bits / up.rate_bit_s if up.rate_bit_s else 0.0
        # A small message may have joined a segment that waited, and needs no header of its own.
        header = 8 * up.header_bytes / up.rate_bit_s if up.rate_bit_s else 0.0
        assert arrives >= sent + up.delay_s + work - header - 1e-9
        assert arrives < math.inf
    assert all(one <= two for one, two in itertools.pairwise(arrivals))
    if up.rate_bit_s:
        total = sum(size for _, size in handed) * 8 / up.rate_bit_s
        assert arrivals[-1] >= begun + up.delay_s + total - 1e-6


def gaps(longest_s):
    fixed = st.tuples(st.floats(0, 2), st.floats(0.01, 8)).map(
        lambda drawn: Gaps(fixed=((drawn[0], sum(drawn)),))
    )
    drawn = st.builds(
        Gaps, every_s=st.floats(1, 9), last_s=st.floats(0.01, longest_s), regular=st.booleans()
    )
    return st.just(Gaps()) | fixed | drawn


HARSH = st.builds(
    Direction,
    delay_s=st.just(0.0) | st.floats(0, 0.5),
    jitter=st.just(Jitter()) | st.builds(Jitter, st.sampled_from(JitterKind), st.floats(0, 0.1)),
    rate_bit_s=st.none() | st.floats(3e4, 1e8),
    queue_bytes=st.none() | st.integers(2000, 100_000),
    loss=st.builds(Loss, st.just(0.0) | st.floats(0, 0.4), st.none() | st.floats(1.7, 6)),
    outages=gaps(1.0),
    handovers=gaps(1.0),
)
LONG = st.lists(
    st.tuples(st.just(0.0) | st.floats(0, 0.4), st.integers(0, 2000) | st.integers(0, 200_000)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(HARSH, HARSH, LONG, st.integers(0, 99))
def test_every_message_ends_after_a_bounded_number_of_transmissions(up, down, messages, seed):
    way = LinkModel("any", up, down).open(seed).up
    now = last = 0.0
    for gap, size in messages:
        now += gap
        sent, segments = way.path.packets, max(1, math.ceil(size / 1448))
        arrives = way.send(now, size)
        assert last <= arrives < math.inf
        last = arrives
        # A small message may have joined a segment that waited, and needs no header of its own.
        bits = 8 * (size + up.header_bytes * (segments - 1))
        assert arrives >= now + up.delay_s + (bits / up.rate_bit_s if up.rate_bit_s else 0) - 1e-9
        # With 0.4 of all lost and half the time dark, a segment is sent less than ten times.
        assert way.path.packets - sent <= 60 + 10 * segments


def test_sending_is_cheap():
    """At most 3 µs where nothing but delay happens. Best of several: machines are noisy."""
    best = math.inf
    for _ in range(7):
        link = LinkModel.symmetric(0.1).open()
        begun = time.perf_counter()
        for i in range(5000):
            link.up.send(i * 0.05, 20)
        best = min(best, (time.perf_counter() - begun) / 5000)
    assert best < 3e-6 * 2  # the factor is for slow machines; the benchmark has the figure
