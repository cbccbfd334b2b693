"""Prompts for a GGUF target. The only file of the cloud that imports `jinja2`."""

from __future__ import annotations

import jinja2
import jinja2.ext
import jinja2.sandbox

from cloud_verifier.backends.llama_cpp_model import LlamaCppModel
from specwire.llama_prompt import LlamaEncoder


def llama_cpp_encoder(model: LlamaCppModel) -> LlamaEncoder:
    """The model's tokenizer and chat template as a `PromptEncoder`."""
    return LlamaEncoder(model, jinja2)
