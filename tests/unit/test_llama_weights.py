"""Loading weights in llama.cpp: load errors, what it logs, the vocabulary it reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError
from specwire.vocabulary import byte_level_piece
from tests.support.processes import run_python
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, SPECIALS, write_tiny_gguf

SIZE = len(SPECIALS) + len(FULL)
CONTEXT = 1024


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaWeights]:
    path = write_tiny_gguf(
        tmp_path_factory.mktemp("models") / "tiny.gguf",
        context=CONTEXT,
        chat_template=CHAT_TEMPLATE,
        padded_vocab=SIZE + 20,
    )
    with LlamaWeights(path) as weights:
        yield weights


# ── loading (E4) ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_truncated_file(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "short.gguf"
    whole = tiny_gguf.read_bytes()
    path.write_bytes(whole[: max(4, int(len(whole) * share))])
    with pytest.raises(ModelError, match=r"can't load the model .*short\.gguf: \w+") as caught:
        LlamaWeights(path)
    assert "no reason" not in str(caught.value)


def test_unknown_architecture(tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(tiny_gguf.read_bytes().replace(b"llama", b"nosuc"))
    with pytest.raises(ModelError, match=r"other\.gguf: unknown model architecture: 'nosuc'"):
        LlamaWeights(path)


_WITHOUT = """
import sys
sys.modules["llama_cpp"] = None
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError
try:
    LlamaWeights(sys.argv[1])
except ModelError as error:
    print(error)
"""


def test_without_llama_cpp_installed(tiny_gguf: Path) -> None:
    result = run_python(_WITHOUT, tiny_gguf)
    assert result.stdout.strip() == (
        "llama-cpp-python is not installed; install with: pip install 'specwire[edge]'"
    ), result.stderr


def test_llama_says_nothing_unless_asked(
    tiny_gguf: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with LlamaWeights(tiny_gguf) as weights, LlamaDraft(weights, context=64, threads=1) as draft:
        draft.extend([5])
    assert capfd.readouterr() == ("", "")
    caplog.set_level(logging.DEBUG, logger="edge_client.draft.llama_api")
    LlamaWeights(tiny_gguf).close()
    assert len(caplog.records) > 10
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


# ── vocabulary ───────────────────────────────────────────────────────────────────────


def test_what_the_file_says(tiny: LlamaWeights) -> None:
    assert tiny.name == "tiny"
    assert tiny.train_context == CONTEXT
    assert tiny.chat_template == CHAT_TEMPLATE
    assert tiny.vocabulary.end_ids == {0, 2}
    assert tiny.vocabulary.bos_id is None


def test_padding_at_the_end_is_left_out(tiny: LlamaWeights) -> None:
    assert tiny.width == SIZE + 20
    assert len(tiny.vocabulary) == SIZE
    assert tiny.vocabulary.padding_ids == ()


def test_padding_inside_special_names_and_bos(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "odd.gguf", padded_vocab=SIZE + 5, renamed={SIZE + 3: "Ġnew"}, add_bos=True
    )
    with LlamaWeights(path) as weights:
        vocabulary = weights.vocabulary
        assert weights.chat_template is None
    assert len(vocabulary) == SIZE + 4
    assert vocabulary.padding_ids == (SIZE, SIZE + 1, SIZE + 2)
    assert vocabulary.pieces[SIZE] == b""
    assert vocabulary.bos_id == SPECIALS.index("<|im_start|>")


def test_pieces_of_control_added_and_ordinary_tokens(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    write_tiny_gguf(path, specials=(*SPECIALS, "<tool>", "[PAD4]"))
    _set_token_types(path, {3: 4, 4: 3})  # <tool> becomes an added token, [PAD4] stays control
    with LlamaWeights(path) as weights:
        vocabulary = weights.vocabulary
    assert vocabulary.names[:5] == (*SPECIALS, "<tool>", "[PAD4]")
    assert vocabulary.pieces[:5] == (b"", b"", b"", b"<tool>", b"")
    assert vocabulary.pieces[5:] == FULL


def _set_token_types(path: Path, types: dict[int, int]) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(path, "r+")
    field = reader.fields["tokenizer.ggml.token_type"]
    for id_, kind in types.items():
        field.parts[field.data[id_]][0] = kind
    reader.data.flush()


@pytest.mark.real
def test_real_vocabulary(real: LlamaWeights) -> None:
    vocabulary = real.vocabulary
    assert len(vocabulary) == real.width == 49152
    assert real.train_context == 8192
    assert real.chat_template is not None
    assert vocabulary.bos_id is None
    assert {0, 2} <= vocabulary.end_ids
    assert vocabulary.pieces[:17] == (b"",) * 17
    assert all(
        piece == byte_level_piece(name)
        for name, piece in zip(vocabulary.names[17:], vocabulary.pieces[17:], strict=True)
        if name is not None
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_vocabulary_agrees_with_transformers(real: LlamaWeights) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        real.path.parent, gguf_file=real.path.name
    )
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert list(real.vocabulary.names) == names
    for text in (
        "thumbs 👍🏽 up, family 👨‍👩‍👧",
        "안녕하세요, 세계!",
        "नमस्ते दुनिया",
        " naïve café\t\r\n  end ",
    ):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert real.vocabulary.decode(encoded).decode("utf-8") == text
