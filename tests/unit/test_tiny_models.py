"""The models that tests are built on: both loaders take them and agree."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.tiny_models import (
    CHAT_TEMPLATE,
    FULL,
    LETTERS,
    SPECIALS,
    byte_alphabet,
    write_tiny_gguf,
)

llama_cpp = pytest.importorskip("llama_cpp")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

F32 = 0
MIXED_TEXT = "the cat and 2023 dogs,  in a box\n\né 你好 🙂"


def in_llama_cpp(path: Path) -> Any:
    return llama_cpp.Llama(
        str(path),
        n_ctx=128,
        n_threads=1,
        logits_all=True,
        type_k=F32,
        type_v=F32,
        verbose=False,
    )


def in_transformers(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )


def tokenizer_of(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def torch_logits(model: Any, ids: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
    return np.asarray(logits, np.float32)


SHAPES = {
    "full": {},
    "letters": {"vocabulary": LETTERS},
    "padded": {"padded_vocab": 320, "padding_bias": 5.0},
    "letters padded": {"vocabulary": LETTERS, "padded_vocab": 32},
    "other shape": {"layers": 3, "width": 96, "heads": 6, "kv_heads": 3, "noise": 0.3},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_both_loaders_give_the_same_logits(tmp_path: Path, shape: dict[str, Any]) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", **shape)
    ids = np.random.default_rng(0).integers(0, 12, 80).tolist()

    theirs = in_llama_cpp(path)
    theirs.eval(ids)
    ours = torch_logits(in_transformers(path), ids)

    assert ours.shape == (80, theirs.n_vocab())
    np.testing.assert_allclose(theirs.scores[:80], ours, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("text", ["", "the cat", MIXED_TEXT, "a<|im_end|>\nb<|im_start|>"])
@pytest.mark.parametrize("add_bos", [False, True])
def test_both_tokenizers_cut_text_alike(tmp_path: Path, text: str, add_bos: bool) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", add_bos=add_bos)
    tokenizer = tokenizer_of(path)

    ids = tokenizer(text)["input_ids"]

    assert ids == in_llama_cpp(path).tokenize(text.encode(), add_bos=True, special=True)
    assert tokenizer.decode(ids) == ("<|im_start|>" if add_bos else "") + text
    assert ids[:1] == [1] or not add_bos


def test_longer_pieces_are_used(tiny_gguf: Path) -> None:
    ids = tokenizer_of(tiny_gguf)(" the and 你 🙂")["input_ids"]

    pieces = [*(s.encode() for s in SPECIALS), *FULL]
    assert [pieces[i] for i in ids] == [b" the", b" and", b" ", "你".encode(), b" ", "🙂".encode()]


def test_chat_template_is_stored(tiny_gguf: Path) -> None:
    tokenizer = tokenizer_of(tiny_gguf)

    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )

    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert in_llama_cpp(tiny_gguf).metadata["tokenizer.chat_template"] == CHAT_TEMPLATE


def test_end_ids(tiny_gguf: Path) -> None:
    theirs = in_llama_cpp(tiny_gguf)
    ours = in_transformers(tiny_gguf)

    vocab = llama_cpp.llama_model_get_vocab(theirs.model)
    ends = [i for i in range(theirs.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    assert ends == [0, 2]
    assert ours.config.eos_token_id == 2


def test_greedy_text_is_lively_and_does_not_end(tiny_gguf: Path) -> None:
    model = in_transformers(tiny_gguf)
    ids = tokenizer_of(tiny_gguf)("the")["input_ids"]

    for _ in range(48):
        ids.append(int(torch_logits(model, ids)[-1].argmax()))

    assert min(ids) >= len(SPECIALS)
    assert len(set(ids)) > 16


def test_distributions_are_neither_flat_nor_certain(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", vocabulary=LETTERS)
    ids = np.random.default_rng(1).integers(3, 12, 100).tolist()

    p = torch.softmax(torch.from_numpy(torch_logits(in_transformers(path), ids)), -1).numpy()

    assert 0.3 < p.max(axis=1).mean() < 0.9
    assert p[:, : len(SPECIALS)].max() < 1e-4


def test_end_bias_lets_texts_end(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", vocabulary=LETTERS, end_bias=0.0)
    ids = np.random.default_rng(1).integers(3, 12, 100).tolist()

    p = torch.softmax(torch.from_numpy(torch_logits(in_transformers(path), ids)), -1).numpy()

    assert p[:, 2].max() > 0.05


def test_noise_makes_a_draft_that_often_agrees(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(3, 250, 100).tolist()
    agreements = []
    target = torch_logits(in_transformers(write_tiny_gguf(tmp_path / "target.gguf")), ids)
    for noise in (0.02, 0.1, 1.0):
        path = write_tiny_gguf(tmp_path / "draft.gguf", noise=noise)
        draft = torch_logits(in_transformers(path), ids)
        agreements.append(float((draft.argmax(-1) == target.argmax(-1)).mean()))

    assert 0.7 < agreements[0] < 1.0
    assert 0.3 < agreements[1] < 0.7
    assert agreements[2] < 0.1


def test_same_arguments_give_the_same_file(tmp_path: Path) -> None:
    one, other, third = (tmp_path / name for name in ("one.gguf", "other.gguf", "third.gguf"))
    write_tiny_gguf(one)
    write_tiny_gguf(other)
    write_tiny_gguf(third, seed=1)

    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes() != third.read_bytes()


@pytest.mark.parametrize("token", [1, 5, 200, 270])
def test_renamed_tokens_load(tmp_path: Path, token: int) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", renamed={token: "zzz"})

    assert in_llama_cpp(path).detokenize([token], special=True) == b"zzz"
    assert tokenizer_of(path).decode([token]) == "zzz"


def test_loading_is_quick(tiny_gguf: Path) -> None:
    in_transformers(tiny_gguf)  # the first load imports most of the library
    started = time.perf_counter()
    in_transformers(tiny_gguf)
    tokenizer_of(tiny_gguf)
    in_llama_cpp(tiny_gguf)
    assert time.perf_counter() - started < 3


def test_byte_alphabet_is_one_to_one() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet.values())) == 256
    assert alphabet[ord(" ")] == "Ġ"
    assert alphabet[ord("a")] == "a"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"padded_vocab": 5}, "padded_vocab 5"),
        ({"vocabulary": (b"a", b"b")}, "no piece"),
        ({"eos": "</s>"}, "</s>"),
    ],
)
def test_wrong_arguments(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_tiny_gguf(tmp_path / "model.gguf", **wrong)
