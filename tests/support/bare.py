"""llama.cpp's own decode loop, in its plainest form: the reference for models on this device."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from specwire.llama_params import model_params


def bare_greedy(
    path: Path, prompt: Sequence[int], count: int, *, threads: int = 1, context: int = 256
) -> tuple[list[int], float]:
    """Greedy ids after the prompt, a token at a time, and the seconds that the tokens took.

    Ends early after an end token. All settings but one are llama.cpp's own.
    """
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params(llama_cpp))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = context, threads, threads
    state = llama_cpp.llama_init_from_model(model, params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    width = llama_cpp.llama_vocab_n_tokens(vocab)

    def after(ids: Sequence[int]) -> int:
        array = (ctypes.c_int32 * len(ids))(*ids)
        assert llama_cpp.llama_decode(state, llama_cpp.llama_batch_get_one(array, len(ids))) == 0
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(state, -1), (width,))
        return int(row.argmax())

    try:
        ids = [after(prompt)]
        began = time.perf_counter()
        while len(ids) < count and not llama_cpp.llama_vocab_is_eog(vocab, ids[-1]):
            ids.append(after(ids[-1:]))
        return ids, time.perf_counter() - began
    finally:
        llama_cpp.llama_free(state)
        llama_cpp.llama_model_free(model)
