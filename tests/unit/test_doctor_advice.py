"""What the doctor advises, from numbers alone."""

from __future__ import annotations

import pytest

from edge_client.doctor.advice import advise, advise_without
from edge_client.doctor.measured import Measured, Spread
from edge_client.doctor.reach import proxy_for, split
from edge_client.doctor.report import Report, State, failed_with, ok, shown, warning
from edge_client.doctor.run import advice_lines
from edge_client.doctor.wire import _varint
from edge_client.options import Mode
from edge_client.policy.speed import Conditions, Way, expected_speed
from specwire.errors import LinkError, Unauthenticated

GOOD = Conditions(alphas=(0.8,), draft_s=0.005, verify_s=0.05, extra_s=0.001, rtt_s=0.02)
HOPELESS = Conditions(alphas=(0.3,), draft_s=0.2, verify_s=0.03, extra_s=0.02, rtt_s=0.3)


def advice(at: Conditions, mode: Mode = Mode.AUTO, gamma: int | None = None):
    return advise(at, mode, gamma=gamma, most_gamma=32, most_window=96)


def test_auto_chooses_what_promises_most() -> None:
    found = advice(GOOD)
    assert found.pays and not found.needed
    assert found.chosen.speed >= 0.97 * max(plan.speed for plan in found.plans.values())
    assert set(found.plans) == set(Way)
    assert "auto" in found.why and found.chosen.way in found.why


def test_a_fixed_mode_is_said_to_be_asked_for() -> None:
    found = advice(GOOD, Mode.SYNC, gamma=3)
    assert (found.chosen.way, found.chosen.gamma) == (Way.SYNC, 3)
    assert found.chosen.speed == pytest.approx(expected_speed(Way.SYNC, 3, GOOD))
    assert "--mode sync" in found.why
    assert advice(GOOD, Mode.STREAM).chosen.way is Way.STREAM


def test_where_drafting_does_not_pay_it_says_what_would_make_it() -> None:
    at = Conditions(alphas=(0.75,), draft_s=0.2, verify_s=0.03, extra_s=0.001, rtt_s=0.02)
    found = advice(at)
    assert not found.pays and found.chosen.way is Way.STREAM
    assert any("a draft token instead of 200 ms" in what for what in found.needed)
    assert not any("acceptance" in what for what in found.needed)  # no α helps a slow draft
    limit = float(found.needed[0].split("at most ")[1].split(" ms")[0]) / 1e3
    for seconds, pays in ((limit * 0.98, True), (limit * 1.02, False)):
        faster = Conditions((0.75,), seconds, 0.03, 0.001, 0.02)
        assert advice(faster).pays is pays


def test_where_nothing_alone_would_help_that_is_said() -> None:
    found = advice(HOPELESS)
    assert not found.pays
    shown_lines = "\n".join(advice_lines(found))
    assert "would" in shown_lines and "stream" in shown_lines


def test_without_a_draft_it_says_what_one_would_have_to_be_like() -> None:
    at = Conditions(alphas=(0.7,), draft_s=1e-6, verify_s=0.05, extra_s=0.001, rtt_s=0.02)
    found = advise_without(at, "there is none", most_gamma=32, most_window=96)
    assert found.chosen.way is Way.STREAM and found.chosen.speed == pytest.approx(20)
    assert len(found.needed) == 1 and "70%" in found.needed[0]
    assert set(found.to_json()["tokens_per_s"]) == {"stream"}


def test_conditions_need_all_of_it() -> None:
    measured = Measured(rtt=Spread.of([0.03]), forward_s=0.05, forward_many_s=0.066, many=8)
    assert measured.conditions() is None
    assert measured.conditions(draft_s=0.01, alpha=0.7) is not None
    measured.draft_s, measured.alpha = 0.01, 0.6
    found = measured.conditions()
    assert found is not None
    assert found.extra_s == pytest.approx(0.002)
    assert found.rtt_s == 0.03
    measured.round_trip = Spread.of([0.04, 0.05, 0.2])
    found = measured.conditions()
    assert found is not None and found.rtt_s == 0.05  # what rounds take, where it is known


def test_a_spread() -> None:
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.median_s, spread.low_s, spread.high_s, spread.count) == (3.0, 1.0, 5.0, 5)
    assert Spread.of([7.0]).low_s == 7.0


def test_lines_exit_codes_and_cures() -> None:
    report = Report("h:1", None)
    assert report.add(ok("a", "fine")) and report.exit_code == 0
    assert report.add(warning("b", "odd", "do this")) and report.exit_code == 0
    assert not report.add(failed_with("c", Unauthenticated("no token; show one")))
    assert report.exit_code == 1
    report.add(failed_with("d", LinkError("gone")))
    assert report.exit_code == 1  # the first failure counts
    assert Report("h:1", None, checks=[failed_with("d", LinkError("gone"))]).exit_code == 3
    line = shown(report.checks[2], colour=False)
    assert line.splitlines()[0].split() == ["failed", "c", "no", "token"]
    assert line.splitlines()[1].strip() == "→ show one"
    assert "\x1b[31m" in shown(report.checks[2], colour=True)
    assert report.checks[2].state is State.FAILED
    assert "\x1b" not in shown(ok("model", "a\x1b]0;name\x07"), colour=False)


def test_addresses_and_proxies() -> None:
    assert split("host:7710") == ("host", 7710)
    assert split("[::1]:80") == ("::1", 80)
    proxied = {"https_proxy": "http://user:secret@proxy.example:3128"}
    assert proxy_for("verifier.example", proxied) == "proxy.example:3128"
    assert proxy_for("127.0.0.1", proxied) is None
    assert proxy_for("a.internal", {**proxied, "no_proxy": "x, .internal"}) is None
    assert proxy_for("verifier.example", {}) is None


def test_varint() -> None:
    assert _varint(1) == b"\x01"
    assert _varint(300) == b"\xac\x02"
