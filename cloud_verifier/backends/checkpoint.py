"""Loading a checkpoint through transformers, quietly and with errors that say what to do."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from huggingface_hub.utils import logging as hub_logging
from transformers import modeling_gguf_pytorch_utils as gguf_utils
from transformers.utils import logging as transformers_logging

from cloud_verifier.backends.architecture import check_architecture, token_width
from cloud_verifier.backends.packed import PackedBackend
from cloud_verifier.backends.source import Source
from cloud_verifier.backends.tokenizer import TargetTokenizer
from specwire.errors import ModelError, SpecwireError


def load_checkpoint(
    source: Source,
    *,
    dtype: str,
    device: str,
    context: int | None,
    kv_memory: int | None,
    quantization: str | None,
    threads: int | None,
    progress: Callable[[str], None],
) -> tuple[PackedBackend, TargetTokenizer]:
    """Load model and tokenizer. The arguments are those of `load.load_target`.

    Raises:
        ModelError: whatever stops the model from being loaded and verified.
    """
    place = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with _quiet():
            options = _options(source, dtype, place, quantization)
            return _load(source, options, place, context, kv_memory, progress)
    except SpecwireError:
        raise
    except Exception as error:
        raise explain(error, source) from error


def _load(
    source: Source,
    options: dict[str, Any],
    place: torch.device,
    context: int | None,
    kv_memory: int | None,
    progress: Callable[[str], None],
) -> tuple[PackedBackend, TargetTokenizer]:
    files: dict[str, Any] = {"trust_remote_code": False}
    if source.gguf is not None:
        files["gguf_file"] = source.gguf
    progress(f"reading the configuration of {source.name}")
    config = transformers.AutoConfig.from_pretrained(source.location, **files)
    check_architecture(config, _model_class(config))

    progress(f"reading the tokenizer of {source.name}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.location, config=config, **files)

    progress(f"loading the weights of {source.name} onto {place}")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.location, config=config, **files, **options
    )
    encoder = TargetTokenizer(tokenizer, width=token_width(model.config), end_ids=_end_ids(model))
    backend = PackedBackend(
        model, encoder.vocabulary, name=source.name, context=context, kv_memory=kv_memory
    )
    number = str(model.dtype).removeprefix("torch.")
    progress(
        f"{source.name}: {number} on {place}, context {backend.context} tokens, cache for "
        f"{backend.tokens} tokens of {backend.bytes_per_token} bytes"
    )
    return backend, encoder


def _options(
    source: Source, dtype: str, place: torch.device, quantization: str | None
) -> dict[str, Any]:
    """What decides the weights' format and place."""
    options: dict[str, Any] = {"dtype": _dtype(dtype, source)}
    if source.gguf is not None:
        if quantization is not None:
            raise ModelError(
                f"quantization {quantization!r} is for full-precision checkpoints; "
                f"{source.spec!r} is a GGUF file, which is quantised already: leave it out"
            )
        # Dense weights: packed ones would fetch kernels from the network.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    elif quantization is not None:
        options["quantization_config"] = _quantization(quantization)
    if str(place) == "cuda":
        options["device_map"] = "auto"  # over all GPUs there are, as their memory needs
    elif place.type != "cpu":
        options["device_map"] = {"": place}
    return options


def _quantization(name: str) -> Any:
    """transformers' own quantisation while loading, through bitsandbytes or optimum-quanto."""
    # It warns of a cast in each layer of each forward.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    makers: dict[str, Callable[[], Any]] = {
        "bnb-int8": lambda: transformers.BitsAndBytesConfig(load_in_8bit=True),
        "bnb-nf4": lambda: transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
        "quanto-int8": lambda: transformers.QuantoConfig(weights="int8"),
        "quanto-int4": lambda: transformers.QuantoConfig(weights="int4"),
    }
    return makers[name]()


def _model_class(config: Any) -> type[Any]:
    mapping = transformers.AutoModelForCausalLM._model_mapping
    if type(config) in mapping:
        found = mapping[type(config)]
        first: type[Any] = found[0] if isinstance(found, (list, tuple)) else found
        return first
    kind = "an encoder-decoder" if config.is_encoder_decoder else "not a causal language model"
    raise ModelError(
        f"a model of type {config.model_type!r} is {kind}, which can't be verified; "
        f"choose a decoder whose layers are all attention"
    )


def _end_ids(model: Any) -> list[int]:
    """The checkpoint's end ids, which its settings hold as one number or as a list."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return []
    return [int(i) for i in ids] if isinstance(ids, (list, tuple)) else [int(ids)]


def _dtype(dtype: str, source: Source) -> Any:
    if dtype == "auto":
        return "auto" if source.gguf is None else torch.bfloat16
    return getattr(torch, dtype)


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"device {device!r} can't be used ({_first_line(error)}); try 'cpu'"
        ) from error
    return place


def explain(error: Exception, source: Source) -> ModelError:
    """The error to show for whatever transformers raised while loading."""
    text = str(error)
    what = f"can't load {source.spec!r}"
    if isinstance(error, ImportError):
        return ModelError(f"{what}: {_first_line(error)}; install it, then try again")
    if not source.is_local:
        if _is_offline(error):
            return ModelError(
                f"{what}: it is no folder here, and Hugging Face can't be reached; check the "
                f"network, or give a downloaded folder or a .gguf file"
            )
        if "not a valid model identifier" in text or "gated repo" in text:
            return ModelError(
                f"{what}: it is no folder here, and Hugging Face has no such model "
                f"or keeps it from this account; check the name and the access token"
            )
    if "architecture" in text or "nrecognized" in text or "model type" in text:
        return ModelError(
            f"{what}: transformers {transformers.__version__} does not know its architecture "
            f"({_first_line(error)}); upgrade transformers or choose another model"
        )
    return ModelError(f"{what}: {type(error).__name__}: {_first_line(error)}")


def _is_offline(error: BaseException) -> bool:
    """Whether this error, or one that led to it, speaks of the network."""
    seen: BaseException | None = error
    while seen is not None:
        module = type(seen).__module__.partition(".")[0]
        if module.startswith(("httpx", "httpcore", "requests", "urllib3")):
            return True
        if isinstance(seen, (ConnectionError, TimeoutError)):
            return True
        if "connect to" in str(seen) or "offline mode" in str(seen).lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bars, log lines and warnings to itself for a while."""
    log = transformers_logging
    verbosity, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    hub_verbosity = hub_logging.get_verbosity()
    # The GGUF reader uses tqdm itself, past the switch for the other bars.
    bar = getattr(gguf_utils, "tqdm", None)
    log.set_verbosity_error()
    hub_logging.set_verbosity_error()
    log.disable_progress_bar()
    if bar is not None:
        gguf_utils.tqdm = partial(bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bar is not None:
            gguf_utils.tqdm = bar
        log.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if had_bars:
            log.enable_progress_bar()
