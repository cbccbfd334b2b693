"""From what an operator writes ("builtin:smollm2", a folder, a GGUF file) to a ready target."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specwire.builtin import BUILTIN_PREFIX, builtin_path
from specwire.errors import ModelError
from specwire.ports import PromptEncoder, TargetBackend

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

DTYPES: tuple[Dtype, ...] = ("auto", "float32", "bfloat16", "float16")
BACKENDS = ("transformers",)

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")
_INSTALL = "pip install 'specwire[cloud]'"


@dataclass(frozen=True)
class Target:
    """A loaded target model and the tokenizer that goes with it."""

    backend: TargetBackend
    encoder: PromptEncoder


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


def load_target(
    spec: str,
    *,
    backend: str = "transformers",
    dtype: Dtype = "auto",
    device: str = "auto",
    context: int | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Target:
    """Load a target model.

    Args:
        spec: a Hugging Face id or folder, a path to a .gguf file, or "builtin:smollm2".
        backend: the engine; "transformers" is the only one so far.
        dtype: number format of weights and arithmetic. "auto" takes what the
            checkpoint states, and bfloat16 for GGUF files, which are unpacked.
        device: "cpu", "cuda", "cuda:1", …; "auto" takes CUDA where there is one.
        context: most tokens of a sequence, if less than the model allows.
        threads: CPU threads of torch, for the whole process; None leaves them.
        progress: called with one line of text before each part of the work.

    Raises:
        ModelError: the model can't be found, loaded or verified; the message
            names the value and the cure.
    """
    if backend not in BACKENDS:
        raise ModelError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if threads is not None and threads < 1:
        raise ModelError(f"{threads} threads can't work; give at least 1")
    source = find_source(spec)
    needed = ["torch", "transformers", *(["gguf", "accelerate"] if source.gguf else [])]
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        raise ModelError(f"{spec!r} needs {', '.join(missing)}; install with: {_INSTALL}")

    from cloud_verifier.backends.checkpoint import load_checkpoint

    return Target(
        *load_checkpoint(
            source, dtype=dtype, device=device, context=context, threads=threads, progress=progress
        )
    )


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
