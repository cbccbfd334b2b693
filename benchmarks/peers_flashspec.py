"""The process in which FlashSpec generates, in an environment that has it.

The environment needs flashspec, accelerate and gguf. Models are loaded as for transformers,
and all settings are FlashSpec's own: its drafts are prompt lookup's where there is a match,
and the drafter's otherwise.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch

from benchmarks.peers_transformers import load_model
from benchmarks.peers_worker import Ask, Row, serve


def load(task: Row) -> Ask:
    """Take a target, drafts by name, and the threads of torch."""
    torch.set_num_threads(task["threads"])
    flashspec: Any = importlib.import_module("flashspec")
    parts: Any = importlib.import_module("flashspec.engine")
    device = torch.device("cpu")
    model = load_model(task["target"])
    end = model.generation_config.eos_token_id
    config = flashspec.FlashSpecConfig(
        device="cpu", sampling=flashspec.SamplingConfig(temperature=0.0)
    )

    def engine(path: str) -> Any:
        target = parts.TargetModel("target", device, torch.bfloat16, model=model)
        drafter = parts.HuggingFaceDrafter(
            "draft", device, torch.bfloat16, temperature=0.0, model=load_model(path)
        )
        return flashspec.SpeculativeEngine(config, [drafter], target)

    engines = {name: engine(path) for name, path in task["drafts"].items()}

    def generate(task: Row) -> list[float]:
        result = engines[task["draft"]].generate(
            torch.tensor([task["ids"]]),
            max_new_tokens=task["tokens"],
            eos_token_ids=[end] if isinstance(end, int) else end,
        )
        ends = itertools.accumulate(step.seconds for step in result.arm_steps)
        return [
            at for at, step in zip(ends, result.arm_steps, strict=True) for _ in range(step.emitted)
        ]

    return generate


if __name__ == "__main__":
    serve(load)
