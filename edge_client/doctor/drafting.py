"""How fast this device drafts, and how often the target agrees."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_client.client import EdgeClient
from edge_client.doctor.measured import Measured
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.source import DraftRules, ModelSource
from edge_client.options import GenerateOptions, Mode, Verification
from specwire.v1 import verifier_pb2 as pb


@dataclass(frozen=True)
class Text:
    """What the target is asked: as a message, or as a beginning where it can't chat."""

    question: str
    beginning: str


TEXTS = (
    Text(
        "How is a rainbow formed? Answer in a few sentences.",
        "A rainbow is formed when sunlight enters a drop of water. First the light",
    ),
    Text(
        "Write a short story about a lighthouse.",
        "The lighthouse had stood on the rock for two hundred years, and its keeper",
    ),
    Text(
        "List five things to take on a journey by train, and why.",
        "Five things that are good to have on a journey by train: first, a book, because",
    ),
)
ANSWER_TOKENS = 64
_ENOUGH = 100
"""Draft tokens examined, after which no other text is asked for."""
_GAMMA = 4
_TOKENS = 48
_WARM_UP = 2
_LONGEST_S = 1.5
LOOKUP_S = 1e-4
"""What copying a token takes, about."""


def draft_time(
    weights: LlamaWeights, prompt: Sequence[int], options: GenerateOptions, threads: int | None
) -> float:
    """Seconds a draft token takes on this machine, choosing it and making its q included.

    Blocks meanwhile.

    Raises:
        ModelError: llama.cpp can't make room for it.
    """
    size = len(weights.vocabulary)
    rules = DraftRules(
        params=options.sampling,
        mode=options.rule,
        seed=1,
        size=size,
        padding_ids=weights.vocabulary.padding_ids,
        prompt_length=len(prompt),
        truncation=options.truncation,
    )
    context = min(len(prompt) + _TOKENS + 1, weights.train_context or 1 << 30)
    with LlamaDraft(weights, context=context, threads=threads) as model:
        source = ModelSource(model, rules)
        text = list(prompt)
        times: list[float] = []
        started = time.perf_counter()
        while len(text) < context and time.perf_counter() - started < _LONGEST_S:
            began = time.perf_counter()
            drafted = source.next(text, 1)
            if drafted is None:
                break
            times.append(time.perf_counter() - began)
            text.append(drafted.token)
    kept = times[_WARM_UP:] or times
    return sum(kept) / len(kept) if kept else 0.0


async def acceptance(
    client: EdgeClient, options: GenerateOptions, measured: Measured, *, chat: bool, context: int
) -> None:
    """Measure the acceptance rate on short answers, which wait for each verdict.

    Drafts and verifies by the rule that `options` will run with, whatever their mode.

    Raises:
        SpecwireError: the verifier refused, or can't be reached any more.
    """
    coupled = options.rule == pb.VERIFICATION_MODE_COUPLED
    asked = replace(
        options,
        mode=Mode.SYNC,
        verification=Verification.COUPLED if coupled else Verification.REJECTION,
        gamma=min(options.gamma or _GAMMA, _GAMMA),
        window=None,
        max_tokens=max(1, min(ANSWER_TOKENS, context // 4)),
        seed=1 if options.seed is None else options.seed,
        logprobs=None,
    )
    examined = accepted = 0
    for text in TEXTS:
        if chat:
            result = await client.complete(messages=[("user", text.question)], options=asked)
        else:
            result = await client.complete(text.beginning, options=asked)
        examined += result.counts.examined
        accepted += result.counts.accepted
        if examined >= _ENOUGH:
            break
    measured.examined = examined
    measured.alpha = accepted / examined if examined else None
