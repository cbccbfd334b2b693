"""Scenarios in TOML: what is read, and what a wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netsim.scenario import EDGE, Way
from netsim.scenario_file import find_study, parse_study, read_study, shipped
from specwire.errors import BadRequest

GOOD = """
[link]
rtt_ms = 40
jitter_ms = 2
[link.up]
rate_mbit_s = 1
[models]
draft_ms = 10
verify_ms = 30
[acceptance]
alpha = [0.8, 0.7]
[run]
ways = ["sync", "stream"]
gamma = 4
seeds = 2
[vary]
alpha = [0.5, 0.9]
"""


def study(text: str = GOOD) -> object:
    return parse_study(text, "mine.toml", Path())


def test_all_of_a_scenario_is_read():
    found = parse_study(GOOD, "mine.toml", Path())
    base = found.base
    assert base.link.rtt_s == pytest.approx(0.040)
    assert base.link.up.rate_bit_s == 1e6 and base.link.down.rate_bit_s is None
    assert base.models.draft.mean == 0.010 and base.models.verify.mean == 0.030
    assert base.acceptance.alphas == (0.8, 0.7)
    assert base.gamma == 4 and found.seeds == (0, 1)
    assert found.ways == (Way.SYNC,)  # baselines come anyway
    assert found.vary == {"alpha": (0.5, 0.9)}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("draft_ms", "draf_ms", "did you mean 'draft_ms'"),
        ("[acceptance]", "[acceptence]", "did you mean 'acceptance'"),
        ("rate_mbit_s", "rate_mbits", "did you mean 'rate_mbit_s'"),
        ("gamma = 4", "gama = 4", "did you mean 'gamma'"),
        ("gamma = 4", "gamma = 0", "from 1 to 64"),
        ("gamma = 4", "gamma = true", "from 1 to 64"),
        ('"sync"', '"synch"', "did you mean 'sync'"),
        ("alpha = [0.8, 0.7]", "alpha = 1.2", "1 at most, not 1.2"),
        ("alpha = [0.8, 0.7]", "", "acceptance.alpha is missing"),
        ("alpha = [0.8, 0.7]", "alpha = []", "empty"),
        ("verify_ms = 30", "verify_ms = 0", "verify_ms must be 0.001 or more"),
        ("verify_ms = 30", 'verify_ms = "30"', "must be a number"),
        ("verify_ms = 30", "", "models.verify_ms is missing"),
        ("rtt_ms = 40", 'profile = "4g-weak"', "leave out jitter_ms"),
        ("rtt_ms = 40", "rtt_ms = -1", "-1"),
        ("rtt_ms = 40", "rtt_ms = 40\nloss = 1.0", "loses 100% of what goes up"),
        ("seeds = 2", "seeds = 0", "from 1 to 10000, not 0"),
        ("[models]", "[models", "is no TOML"),
        ("alpha = [0.5, 0.9]", "alpha = []", "vary.alpha is empty"),
        ("alpha = [0.5, 0.9]", "alpah = [1]", "did you mean 'alpha'"),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(old: str, new: str, told: str):
    assert old in GOOD
    with pytest.raises(BadRequest) as error:
        study(GOOD.replace(old, new, 1))
    assert "mine.toml" in str(error.value)
    assert told in str(error.value)


def test_a_profile_of_no_such_name_is_told_the_nearest():
    with pytest.raises(BadRequest, match="4g-weak"):
        study('[link]\nprofile = "4g-waek"\n' + GOOD[GOOD.index("[models]") :])


def test_every_shipped_scenario_can_be_read():
    assert {"article-200ms", "ideal-speed", "specedge-14ms"} <= set(shipped())
    for name in shipped():
        found = find_study(name)
        assert found.title and found.note
        assert set(found.ways) <= set(EDGE)


def test_the_scenario_in_the_docs_can_be_read():
    page = Path(__file__).parents[2] / "docs" / "simulate.md"
    text = page.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    found = parse_study(text, "docs", Path())
    assert found.base.link.name == "train" and set(found.vary) == {"rtt_ms", "alpha"}


def test_a_wrong_name_of_a_shipped_scenario_is_told_the_nearest():
    with pytest.raises(BadRequest, match="article-200ms"):
        find_study("article-200")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(BadRequest, match=r"nowhere\.toml"):
        find_study("nowhere.toml")


def test_models_and_acceptance_come_from_a_record(tmp_path: Path):
    lines = [
        {"draft_s": 0.010},
        {"draft_s": 0.014},
        *({"verify_s": 0.030 + 0.002 * n, "queue_s": 0.0, "evaluated": n} for n in (0, 2, 4)),
        {"draft_knew": True, "place": 0, "confidence": 0.9},
        {"draft_knew": False, "place": 1, "confidence": 0.2},
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "own.toml").write_text(
        '[link]\nrtt_ms = 10\n[models]\nrecord = "run.jsonl"\n[acceptance]\nrecord = "run.jsonl"\n'
    )
    base = read_study(tmp_path / "own.toml").base
    assert base.models.draft.mean == pytest.approx(0.012)
    # What a draft token adds is told apart from the forward itself.
    assert base.models.extra_s == pytest.approx(0.002)
    assert base.models.verify.mean == pytest.approx(0.030)
    assert base.acceptance.mean == 0.5


def test_a_record_without_times_is_refused(tmp_path: Path):
    (tmp_path / "run.jsonl").write_text('{"draft_knew": true}\n')
    text = '[link]\nrtt_ms = 10\n[models]\nrecord = "run.jsonl"\n[acceptance]\nalpha = 0.5\n'
    with pytest.raises(BadRequest, match="holds no times"):
        parse_study(text, "mine.toml", tmp_path)
