"""What is left of the host's memory, and targets that would take more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.backends import host_memory
from cloud_verifier.backends.host_memory import check_room, free_bytes
from cloud_verifier.backends.load import load_target
from specwire.errors import ModelError

MEMINFO = "MemTotal:  16000 kB\nMemFree:  100 kB\nMemAvailable:  9000 kB\nHugePages_Total: 0\n"
MACHINE = 9000 * 1024


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, MACHINE, id="no group"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "5000000\n",
                "sys/fs/cgroup/memory.current": "3000000\n",
                "sys/fs/cgroup/memory.stat": "anon 7\ninactive_file 500000\n",
            },
            2_500_000,
            id="a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "4000000\n",
                "sys/fs/cgroup/a/memory.current": "1000000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1000000\n",
            },
            3_000_000,
            id="the limit of the group above",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n1:cpu:/y\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "2000000",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "2500000",
                "sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 100",
            },
            0,
            id="first version of groups, already beyond its limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500000",
            },
            MACHINE,
            id="no limit",
        ),
    ],
)
def test_the_least_of_machine_and_groups(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert free_bytes(system(tmp_path, {"proc/meminfo": MEMINFO, **files})) == expected


def test_systems_that_do_not_tell(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None
    check_room(1 << 60, free=None)


def test_this_machine_tells() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("no /proc here")
    found = free_bytes()
    assert found is not None and 1 << 20 < found < 1 << 50


# ------------------------------------------------------------------------- targets


@pytest.fixture(params=["transformers", "llama_cpp"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of a small target of each backend on the CPU, whose context is 256 tokens."""
    pytest.importorskip("torch" if request.param == "transformers" else "llama_cpp")
    return {"backend": request.param, "device": "cpu", "threads": 1}


def test_more_cache_than_memory_is_refused(
    tiny_gguf: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 50_000)
    with pytest.raises(ModelError, match=r"bytes of cache .* 50000 bytes .* give less KV memory"):
        load_target(str(tiny_gguf), kv_memory=60_000, **options)
    backend: Any = load_target(str(tiny_gguf), kv_memory=40_000, **options).backend
    assert 0 < backend.tokens * backend.bytes_per_token <= 40_000


def test_by_itself_a_cache_takes_no_more_than_most_of_the_memory(
    tiny_gguf: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = load_target(str(tiny_gguf), **options).backend
    assert backend.tokens == 8 * backend.context
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 100_000)
    backend = load_target(str(tiny_gguf), **options).backend
    assert 60_000 < backend.tokens * backend.bytes_per_token <= 80_000
