"""The process in which transformers generates: plainly, assisted, or by prompt lookup.

Models are loaded as the verifier loads them: the GGUF file unpacked to bfloat16. So an
assistant of the same architecture costs as much a token as the target, whatever its file was
quantised to. All settings but the listed ones are transformers' own.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.peers_worker import Ask, Row, serve

LOOKUP = {"prompt_lookup_num_tokens": 10}


class Arrivals:
    """A streamer that only notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._prompt = True

    def put(self, ids: torch.Tensor) -> None:
        """Take tokens of any shape; the first are the prompt."""
        if not self._prompt:
            self.times += [time.perf_counter()] * ids.numel()
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def load_model(path: str) -> Any:
    """A GGUF file as the verifier has it, without its attention."""
    file = Path(path)
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    ).eval()


def load(task: Row) -> Ask:
    """Take a target, drafts by name, and the threads of torch."""
    torch.set_num_threads(task["threads"])
    target = load_model(task["target"])
    assistants = {name: load_model(path) for name, path in task["drafts"].items()}
    ways: dict[str, Row] = {"generate": {}, "prompt lookup": LOOKUP}

    def generate(task: Row) -> list[float]:
        if task["what"] == "assisted":
            options: Row = {"assistant_model": assistants[task["draft"]]}
        else:
            options = ways[task["what"]]
        ids = torch.tensor([task["ids"]])
        arrivals = Arrivals()
        target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=task["tokens"],
            streamer=arrivals,
            **options,
        )
        return arrivals.times

    return generate


if __name__ == "__main__":
    serve(load)
