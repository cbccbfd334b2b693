"""What the edge costs: drafting against llama.cpp's own loop, memory, and useless drafts.

Loops take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf

from benchmarks.pair import DRAFTS, PROMPTS, verifier
from edge_client import EdgeClient, GenerateOptions, Mode
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from edge_client.draft.shelf import roomy
from edge_client.draft.source import Drafted, DraftRules, DraftSource, ModelSource
from edge_client.drafter import DRAFT_CONTEXT
from netsim.real import cores, on_cores
from specwire.edge_session import EdgeSession
from specwire.qrow import Truncation
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from tests.support.bare import bare_greedy

TOKENS = 96
PROMPT = list(range(1000, 1048))

Row = dict[str, Any]


def run(*, quick: bool = False) -> list[Row]:
    """One row for each measurement."""
    turns = 1 if quick else 7
    cloud, edge = cores()
    with on_cores(edge):
        rows = [
            _loop(draft, spec, temperature, turns)
            for draft, spec in DRAFTS.items()
            for temperature in ((0.7,) if quick else (0.0, 0.7))
        ]
        with verifier(cloud) as address:
            drafts = list(DRAFTS.items())[: 1 if quick else None]
            rows += [_memory(address, draft, spec) for draft, spec in drafts]
            rows.append(asyncio.run(_useless(address, turns, 1 if quick else len(PROMPTS))))
    return rows


def _row(what: str, unit: str, value: float, target: float) -> Row:
    return {"what": what, "value": value, "unit": unit, "target": target}


# --------------------------------------------------------------- the draft loop


def _loop(draft: str, spec: str, temperature: float, turns: int) -> Row:
    """Draft tokens/s, drawing and q included, against a loop of bare llama.cpp calls."""
    path = resolve_model(spec, print)
    coupled = temperature > 0
    ratios = []
    with LlamaWeights(path) as weights:
        for turn in range(turns):
            rules = DraftRules(
                params=SamplingParams(temperature=temperature),
                mode=pb.VERIFICATION_MODE_COUPLED if coupled else pb.VERIFICATION_MODE_REJECTION,
                seed=turn,
                size=len(weights.vocabulary),
                padding_ids=weights.vocabulary.padding_ids,
                prompt_length=len(PROMPT),
                truncation=Truncation(),
            )
            source = ModelSource(LlamaDraft(weights, context=512, threads=1), rules)
            prefix = list(PROMPT)
            source.next(prefix, 1)  # the prompt
            started = time.perf_counter()
            for _ in range(TOKENS):
                drafted = source.next(prefix, 1)
                assert drafted is not None
                prefix.append(drafted.token)
            ours = TOKENS / (time.perf_counter() - started)
            source.close()
            tokens, seconds = bare_greedy(path, PROMPT, TOKENS, threads=1, context=512)
            ratios.append(ours / ((len(tokens) - 1) / seconds))
    what = f"draft tokens/s, {draft}, temperature {temperature:g}"
    return _row(what, "of a bare llama.cpp loop", statistics.median(ratios), 0.95)


# ----------------------------------------------------------------------- memory


def _memory(address: str, draft: str, spec: str) -> Row:
    """Most resident memory of an edge process, less the model file and its KV cache."""
    path = resolve_model(spec, print)
    command = [sys.executable, "-m", "benchmarks.edge", address, spec]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    said = json.loads(shown)
    above = said["resident"] - said["kv"] - Path(path).stat().st_size
    return _row(f"memory above model and KV cache, {draft}", "MB", above / 1e6, 150.0)


def _generate(address: str, spec: str) -> None:
    """The process that is measured: one answer, then what it took."""
    with EdgeClient(address, draft=spec, threads=1) as client:
        options = GenerateOptions(max_tokens=TOKENS, mode=Mode.RUN_AHEAD)
        result = client.generate(messages=[("user", PROMPTS["chat"])], options=options)
        context = roomy(result.prompt_tokens + TOKENS, DRAFT_CONTEXT)
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    resident = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    kv = context * _kv_bytes(resolve_model(spec, print))
    print(json.dumps({"resident": 1024 * resident, "kv": kv}))


def _kv_bytes(path: Path) -> int:
    """Bytes of a token's keys and values, in llama.cpp's 16 bits."""
    reader = gguf.GGUFReader(path)

    def field(name: str) -> int:
        return int(reader.fields[f"llama.{name}"].contents())

    width = field("embedding_length") // field("attention.head_count")
    return field("block_count") * field("attention.head_count_kv") * width * 2 * 2


# --------------------------------------------------------------- useless drafts


class Useless:
    """Draws any token, in the time that the small draft takes, on the same core."""

    def __init__(self, model: DraftSource, size: int) -> None:
        self._model = model
        self._size = size
        self._rng = random.Random(0)

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        drafted = self._model.next(prefix, chain)
        if drafted is None:
            return None
        return replace(drafted, token=self._rng.randrange(100, self._size), row=None)

    def close(self) -> None:
        self._model.close()


async def _useless(address: str, turns: int, prompts: int) -> Row:
    """Speed of `auto` with a draft that guesses at random, against streaming."""
    ratios = []
    async with EdgeClient(address, draft=DRAFTS["small"], drafts="model", threads=1) as client:
        make = client._drafter.source

        def source(weights: Any, machine: EdgeSession, options: GenerateOptions) -> DraftSource:
            return Useless(make(weights, machine, options), len(weights.vocabulary))

        client._drafter.source = source  # type: ignore[method-assign]
        await client.complete("Hello", options=GenerateOptions(max_tokens=8))
        for turn in range(turns):
            for prompt in list(PROMPTS.values())[:prompts]:
                speeds = {}
                for mode in (Mode.STREAM, Mode.AUTO):
                    options = GenerateOptions(max_tokens=TOKENS, mode=mode, seed=turn)
                    result = await client.complete(messages=[("user", prompt)], options=options)
                    speeds[mode] = result.tokens_per_s
                ratios.append(speeds[Mode.AUTO] / speeds[Mode.STREAM])
    return _row("auto with a random draft", "of streaming", statistics.median(ratios), 0.95)


if __name__ == "__main__":
    _generate(*sys.argv[1:])
