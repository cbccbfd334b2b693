"""How models are loaded into llama.cpp at either end; `api` is its module of functions."""

from __future__ import annotations

from typing import Any


def model_params(api: Any) -> Any:
    """llama.cpp's defaults for a model, less what can crash the process.

    GCC 12.2 and others (its bug 114098) drop most of a tile configuration before it is
    loaded, so that llama.cpp which they built for a CPU with AMX dies in the first forward.
    The library does not tell what it was built with, so it gets no buffers for AMX.
    """
    params = api.llama_model_default_params()
    if b"AMX_INT8 = 1" in api.llama_print_system_info():
        params.use_extra_bufts = False
    return params
