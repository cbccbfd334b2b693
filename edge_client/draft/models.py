"""From what a user writes after `--draft` or `--target` to a GGUF file on this machine."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from specwire.builtin import BUILTIN_PREFIX, builtin_path
from specwire.errors import ModelError

Q2_SUFFIX = "-q2"
_QUANTISE_BYTES_S = 60e6  # measured 200e6 on two desktop cores; phones are slower
_STALE_S = 3600.0


def resolve_model(spec: str, progress: Callable[[str], None], *, role: str = "draft") -> Path:
    """The GGUF file that `spec` names; `role` is what messages call the model.

    `builtin:NAME` is a model that comes as a Python package, `builtin:NAME-q2` the same
    requantised to Q2_K (made once, then taken from the user's cache folder), anything
    else a path ("~" is the home folder). `progress` gets a line before slow work.

    Raises:
        ModelError: there is no such model or file, or it can't be requantised.
    """
    if spec.startswith(BUILTIN_PREFIX):
        name = spec[len(BUILTIN_PREFIX) :]
        if name.endswith(Q2_SUFFIX):
            return requantised(builtin_path(name[: -len(Q2_SUFFIX)]), cache_folder(), progress)
        return builtin_path(name)
    path = _expand(spec)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a folder on the way is closed to us, or the name too long
        raise ModelError(f"can't read the {role} model {path}: {error.strerror}") from error
    if is_folder:
        raise ModelError(f"the {role} model {path} is a folder; give the path of a GGUF file in it")
    if not is_file:
        raise ModelError(
            f"no {role} model at {path}; give the path of a GGUF file, "
            f"or {BUILTIN_PREFIX}smollm2 for the built-in one"
        )
    return path


def cache_folder(env: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Where files that can be made again are kept.

    $SPECWIRE_CACHE, else $XDG_CACHE_HOME/specwire, else the platform's usual place
    (%LOCALAPPDATA% on Windows, ~/Library/Caches on macOS, ~/.cache elsewhere).
    """
    env = os.environ if env is None else env
    if env.get("SPECWIRE_CACHE"):
        return _expand(env["SPECWIRE_CACHE"])
    if env.get("XDG_CACHE_HOME"):
        return _expand(env["XDG_CACHE_HOME"]) / "specwire"
    if platform == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / "specwire"
    home = "~/Library/Caches" if platform == "darwin" else "~/.cache"
    return _expand(home) / "specwire"


def requantised(source: Path, folder: Path, progress: Callable[[str], None]) -> Path:
    """`source` requantised to Q2_K, made in `folder` unless it is there already.

    The name holds a hash of the source's size and time, so a changed source is made
    again. The file appears whole or not at all, whatever else runs or fails meanwhile.

    Raises:
        ModelError: `folder` can't be written, or `source` can't be read or requantised.
    """
    from edge_client.draft.llama_weights import quantise_q2

    try:
        state = source.stat()
    except OSError as error:
        raise ModelError(f"can't read {source}: {error.strerror}") from error
    tag = hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:8]
    made = folder / f"{source.stem}-{tag}.Q2_K.gguf"
    seconds = max(1, round(state.st_size / _QUANTISE_BYTES_S))
    try:
        if made.is_file():
            return made
        progress(f"requantising {source.name} to Q2_K once, about {seconds} s")
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder, made.name)
        handle, name = tempfile.mkstemp(prefix=f"{made.name}.", suffix=".tmp", dir=folder)
        os.close(handle)
    except OSError as error:
        raise ModelError(
            f"can't write the cache folder {folder}: {error.strerror}; "
            f"set SPECWIRE_CACHE to another one"
        ) from error
    temporary = Path(name)
    try:
        quantise_q2(source, temporary)
        _flush(temporary)
        temporary.replace(made)
    except OSError as error:
        raise ModelError(f"can't write {made}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return made


def _expand(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or no home: leave "~" to fail as a path
        return Path(path)


def _flush(path: Path) -> None:
    """Force the content to the disk, so that a power cut can't leave an empty file behind."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _remove_stale(folder: Path, name: str) -> None:
    """Remove what an interrupted run left; younger files may be another process at work."""
    oldest = time.time() - _STALE_S
    for path in folder.glob(f"{name}.*.tmp"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue
