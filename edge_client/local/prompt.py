"""Prompts for a target on this device. The only file of the edge that imports `jinja2`.

llama-cpp-python brings it along, so that an edge install needs nothing more.
"""

from __future__ import annotations

import jinja2
import jinja2.ext
import jinja2.sandbox

from edge_client.draft.llama_weights import LlamaWeights
from specwire.llama_prompt import LlamaEncoder


def llama_encoder(weights: LlamaWeights) -> LlamaEncoder:
    """The model's tokenizer and chat template as a `PromptEncoder`."""
    return LlamaEncoder(weights, jinja2)
