"""A draft model's weights and vocabulary in llama.cpp, and requantising them.

Guarantees: bad input raises before llama.cpp, which would end the process, sees it; the
weights are freed once nothing holds them, at garbage collection and at interpreter exit
alike.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edge_client.draft.gguf_file import check_gguf
from edge_client.draft.llama_api import Llama, cause_of, load_llama
from edge_client.draft.threads import default_threads
from specwire.errors import ModelError
from specwire.llama_params import model_params
from specwire.llama_vocabulary import (
    chat_template,
    metadata,
    read_vocabulary,
    special_tokens,
    tokenize,
)
from specwire.vocabulary import Vocabulary


class SharedModel:
    """Owns a llama_model; freed when the last holder drops it."""

    def __init__(self, llama: Llama, handle: int, *, on_gpu: bool) -> None:
        self.llama = llama
        self.on_gpu = on_gpu
        self.handle = handle
        self.finalizer = weakref.finalize(self, llama.api.llama_model_free, handle)


class LlamaWeights:
    """A GGUF model's weights and vocabulary, shared by any number of `LlamaDraft`s.

    The file is memory-mapped, so processes that load the same file share its pages.

    Args:
        path: the GGUF file (for a split model its first part).
        gpu_layers: layers to keep on an accelerator; 0 for none, -1 for all.

    Raises:
        ModelError: llama-cpp-python is missing, or the file is missing, is no GGUF file,
            is cut short, or holds a model that can't draft.
    """

    def __init__(self, path: str | os.PathLike[str], *, gpu_layers: int = 0) -> None:
        self.path = Path(path)
        check_gguf(self.path)
        llama = load_llama()
        params = model_params(llama.api)
        params.n_gpu_layers = gpu_layers
        with llama.log.capture() as errors:
            handle = llama.api.llama_model_load_from_file(os.fsencode(self.path), params)
        if not handle:
            raise ModelError(f"can't load the model {self.path}: {cause_of(errors)}")
        self._model: SharedModel | None = SharedModel(llama, handle, on_gpu=gpu_layers != 0)
        _check_can_draft(llama.api, handle, self.path)
        self._vocab: int = llama.api.llama_model_get_vocab(handle)
        self.width: int = llama.api.llama_vocab_n_tokens(self._vocab)
        """Columns of a row of logits; at least len(vocabulary)."""
        self.vocabulary: Vocabulary = read_vocabulary(llama.api, self._vocab)
        self.name: str = metadata(llama.api, handle, "general.name") or self.path.stem
        self.train_context: int = llama.api.llama_model_n_ctx_train(handle)
        """Tokens that the model was trained to attend over."""
        self.chat_template: str | None = chat_template(llama.api, handle)

    def shared(self) -> SharedModel:
        """The model, for a `LlamaDraft` to hold.

        Raises:
            RuntimeError: the weights are closed.
        """
        if self._model is None:
            raise RuntimeError(f"the weights of {self.path} are closed")
        return self._model

    def special_tokens(self) -> dict[str, str]:
        """Spellings by the names that chat templates call them, of those that there are."""
        return special_tokens(self.shared().llama.api, self._vocab, self.vocabulary)

    def tokenize(self, raw: bytes) -> list[int]:
        """Ids of a text in UTF-8, special tokens that it spells out read as such."""
        return tokenize(self.shared().llama.api, self._vocab, raw)

    def close(self) -> None:
        """Give the weights up. They are freed once no `LlamaDraft` uses them."""
        self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def quantise_q2(source: Path, destination: Path) -> None:
    """Write `source` (GGUF, any type) requantised to Q2_K into `destination`.

    Rows whose length isn't a multiple of 256 fall back to a 4-bit type.

    Raises:
        ModelError: llama-cpp-python is missing, or `source` can't be read or
            `destination` written.
    """
    check_gguf(source)
    llama = load_llama()
    params = llama.api.llama_model_quantize_default_params()
    params.ftype = llama.api.LLAMA_FTYPE_MOSTLY_Q2_K
    params.allow_requantize = True
    params.nthread = default_threads()
    with llama.log.capture() as errors:
        status = llama.api.llama_model_quantize(
            os.fsencode(source), os.fsencode(destination), ctypes.byref(params)
        )
    if status != 0:
        raise ModelError(f"can't requantise {source} into {destination}: {cause_of(errors)}")


def _check_can_draft(api: Any, model: int, path: Path) -> None:
    vocab = api.llama_model_get_vocab(model)
    if (
        api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_NONE
        or api.llama_vocab_n_tokens(vocab) == 0
    ):
        raise ModelError(f"{path} holds no vocabulary, so it can't draft text")
    if (
        not api.llama_model_has_decoder(model)
        or api.llama_model_has_encoder(model)
        or api.llama_model_is_diffusion(model)
    ):
        raise ModelError(
            f"{path} is not a left-to-right text model, so it can't draft; choose another"
        )
