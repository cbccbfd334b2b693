"""What sending q costs: bytes for each draft token against acceptance lost.

Target and draft go along the target's own text. At each position α is Σ min(p, q),
computed exactly, with everything sent and with what the sparse codec keeps.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.pair import DRAFTS, PROMPTS, TARGET
from cloud_verifier.backends.load import Target, load_target
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.models import resolve_model
from specwire.acceptance import coupled_noise, coupled_tokens
from specwire.codec import encode_q
from specwire.ports import Step
from specwire.qrow import QRow, Truncation, coupled_draft, draft_row, draw_row
from specwire.sampling import SamplingParams, distribution
from specwire.v1 import verifier_pb2 as pb

PARAMS = SamplingParams(temperature=0.7)


def run(*, tokens: int = 120) -> list[dict[str, Any]]:
    """One row for each draft."""
    target = load_target(TARGET, dtype="bfloat16", threads=1)
    rows = []
    for draft, spec in DRAFTS.items():
        with LlamaWeights(resolve_model(spec, print)) as weights:
            positions: list[dict[str, float]] = []
            for prompt in PROMPTS.values():
                positions += _along(target, weights, prompt, tokens)
        rows.append(
            {
                "draft": draft,
                "positions": len(positions),
                "alpha_dense": _mean(positions, "dense"),
                "alpha_sparse": _mean(positions, "sparse"),
                "alpha_coupled": _mean(positions, "coupled"),
                "bytes_median": statistics.median(p["bytes"] for p in positions),
                "bytes_mean": _mean(positions, "bytes"),
            }
        )
    return rows


def _along(
    target: Target, weights: LlamaWeights, prompt: str, tokens: int
) -> list[dict[str, float]]:
    backend, size = target.backend, len(weights.vocabulary)
    ids = target.encoder.encode_chat([("user", prompt)])
    sequence = backend.open()
    logits = backend.forward([Step(sequence, 0, ids, 1)])[0].numpy()
    rng = np.random.default_rng(len(ids))
    positions = []
    with LlamaDraft(weights, context=2048, threads=1) as draft:
        for seed in range(tokens):
            p = distribution(logits, PARAMS, size=size)[0]
            guess = np.array(draft.logits_after(ids))
            q = distribution(guess[None], PARAMS, size=size)[0]
            row = draft_row(guess, PARAMS, Truncation(), size=size)
            noise = coupled_noise(seed, len(ids), 0, p[None])
            token = int(coupled_tokens(p[None], noise)[0])
            coupled = coupled_draft(guess, PARAMS, seed=seed, position=len(ids), size=size)
            positions.append(
                {
                    "dense": float(np.minimum(p, q).sum()),
                    "sparse": float(np.minimum(p[row.ids], row.probs).sum()),
                    "coupled": float(coupled == token),
                    "bytes": _bytes(row, draw_row(row, float(rng.random()))),
                }
            )
            ids.append(token)
            if token in backend.vocabulary.end_ids:
                break
            logits = backend.forward([Step(sequence, len(ids) - 1, [token], 1)])[0].numpy()
    backend.close(sequence)
    return positions


def _bytes(row: QRow, token: int) -> float:
    """What one more token adds to a proposal that has others already."""
    one, two = pb.Proposal(tokens=[token]), pb.Proposal(tokens=[token, token])
    spread = QRow(np.array([0, 1]), np.array([0.5, 0.5]))  # makes the codec sparse in any case
    first = pb.Proposal(tokens=[0])
    encode_q(first, [spread], 6)
    both = pb.Proposal(tokens=[0, token])
    encode_q(both, [spread, row], 6)
    ids = two.ByteSize() - one.ByteSize()
    return ids + len(both.sparse.rows) - len(first.sparse.rows)


def _mean(positions: list[dict[str, float]], key: str) -> float:
    return statistics.mean(p[key] for p in positions)
