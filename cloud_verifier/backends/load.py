"""From what an operator writes ("builtin:smollm2", a folder, a GGUF file) to a ready target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from cloud_verifier.backends.source import find_source
from specwire.errors import ModelError
from specwire.ports import PromptEncoder, TargetBackend

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

DTYPES: tuple[Dtype, ...] = ("auto", "float32", "bfloat16", "float16")
BACKENDS = ("transformers", "llama_cpp")
QUANTIZATIONS = ("bnb-int8", "bnb-nf4", "quanto-int8", "quanto-int4")


@dataclass(frozen=True)
class Target:
    """A loaded target model and the tokenizer that goes with it."""

    backend: TargetBackend
    encoder: PromptEncoder


def load_target(
    spec: str,
    *,
    backend: str = "transformers",
    dtype: Dtype = "auto",
    device: str = "auto",
    context: int | None = None,
    kv_memory: int | None = None,
    quantization: str | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Target:
    """Load a target model.

    Args:
        spec: a Hugging Face id or folder, a path to a .gguf file, or "builtin:smollm2".
        backend: the engine: "transformers", or "llama_cpp", which reads .gguf files
            only and needs no torch.
        dtype: number format of weights and arithmetic. "auto" takes what the
            checkpoint states, and bfloat16 for GGUF files, which are unpacked.
            llama_cpp takes weights as they are and stores keys and values so;
            "auto" is bfloat16 on a CPU and float16 elsewhere.
        device: "cpu", "cuda", "cuda:1", …; "auto" takes CUDA where there is one. "cuda"
            without a number spreads a large model over all GPUs.
        context: most tokens of a sequence, if less than the model allows.
        kv_memory: bytes for keys and values of all sequences; None for most of what is
            free on the GPUs, or on a CPU for eight sequences of full length, or most of
            the free memory if that is less; for llama_cpp 1 GiB if that is less.
        quantization: of a full-precision checkpoint while it is loaded: "bnb-int8",
            "bnb-nf4", "quanto-int8" or "quanto-int4", each of which needs its package.
        threads: CPU threads; of torch for the whole process, and None leaves them.
        progress: called with one line of text before each part of the work.

    Raises:
        ModelError: the model can't be found, loaded or verified; the message
            names the value and the cure.
    """
    if backend not in BACKENDS:
        raise ModelError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ModelError(
            f"unknown quantization {quantization!r}; known: {', '.join(QUANTIZATIONS)}"
        )
    if threads is not None and threads < 1:
        raise ModelError(f"{threads} threads can't work; give at least 1")
    source = find_source(spec)
    if backend == "llama_cpp":
        _check_packages(spec, ["llama_cpp", "jinja2"], "cloud-llama")
        if quantization is not None:
            raise ModelError(
                f"quantization {quantization!r} is for full-precision checkpoints; the backend "
                f"llama_cpp takes a GGUF file as it is quantised"
            )
        from cloud_verifier.backends.llama_cpp_backend import load_llama_cpp

        return Target(
            *load_llama_cpp(
                source,
                dtype=dtype,
                device=device,
                context=context,
                kv_memory=kv_memory,
                threads=threads,
                progress=progress,
            )
        )
    needed = ["torch", "transformers", *(["gguf", "accelerate"] if source.gguf else [])]
    _check_packages(spec, needed, "cloud")

    from cloud_verifier.backends.checkpoint import load_checkpoint

    return Target(
        *load_checkpoint(
            source,
            dtype=dtype,
            device=device,
            context=context,
            kv_memory=kv_memory,
            quantization=quantization,
            threads=threads,
            progress=progress,
        )
    )


def _check_packages(spec: str, needed: Sequence[str], extra: str) -> None:
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"{spec!r} needs {', '.join(missing)}; install with: pip install 'specwire[{extra}]'"
        )
