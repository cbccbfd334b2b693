"""The choice of threads: slow cores, hyperthreads, quotas, machines that tell nothing (E3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_client.draft.threads import MAX_DEFAULT_THREADS, choose_threads, default_threads

EIGHT = range(8)
OWN_CORE = {cpu: str(cpu) for cpu in EIGHT}
BIG_LITTLE = {cpu: 2.8 if cpu in (3, 7) else 1.8 for cpu in EIGHT}


def test_slow_cores_are_left_out() -> None:
    assert choose_threads(EIGHT, speed=BIG_LITTLE, core=OWN_CORE) == 2


def test_only_allowed_cpus_count() -> None:
    assert choose_threads([0, 1, 2, 3], speed=BIG_LITTLE, core=OWN_CORE) == 1
    assert choose_threads([0, 1, 2], speed=BIG_LITTLE, core=OWN_CORE) == 2


@pytest.mark.parametrize(("quota", "expected"), [(0.2, 1), (1.5, 1), (2.0, 2), (3.9, 3), (99, 7)])
def test_quota(quota: float, expected: int) -> None:
    assert choose_threads(EIGHT, core=OWN_CORE, quota=quota) == expected


@pytest.mark.parametrize(("cpus", "expected"), [(1, 1), (2, 1), (4, 3), (8, 7)])
def test_one_cpu_is_left_to_the_rest_of_the_client(cpus: int, expected: int) -> None:
    assert choose_threads(range(cpus), core=OWN_CORE) == expected


def test_hyperthreads_share_a_core() -> None:
    assert choose_threads(EIGHT, core={cpu: f"{cpu % 4}" for cpu in EIGHT}) == 4


@pytest.mark.parametrize(("cpus", "expected"), [(0, 1), (1, 1), (2, 1), (8, 4), (128, 8)])
def test_without_any_reading_half_the_logical_cpus(cpus: int, expected: int) -> None:
    assert choose_threads(range(cpus)) == expected


def test_speeds_of_some_cpus_only_are_ignored() -> None:
    assert choose_threads(EIGHT, speed={0: 9.0}, core=OWN_CORE) == 7


def test_never_more_than_the_cap() -> None:
    cpus = range(64)
    assert choose_threads(cpus, core={c: str(c) for c in cpus}) == MAX_DEFAULT_THREADS


def _machine(root: Path, files: dict[str, dict[int, object]]) -> Path:
    for name, values in files.items():
        for cpu, value in values.items():
            path = root / f"sys/devices/system/cpu/cpu{cpu}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    return root


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(EIGHT), raising=False)


SIBLINGS: dict[int, object] = dict(OWN_CORE)


@pytest.mark.usefixtures("eight_cpus")
def test_reads_maximal_frequencies(tmp_path: Path) -> None:
    frequency: dict[int, object] = {cpu: 2_840_000 if cpu >= 6 else 1_800_000 for cpu in EIGHT}
    files = {"cpufreq/cpuinfo_max_freq": frequency, "topology/thread_siblings_list": SIBLINGS}
    assert default_threads(_machine(tmp_path, files)) == 2


@pytest.mark.usefixtures("eight_cpus")
def test_prefers_capacities_where_they_differ(tmp_path: Path) -> None:
    capacity: dict[int, object] = {**dict.fromkeys(EIGHT, 350), 5: 760, 6: 760, 7: 1024}
    frequency: dict[int, object] = dict.fromkeys(EIGHT, 2_000_000)
    files = {
        "cpu_capacity": capacity,
        "cpufreq/cpuinfo_max_freq": frequency,
        "topology/thread_siblings_list": SIBLINGS,
    }
    assert default_threads(_machine(tmp_path, files)) == 3


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 7),
        ("0::/user/app", {"cpu.max": "800000 100000", "user/cpu.max": "300000 100000"}, 3),
        (
            "3:memory:/x\n2:cpu,cpuacct:/box",
            {"cpu/box/cpu.cfs_quota_us": "250000", "cpu/box/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 7),
    ],
)
def test_reads_cgroup_quotas(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    root = _machine(tmp_path, {"topology/thread_siblings_list": SIBLINGS})
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership + "\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert default_threads(root) == expected


@pytest.mark.usefixtures("eight_cpus")
def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert default_threads(tmp_path) == 4


def test_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
