"""The `netsim` command as people run it: a process, what it prints, and its exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

NETSIM = [sys.executable, "-m", "netsim.cli"]
WAYS = ["per-token", "stream", "cloud", "sync", "pipeline", "run-ahead", "auto"]
SMALL = "--tokens", "40", "--seeds", "2"


def netsim(
    *words: str | Path, code: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*NETSIM, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


# ------------------------------------------------------------------------- all of it


def test_help_names_the_commands_and_the_exit_codes():
    told = netsim("--help").stdout
    for word in ("profiles", "run", "sweep", "report", "plan", "proxy", "exit codes", "130"):
        assert word in told


@pytest.mark.parametrize("command", ["profiles", "run", "sweep", "report", "plan", "proxy"])
def test_each_command_has_help(command: str):
    assert f"usage: netsim {command}" in netsim(command, "--help").stdout


def test_an_output_that_is_not_utf_8_ends_no_command():
    told = netsim("run", "--list", env={"PYTHONIOENCODING": "ascii"}).stdout
    assert "article-200ms" in told
    assert "α" in netsim("run", "ideal-speed", "--tokens", "8", "--seeds", "1").stdout
    plain = netsim(
        *("run", "ideal-speed", "--tokens", "8", "--seeds", "1"),
        env={"PYTHONIOENCODING": "ascii"},
    ).stdout
    assert "α" not in plain and "?" in plain


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "required"),
        (("rum",), "invalid choice"),
        (("run",), "--list"),
        (("run", "article-20ms"), "must end in .toml; did you mean 'article-200ms'?\n"),
        (("run", "article-200ms", "--gama", "3"), "usage: netsim run "),
        (("plan", "--gama", "3"), "netsim plan: error: unrecognized arguments: --gama 3"),
        (("run", "nowhere.toml"), "nowhere.toml"),
        (("run", "article-200ms", "--alpha", "1.5"), "at most 1, not 1.5"),
        (("run", "article-200ms", "--gamma", "x"), "auto, not x"),
        (("run", "article-200ms", "--seeds", "0"), "--seeds must be 1 or more"),
        (("run", "article-200ms", "--tokens", "9999999999"), "--tokens must be 100000 at most"),
        (("run", "article-200ms", "--profile", "4g-weka"), "4g-weak"),
        (("run", "article-200ms", "--jobs", "-1"), "--jobs must be 1 or more"),
        (("sweep", "--out", "a.txt"), ".csv or .parquet"),
        (("sweep", "--out", "no/folder/a.csv"), "no folder"),
        (("sweep", "--out", "a.csv", "--rtt", "9:1"), "must rise"),
        (("sweep", "--out", "a.csv", "--way", "synk"), "did you mean 'sync'"),
        (("sweep", "--out", "a.csv", "--seeds", "9999999"), "2000000 at most"),
        (("sweep", "--out", "a.csv", "--seed", "-3"), "--seed must be 0 to"),
        (("run", "article-200ms", "--seed", "-3"), "--seed must be 0 to"),
        (("run", "article-200ms", "--burst", "3"), "give a loss too"),
        (("report", "--scenario", "ideal-speed"), "varies alpha, gamma"),
        (("plan",), "--draft-ms, --verify-ms, --alpha missing"),
        (("plan", "--draft-ms", "1", "--verify-ms", "9", "--alpha", ".5"), "--rtt or --profile"),
        (("plan", "--rtt", "1", "--profile", "5g"), "not both"),
    ],
)
def test_wrong_arguments_are_named_with_their_cure(
    words: tuple[str, ...], told: str, tmp_path: Path
):
    done = subprocess.run(
        [*NETSIM, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------- profiles and run


def test_profiles_come_with_their_sources():
    found = json.loads(netsim("profiles", "--json").stdout)["profiles"]
    assert {"4g-weak", "geo", "elevator"} <= {link["name"] for link in found}
    assert all(link["source"] and link["rtt_ms"] > 0 for link in found)
    assert "4g-weak" in netsim("profiles").stdout


def test_run_shows_all_baselines_and_says_where_it_loses():
    told = netsim("run", "article-200ms", "--seeds", "4").stdout
    for words in ("per-token calls", "cloud streaming", "cloud-side speculation"):
        assert f"\n{words}" in told
    assert "Synchronous edge speculation LOSES to cloud streaming" in told
    assert "edge speculation is no saving" in told


def checked(found: dict[str, Any]) -> None:
    """The JSON object of `run`, key by key."""
    assert set(found) == {"title", "tokens", "prompt", "clients", "connect", "seeds", "cases"}
    for case in found["cases"]:
        assert {"vary", "link", "ways", "slower_than_streaming", "verdicts"} <= set(case)
        assert [row["way"] for row in case["ways"]][:3] == WAYS[:3]
        for row in case["ways"]:
            assert set(row["speedup_over"]) == set(WAYS[:3])
            for key, value in row.items():
                if key in ("tokens_per_round_trip", "alpha"):
                    assert value is None or value >= 0
                elif key.endswith(("_s", "_per_token")):
                    assert isinstance(value, float) and value > 0
        assert set(case["slower_than_streaming"]) <= set(WAYS[3:])


def test_run_as_json_is_complete_and_the_same_for_the_same_seed():
    words = ("run", "small-draft-wifi", "--json", *SMALL)
    first = netsim(*words).stdout
    assert netsim(*words).stdout == first
    checked(json.loads(first))
    other = netsim(*words, "--seed", "100").stdout
    assert json.loads(other)["cases"] != json.loads(first)["cases"]


def test_run_varies_what_the_file_says():
    found = json.loads(netsim("run", "ideal-speed", "--json", *SMALL).stdout)
    checked(found)
    assert [case["vary"] for case in found["cases"]][:2] == [
        {"alpha": 0.9, "gamma": 4},
        {"alpha": 0.9, "gamma": 7},
    ]
    assert found["cases"][1]["theory_tokens_per_round"] == 5.6953


def test_a_trace_tells_who_did_what():
    found = json.loads(
        netsim("run", "article-200ms", "--json", "--trace", "--tokens", "12", "--seeds", "1").stdout
    )
    trace = found["cases"][0]["trace"]["sync"]
    assert {span["what"] for span in trace} == {"draft", "up", "verify", "down"}
    assert all(span["begin_s"] <= span["end_s"] for span in trace)
    assert "verify" in netsim("run", "article-200ms", "--trace", *SMALL).stdout


def test_a_reader_who_leaves_early_is_no_failure():
    piped = f"{' '.join(NETSIM)} run article-200ms --json --trace --tokens 40 --seeds 1 | head -c 9"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", piped], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------- sweep

GRID = ("--rtt", "0:200:50", "--alpha", "0.5,0.8", "--gamma", "2,auto", "--way", "stream,sync")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_the_same_in_any_number_of_processes(tmp_path: Path):
    for jobs in ("1", "3"):
        netsim(
            "sweep", *GRID, "--tokens", "64", "--seeds", "80", "--jobs", jobs,
            "--out", tmp_path / f"{jobs}.csv",
        )  # fmt: skip
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "3.csv").read_bytes()
    found = rows(tmp_path / "1.csv")
    assert len(found) == (5 + 5 * 2 * 2) * 80
    assert {row["way"] for row in found} == {"stream", "sync"}
    assert not list(tmp_path.glob("*.journal"))


def test_a_sweep_says_where_the_edge_loses(tmp_path: Path):
    done = netsim("sweep", *GRID, "--tokens", "64", "--out", tmp_path / "a.csv")
    assert "against cloud streaming" in done.stdout
    assert "slower at" in done.stdout
    alone = netsim("sweep", "--way", "sync", "--tokens", "20", "--out", tmp_path / "b.csv")
    assert "nothing here tells of a saving" in alone.stdout


def test_parquet_holds_the_same_as_csv(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a.csv", "a.parquet"):
        netsim("sweep", *GRID, "--tokens", "20", "--out", tmp_path / name)
    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    plain = rows(tmp_path / "a.csv")
    assert [f"{row['time_s']}" for row in table] == [row["time_s"] for row in plain]
    assert {row["gamma"] for row in table} == {None, 2}


def test_without_its_package_parquet_names_the_extra(tmp_path: Path):
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(name='pyarrow')\n")
    done = netsim(
        "sweep", "--out", tmp_path / "a.parquet", code=1, env={"PYTHONPATH": str(tmp_path)}
    )
    assert "specwire[netsim,parquet]" in done.stderr


LONG = ("--rtt", "0:200:10", "--way", "stream,sync", "--tokens", "256", "--seeds", "40")


def started(out: Path) -> subprocess.Popen[str]:
    """A long sweep that has kept something, in a process group of its own."""
    process = subprocess.Popen(
        [*NETSIM, "sweep", *LONG, "--jobs", "2", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    journal = out.with_name(out.name + ".journal")
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") >= 3:
            return process
        time.sleep(0.05)
    raise AssertionError(f"the sweep kept nothing, or was too quick: {process.communicate()}")


def group_is_gone(group: int) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path):
    out = tmp_path / "a.csv"
    process = started(out)
    process.kill()
    process.communicate()
    assert not out.exists()
    assert group_is_gone(process.pid)  # its workers end by themselves
    refused = netsim("sweep", "--tokens", "9", "--out", out, code=2)
    assert "another sweep" in refused.stderr
    done = netsim("sweep", *LONG, "--out", out)
    assert "going on: " in done.stderr
    netsim("sweep", *LONG, "--jobs", "1", "--out", tmp_path / "b.csv")
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.slow
def test_an_interrupted_sweep_says_how_to_go_on(tmp_path: Path):
    process = started(tmp_path / "a.csv")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in told
    assert "Traceback" not in told
    assert (tmp_path / "a.csv.journal").exists()


# ------------------------------------------------------------------------------ report


class Page(HTMLParser):
    """What a page refers to, and whether its elements are closed."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action", "srcset"):
                self.refers.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


REPORT = ("report", "--scenario", "article-200ms", "--tokens", "40", "--seeds", "1", "--out")


@pytest.mark.slow
def test_a_report_needs_nothing_else_and_is_the_same_each_time(tmp_path: Path):
    netsim(*REPORT, tmp_path / "a")
    netsim(*REPORT, tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    pictures = ["costs.png", "gamma.png", "map.png", "savings.png", "timeline.png"]
    assert names == sorted([*pictures, "data.json", "index.html"])
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    html = (tmp_path / "a" / "index.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    # References go to the page's own parts alone, and nothing is fetched by its styles.
    assert all(ref.startswith("#") and ref[1:] in page.ids for ref in page.refers)
    assert "://" not in html and "@import" not in html and "<script" not in html
    assert html.count("<svg") == 5
    assert "prefers-color-scheme: dark" in html and "#10151b" not in html.partition("</style>")[2]
    assert " 1 run of each way." in page.text
    assert "per-token calls" in page.text and "cloud-side speculation" in page.text
    assert "Synchronous edge speculation LOSES to cloud streaming" in page.text
    assert "beats cloud streaming" not in page.text
    assert "Synchronous speculation loses to streaming on every link shown" in page.text
    data = json.loads((tmp_path / "a" / "data.json").read_text(encoding="utf-8"))
    assert set(data) == {"title", "scenario", "profiles", "break_even", "gamma"}


def test_without_its_package_a_report_names_the_extra(tmp_path: Path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(name='matplotlib')\n")
    done = netsim(*REPORT, tmp_path / "a", code=1, env={"PYTHONPATH": str(tmp_path)})
    assert "specwire[netsim]" in done.stderr


# -------------------------------------------------------------------------------- plan

HAND = ("plan", "--draft-ms", "20", "--verify-ms", "30", "--alpha", "0.7", *SMALL)


def test_a_plan_says_what_would_have_to_change():
    told = netsim(*HAND, "--rtt", "200").stdout
    assert "plan:  plain streaming" in told
    needed = re.search(r"acceptance rate: at least (0\.\d+) instead of 0\.7", told)
    assert needed is not None and 0.8 < float(needed.group(1)) < 0.95
    assert "round trip: at most" in told
    paying = netsim("plan", "--rtt", "20", "--draft-ms", "8", "--verify-ms", "50", "--alpha", ".9")
    assert "drafting goes on paying while" in paying.stdout


def test_a_plan_as_json():
    found = json.loads(netsim(*HAND, "--profile", "4g-weak", "--json").stdout)
    assert set(found) == {
        "given", "plan", "pays", "pays_simulated", "expected_tokens_per_s", "gammas", "thresholds",
        "simulated", "verdicts",
    }  # fmt: skip
    assert found["given"]["rtt_ms"] == 150 and found["pays"] is False
    assert set(found["expected_tokens_per_s"]) == set(WAYS) - {"auto"}
    assert [row["way"] for row in found["simulated"]["ways"]] == WAYS
    assert {item["name"] for item in found["thresholds"]} == {
        "acceptance rate", "draft token", "round trip", "target forward",
    }  # fmt: skip


def test_a_verifier_that_is_not_there_fails_the_plan():
    done = netsim("plan", "--server", "127.0.0.1:9", "--draft", "none", code=1)
    assert "can't measure" in done.stderr
