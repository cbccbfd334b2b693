"""What a model is loaded with, by what llama.cpp says that it was built for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specwire.llama_params import model_params


@pytest.mark.parametrize(
    ("built_for", "extra"),
    [
        (b"CPU : AVX512_VNNI = 1 | AMX_INT8 = 1 | REPACK = 1 | ", False),
        (b"CPU : AVX2 = 1 | REPACK = 1 | ", True),
        (b"CPU : NEON = 1 | ARM_FMA = 1 | AMX_INT8 = 0 | ", True),
        (b"", True),
    ],
)
def test_builds_for_amx_get_no_buffers_for_it(built_for: bytes, extra: bool) -> None:
    api = SimpleNamespace(
        llama_model_default_params=lambda: SimpleNamespace(use_extra_bufts=True),
        llama_print_system_info=lambda: built_for,
    )
    assert model_params(api).use_extra_bufts is extra
