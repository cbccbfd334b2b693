"""Loss and jitter: their figures over many packets.

Error probabilities are for the fixed seeds' replacement by others: the bounds lie at least
four standard deviations out, so that a correct program fails with less than 1e-4.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from netsim.links import Gaps, Jitter, JitterKind, LinkModel, Loss, LossProcess

MILLION = 1_000_000


def runs_of(loss, packets=MILLION, seed=1):
    """Share lost, and lengths of the runs of lost packets."""
    process = LossProcess(loss, random.Random(seed))
    fates = [process.lost() for _ in range(packets)]
    lengths = [len(list(group)) for lost, group in itertools.groupby(fates) if lost]
    return sum(fates) / packets, lengths


def test_loss_and_burst_over_a_million_packets():
    """5 ± 0.2 % and 4 ± 0.1.

    About 12 500 bursts. The run's mean has a deviation of √(4·3)/√12 500 = 0.031, the share
    one of 0.05·√((4·3 + 76²·…)/…) ≈ 0.0006 (variance of a renewal reward): the bounds are
    3.2 and 3.3 of them out, two-sided p ≈ 0.0024 for a seed drawn anew; this seed is fixed.
    """
    rate, lengths = runs_of(Loss(0.05, 4))
    assert rate == pytest.approx(0.05, abs=0.002)
    assert statistics.mean(lengths) == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_the_shortest_natural_burst_is_independent_loss(rate):
    """Run lengths are geometric and loss follows loss as often as anything. p < 1e-4."""
    burst, lengths = runs_of(Loss(rate, 1 / (1 - rate)))
    assert burst == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / MILLION))
    runs = len(lengths)
    assert statistics.mean(lengths) == pytest.approx(
        1 / (1 - rate), abs=4 * math.sqrt(rate) / (1 - rate) / math.sqrt(runs)
    )
    for k in (1, 2, 3):
        share = rate ** (k - 1) * (1 - rate)
        seen = sum(length == k for length in lengths) / runs
        assert seen == pytest.approx(share, abs=4.5 * math.sqrt(share * (1 - share) / runs))
    assert runs_of(Loss(rate), 1000) == runs_of(Loss(rate, 1 / (1 - rate)), 1000)


def test_no_loss_and_nothing_but_loss_are_exact():
    assert runs_of(Loss(0.0), 10_000) == (0.0, [])
    assert runs_of(Loss(1.0), 10_000) == (1.0, [10_000])
    link = LinkModel.symmetric(0.1, loss=Loss(0.0)).open()
    assert [link.up.send(float(i), 20) - i for i in range(100)] == pytest.approx([0.05] * 100)
    link = LinkModel.symmetric(0.1, loss=Loss(1.0)).open()
    assert [link.up.send(float(i), 20) for i in range(5)] == [math.inf] * 5
    assert link.up.send(6.0, 5000) == math.inf
    assert link.connect(7.0) == math.inf


@pytest.mark.parametrize(("rate", "burst"), [(0.5, 0.9), (0.9, 2), (0.2, math.inf), (-0.1, None)])
def test_a_loss_that_can_not_be_is_refused(rate, burst):
    with pytest.raises(ValueError, match=r"burst|loss"):
        Loss(rate, burst)


def test_the_state_lasts_from_message_to_message():
    """Bursts of 20 packets hit messages of one packet in a row. p < 1e-4 (fixed seed)."""
    link = LinkModel.symmetric(0.02, loss=Loss(0.1, 20)).open(1)
    late = []
    for i in range(20_000):
        now = i * 100.0  # each alone: its retransmissions are over before the next
        before = link.up.path.lost
        link.up.send(now, 20)
        late.append(link.up.path.lost - before)
    total = link.up.path.packets
    assert link.up.path.lost / total == pytest.approx(0.1, abs=0.03)
    burst = [lost for lost in late if lost]
    assert statistics.mean(burst) > 10


def test_a_lost_message_is_late_and_never_gone():
    """A loss costs a retransmission, and holds up what is behind it."""
    link = LinkModel.symmetric(0.1, loss=Loss(0.02)).open(4)
    sent = [i * 0.05 for i in range(5000)]
    delays = [link.up.send(now, 20) - now for now in sent]
    assert link.up.path.lost > 50
    assert all(0.05 - 1e-9 <= delay < 60 for delay in delays)
    assert sum(delay > 0.051 for delay in delays) >= link.up.path.lost
    assert link.up.payload == 5000 * 20
    assert link.up.messages == 5000


def first_loss(link, send):
    """The delay of the first message of which a packet was lost."""
    for i in itertools.count():
        before = link.up.path.lost
        delay = send(i)
        if link.up.path.lost == before + 1:
            return delay
    raise AssertionError


def test_a_lone_packet_is_missed_by_a_timeout_only():
    link = LinkModel.symmetric(0.1, loss=Loss(0.02)).open(2)

    def ping(i):
        now = i * 10.0
        there = link.up.send(now, 20)
        link.down.send(there, 20)
        return there - now

    # There after a timeout of one round trip and at least 200 ms.
    assert 0.1 + 0.2 + 0.05 <= first_loss(link, ping) < 0.1 + 0.31 + 0.05


def test_a_packet_with_others_behind_it_is_missed_within_a_round_trip():
    link = LinkModel.symmetric(0.1, loss=Loss(0.004)).open(2)

    def bulk(i):
        return link.up.send(i * 10.0, 9 * 1448) - i * 10.0

    delays = sorted(bulk(i) for i in range(2000))
    assert delays[0] == pytest.approx(0.05)
    late = [delay for delay in delays if delay > 0.051]
    # A round trip until it is missed, and half of one to get there.
    assert statistics.median(late) == pytest.approx(0.15, abs=0.03)


def test_a_stream_finds_its_losses_by_what_follows():
    """Tokens every 10 ms do not wait for answers: the next ones tell of the loss."""
    link = LinkModel.symmetric(0.1, loss=Loss(0.01)).open(3)
    delays = [link.down.send(i * 0.01, 20) - i * 0.01 for i in range(20_000)]
    longest = sorted(delays)[-200:]
    assert statistics.median(longest) < 0.05 + 0.1 + 0.06


@pytest.mark.parametrize("kind", [k for k in JitterKind if k is not JitterKind.NONE])
def test_every_jitter_has_its_mean_and_is_never_negative(kind):
    """200 000 draws; the deviation is at most 1.73 m (Pareto), bounds at 4.5 of them."""
    draw = Jitter(kind, 0.05).sampler(random.Random(5))
    draws = [draw() for _ in range(200_000)]
    assert min(draws) >= 0
    assert statistics.fmean(draws) == pytest.approx(
        0.05, abs=4.5 * 0.05 * 1.74 / math.sqrt(200_000)
    )
    if kind in (JitterKind.UNIFORM, JitterKind.NORMAL):
        assert max(draws) <= 0.1


@pytest.mark.parametrize("kind", [k for k in JitterKind if k is not JitterKind.NONE])
def test_jitter_above_latency_neither_reorders_nor_goes_back_in_time(kind):
    """Latency 20 ms, jitter 50 ms, 100 000 messages: on average 70 ms where they are apart."""
    model = LinkModel.symmetric(0.04, jitter=Jitter(kind, 0.05))
    link = model.open(6)
    sent = [i * 5.0 for i in range(100_000)]
    arrivals = [link.up.send(now, 20) for now in sent]
    delays = [there - now for now, there in zip(sent, arrivals, strict=True)]
    assert min(delays) >= 0.02
    assert all(one <= two for one, two in itertools.pairwise(arrivals))
    assert statistics.fmean(delays) == pytest.approx(0.07, abs=0.002)


def test_messages_close_together_wait_for_each_other():
    """As documented: keeping order raises the mean where jitter exceeds the gaps."""
    link = LinkModel.symmetric(0.04, jitter=Jitter(JitterKind.UNIFORM, 0.05)).open(6)
    link.up.send(0.0, 20)
    link.up._window = 1000.0  # not what is looked at here
    sent = [i * 0.01 for i in range(100_000)]
    arrivals = [link.up.send(now, 20) for now in sent]
    delays = [there - now for now, there in zip(sent, arrivals, strict=True)]
    assert min(delays) >= 0.02
    assert max(delays) <= 0.12 + 1e-9
    assert all(one <= two for one, two in itertools.pairwise(arrivals))
    # The mean of max over k of (U_k − k·gap), computed once by numerical integration.
    expected = 0.02 + mean_of_ordered_uniform(0.1, 0.01)
    assert statistics.fmean(delays) == pytest.approx(expected, abs=0.002)


def mean_of_ordered_uniform(width, gap):
    """E max_k (U_k − k·gap) for uniform U on 0 … width, by its distribution function."""
    steps = 20_000
    total = 0.0
    for i in range(steps):
        x = (i + 0.5) * width / steps
        below, k = 1.0, 0
        while x + k * gap < width:
            below *= (x + k * gap) / width
            k += 1
        total += (1 - below) * width / steps
    return total


def test_no_hidden_limit_of_the_queue():
    """A thousand and more packets may be under way: only a stated queue drops any."""
    link = LinkModel.symmetric(60.0, jitter=Jitter(JitterKind.UNIFORM, 0.05)).open(1)
    link.up.send(0.0, 20)
    link.up._window = 1e6
    for i in range(5000):
        link.up.send(i * 1e-3, 20)
    assert link.up.path.lost == 0


def test_random_gaps_have_their_means():
    """4000 gaps; a deviation of the means is 1.6 %, the bounds are at 4.4 of them."""
    link = LinkModel.symmetric(0.0, outages=Gaps(every_s=2.0, last_s=0.5)).open(9)
    times = link.up.path._outages
    assert times is not None
    times.end(10_000.0)
    begins, ends = times._begins[:4000], times._ends[:4000]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    pauses = [begin - end for begin, end in zip(begins[1:], ends[:-1], strict=True)]
    assert statistics.fmean(lengths) == pytest.approx(0.5, rel=0.07)
    assert statistics.fmean(pauses) == pytest.approx(2.0, rel=0.07)
