"""A sweep of 10 000 scenarios of 256 tokens as people run it, and what of it is no simulating."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from netsim import parallel
from netsim.sweep import output
from netsim.sweep.grid import RESULTS, Row
from netsim.sweep.journal import Journal

_GRID = (
    "--alpha", "0.5:0.9:0.1", "--gamma", "2,4,8,auto",
    "--loss", "0:0.009:0.001", "--way", "cloud,edge", "--tokens", "256",
)  # fmt: skip
SCENARIOS = 10_000
_CHUNK = 64


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Rows of: what, how many scenarios, seconds, and scenarios a second."""
    rtts, scenarios = ("40", SCENARIOS // 10) if quick else ("0:180:20", SCENARIOS)
    with tempfile.TemporaryDirectory() as folder:
        whole = _whole(Path(folder), rtts, scenarios)
        kept = _kept(Path(folder))
    return [
        _row(f"netsim sweep, {parallel.cores()} cores", scenarios, whole),
        _row("its files alone", SCENARIOS, kept),
    ]


def _whole(folder: Path, rtts: str, scenarios: int) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "netsim.cli", "sweep", "--rtt", rtts, *_GRID]
    command += ["--out", str(folder / "a.csv")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.startswith(f"{scenarios} rows"), told
    return time.perf_counter() - began


def _kept(folder: Path) -> float:
    row: Row = [100.0, 0.001, 0.7, 4, "sync", 0, *[123.456789] * len(RESULTS)]
    began = time.perf_counter()
    with Journal(folder / "journal", "key", SCENARIOS) as journal:
        for first in range(0, SCENARIOS, _CHUNK):
            journal.add(first, [row] * min(_CHUNK, SCENARIOS - first))
        rows = [found for found in journal.rows if found is not None]
    output.write(folder / "b.csv", ["x"] * len(row), rows)
    return time.perf_counter() - began


def _row(what: str, scenarios: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "scenarios": scenarios,
        "seconds": seconds,
        "scenarios_per_s": scenarios / seconds,
    }
