"""The built-in pair: a real target in float32 and real drafts give the target's own text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode, Verification
from specwire.builtin import builtin_path
from specwire.errors import ModelError
from tests.support.edge import (
    DRAFTING_MODES,
    SourceClient,
    VerifierThread,
    asking,
    edge_client,
    edge_environment,
    guess_source,
    random_guess,
    real_verifier,
    reference_ids,
    shared_cache,
)

pytestmark = [pytest.mark.real, pytest.mark.slow]

CLOSE, SMALL = "builtin:smollm2", "builtin:smollm2-q2"
TOKENS = 64
QUESTIONS = [
    "Write two sentences about the sea.",
    "What is the capital of France, and what is it known for?",
    "Explain how bread is made.",
    "List five animals that live in the forest.",
    "Repeat: a a a a",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from shared_cache(tmp_path_factory)


@pytest.fixture(scope="session")
def real() -> Iterator[VerifierThread]:
    try:
        builtin_path("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    yield from real_verifier()


@pytest.fixture(scope="module")
def prompts(real: VerifierThread) -> list[list[int]]:
    return [real.encoder.encode_chat([("user", question)]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def references(real: VerifierThread, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' own greedy output for each prompt."""
    return [reference_ids(real, prompt, TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def small(real: VerifierThread, cache: Path) -> Iterator[EdgeClient]:
    with EdgeClient(real.address, draft=SMALL, threads=1, notify=lambda line: None) as client:
        yield client


@pytest.fixture(scope="module")
def close(real: VerifierThread) -> Iterator[EdgeClient]:
    with EdgeClient(real.address, draft=CLOSE, threads=1, notify=lambda line: None) as client:
        yield client


# ── greedy (S10) ─────────────────────────────────────────────────────────────────────

# Every γ with all five prompts; the other modes, whose rounds are the same, with fewer.
MATRIX = [
    (Mode.SYNC, 0, 5),
    (Mode.SYNC, 1, 5),
    (Mode.SYNC, 4, 5),
    (Mode.SYNC, 8, 5),
    (Mode.PIPELINE, 4, 1),
    (Mode.PIPELINE, 8, 2),
    (Mode.RUN_AHEAD, 1, 1),
    (Mode.RUN_AHEAD, 4, 2),
]


@pytest.mark.parametrize(("mode", "gamma", "count"), MATRIX)
def test_greedy_text_is_the_targets_own(
    small: EdgeClient,
    prompts: list[list[int]],
    references: list[list[int]],
    mode: Mode,
    gamma: int,
    count: int,
) -> None:
    for prompt, reference in list(zip(prompts, references, strict=True))[-count:]:
        result = small.generate(prompt, options=asking(TOKENS, mode=mode, gamma=gamma))
        assert result.token_ids == reference
        assert result.reconnections == 0
        if gamma:
            assert result.counts.accepted > 0
        else:
            assert result.mode == "target-only"


# ── coupled ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.RUN_AHEAD])
@pytest.mark.parametrize("extra", [{}, {"top_k": 20, "top_p": 0.9}], ids=["plain", "top-k,top-p"])
def test_coupled_text_does_not_depend_on_the_draft(
    real: VerifierThread,
    small: EdgeClient,
    close: EdgeClient,
    prompts: list[list[int]],
    mode: Mode,
    extra: dict[str, Any],
) -> None:
    options = asking(
        20, mode=mode, seed=7, temperature=0.7, verification=Verification.COUPLED, **extra
    )
    size = len(real.backend.vocabulary)
    unrelated = SourceClient(real.address, CLOSE, guess_source(random_guess(size)))
    alone = EdgeClient(real.address, notify=lambda line: None)
    outputs = {}
    with unrelated, alone:
        clients = {"small": small, "close": close, "unrelated": unrelated, "none": alone}
        for name, client in clients.items():
            result = client.generate(prompts[0], options=options)
            outputs[name] = result.token_ids
            if name in ("small", "close"):
                assert result.counts.accepted > 0 and result.verification == "coupled"
    assert all(output == outputs["none"] for output in outputs.values()), outputs
    assert len(outputs["none"]) == 20


# ── penalties (S6) ───────────────────────────────────────────────────────────────────


def test_penalties_change_nothing_between_modes(
    small: EdgeClient, prompts: list[list[int]], references: list[list[int]]
) -> None:
    penalties: dict[str, Any] = {
        "presence_penalty": 1.5,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.3,
    }
    alone = small.generate(prompts[-1], options=asking(24, mode=Mode.STREAM, **penalties))
    assert alone.token_ids != references[-1][:24]
    for mode, gamma in zip(DRAFTING_MODES, (1, 4, 8), strict=True):
        result = small.generate(
            prompts[-1], options=asking(24, mode=mode, gamma=gamma, **penalties)
        )
        assert result.token_ids == alone.token_ids, (mode, gamma)


# ── the command line ─────────────────────────────────────────────────────────────────


def test_the_small_draft_is_accepted_about_two_times_in_three(
    real: VerifierThread, cache: Path, prompts: list[list[int]], references: list[list[int]]
) -> None:
    examined = accepted = 0
    for question, reference in list(zip(QUESTIONS, references, strict=True))[:3]:
        done = edge_client(
            *("generate", question, "--chat", "--json", "--server", real.address),
            *("--draft", SMALL, "--threads", "1", "--mode", "sync", "--gamma", "4"),
            *("--temperature", "0", "--max-tokens", "40"),
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown["token_ids"] == reference[:40]
        assert shown["text"] == real.backend.vocabulary.decode(reference[:40]).decode()
        examined += shown["examined"]
        accepted += shown["accepted"]
    assert 0.55 < accepted / examined < 0.85


def test_the_demo_measures_three_ways_draws_and_cleans_up(cache: Path, tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "netsim.cli",
            "demo",
            "--max-tokens",
            "12",
            "--profile",
            "rtt-40",
            "--picture",
            str(picture),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=edge_environment(),
        start_new_session=True,
    )
    try:
        shown, said = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, said
    for title in ("a call for each token", "the cloud alone, streaming", "the edge drafts"):
        assert f"── {title}" in shown
    token = re.compile(r"^ +\d+\.\d\d s  (accepted draft|bonus|correction|target) +'", re.MULTILINE)
    assert len(token.findall(shown)) == 3 * 12
    speeds = re.search(r"^tokens/s +([\d.]+) +([\d.]+) +([\d.]+)$", shown, re.MULTILINE)
    assert speeds is not None and all(float(speed) > 0 for speed in speeds.groups())
    assert "The texts are the same, token for token." in shown
    assert picture.read_text("utf-8").startswith("<?xml")
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):  # its whole process group is gone
        os.killpg(process.pid, 0)
