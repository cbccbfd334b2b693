"""How many threads llama.cpp gets: the machine's fast physical cores, within its CPU quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from specwire.errors import BadRequest

MAX_DEFAULT_THREADS = 8
"""A small model reads memory rather than computes; more threads only wait for each other."""

MOST_THREADS = 512
"""What ggml has room for; more would end the process."""


def check_threads(threads: int) -> None:
    """Refuse a number of threads that llama.cpp can't have.

    Raises:
        BadRequest: it is none of 1 … `MOST_THREADS`.
    """
    if not 1 <= threads <= MOST_THREADS:
        raise BadRequest(f"threads must be between 1 and {MOST_THREADS}, not {threads}")


def choose_threads(
    cpus: Iterable[int],
    *,
    speed: Mapping[int, float] | None = None,
    core: Mapping[int, str] | None = None,
    quota: float | None = None,
    slow_below: float = 0.8,
) -> int:
    """How many threads llama.cpp should get: the fast physical cores, within the quota.

    All threads of a layer wait for the slowest, so one slow core costs more than it adds. And
    they wait busily: where each CPU has one, whatever else runs, the client's own network
    first, stops them all for a time slice at every layer. So one CPU is left free.

    Args:
        cpus: logical CPUs that this process may run on.
        speed: relative speed of each CPU (capacity or maximal frequency); CPUs are slow
            below `slow_below` of the fastest. Ignored unless known for all of `cpus`.
        core: the physical core of each CPU, any label. If not known for all of `cpus`,
            two CPUs are taken for one core.
        quota: CPU seconds a second that the process may use, None for no limit.
        slow_below: share of the fastest CPU's speed.

    Returns:
        1 … `MAX_DEFAULT_THREADS`.
    """
    allowed = set(cpus)
    chosen = allowed
    if speed and chosen and chosen <= speed.keys():
        fastest = max(speed[cpu] for cpu in chosen)
        chosen = {cpu for cpu in chosen if speed[cpu] >= slow_below * fastest}
    if core and chosen <= core.keys():
        count = len({core[cpu] for cpu in chosen})
    else:
        count = len(chosen) // 2
    count = min(count, len(allowed) - 1)
    if quota is not None:
        count = min(count, math.floor(quota))
    return max(1, min(count, MAX_DEFAULT_THREADS))


def default_threads(root: str | os.PathLike[str] = "/") -> int:
    """`choose_threads` over this machine's readings (sysfs, affinity, cgroup quota).

    `root` is where `sys` and `proc` are looked for. Where a reading is missing, as on
    macOS and Windows, the choice does without it.
    """
    base = Path(root)
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    else:
        cpus = list(range(os.cpu_count() or 1))
    folder = base / "sys/devices/system/cpu"
    capacity = _read_each(cpus, folder, "cpu_capacity")
    frequency = _read_each(cpus, folder, "cpufreq/cpuinfo_max_freq")
    # Equal capacities say nothing: some kernels report 1024 for every CPU.
    uneven = len(set(capacity.values())) > 1
    speed = capacity if uneven or not frequency else frequency
    return choose_threads(
        cpus,
        speed={cpu: float(value) for cpu, value in speed.items() if value.isdigit()},
        core=_read_each(cpus, folder, "topology/thread_siblings_list"),
        quota=_cpu_quota(base),
        # Capacity counts work done, frequency only cycles: small cores hide in the latter.
        slow_below=0.6 if uneven else 0.8,
    )


def _read_each(cpus: Iterable[int], folder: Path, name: str) -> dict[int, str]:
    texts = ((cpu, _read_text(folder / f"cpu{cpu}" / name)) for cpu in cpus)
    return {cpu: text for cpu, text in texts if text}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _cpu_quota(base: Path) -> float | None:
    """The tightest CPU quota on the way from this process's control group to the root."""
    quotas = []
    for line in _read_text(base / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = base / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            quotas.append(_quota_at(place))
            if place == top:
                break
    found = [quota for quota in quotas if quota is not None]
    return min(found, default=None)


def _quota_at(folder: Path) -> float | None:
    text = _read_text(folder / "cpu.max") or " ".join(
        (_read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us"))
    )
    try:
        quota, period = (int(part) for part in text.split())
    except ValueError:  # "max 100000", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None
