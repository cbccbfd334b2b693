"""What transformers says by itself, on the very model that a backend runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def own_attention(model: Any) -> Iterator[Any]:
    """The model with transformers' attention in place of the backend's, for a while.

    Nothing else may run the model meanwhile.
    """
    name = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield model
    finally:
        model.set_attn_implementation(name)


def generate_greedily(model: Any, ids: Sequence[int], count: int, end: Any = None) -> list[int]:
    """New ids of transformers' own `generate`, without sampling."""
    import torch

    with own_attention(model):
        output = model.generate(
            torch.tensor([list(ids)]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=end if end is not None else 10**9,  # never
            pad_token_id=2,
        )
    return [int(i) for i in output[0, len(ids) :]]
