"""What llama.cpp knows of a GGUF model's tokens and texts.

Both ends read it, each through its own copy of the library: `api` is llama.cpp's module
of functions, `model` and `vocab` are its handles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from specwire.vocabulary import Vocabulary, byte_level_piece


def read_vocabulary(api: Any, vocab: int) -> Vocabulary:
    """Names, pieces, end ids and BOS id; the converter's padding at the end is left out."""
    size: int = api.llama_vocab_n_tokens(vocab)
    names = [_name(api, vocab, id_) for id_ in range(size)]
    while names and names[-1] is None:
        names.pop()
    piece = _piece_reader(api, vocab)
    bos: int = api.llama_vocab_bos(vocab)
    return Vocabulary(
        names=tuple(names),
        pieces=tuple(b"" if name is None else piece(i, name) for i, name in enumerate(names)),
        end_ids=_end_ids(api, vocab, len(names)),
        bos_id=bos if api.llama_vocab_get_add_bos(vocab) and bos >= 0 else None,
    )


def special_tokens(api: Any, vocab: int, vocabulary: Vocabulary) -> dict[str, str]:
    """Spellings by the names that chat templates call them, of those that there are."""
    ids = {
        "bos_token": api.llama_vocab_bos(vocab),
        "eos_token": api.llama_vocab_eos(vocab),
        "pad_token": api.llama_vocab_pad(vocab),
    }
    names = vocabulary.names
    return {
        key: name
        for key, id_ in ids.items()
        if 0 <= id_ < len(names) and (name := names[id_]) is not None
    }


def tokenize(api: Any, vocab: int, raw: bytes) -> list[int]:
    """Ids of a text in UTF-8. Special tokens that it spells out are read as such.

    Nothing is added at either end.
    """
    room = len(raw) + 8
    while True:
        ids = (ctypes.c_int32 * room)()
        count: int = api.llama_tokenize(vocab, raw, len(raw), ids, room, False, True)
        if count >= 0:
            return list(ids[:count])
        room = -count


def chat_template(api: Any, model: int) -> str | None:
    """The file's chat template, None if it has none."""
    template = api.llama_model_chat_template(model, None)
    return template.decode("utf-8", "replace") if template is not None else None


def metadata(api: Any, model: int, key: str) -> str | None:
    """A value of the file's metadata as text (255 bytes at most), None if it is not there."""
    buffer = ctypes.create_string_buffer(256)
    length = api.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length > 0 else None


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
