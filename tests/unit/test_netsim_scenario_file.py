"""Scenarios in TOML: what is read, and what a wrong one is told."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netsim import axes
from netsim.links.table import KEYS
from netsim.scenario import EDGE, Way
from netsim.scenario_file import (
    _ACCEPTANCE,
    _MODELS,
    _RUN,
    _study,
    find_study,
    parse_study,
    read_study,
    shipped,
)
from netsim.simulation import simulate
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
        ("gamma = 4", "gamma = 0", "from 1 to 32"),
        ("gamma = 4", "gamma = true", "from 1 to 32"),
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
        ("rtt_ms = 40", "rtt_ms = -10", "rtt_ms = -10: give 0 to 3600000. It can't be negative"),
        ("jitter_ms = 2", "jitter_ms = 30", "with jitter_ms = 30 give 60 or more, or less jitter"),
        ("jitter_ms = 2", "outages = [[0.1, inf]]", "from 0.1 s on for ever"),
        ("jitter_ms = 2", "handovers = [[0.1, inf]]", "give an end"),
        ("jitter_ms = 2", "outages = [[inf, inf]]", "a gap from inf s"),
        ("jitter_ms = 2", "outages = [[true, 2]]", "give pairs of seconds"),
        ("jitter_ms = 2", 'outages = [["1", "2"]]', "give pairs of seconds"),
        ("jitter_ms = 2", "outage_s = 5", "give how often they come"),
        ("jitter_ms = 2", "outage_every_s = 5", "give how long each lasts"),
        ("jitter_ms = 2", "outage_every_s = 0.001\noutage_s = 9", "99.99% of the time"),
        ("jitter_ms = 2", 'regular = "no"', "regular = 'no': it is true or false"),
        ("jitter_ms = 2", 'jitter = "pareto"', "has no jitter_ms"),
        ("jitter_ms = 2", "queue_bytes = inf", "queue_bytes = inf: give 2000 to"),
        ("jitter_ms = 2", "queue_bytes = 2000.5", "it is a whole number"),
        ("jitter_ms = 2", "header_bytes = inf", "header_bytes = inf: give 0 to 500"),
        ("jitter_ms = 2", "header_bytes = true", "header_bytes = True: it is a number"),
        ("jitter_ms = 2", "loss = nan", "loss = nan: give 0 to 1"),
        ("rate_mbit_s = 1", "rate_mbit_s = 1e308", "give 0.001 to 1000000000"),
        ("rtt_ms = 40", "rtt_ms = 1" + "0" * 400, "give 0 to 3600000"),
        ("draft_ms = 10", "draft_ms = 1e308", "models.draft_ms must be 0 or more and 1000000000"),
        ("draft_ms = 10", "draft_ms = 1" + "0" * 400, "models.draft_ms must be 0 or more"),
        ("draft_ms = 10", "draft_ms = 10\ncloud_draft_spread = 1", "without cloud_draft_ms"),
        ("gamma = 4", "gamma = 1" + "0" * 400, "from 1 to 32"),
        ("alpha = [0.8, 0.7]", "alpha = 0.8\nhard_share = 0.5", "nothing without hard_alpha"),
        ("seeds = 2", "seed = -3", "run.seed must be a whole number from 0 to"),
        ("seeds = 2", "seed = 1" + "0" * 30, "run.seed must be a whole number from 0 to"),
        ("seeds = 2", "window = 0", "run.window must be a whole number from 1 to"),
        ("seeds = 2", "prompt = 1" + "0" * 30, "run.prompt must be a whole number from 0 to"),
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


NUMBERS = {
    "link": (*KEYS,),
    "link.up": (*KEYS,),
    "models": tuple(key for key in _MODELS if key != "record"),
    "acceptance": tuple(key for key in _ACCEPTANCE if key != "record"),
    "run": _RUN,
    "vary": tuple(name for name in axes.AXES if name != "way"),
}
HOSTILE = ("inf", "-inf", "nan", "-1", "1e308", "1" + "0" * 400, "true", '"no"', "[]", "{}")


@pytest.mark.parametrize("table", NUMBERS)
@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_is_anything_but_refused_or_simulated(table: str, value: str):
    for key in NUMBERS[table]:
        values = tomllib.loads(
            "[link]\nrtt_ms = 40\nloss = 0.01\nup = {}\n[models]\ndraft_ms = 10\n"
            "verify_ms = 30\n[acceptance]\nalpha = 0.7\n[run]\ntokens = 3\n[vary]\n"
        )
        part = values
        for name in table.split("."):
            part = part[name]
        part |= tomllib.loads(f"{key} = {value}")
        told = refusal(values)
        # Values that no axis or link has are told as ways and links are.
        known = key.partition("_")[0].removesuffix("s"), "no link is called", "unknown way"
        assert told is None or any(word in told for word in known), (key, value, told)


def refusal(values: dict[str, Any]) -> str | None:
    """What a scenario is refused with; None where it can be simulated."""
    try:
        found = _study(values, Path())
        case = {name: each[0] for name, each in found.vary.items()}
        scenario = axes.apply(found.base, case)
    except (BadRequest, ValueError) as error:
        return str(error)
    assert 0 < simulate(replace(scenario, way=Way.SYNC))[0].duration_s < 1e8
    return None


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
