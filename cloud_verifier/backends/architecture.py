"""Which models can be verified: those whose cache can be moved back to any length."""

from __future__ import annotations

import inspect
from typing import Any

from specwire.errors import ModelError

# Layers that keep keys and values for each token, and those that keep nothing at all.
_REVERSIBLE = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "attention",
        "moe",
        "mlp",
        "dense",
        "sparse",
    }
)
_NEEDED_ARGUMENTS = ("input_ids", "position_ids", "cache", "logits_to_keep")


def check_architecture(config: Any, model_class: type[Any]) -> None:
    """Refuse a model that rejected draft tokens could not be taken out of again.

    `config` is the checkpoint's transformers configuration, `model_class` the
    class that would be built from it. No weights are needed.

    Raises:
        ModelError: the model is an encoder-decoder, keeps a recurrent or
            convolutional state, or its forward lacks an argument that we need.
    """
    kind = model_class.__name__
    cure = "choose a decoder whose layers are all attention"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder, which can't be verified; {cure}")
    text_config = config.get_text_config(decoder=True)
    layers = getattr(text_config, "layer_types", None) or ()
    stuck = sorted(set(layers) - _REVERSIBLE)
    if stuck:
        raise ModelError(
            f"{kind} has layers of type {', '.join(stuck)}, whose state can't be rolled back "
            f"after a rejection; {cure}"
        )
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(
            f"{kind} keeps a recurrent state, which can't be rolled back after a rejection; {cure}"
        )
    arguments = inspect.signature(model_class.forward).parameters
    missing = [name for name in _NEEDED_ARGUMENTS if name not in arguments]
    if missing:
        raise ModelError(
            f"the forward of {kind} takes no {', '.join(missing)}, which verification needs; {cure}"
        )


def token_width(config: Any) -> int:
    """Columns of the model's logits, which is also how many token ids it can evaluate."""
    return int(config.get_text_config(decoder=True).vocab_size)


def context_limit(config: Any) -> int | None:
    """Most tokens that the model was built for; None where its configuration states none."""
    value = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if value is None else int(value)
