"""llama.cpp's library in the verifier: one for the process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

pytest.importorskip("llama_cpp")

from cloud_verifier.backends import llama_cpp
from cloud_verifier.backends.llama_cpp import load_llama


def test_the_library_is_loaded_once_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    ready = threading.Barrier(4)

    def slow(api: object) -> object:
        made.append(api)
        time.sleep(0.05)  # the others come meanwhile
        return object()

    def load_one() -> object:
        ready.wait(5)
        return load_llama()

    monkeypatch.setattr(llama_cpp, "Llama", slow)
    monkeypatch.setattr(llama_cpp, "_load_llama", cache(llama_cpp._load_llama.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        loaded = [future.result() for future in [pool.submit(load_one) for _ in range(4)]]
    assert len(made) == 1
    assert len(set(map(id, loaded))) == 1
