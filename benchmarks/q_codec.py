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


SPARSE = tuple(
    Truncation(cover, cap, bits)
    for cover, cap, bits in (
        (0.7, 8, 6),
        (0.8, 16, 6),
        (0.9, 8, 6),
        (0.9, 16, 5),
        (0.9, 16, 6),
        (0.9, 16, 8),
        (0.95, 32, 6),
        (0.97, 48, 8),
        (0.99, 96, 8),
    )
)
DENSE_BYTES = 4 * 49_152
"""Of a float32 row, the vocabulary of the built-in pair."""

Row = dict[str, Any]


def run(*, quick: bool = False) -> list[Row]:
    """For each draft: every id's probability sent, a few of them, one, and none."""
    target = load_target(TARGET, dtype="bfloat16", threads=1)
    rows = []
    for draft, spec in DRAFTS.items():
        with LlamaWeights(resolve_model(spec, print)) as weights:
            positions: list[dict[str, float]] = []
            for prompt in list(PROMPTS.values())[: 1 if quick else None]:
                positions += _along(target, weights, prompt, 20 if quick else 120)
        dense = _mean(positions, "dense")
        rows.append(_row(draft, "dense", positions, "dense", DENSE_BYTES, dense))
        for truncation in SPARSE:
            name = _name(truncation)
            default = ", the default" if truncation == Truncation() else ""
            rows.append(_row(draft, name + default, positions, name, None, dense))
        rows.append(_row(draft, "coupled: ids alone", positions, "coupled", None, dense))
    return rows


def _name(truncation: Truncation) -> str:
    return (
        f"cover {truncation.cover:g}, at most {truncation.cap} ids, {truncation.weight_bits} bits"
    )


def _row(
    draft: str,
    codec: str,
    positions: list[dict[str, float]],
    key: str,
    size: int | None,
    dense: float,
) -> Row:
    sizes = [size or position[f"{key} bytes"] for position in positions]
    alpha = _mean(positions, key)
    return {
        "draft": draft,
        "codec": codec,
        "positions": len(positions),
        "alpha": alpha,
        "points_lost": 100 * (dense - alpha),
        "bytes_median": float(statistics.median(sizes)),
        "bytes_mean": float(statistics.mean(sizes)),
    }


def _along(
    target: Target, weights: LlamaWeights, prompt: str, tokens: int
) -> list[dict[str, float]]:
    """Along a text that the target draws: the chance of acceptance at each position."""
    backend, size = target.backend, len(weights.vocabulary)
    ids = target.encoder.encode_chat([("user", prompt)])
    sequence = backend.open()
    logits = np.asarray(backend.forward([Step(sequence, 0, ids, 1)])[0])
    rng = np.random.default_rng(len(ids))
    positions = []
    with LlamaDraft(weights, context=2048, threads=1) as draft:
        for seed in range(tokens):
            p = distribution(logits, PARAMS, size=size)[0]
            guess = np.array(draft.logits_after(ids))
            q = distribution(guess[None], PARAMS, size=size)[0]
            noise = coupled_noise(seed, len(ids), 0, p[None])
            token = int(coupled_tokens(p[None], noise)[0])
            coupled = coupled_draft(guess, PARAMS, seed=seed, position=len(ids), size=size)
            found = {
                "dense": float(np.minimum(p, q).sum()),
                "coupled": float(coupled == token),
                "coupled bytes": _id_bytes(coupled),
            }
            where = float(rng.random())
            for truncation in SPARSE:
                row = draft_row(guess, PARAMS, truncation, size=size)
                name = _name(truncation)
                found[name] = float(np.minimum(p[row.ids], row.probs).sum())
                found[f"{name} bytes"] = _bytes(row, draw_row(row, where), truncation.weight_bits)
            positions.append(found)
            ids.append(token)
            if token in backend.vocabulary.end_ids:
                break
            logits = np.asarray(backend.forward([Step(sequence, len(ids) - 1, [token], 1)])[0])
    backend.close(sequence)
    return positions


def _id_bytes(token: int) -> float:
    one, two = pb.Proposal(tokens=[token]), pb.Proposal(tokens=[token, token])
    return two.ByteSize() - one.ByteSize()


def _bytes(row: QRow, token: int, bits: int) -> float:
    """What one more token adds to a proposal that has others already."""
    spread = QRow(np.array([0, 1]), np.array([0.5, 0.5]))  # makes the codec sparse in any case
    first = pb.Proposal(tokens=[0])
    encode_q(first, [spread], bits)
    both = pb.Proposal(tokens=[0, token])
    encode_q(both, [spread, row], bits)
    return _id_bytes(token) + len(both.sparse.rows) - len(first.sparse.rows)


def _mean(positions: list[dict[str, float]], key: str) -> float:
    return statistics.mean(p[key] for p in positions)
