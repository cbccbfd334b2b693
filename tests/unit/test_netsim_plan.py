"""What a plan says must be what the speed model says, at both sides of each threshold."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_client.policy.choice import DRAFTING_GAIN, choose
from edge_client.policy.speed import Conditions, Way, expected_speed
from edge_client.policy.threshold import last_good
from netsim.cli import main
from netsim.commands.plan import verdict
from netsim.comparison import Comparison, compare
from netsim.planning import DRAFTING, LONGEST_S, plan
from netsim.scenario import EDGE
from netsim.scenario_file import default_study

LOSES = Conditions(alphas=(0.7,), draft_s=0.020, verify_s=0.030, rtt_s=0.2, message_s=1e-3)
PAYS = Conditions(
    alphas=(0.8,), draft_s=0.008, verify_s=0.050, extra_s=0.001, rtt_s=0.03, message_s=1e-3
)


def pays(at: Conditions) -> bool:
    best = choose(at, ways=DRAFTING, most_gamma=16, most_window=1 << 20)
    return best.speed >= expected_speed(Way.STREAM, 0, at) * DRAFTING_GAIN


def with_value(at: Conditions, name: str, value: float) -> Conditions:
    if name == "acceptance rate":
        return replace(at, alphas=(value,))
    key = {"draft token": "draft_s", "round trip": "rtt_s", "target forward": "verify_s"}[name]
    changes: dict[str, Any] = {key: value / 1e3}
    return replace(at, **changes)


@pytest.mark.parametrize("at", [LOSES, PAYS], ids=["loses", "pays"])
def test_each_threshold_is_where_the_speed_model_changes_its_mind(at: Conditions):
    found = plan(at)
    assert found.pays == pays(at) == (at is PAYS)
    checked = 0
    for each in found.thresholds:
        if each.value is None or each.value >= LONGEST_S * 1e3:
            continue
        better = each.value * (1.001 if each.at_least else 0.999)
        worse = each.value * (0.99 if each.at_least else 1.01)
        assert pays(with_value(at, each.name, min(better, 1.0) if each.unit == "" else better))
        assert not pays(with_value(at, each.name, worse))
        # The threshold lies on the way from here to where it is otherwise.
        better_now = (each.value > each.now) == each.at_least
        assert better_now != found.pays
        checked += 1
    assert checked >= 3


def test_what_auto_would_run_is_the_fastest_way():
    found = plan(PAYS)
    assert found.chosen.speed == max(each.speed for each in found.plans.values())
    assert plan(LOSES).chosen.way is Way.STREAM


def test_the_baselines_are_the_closed_forms():
    found = plan(LOSES, cloud_draft_s=0.0)
    speeds = {str(way): value for way, value in found.baselines.items()}
    assert speeds["per-token"] == pytest.approx(1 / 0.230)
    assert speeds["stream"] == pytest.approx(1 / 0.030)
    # Drafts that cost nothing: the longest is best, and 1/(1 − α) tokens a forward the limit.
    assert found.cloud_gamma == 16
    assert speeds["cloud"] == pytest.approx((1 - 0.7**17) / 0.3 / 0.030)


def test_last_good_finds_the_border_from_either_side():
    assert last_good(lambda x: x <= 3.25, 0, 10) == pytest.approx(3.25)
    assert last_good(lambda x: x >= 3.25, 10, 0) == pytest.approx(3.25)
    assert last_good(lambda x: True, 0, 10) == 10
    assert last_good(lambda x: False, 0, 10) is None


# ------------------------------------------------------------------ as a person reads it

BY_HAND = ("--draft-ms", "12.5", "--verify-ms", "40", "--alpha", "0.7", "--seeds", "4")
DRAFTS_PAY = "drafting goes on paying", "beats cloud streaming", "will choose it), about"
DRAFTS_DO_NOT_PAY = "plan:  plain streaming", "edge speculation is no saving"


def comparison(faster: Way, speedup: float) -> Comparison:
    """Streaming takes 1 s, this way its part of it, and all others 2 s."""
    times_s = {"stream": 1.0, str(faster): 1 / speedup}
    base = replace(default_study().base, tokens=4)
    figures = [
        replace(item, duration_s=times_s.get(str(item.way), 2.0))
        for item in compare([base], EDGE, (0,))[0].figures
    ]
    return Comparison(tuple(figures))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_where_model_and_simulation_part_there_is_one_verdict(
    capsys: pytest.CaptureFixture[str],
):
    """Over this link the speed model is above the margin, and the simulation below it."""
    shown = told(capsys, "--profile", "4g-weak", *BY_HAND)
    assert all(words in shown for words in DRAFTS_DO_NOT_PAY)
    assert not any(words in shown for words in DRAFTS_PAY)
    both = re.search(r"promises (\d\.\d+) times\s.*\s(\d\.\d+) times; it pays", shown, re.DOTALL)
    assert both is not None
    assert float(both[1]) >= DRAFTING_GAIN > float(both[2])
    assert "by the speed model alone" in shown


@pytest.mark.parametrize(
    ("found_pays", "model_pays", "says"),
    [
        (True, True, "plan:  run-ahead with γ"),
        (False, False, "plan:  plain streaming (--mode stream, or auto"),
        (False, True, "plan:  plain streaming (--mode stream): drafting does not pay"),
        (True, False, "plan:  sync with γ"),
    ],
)
def test_the_verdict_is_that_of_the_simulation(found_pays: bool, model_pays: bool, says: str):
    planned = plan(PAYS if model_pays else LOSES)
    faster = Way.RUN_AHEAD if model_pays else Way.SYNC
    shown = "\n".join(verdict(planned, comparison(faster, 1.3 if found_pays else 0.9)))
    assert shown.startswith(says)
    assert ("The speed model" in shown) == (found_pays != model_pays)


def test_a_further_token_costs_what_it_costs_elsewhere(capsys: pytest.CaptureFixture[str]):
    words = ("--rtt", "20", *BY_HAND, "--tokens", "16", "--seeds", "1", "--json")
    assert json.loads(told(capsys, *words))["given"]["extra_ms"] == 1
    assert json.loads(told(capsys, *words, "--extra-ms", "0"))["given"]["extra_ms"] == 0


DOCS = Path(__file__).parents[2] / "docs/simulate.md"


def printed_in_docs() -> dict[str, list[list[str]]]:
    """By command, what docs/simulate.md shows of its output: lines between those left out."""
    found = {}
    for block in re.findall(r"```console\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL):
        command, _, output = block.partition("\n")
        if output and not output.startswith("$"):
            parts = [part.strip("\n").split("\n") for part in output.split("\n…\n")]
            found[command.removeprefix("$ netsim ")] = parts
    return found


@pytest.mark.parametrize("command", printed_in_docs())
def test_the_docs_show_what_the_command_prints(command: str, capsys: pytest.CaptureFixture[str]):
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.split("\n")
    at = 0
    for part in printed_in_docs()[command]:
        starts = range(at, len(lines) - len(part) + 1)
        found = next((i for i in starts if lines[i : i + len(part)] == part), None)
        assert found is not None, f"not printed: {part}"
        at = found + len(part)


def test_the_docs_show_a_run_and_a_plan():
    assert {command.split()[0] for command in printed_in_docs()} == {"run", "plan"}
