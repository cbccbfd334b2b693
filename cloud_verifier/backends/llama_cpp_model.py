"""A GGUF model in llama.cpp: weights, vocabulary, tokenizer and chat template.

Guarantees: the weights are freed once nothing holds them, at garbage collection and at
interpreter exit alike; a model that can't be verified is refused.
"""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path
from typing import Any

from cloud_verifier.backends.llama_cpp import Llama, cause_of, load_llama
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


class LlamaCppModel:
    """A GGUF model's weights and vocabulary.

    Args:
        path: the GGUF file (for a split model its first part). It is memory-mapped.
        device: "auto", "cpu", "cuda" or "cuda:1", …

    Raises:
        ModelError: the file can't be loaded, the device can't be used, or the model
            can't be rolled back.
    """

    def __init__(self, path: Path, *, device: str = "auto") -> None:
        _check_file(path)
        self.llama: Llama = load_llama()
        api = self.llama.api
        params = model_params(api)
        self.on_gpu = _place(api, params, device)
        with self.llama.listening() as errors:
            handle = api.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ModelError(f"can't load the model {path}: {cause_of(errors)}")
        self.handle: int = handle
        self.finalizer = weakref.finalize(self, api.llama_model_free, handle)
        self.architecture = metadata(api, handle, "general.architecture") or "unknown"
        self._vocab: int = api.llama_model_get_vocab(handle)
        _check_kind(api, handle, self._vocab, f"{path} (architecture {self.architecture!r})")
        self.width: int = api.llama_vocab_n_tokens(self._vocab)
        """Columns of a row of logits; at least len(vocabulary)."""
        self.vocabulary: Vocabulary = read_vocabulary(api, self._vocab)
        self.train_context: int = api.llama_model_n_ctx_train(handle)
        """Tokens that the model was trained to attend over; 0 if the file does not say."""
        self.window: int = api.llama_model_n_swa(handle)
        """Tokens that its sliding layers attend over; 0 if it has none."""
        self.chat_template: str | None = chat_template(api, handle)

    def special_tokens(self) -> dict[str, str]:
        """Spellings by the names that chat templates call them, of those that there are."""
        return special_tokens(self.llama.api, self._vocab, self.vocabulary)

    def tokenize(self, raw: bytes) -> list[int]:
        """Ids of a text in UTF-8. Special tokens that it spells out are read as such.

        Nothing is added at either end.
        """
        return tokenize(self.llama.api, self._vocab, raw)


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"can't read the model file {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(
            f"can't load {path}: it is no GGUF file (it begins with {magic!r}, not b'GGUF'); "
            f"convert the model, or download it in GGUF form"
        )


def _place(api: Any, params: Any, device: str) -> bool:
    """Write into `params` where the layers go; whether that is an accelerator."""
    offload: bool = api.llama_supports_gpu_offload()
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None and device not in ("auto", "cpu"):
        raise ModelError(
            f"device {device!r} is unknown to the backend llama_cpp; "
            f"give auto, cpu, cuda, or cuda and a number, such as cuda:1"
        )
    if match is not None and not offload:
        raise ModelError(
            f"device {device!r} can't be used: this llama-cpp-python is built for CPUs only; "
            f"install one that is built for the device, or use 'cpu'"
        )
    on_gpu = offload and device != "cpu"
    params.n_gpu_layers = -1 if on_gpu else 0
    if match is not None and match[1] is not None:
        params.split_mode, params.main_gpu = api.LLAMA_SPLIT_MODE_NONE, int(match[1])
    return on_gpu


def _check_kind(api: Any, model: int, vocab: int, what: str) -> None:
    none = api.LLAMA_VOCAB_TYPE_NONE
    if api.llama_vocab_type(vocab) == none or api.llama_vocab_n_tokens(vocab) == 0:
        raise ModelError(f"{what} holds no vocabulary, so its text can't be verified")
    if (
        not api.llama_model_has_decoder(model)
        or api.llama_model_has_encoder(model)
        or api.llama_model_is_diffusion(model)
    ):
        raise ModelError(f"{what} is not a left-to-right text model; choose another")
    if api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model):
        raise ModelError(
            f"{what} has recurrent layers, which can't be rolled back; "
            f"choose a model whose layers are all attention"
        )
