"""Which file a draft's name stands for, and the requantised copy in the cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import cache_folder, requantised, resolve_model
from specwire.builtin import builtin_path
from specwire.errors import ModelError
from tests.support.tiny_models import write_tiny_gguf


@pytest.fixture
def source(tmp_path: Path) -> Path:
    # Large enough that two processes are at work at the same time.
    return write_tiny_gguf(tmp_path / "tiny.gguf", width=256, layers=8)


def nothing(line: str) -> None:
    pytest.fail(f"progress where there is nothing to do: {line}")


def works(path: Path) -> bool:
    with LlamaWeights(path) as weights, LlamaDraft(weights, context=32, threads=1) as draft:
        return draft.extend([5, 6]).shape == (weights.width,)


# ── names ────────────────────────────────────────────────────────────────────────────


def test_a_path(source: Path) -> None:
    assert resolve_model(str(source), nothing) == source


def test_home_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    monkeypatch.setenv("USERPROFILE", str(source.parent))
    assert resolve_model("~/tiny.gguf", nothing) == source


def test_missing_path_names_it_and_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no draft model at .*gone\.gguf; give the path"):
        resolve_model(str(tmp_path / "gone.gguf"), nothing)


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        resolve_model(str(tmp_path), nothing)


LONG = "x" * 5000
"""No file can be called so."""


def test_a_path_that_can_not_be_looked_at_is_named_with_the_cause() -> None:
    with pytest.raises(ModelError, match=r"can't read the target model x+: File name too long"):
        resolve_model(LONG, nothing, role="target")


def test_a_source_or_cache_folder_that_can_not_be_looked_at(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ModelError, match=r"can't read .*gone\.gguf: No such file"):
        requantised(tmp_path / "gone.gguf", tmp_path, nothing)
    with pytest.raises(
        ModelError, match=r"cache folder x+: File name too long; set SPECWIRE_CACHE"
    ):
        requantised(source, Path(LONG), nothing)


@pytest.mark.parametrize("spec", ["builtin:nosuch", "builtin:nosuch-q2", "builtin:"])
def test_unknown_builtin(spec: str) -> None:
    with pytest.raises(ModelError, match="unknown built-in model"):
        resolve_model(spec, nothing)


@pytest.mark.real
def test_builtin() -> None:
    assert resolve_model("builtin:smollm2", nothing) == builtin_path("smollm2")


@pytest.mark.real
@pytest.mark.slow
def test_builtin_q2_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWIRE_CACHE", str(tmp_path / "cache"))
    lines: list[str] = []
    path = resolve_model("builtin:smollm2-q2", lines.append)
    assert path.parent == tmp_path / "cache"
    assert len(lines) == 1
    assert lines[0].startswith("requantising SmolLM2-135M-Instruct.Q4_1.gguf to Q2_K once, about")
    assert path.stat().st_size < builtin_path("smollm2").stat().st_size
    made_at = path.stat().st_mtime_ns
    assert resolve_model("builtin:smollm2-q2", nothing) == path
    assert path.stat().st_mtime_ns == made_at
    with LlamaWeights(path) as made, LlamaWeights(builtin_path("smollm2")) as original:
        assert made.vocabulary.fingerprint == original.vocabulary.fingerprint
        assert made.vocabulary == original.vocabulary


# ── the cache folder ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("env", "platform", "expected"),
    [
        ({"SPECWIRE_CACHE": "/s", "XDG_CACHE_HOME": "/x"}, "linux", "/s"),
        ({"SPECWIRE_CACHE": "", "XDG_CACHE_HOME": "/x"}, "linux", "/x/specwire"),
        ({"XDG_CACHE_HOME": "/x", "LOCALAPPDATA": "/l"}, "win32", "/x/specwire"),
        ({"LOCALAPPDATA": "/l"}, "win32", "/l/specwire"),
        ({}, "linux", "~/.cache/specwire"),
        ({}, "darwin", "~/Library/Caches/specwire"),
    ],
)
def test_cache_folder(env: dict[str, str], platform: str, expected: str) -> None:
    assert cache_folder(env, platform) == Path(expected).expanduser()


def test_an_unwritable_cache_names_the_cure(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(ModelError, match="set SPECWIRE_CACHE"):
        requantised(source, blocked / "below", lambda _line: None)


# ── making the copy ──────────────────────────────────────────────────────────────────


def test_a_changed_source_is_made_again(source: Path, tmp_path: Path) -> None:
    folder, lines = tmp_path / "cache", list[str]()
    first = requantised(source, folder, lines.append)
    os.utime(source, ns=(1, 1))
    second = requantised(source, folder, lines.append)
    assert first != second
    assert len(lines) == 2
    assert works(second)


def test_an_interrupted_run_is_not_taken_for_the_model(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    made = requantised(source, folder, lambda _line: None)
    whole = made.stat().st_size
    made.unlink()
    old, young = (folder / f"{made.name}.{tag}.tmp" for tag in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"GGUF half a file")
    os.utime(old, (1, 1))
    assert requantised(source, folder, lambda _line: None) == made
    assert made.stat().st_size == whole
    assert sorted(folder.iterdir()) == [made, young]


def test_a_failed_run_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    broken, folder = tmp_path / "broken.gguf", tmp_path / "cache"
    broken.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"can't requantise .*broken\.gguf"):
        requantised(broken, folder, lambda _line: None)
    assert list(folder.iterdir()) == []


_MAKE = """
import sys
from pathlib import Path
from edge_client.draft.models import requantised
print(requantised(Path(sys.argv[1]), Path(sys.argv[2]), lambda line: None))
"""


def test_two_processes_at_once_give_one_whole_file(source: Path, tmp_path: Path) -> None:
    alone = requantised(source, tmp_path / "alone", lambda _line: None)
    folder = tmp_path / "cache"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", _MAKE, str(source), str(folder)]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs == [str(folder / alone.name)] * 2
    assert list(folder.iterdir()) == [folder / alone.name]
    assert (folder / alone.name).read_bytes() == alone.read_bytes()
    assert works(folder / alone.name)
