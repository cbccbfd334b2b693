"""Tiny Llama models with random weights that llama.cpp and transformers load alike.

One call writes one GGUF file of float32 weights and a byte-level BPE vocabulary.
Both loaders give the same logits for it and cut text into the same tokens, so
that a test can run a real draft and a real target, in milliseconds.

The hidden state's first component is the same positive constant at every
position: nothing in the blocks writes to it. The output rows use it as a bias,
which is how `end_bias` keeps the end token away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray

ENDOFTEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

SPECIALS = (ENDOFTEXT, IM_START, IM_END)
"""Ids 0, 1 and 2, as in SmolLM2. llama.cpp takes both 0 and 2 for ends, by their names."""

BYTES = tuple(bytes([b]) for b in range(256))

_WORDS = (
    " t", " a", "in", "he", "re", "on", " the", "er", " s", "at", " w", "en", " o", "or", "ing",
    "is", "an", "nd", " and", "ed", " b", "it", "ou", " c", " f", "al", " in", "es", " m", "ll",
    " is", " to", "the", "é", "ü", "  ", "\n\n",
)  # fmt: skip

_CHARACTER_PARTS = (b"\xe4\xbd", b"\xe4\xbd\xa0", b"\xf0\x9f", b"\xf0\x9f\x99", b"\xf0\x9f\x99\x82")
"""Of 你 and 🙂: some tokens end inside a character."""

MERGED = (*(word.encode() for word in _WORDS), *_CHARACTER_PARTS)

FULL = BYTES + MERGED
"""Every byte, so that any text has tokens, and a few longer pieces."""

LETTERS = (*(bytes([b]) for b in b"abcdefgh"), b"ab")
"""With the specials a vocabulary of 12 tokens: few enough to enumerate distributions."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 and Qwen use it."""

Matrix = NDArray[np.float32]

_CONSTANT = 2.0
_FEED_FORWARD_RATIO = 2


@dataclass(frozen=True)
class _Vocabulary:
    spelled: list[str]
    kinds: list[TokenType]
    merges: list[str]


def write_tiny_gguf(
    path: Path,
    *,
    vocabulary: Sequence[bytes] = FULL,
    specials: Sequence[str] = SPECIALS,
    renamed: Mapping[int, str] | None = None,
    padded_vocab: int = 0,
    bos: str | None = IM_START,
    eos: str = IM_END,
    add_bos: bool = False,
    chat_template: str | None = None,
    pre: str = "gpt-2",
    context: int = 256,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    noise: float = 0.0,
    noise_seed: int = 1,
    sharpness: float = 3.0,
    end_bias: float = -20.0,
    padding_bias: float = 0.0,
    name: str = "tiny",
) -> Path:
    """Write a model file and return its path.

    Args:
        path: where to write; the folder must exist.
        vocabulary: the ordinary pieces, in id order after the specials. A longer
            piece gets a merge rule from two pieces before it, where there are such;
            there must be one, for neither loader takes a file without any. A
            vocabulary that lacks some bytes cannot spell every text.
        specials: the control tokens, ids 0, 1, …; ASCII without spaces.
        renamed: other spellings (as stored: in the byte alphabet) for some ids; merge
            rules that need the old spelling are left out.
        padded_vocab: width of the model's output. Ids beyond the pieces are
            `[PAD{id}]` tokens of type UNUSED, as llama.cpp's converter writes
            them; 0 means no padding.
        bos: the special that opens a text, or None to name none.
        eos: the special that ends a text.
        add_bos: whether tokenizers put `bos` before a text.
        chat_template: Jinja text to store, such as `CHAT_TEMPLATE`.
        pre: pre-tokenizer name, for llama.cpp.
        context: trained context length, tokens.
        layers: number of blocks.
        width: hidden size; a multiple of `heads`, and each head of even size.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        seed: of the weights. The same seed and shape give the same weights.
        noise: 0 gives the model of `seed`; more moves its blocks and output towards
            another model, to 1, where they are unrelated. A draft of `noise` 0.05 is
            accepted by the target of `noise` 0 about 8 times in 10, one of 0.1 about
            6, one of 0.2 about 4 (with `LETTERS`: 9, 8, 6), at temperature 1.
        noise_seed: of that other model.
        sharpness: standard deviation of the logits, roughly.
        end_bias: roughly what is added to the specials' logits; 0 for none.
        padding_bias: roughly what is added to the padding's logits.
        name: the model's name in the file.

    Raises:
        ValueError: `padded_vocab` is below the number of tokens, no merge rule follows
            from the vocabulary, or a special is unknown.
    """
    vocab = _vocabulary(vocabulary, specials, renamed or {}, padded_vocab)
    size = len(vocab.spelled)
    bias = np.zeros(size, np.float32)
    bias[: len(specials)] = end_bias
    bias[len(specials) + len(vocabulary) :] = padding_bias

    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_vocab_size(size)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FEED_FORWARD_RATIO * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab.spelled)
    writer.add_token_types(vocab.kinds)
    writer.add_token_merges(vocab.merges)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(add_bos)
    writer.add_eos_token_id(_special_id(specials, eos))
    if bos is not None:
        writer.add_bos_token_id(_special_id(specials, bos))
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    tensors = _weights(np.random.default_rng(seed), size, layers, width, heads, kv_heads)
    if noise:
        others = _weights(np.random.default_rng(noise_seed), size, layers, width, heads, kv_heads)
        for key, other in others.items():
            if key != "token_embd.weight" and "norm" not in key:
                tensors[key] = _blend(tensors[key], other, noise)
    output = tensors["output.weight"] * np.float32(sharpness)
    output[:, 0] = bias * np.float32(math.sqrt(1 + 1 / _CONSTANT**2))
    tensors["output.weight"] = output
    for key, tensor in tensors.items():
        writer.add_tensor(key, tensor)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_alphabet() -> dict[int, str]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


def _special_id(specials: Sequence[str], text: str) -> int:
    if text not in specials:
        raise ValueError(f"{text!r} is none of the specials {list(specials)}")
    return list(specials).index(text)


def _vocabulary(
    pieces: Sequence[bytes], specials: Sequence[str], renamed: Mapping[int, str], padded: int
) -> _Vocabulary:
    alphabet = byte_alphabet()

    def spell(piece: bytes) -> str:
        return "".join(alphabet[b] for b in piece)

    spelled = [*specials, *(spell(piece) for piece in pieces)]
    kinds = [TokenType.CONTROL] * len(specials) + [TokenType.NORMAL] * len(pieces)
    if padded and padded < len(spelled):
        raise ValueError(f"padded_vocab {padded} is below the {len(spelled)} tokens")
    for token in range(len(spelled), padded):
        spelled.append(f"[PAD{token}]")
        kinds.append(TokenType.UNUSED)

    for token, text in renamed.items():
        spelled[token] = text
    named = set(spelled)
    merges = []
    known: set[bytes] = set()
    for piece in pieces:
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if {left, right} <= known and {spell(left), spell(right), spell(piece)} <= named:
                merges.append(f"{spell(left)} {spell(right)}")
                break
        known.add(piece)
    if not merges:
        raise ValueError("no piece is made of two earlier ones; add one, such as b'ab' after them")
    return _Vocabulary(spelled, kinds, merges)


def _weights(
    rng: np.random.Generator, vocab: int, layers: int, width: int, heads: int, kv_heads: int
) -> dict[str, Matrix]:
    def matrix(rows: int, columns: int, gain: float = 1.0) -> Matrix:
        scale = gain / math.sqrt(columns)
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def into_residual(columns: int, gain: float) -> Matrix:
        weight = matrix(width, columns, gain)
        weight[0] = 0.0
        return weight

    kv_width = width // heads * kv_heads
    hidden = _FEED_FORWARD_RATIO * width
    embedding = rng.standard_normal((vocab, width)).astype(np.float32)
    embedding[:, 0] = _CONSTANT
    tensors = {"token_embd.weight": embedding}
    for layer in range(layers):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": np.ones(width, np.float32),
            f"{block}.attn_q.weight": matrix(width, width, 1.5),
            f"{block}.attn_k.weight": matrix(kv_width, width, 1.5),
            f"{block}.attn_v.weight": matrix(kv_width, width),
            f"{block}.attn_output.weight": into_residual(width, 2.0),
            f"{block}.ffn_norm.weight": np.ones(width, np.float32),
            f"{block}.ffn_gate.weight": matrix(hidden, width),
            f"{block}.ffn_up.weight": matrix(hidden, width),
            f"{block}.ffn_down.weight": into_residual(hidden, 2.0),
        }
    tensors["output_norm.weight"] = np.ones(width, np.float32)
    tensors["output.weight"] = matrix(vocab, width)
    return tensors


def _blend(one: Matrix, other: Matrix, share: float) -> Matrix:
    """Between two random matrices, of the same size as either."""
    norm = math.sqrt((1 - share) ** 2 + share**2)
    return (((1 - share) * one + share * other) / norm).astype(np.float32)
