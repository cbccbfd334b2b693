"""specwire against what people would use: the same models, prompts, threads and cores, in turn.

A row is one way of a peer against one way of ours: `tokens_per_s` is the peer's median, and
`ratio` is ours to it, the median of the ratios of single turns, with the least and the most:
below 1 the peer is faster. Time counts from the first step's tokens, so no prompt is in it.

What a peer can't share with us:
- In the cloud, our target has one core and the draft another, as on two machines. An assistant
  shares the target's cores, so each peer runs on the target's core alone, and again with
  two threads on both cores. transformers unpacks the draft's GGUF file to bfloat16, where
  an assistant costs as much a token as the target does; llama.cpp runs it as it is.
- On the device the target is the GGUF file itself, which is the draft "close" too, so only
  the draft "small" can help. llama-server may be of another release than the library.

Named by the environment, and told as left out otherwise: LLAMA_SERVER, llama.cpp's server
(or on PATH), and FLASHSPEC_PYTHON, the Python of an environment with flashspec.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.pair import DRAFTS, PROMPTS, TARGET, verifier
from benchmarks.peers_llama_server import llama_server
from benchmarks.peers_specwire import LOOP
from benchmarks.peers_worker import Ask, PeerFailed, Row, tokens_per_s, worker
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from edge_client.local.prompt import llama_encoder
from netsim.real import cores

TOKENS, QUICK_TOKENS = 64, 32
ROUNDS = 2
OURS = "specwire"
ON_DEVICE_DRAFT = "small"
LeftOut = set[tuple[str, str]]
"""Peers that can't be measured here, each with the reason."""

WITHOUT_GPU = {
    ("autodraft-sd", "1.1.1 moves its prompts to the device 'cuda', whatever it is told to run on")
}


@dataclass(frozen=True)
class Contender:
    """A way to get tokens. where: its cores, for people."""

    peer: str
    what: str
    draft: str | None
    where: str
    ask: Ask


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """A row for each pair of a peer's way and ours, and one for each peer that can't run here."""
    places = _places(quick=quick)
    prompts = list(PROMPTS.values())[: 1 if quick else None]
    target = str(resolve_model(TARGET, print))
    with LlamaWeights(resolve_model(TARGET, print)) as weights:
        encoder = llama_encoder(weights)
        tasks: list[Row] = [
            {
                "prompt": prompt,
                "ids": encoder.encode_chat([("user", prompt)]),
                "tokens": QUICK_TOKENS if quick else TOKENS,
                "target": target,
            }
            for prompt in prompts
        ] * (1 if quick else ROUNDS)
    paths = {name: str(resolve_model(spec, print)) for name, spec in DRAFTS.items()}
    left_out = LeftOut(WITHOUT_GPU)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        found = _cloud(stack, places, target, paths, left_out)
        rows += _in_turn(list(found), tasks, left_out)
    for on in places:
        with contextlib.ExitStack() as stack:
            found = _device(stack, on, target, paths, left_out)
            rows += _in_turn(list(found), tasks, left_out)
    return rows + [{"peer": peer, "why": why} for peer, why in sorted(left_out)]


def _places(*, quick: bool) -> list[list[int]]:
    """Where peers run that have one process: on both cores, and on the target's alone."""
    cloud, edge = cores()
    both = sorted({*cloud, *edge})
    return [both] if quick or cloud == edge else [both, cloud]


def _cloud(
    stack: contextlib.ExitStack,
    places: Sequence[Sequence[int]],
    target: str,
    paths: dict[str, str],
    left_out: LeftOut,
) -> Iterator[Contender]:
    cloud, edge = cores()
    address = stack.enter_context(verifier(cloud))
    load: Row = {"target": target, "drafts": paths}
    ours = {"address": address, "drafts": DRAFTS, "threads": 1}
    ask = stack.enter_context(worker("benchmarks.peers_specwire", edge, ours))
    where = _cores(sorted({*cloud, *edge}))
    yield Contender(OURS, "stream", None, where, ask)
    for draft in DRAFTS:
        yield Contender(OURS, "auto", draft, where, ask)
    for on in places:
        where, told = _cores(on), {**load, "threads": len(on)}
        ask = stack.enter_context(worker("benchmarks.peers_transformers", on, told))
        for what in ("generate", "prompt lookup"):
            yield Contender("transformers", what, None, where, ask)
        for draft in DRAFTS:
            yield Contender("transformers", "assisted", draft, where, ask)
        try:
            python = _python("FLASHSPEC_PYTHON")
            ask = stack.enter_context(worker("benchmarks.peers_flashspec", on, told, python=python))
        except PeerFailed as error:
            left_out.add(("flashspec", str(error)))
            continue
        for draft in DRAFTS:
            yield Contender("flashspec", "speculative", draft, where, ask)


def _device(
    stack: contextlib.ExitStack,
    on: Sequence[int],
    target: str,
    paths: dict[str, str],
    left_out: LeftOut,
) -> Iterator[Contender]:
    draft, threads, where = ON_DEVICE_DRAFT, len(on), _cores(on)
    load: Row = {"drafts": {draft: DRAFTS[draft]}, "threads": threads}
    alone, drafting, loop = (
        stack.enter_context(worker("benchmarks.peers_specwire", on, load)) for _ in range(3)
    )
    yield Contender(OURS, "stream", None, where, alone)
    yield Contender(OURS, "auto", draft, where, drafting)
    yield Contender(OURS, "sync", draft, where, drafting)
    yield Contender("llama.cpp", LOOP, None, where, loop)
    for helper in (None, draft):
        path = None if helper is None else paths[helper]
        try:
            ask = stack.enter_context(llama_server(on, target, path, threads))
        except PeerFailed as error:
            left_out.add(("llama-server", str(error)))
            return
        what = "alone" if helper is None else "speculative"
        yield Contender("llama-server", what, helper, where, ask)


def _cores(on: Sequence[int]) -> str:
    return "1 core" if len(on) == 1 else f"{len(on)} cores"


def _python(variable: str) -> str:
    if variable not in os.environ:
        raise PeerFailed(f"${variable} names no Python that has it")
    return os.environ[variable]


def _in_turn(contenders: Sequence[Contender], tasks: Sequence[Row], left_out: LeftOut) -> list[Row]:
    """Every way on every task, A B A B, after one to warm up; those that fail are left out."""
    speeds: dict[Contender, list[float]] = {contender: [] for contender in contenders}
    for number, task in enumerate([{**tasks[0], "tokens": QUICK_TOKENS}, *tasks]):
        print(f"  turn {number} of {len(tasks)}", file=sys.stderr, flush=True)
        for contender in list(speeds):
            asked = {**task, "what": contender.what, "draft": contender.draft}
            try:
                speed = tokens_per_s(contender.ask(asked))
            except PeerFailed as error:
                del speeds[contender]
                left_out.add((contender.peer, f"{contender.what}: {error}"))
                continue
            if number > 0:
                speeds[contender].append(speed)
    return [
        _row(ours, theirs, speeds)
        for theirs in speeds
        for ours in speeds
        if theirs.peer != OURS == ours.peer
        and (None in (theirs.draft, ours.draft) or theirs.draft == ours.draft)
    ]


def _row(ours: Contender, theirs: Contender, speeds: dict[Contender, list[float]]) -> Row:
    ratios = sorted(a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True))
    return {
        "peer": theirs.peer,
        "what": f"{theirs.what}, {theirs.where}",
        "draft": theirs.draft or ours.draft,
        "temperature": 0.0,
        "tokens_per_s": statistics.median(speeds[theirs]),
        "against": f"{ours.what}, {ours.where}",
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
    }
