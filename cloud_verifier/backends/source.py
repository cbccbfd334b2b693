"""Where the files of a target model are, by what the operator wrote."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from specwire.builtin import BUILTIN_PREFIX, builtin_path
from specwire.errors import ModelError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")


@dataclass(frozen=True)
class Source:
    """Where a model's files come from.

    `location` is a folder or a Hugging Face id; `gguf` names the file inside
    the folder where it is a GGUF model. `spec` is what the operator wrote.
    """

    spec: str
    location: str
    gguf: str | None
    is_local: bool
    name: str


def find_source(spec: str) -> Source:
    """Where the files of a model are, by what the operator wrote. Touches no network.

    Raises:
        ModelError: a path does not exist, or the text is neither path nor id.
    """
    if spec.startswith(BUILTIN_PREFIX):
        return _gguf_source(spec, builtin_path(spec.removeprefix(BUILTIN_PREFIX)))
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{spec!r} is a file but not a .gguf one; give its folder instead")
        return _gguf_source(spec, path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"folder {spec!r} holds no config.json; name the .gguf file in it?")
        return Source(spec, str(path), None, True, path.resolve().name)
    looks_like_path = spec.endswith(".gguf") or spec.startswith(("/", ".", "~")) or os.sep == "\\"
    if looks_like_path or not _HUB_ID.fullmatch(spec):
        raise ModelError(
            f"no file or folder {spec!r}; give a .gguf file, a model folder, "
            f"a Hugging Face id such as 'org/model', or '{BUILTIN_PREFIX}smollm2'"
        )
    return Source(spec, spec, None, False, spec)


def _gguf_source(spec: str, path: Path) -> Source:
    return Source(spec, str(path.parent), path.name, True, path.stem)
