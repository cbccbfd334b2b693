"""The llama.cpp draft: rollback, limits, memory, threads sharing it, closing, exit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import BadRequest, ModelError
from specwire.ports import DraftModel
from tests.support.processes import run_python
from tests.support.tiny_models import FULL, SPECIALS, write_tiny_gguf

SIZE = len(SPECIALS) + len(FULL)
LONG = 1024


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_gguf(folder / "tiny.gguf", context=LONG, padded_vocab=SIZE + 20)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[LlamaWeights]:
    with LlamaWeights(tiny_path) as weights:
        yield weights


@pytest.fixture
def exact(tiny: LlamaWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values in float32, and no flash attention, which sums in half precision.

    As shipped, evaluating in batches of another size moves the logits by about 1e-2;
    so a comparison to 1e-4 needs either this or batches of one token on both sides.
    """
    llama = tiny.shared().llama
    real_params = llama.api.llama_context_default_params

    def params() -> Any:
        made = real_params()
        made.flash_attn_type = made.type_k = made.type_v = 0  # off, float32, float32
        return made

    monkeypatch.setattr(llama, "api", ApiWith(llama.api, llama_context_default_params=params))


@pytest.fixture
def make(tiny: LlamaWeights, exact: None) -> Iterator[Callable[..., LlamaDraft]]:
    made: list[LlamaDraft] = []

    def build(context: int = 256, **options: Any) -> LlamaDraft:
        made.append(LlamaDraft(tiny, context=context, threads=1, **options))
        return made[-1]

    yield build
    for draft in made:
        draft.close()


def ids(count: int, seed: int = 0) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(3, SIZE, count).tolist()
    return numbers


class ApiWith:
    """llama.cpp's functions with some of them replaced."""

    def __init__(self, api: Any, **replaced: Any) -> None:
        self._api = api
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


# ── evaluation and rollback (K1) ─────────────────────────────────────────────────────


def test_it_is_a_draft_model(make: Callable[..., LlamaDraft]) -> None:
    draft: DraftModel = make(context=100)
    assert draft.context == 100
    assert list(draft.tokens) == []


def worst_difference_over_rounds(
    draft: LlamaDraft, fresh: LlamaDraft, gammas: Sequence[int], vocab: int, rounds: int
) -> float:
    """Rejects at a random place each round; compares with a recompute of the whole prefix."""
    rng = np.random.default_rng(5)
    committed: list[int] = rng.integers(3, vocab, 9).tolist()
    draft.logits_after(committed)
    worst = 0.0
    for _ in range(rounds):
        drafted = rng.integers(3, vocab, int(rng.choice(gammas))).tolist()
        for token in drafted:
            draft.extend([token])
        accepted = int(rng.integers(0, len(drafted) + 1))
        own = int(rng.integers(3, vocab))
        draft.truncate(len(committed) + accepted)
        row = draft.extend([own])
        committed += [*drafted[:accepted], own]
        assert list(draft.tokens) == committed
        fresh.truncate(0)
        worst = max(worst, float(np.abs(row - fresh.logits_after(committed)).max()))
    return worst


@pytest.mark.parametrize("gammas", [(1,), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_rejections_leave_the_cache_as_if_never_drafted(
    make: Callable[..., LlamaDraft], gammas: Sequence[int]
) -> None:
    draft, fresh = make(context=LONG), make(context=LONG)
    assert worst_difference_over_rounds(draft, fresh, gammas, SIZE, rounds=100) < 1e-4


def test_rejections_with_the_arithmetic_as_shipped(tiny: LlamaWeights) -> None:
    with (
        LlamaDraft(tiny, context=LONG, threads=1, batch=1) as draft,
        LlamaDraft(tiny, context=LONG, threads=1, batch=1) as fresh,
    ):
        assert worst_difference_over_rounds(draft, fresh, (1, 4), SIZE, rounds=50) < 1e-4


@pytest.mark.real
@pytest.mark.slow
def test_rejections_with_the_real_model(real: LlamaWeights) -> None:
    with (
        LlamaDraft(real, context=256, threads=1, batch=1) as draft,
        LlamaDraft(real, context=256, threads=1, batch=1) as fresh,
    ):
        assert worst_difference_over_rounds(draft, fresh, (1, 4), 49152, rounds=8) < 1e-4


def test_logits_after_evaluates_only_what_differs(make: Callable[..., LlamaDraft]) -> None:
    draft, fresh = make(), make()
    evaluated: list[int] = []

    def decode(context: Any, batch: Any) -> Any:
        evaluated.append(batch.n_tokens)
        return api.llama_decode(context, batch)

    api = draft._sequence._held_context().api
    draft._sequence._held_context().api = ApiWith(api, llama_decode=decode)
    prompt = ids(30)
    steps: list[tuple[list[int], int]] = [
        (prompt, 30),
        ([*prompt, 7], 1),
        ([*prompt, 7], 0),  # the same again
        ([*prompt, 9, 8], 2),  # another continuation
        (prompt[:20], 1),  # a shorter prefix: its last token again
        ([*prompt[:10], 5, *prompt[11:15]], 5),  # differs in the middle
        ([4], 1),
    ]
    for tokens, expected in steps:
        evaluated.clear()
        row = draft.logits_after(tokens).copy()
        assert sum(evaluated) == draft.fresh == expected
        fresh.truncate(0)
        np.testing.assert_allclose(row, fresh.logits_after(tokens), atol=1e-4)
        assert list(draft.tokens) == tokens


def test_prompts_longer_than_a_batch(make: Callable[..., LlamaDraft]) -> None:
    prompt = ids(200)
    whole = make(batch=256).logits_after(prompt).copy()
    for batch in (1, 7, 64, 199):
        np.testing.assert_allclose(make(batch=batch).logits_after(prompt), whole, atol=1e-4)


def test_rows_are_float32_of_the_models_width(
    make: Callable[..., LlamaDraft], tiny: LlamaWeights
) -> None:
    draft = make()
    row = draft.extend(np.array([5, 6, 7]))  # type: ignore[arg-type]
    assert row.shape == (tiny.width,) == (SIZE + 20,)
    assert row.dtype == np.float32
    assert np.isfinite(row).all()
    assert not row.flags.writeable


def test_a_memory_that_can_not_go_back_starts_over(make: Callable[..., LlamaDraft]) -> None:
    draft, fresh = make(), make()
    context = draft._sequence._held_context()
    context.api = ApiWith(context.api, llama_memory_seq_rm=lambda *_: False)
    prompt = ids(20)
    draft.logits_after(prompt)
    draft.truncate(12)
    draft.truncate(11)
    assert list(draft.tokens) == prompt[:11]
    np.testing.assert_allclose(draft.extend([5]), fresh.logits_after([*prompt[:11], 5]), atol=1e-4)
    np.testing.assert_allclose(
        draft.logits_after([*prompt[:8], 6]).copy(),
        fresh.logits_after([*prompt[:8], 6]),
        atol=1e-4,
    )


# ── limits and bad input (K6) ────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [63, 64, 65])
def test_context_limit(make: Callable[..., LlamaDraft], length: int) -> None:
    draft, fresh = make(context=64), make(context=128)
    prompt = ids(length)
    if length > 64:
        with pytest.raises(BadRequest, match="65 tokens don't fit the draft's context of 64"):
            draft.logits_after(prompt)
        assert list(draft.tokens) == []
    else:
        draft.logits_after(prompt)
        while len(draft.tokens) < 64:
            draft.extend([5])
        full = list(draft.tokens)
        with pytest.raises(BadRequest, match="context of 64"):
            draft.extend([5])
        assert list(draft.tokens) == full
        draft.truncate(60)
    row = draft.logits_after([*prompt[:40], 9])
    np.testing.assert_allclose(row, fresh.logits_after([*prompt[:40], 9]), atol=1e-4)


@pytest.mark.parametrize("bad", [-1, SIZE + 20, 2**31, 2**70])
def test_ids_out_of_range_never_reach_llama(make: Callable[..., LlamaDraft], bad: int) -> None:
    draft = make()
    draft.extend([3, 4, 5])
    for call in (
        lambda: draft.extend([bad]),
        lambda: draft.extend([6, bad]),
        lambda: draft.logits_after([3, bad]),
    ):
        with pytest.raises(BadRequest, match=rf"token id {bad} at index"):
            call()
        assert list(draft.tokens) == [3, 4, 5]


def test_nothing_to_evaluate_and_impossible_lengths(make: Callable[..., LlamaDraft]) -> None:
    draft = make()
    for call in (
        lambda: draft.extend([]),
        lambda: draft.logits_after([]),
        lambda: draft.truncate(1),
        lambda: draft.truncate(-1),
    ):
        with pytest.raises(BadRequest):
            call()
    draft.truncate(0)


@pytest.mark.parametrize("option", ["context", "batch"])
def test_options_below_one_are_refused(tiny: LlamaWeights, option: str) -> None:
    with pytest.raises(BadRequest, match=f"{option} must be at least 1, not 0"):
        LlamaDraft(tiny, **{option: 0})


@pytest.mark.parametrize("threads", [-1, 0, 513, 10**11])
def test_threads_that_would_end_the_process_are_refused(tiny: LlamaWeights, threads: int) -> None:
    with pytest.raises(BadRequest, match=f"threads must be between 1 and 512, not {threads}"):
        LlamaDraft(tiny, threads=threads)


def test_a_context_beyond_training_is_made_with_a_warning(
    tiny: LlamaWeights, caplog: pytest.LogCaptureFixture
) -> None:
    with LlamaDraft(tiny, context=LONG + 1, threads=1):
        pass
    assert any("longer than the 1024 tokens" in r.getMessage() for r in caplog.records)


def test_a_failed_evaluation_leaves_a_usable_draft(make: Callable[..., LlamaDraft]) -> None:
    draft, fresh = make(batch=8), make()
    api, calls = draft._sequence._held_context().api, 0

    def decode(context: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return -3 if calls == 2 else api.llama_decode(context, batch)

    draft._sequence._held_context().api = ApiWith(api, llama_decode=decode)
    prompt = ids(20)
    with pytest.raises(ModelError, match=r"position 8 of tiny \(status -3\)"):
        draft.logits_after(prompt)
    assert list(draft.tokens) == []
    np.testing.assert_allclose(draft.logits_after(prompt), fresh.logits_after(prompt), atol=1e-4)


# ── memory (E1) ──────────────────────────────────────────────────────────────────────

_RSS = """
import sys
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
draft = LlamaDraft(LlamaWeights(sys.argv[1]), context=int(sys.argv[2]), threads=1)
draft.logits_after([5 + i % 200 for i in range(200)])
for i in range(20):
    draft.extend([7])
print(resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from /proc")
def test_memory_does_not_grow_with_context_times_vocabulary(tmp_path: Path) -> None:
    vocab = 150_000
    path = write_tiny_gguf(tmp_path / "wide.gguf", context=32768, padded_vocab=vocab, width=16)
    contexts = (2048, 8192, 32768)
    used = []
    for context in contexts:
        result = run_python(_RSS, path, context)
        assert result.returncode == 0, result.stderr
        used.append(int(result.stdout))
    for (small, few), (large, many) in zip(
        zip(contexts, used, strict=True), list(zip(contexts, used, strict=True))[1:], strict=False
    ):
        growth = (many - few) / (large - small)
        assert growth < vocab * 4 / 100, f"{growth:.0f} bytes a token of context"
    assert used[0] < path.stat().st_size + 150e6


# ── threads sharing a draft, closing, exit (E2) ──────────────────────────────────────


def test_a_second_thread_is_refused_and_the_first_undisturbed(
    make: Callable[..., LlamaDraft],
) -> None:
    draft, fresh = make(), make()
    api = draft._sequence._held_context().api
    inside, go_on = threading.Event(), threading.Event()

    def decode(context: Any, batch: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return api.llama_decode(context, batch)

    draft._sequence._held_context().api = ApiWith(api, llama_decode=decode)
    rows: list[Any] = []
    first = threading.Thread(target=lambda: rows.append(draft.logits_after([5, 6, 7]).copy()))
    first.start()
    assert inside.wait(10)
    for call in (
        lambda: draft.logits_after([8]),
        lambda: draft.extend([8]),
        lambda: draft.truncate(0),
    ):
        with pytest.raises(RuntimeError, match="in use by another thread"):
            call()
    go_on.set()
    first.join()
    np.testing.assert_allclose(rows[0], fresh.logits_after([5, 6, 7]), atol=1e-4)
    np.testing.assert_allclose(draft.extend([8]), fresh.extend([8]), atol=1e-4)


def test_drafts_on_shared_weights_run_at_once(make: Callable[..., LlamaDraft]) -> None:
    def generate(draft: LlamaDraft, prompt: list[int]) -> list[int]:
        row = draft.logits_after(prompt)
        out: list[int] = []
        for _ in range(60):
            out.append(int(row.argmax()))
            row = draft.extend(out[-1:])
        return out

    prompts = [ids(10, seed) for seed in range(3)]
    solo = [generate(make(), prompt) for prompt in prompts]
    together: dict[int, list[int]] = {}
    drafts = [make() for _ in prompts]

    def work(index: int) -> None:
        together[index] = generate(drafts[index], prompts[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(3)] == solo


def test_close_stops_a_long_prompt_in_another_thread(make: Callable[..., LlamaDraft]) -> None:
    draft = make(batch=8)
    api = draft._sequence._held_context().api
    inside, go_on, calls = threading.Event(), threading.Event(), [0]

    def decode(context: Any, batch: Any) -> Any:
        calls[0] += 1
        inside.set()
        assert go_on.wait(10)
        return api.llama_decode(context, batch)

    draft._sequence._held_context().api = ApiWith(api, llama_decode=decode)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            draft.logits_after(ids(200))
        except RuntimeError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert inside.wait(10)
    closer = threading.Thread(target=draft.close)
    closer.start()
    while not draft._sequence.gate.shut:
        pass
    go_on.set()
    closer.join(10)
    worker.join(10)
    assert not closer.is_alive()
    assert not worker.is_alive()
    assert "stopped" in str(errors[0])
    assert calls[0] == 1


def test_close_twice_and_use_afterwards(make: Callable[..., LlamaDraft]) -> None:
    draft = make()
    row = draft.extend([5, 6])
    kept = row.copy()
    draft.close()
    draft.close()
    make().extend([9, 9, 9])  # would reuse the memory if it were free
    np.testing.assert_array_equal(row, kept)
    assert list(draft.tokens) == []
    for call in (
        lambda: draft.extend([5]),
        lambda: draft.logits_after([5]),
        lambda: draft.truncate(0),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_weights_closed_before_their_draft(tiny_path: Path) -> None:
    weights = LlamaWeights(tiny_path)
    draft = LlamaDraft(weights, context=64, threads=1)
    weights.close()
    weights.close()
    assert np.isfinite(draft.extend([5])).all()
    with pytest.raises(RuntimeError, match="closed"):
        LlamaDraft(weights, context=64)
    draft.close()


_EXIT = """
import sys, threading, time, logging
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
logging.basicConfig(level=logging.DEBUG, filename=sys.argv[2])
weights = LlamaWeights(sys.argv[1])
first = LlamaDraft(weights, context=64, threads=1)
cycle = [LlamaDraft(weights, context=64, threads=1)]
cycle.append(cycle)
row = cycle[0].extend([5])
del cycle
busy = LlamaDraft(weights, context=512, threads=1)
def forever():
    try:
        while True:
            busy.truncate(0)
            busy.logits_after([5] * 500)
    except RuntimeError:
        pass  # closed at exit
thread = threading.Thread(target=forever, daemon=True)
thread.start()
time.sleep(0.3)
assert thread.is_alive()
print("end")
"""


def test_leaving_with_drafts_open_and_one_at_work(tiny_path: Path, tmp_path: Path) -> None:
    result = run_python(_EXIT, tiny_path, tmp_path / "log")
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("end\n", "")
