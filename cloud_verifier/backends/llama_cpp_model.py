"""A GGUF model in llama.cpp: weights, vocabulary, tokenizer and chat template.

Guarantees: the weights are freed once nothing holds them, at garbage collection and at
interpreter exit alike; a model that can't be verified is refused.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud_verifier.backends.llama_cpp import Llama, cause_of, load_llama
from specwire.errors import ModelError
from specwire.vocabulary import Vocabulary, byte_level_piece


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
        params = api.llama_model_default_params()
        self.on_gpu = _place(api, params, device)
        with self.llama.listening() as errors:
            handle = api.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ModelError(f"can't load the model {path}: {cause_of(errors)}")
        self.handle: int = handle
        self.finalizer = weakref.finalize(self, api.llama_model_free, handle)
        self.architecture = self._metadata("general.architecture") or "unknown"
        self._vocab: int = api.llama_model_get_vocab(handle)
        _check_kind(api, handle, self._vocab, f"{path} (architecture {self.architecture!r})")
        self.width: int = api.llama_vocab_n_tokens(self._vocab)
        """Columns of a row of logits; at least len(vocabulary)."""
        self.vocabulary: Vocabulary = _read_vocabulary(api, self._vocab)
        self.train_context: int = api.llama_model_n_ctx_train(handle)
        """Tokens that the model was trained to attend over; 0 if the file does not say."""
        self.window: int = api.llama_model_n_swa(handle)
        """Tokens that its sliding layers attend over; 0 if it has none."""
        template = api.llama_model_chat_template(handle, None)
        self.chat_template: str | None = (
            template.decode("utf-8", "replace") if template is not None else None
        )

    def special_tokens(self) -> dict[str, str]:
        """Spellings by the names that chat templates call them, of those that there are."""
        api = self.llama.api
        ids = {
            "bos_token": api.llama_vocab_bos(self._vocab),
            "eos_token": api.llama_vocab_eos(self._vocab),
            "pad_token": api.llama_vocab_pad(self._vocab),
        }
        names = self.vocabulary.names
        return {
            key: name
            for key, id_ in ids.items()
            if 0 <= id_ < len(names) and (name := names[id_]) is not None
        }

    def tokenize(self, raw: bytes) -> list[int]:
        """Ids of a text in UTF-8. Special tokens that it spells out are read as such.

        Nothing is added at either end.
        """
        room = len(raw) + 8
        tokenize = self.llama.api.llama_tokenize
        while True:
            ids = (ctypes.c_int32 * room)()
            count: int = tokenize(self._vocab, raw, len(raw), ids, room, False, True)
            if count >= 0:
                return list(ids[:count])
            room = -count

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = self.llama.api.llama_model_meta_val_str(
            self.handle, key.encode(), buffer, len(buffer)
        )
        return buffer.value.decode("utf-8", "replace") if length > 0 else None


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


def _read_vocabulary(api: Any, vocab: int) -> Vocabulary:
    """Names, pieces, end ids and BOS id; the converter's padding at the end is left out."""
    size: int = api.llama_vocab_n_tokens(vocab)
    names = [_name(api, vocab, id_) for id_ in range(size)]
    while names and names[-1] is None:
        names.pop()
    piece = _piece_reader(api, vocab)
    bos: int = api.llama_vocab_bos(vocab)
    return Vocabulary(
        names=names,
        pieces=[b"" if name is None else piece(i, name) for i, name in enumerate(names)],
        end_ids=_end_ids(api, vocab, len(names)),
        bos_id=bos if api.llama_vocab_get_add_bos(vocab) and bos >= 0 else None,
    )


def _end_ids(api: Any, vocab: int, size: int) -> frozenset[int]:
    """What ends a turn or a text.

    llama.cpp also stops where code is filled in ("<reponame>", "<|fim_pad|>"), and
    there a text from the target may go on.
    """
    ends = {i for i in range(size) if api.llama_vocab_is_eog(vocab, i)}
    filling = {
        read(vocab)
        for read in (api.llama_vocab_fim_pad, api.llama_vocab_fim_rep, api.llama_vocab_fim_sep)
    }
    return frozenset(ends - (filling - {api.llama_vocab_eos(vocab), api.llama_vocab_eot(vocab)}))


def _name(api: Any, vocab: int, id_: int) -> str | None:
    name: str = api.llama_vocab_get_text(vocab, id_).decode("utf-8", "surrogateescape")
    if name == f"[EMPTY_{id_}]":  # llama.cpp's stand-in for an empty spelling
        return ""
    if name == f"[PAD{id_}]":  # the converter fills ids up to the width of the output so
        padding = api.LLAMA_TOKEN_ATTR_UNUSED | api.LLAMA_TOKEN_ATTR_USER_DEFINED
        if api.llama_vocab_get_attr(vocab, id_) & padding:
            return None
    return name


def _piece_reader(api: Any, vocab: int) -> Callable[[int, str], bytes]:
    """A function from (id, name) to the bytes the token adds to a text.

    llama.cpp knows each tokenizer's rules: control tokens give nothing and added
    tokens their own spelling. It only marks characters that it can't map in
    byte-level BPE, and there our rule keeps them.
    """
    byte_level = api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_BPE
    read = api.llama_token_to_piece
    buffer = ctypes.create_string_buffer(256)

    def piece(id_: int, name: str) -> bytes:
        nonlocal buffer
        length = read(vocab, id_, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = read(vocab, id_, buffer, len(buffer), 0, False)
        raw = ctypes.string_at(buffer, length)
        if byte_level and b"[UNK_BYTE_" in raw and "[UNK_BYTE_" not in name:
            return byte_level_piece(name)
        return raw

    return piece
