"""How much of the host's memory is left: the machine's, or a container's share of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specwire.errors import ModelError

SHARE = 0.8
"""Of what is left, for keys and values where nothing is set; the rest is for activations."""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take, or None where the system does not tell.

    The least of what the machine has and what is left in each control group that the
    process belongs to. Caches of files count as free, for they make room. `root` is
    where `proc` and `sys` are looked for.
    """
    found = [_of_machine(root), *(_of_group(folder) for folder in _groups(root))]
    return min((n for n in found if n is not None), default=None)


def check_room(wanted: int, *, free: int | None) -> None:
    """Refuse more cache memory than there is.

    The system would promise it, and end the process when the sessions come.

    Raises:
        ModelError: `wanted` bytes are more than the `free` ones.
    """
    if free is not None and wanted > free:
        raise ModelError(
            f"{wanted} bytes of cache are more than the {free} bytes of memory that are left "
            "beside the model; give less KV memory"
        )


def _of_machine(root: Path) -> int | None:
    found = _fields(root / "proc/meminfo").get("MemAvailable:")
    return None if found is None else 1024 * found


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's memory groups, up to the topmost."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # In a container the path may be the host's, while only what is below is mounted.
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            yield place
            if place == top:
                break


def _of_group(folder: Path) -> int | None:
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = _text(folder / limit), _text(folder / usage)
        if most.isdigit() and used.isdigit():
            reclaimable = _fields(folder / "memory.stat").get(cache, 0)
            return max(int(most) - int(used) + reclaimable, 0)
    return None


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = (line.split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
