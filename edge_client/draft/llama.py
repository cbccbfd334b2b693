"""The draft model in llama.cpp: weights, one evaluation state, thread choice, requantising.

The only file of the edge that imports `llama_cpp`, and it does so at first use, so
that everything else of the edge works without the package.

Guarantees: bad input raises before llama.cpp, which would end the process, sees it; one
context is never entered by two threads; memory does not grow with context × vocabulary;
contexts are freed before the weights they use, at garbage collection and at interpreter
exit alike. Not guaranteed: two threads sharing one `LlamaDraft` are refused, not queued;
logits are equal bit by bit only when the same tokens came in batches of the same size.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from specwire.errors import BadRequest, ModelError
from specwire.vocabulary import Vocabulary, byte_level_piece

FloatRow = npt.NDArray[np.float32]

DEFAULT_CONTEXT = 2048
DEFAULT_BATCH = 64
"""Prompt tokens for each llama.cpp call. More is no faster on a CPU and costs compute memory."""

MAX_DEFAULT_THREADS = 8
"""A small model reads memory rather than computes; more threads only wait for each other."""

_LOG = logging.getLogger(__name__)
_EXIT_WAIT_S = 10.0
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)
"""Bytes of a metadata value by its type; 0 where they vary."""

_GGML_ERROR = 4  # ggml.h: none 0, debug 1, info 2, warn 3, error 4, continued 5


# ── the library ──────────────────────────────────────────────────────────────────────


class _Log:
    """Receives llama.cpp's log lines: all to `logging` at DEBUG, errors to who captures."""

    def __init__(self) -> None:
        self._local = threading.local()

    def receive(self, level: int, text: bytes, _user: Any) -> None:
        errors: list[str] | None = getattr(self._local, "errors", None)
        if level == _GGML_ERROR and errors is not None:
            errors.append(text.decode("utf-8", "replace").strip())
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s", text.decode("utf-8", "replace").rstrip())

    @contextmanager
    def capture(self) -> Iterator[list[str]]:
        """Collect the error lines that this thread's calls cause."""
        outer, lines = getattr(self._local, "errors", None), list[str]()
        self._local.errors = lines
        try:
            yield lines
        finally:
            self._local.errors = outer


class _Llama:
    """llama.cpp's functions (`api`) and its log. One for the process, because its log is."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.log = _Log()
        # The library calls through this object for as long as it lives: keep it.
        self._callback = api.llama_log_callback(self.log.receive)
        api.llama_backend_init()
        api.llama_log_set(self._callback, None)
        # Of the finalizers at exit this runs last, being made first: from then on
        # llama.cpp must not call into an interpreter that is going away.
        weakref.finalize(self, api.llama_log_set, api.llama_log_callback(), None)


@cache
def _llama() -> _Llama:
    try:
        from llama_cpp import llama_cpp as api
    except ImportError as error:
        raise ModelError(
            "llama-cpp-python is not installed; install with: pip install 'specwire[edge]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"llama-cpp-python is installed but its library can't be loaded: {error}"
        ) from error
    return _Llama(api)


# ── weights ──────────────────────────────────────────────────────────────────────────


class _Model:
    """Owns a llama_model; freed when the last holder drops it."""

    def __init__(self, llama: _Llama, handle: int, *, on_gpu: bool) -> None:
        self.llama = llama
        self.on_gpu = on_gpu
        self.handle = handle
        self.finalizer = weakref.finalize(self, llama.api.llama_model_free, handle)


class LlamaWeights:
    """A GGUF model's weights and vocabulary, shared by any number of `LlamaDraft`s.

    The file is memory-mapped, so processes that load the same file share its pages.

    Args:
        path: the GGUF file (for a split model its first part).
        gpu_layers: layers to keep on an accelerator; 0 for none, -1 for all.

    Raises:
        ModelError: llama-cpp-python is missing, or the file is missing, is no GGUF file,
            is cut short, or holds a model that can't draft.
    """

    def __init__(self, path: str | os.PathLike[str], *, gpu_layers: int = 0) -> None:
        self.path = Path(path)
        _check_gguf(self.path)
        llama = _llama()
        params = llama.api.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        with llama.log.capture() as errors:
            handle = llama.api.llama_model_load_from_file(os.fsencode(self.path), params)
        if not handle:
            raise ModelError(f"can't load the model {self.path}: {_cause(errors)}")
        self._model: _Model | None = _Model(llama, handle, on_gpu=gpu_layers != 0)
        _check_can_draft(llama.api, handle, self.path)
        vocab = llama.api.llama_model_get_vocab(handle)
        self.width: int = llama.api.llama_vocab_n_tokens(vocab)
        """Columns of a row of logits; at least len(vocabulary)."""
        self.vocabulary: Vocabulary = _read_vocabulary(llama.api, vocab)
        self.name: str = _metadata(llama.api, handle, "general.name") or self.path.stem
        self.train_context: int = llama.api.llama_model_n_ctx_train(handle)
        """Tokens that the model was trained to attend over."""
        template = llama.api.llama_model_chat_template(handle, None)
        self.chat_template: str | None = (
            template.decode("utf-8", "replace") if template is not None else None
        )

    def _shared(self) -> _Model:
        if self._model is None:
            raise RuntimeError(f"the weights of {self.path} are closed")
        return self._model

    def close(self) -> None:
        """Give the weights up. They are freed once no `LlamaDraft` uses them."""
        self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(f"no model file at {path}; give the path of a GGUF file") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; give the path of the GGUF file in it") from None
    except OSError as error:
        raise ModelError(f"can't read the model file {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file (it begins with {magic!r}, not b'GGUF'); "
            f"convert the model, or download it in GGUF form"
        )
    _check_spellings(path)


def _check_spellings(path: Path) -> None:
    """Refuse a file in which two tokens have one spelling: llama.cpp would abort the process.

    Says nothing about files that can't be read; llama.cpp explains those itself.
    """
    seen: dict[bytes, int] = {}
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for id_, spelling in enumerate(_token_spellings(data)):
                first = seen.setdefault(spelling, id_)
                if first != id_ and spelling:  # llama.cpp makes empty ones differ
                    raise ModelError(
                        f"can't load the model {path}: its tokens {first} and {id_} are both "
                        f"spelled {spelling.decode('utf-8', 'replace')!r}; convert it again"
                    )
    except (OSError, ValueError, OverflowError, struct.error):
        return


def _token_spellings(data: mmap.mmap) -> Iterator[bytes]:
    """The token list in a GGUF file's metadata, as llama.cpp reads it: up to a zero byte."""

    def number(at: int, kind: str) -> int:
        value: int = struct.unpack_from(kind, data, at)[0]
        return value

    def value_end(at: int, kind: int) -> int:
        if kind == _GGUF_STRING:
            return at + 8 + number(at, "<Q")
        if kind != _GGUF_ARRAY:
            return at + _GGUF_SIZES[kind]
        item, count, at = number(at, "<I"), number(at + 4, "<Q"), at + 12
        if item < len(_GGUF_SIZES) and _GGUF_SIZES[item]:
            return at + count * _GGUF_SIZES[item]
        for _ in range(count):
            at = value_end(at, item)
        return at

    at = 24  # magic, version, number of tensors, number of values
    for _ in range(number(16, "<Q")):
        key_end = at + 8 + number(at, "<Q")
        if key_end > len(data):
            raise ValueError("cut short")
        kind = number(key_end, "<I")
        if data[at + 8 : key_end] == b"tokenizer.ggml.tokens" and kind == _GGUF_ARRAY:
            count, at = number(key_end + 8, "<Q"), key_end + 16
            for _ in range(count):
                end = at + 8 + number(at, "<Q")
                if end > len(data):
                    raise ValueError("cut short")
                yield data[at + 8 : end].partition(b"\0")[0]
                at = end
            return
        if kind >= len(_GGUF_SIZES):
            raise ValueError("unknown type of value")
        at = value_end(key_end + 4, kind)


def _check_can_draft(api: Any, model: int, path: Path) -> None:
    vocab = api.llama_model_get_vocab(model)
    if (
        api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_NONE
        or api.llama_vocab_n_tokens(vocab) == 0
    ):
        raise ModelError(f"{path} holds no vocabulary, so it can't draft text")
    if (
        not api.llama_model_has_decoder(model)
        or api.llama_model_has_encoder(model)
        or api.llama_model_is_diffusion(model)
    ):
        raise ModelError(
            f"{path} is not a left-to-right text model, so it can't draft; choose another"
        )


def _cause(errors: Sequence[str]) -> str:
    """The line that says why: the loader's reason if it gave one, else the first complaint."""
    for line in errors:
        _, found, reason = line.partition("error loading model: ")
        if found and "failed to load model from" not in reason:
            return reason
    return errors[0] if errors else "llama.cpp gave no reason"


def _metadata(api: Any, model: int, key: str) -> str | None:
    buffer = ctypes.create_string_buffer(256)
    length = api.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length > 0 else None


def _read_vocabulary(api: Any, vocab: int) -> Vocabulary:
    """Names, pieces, end ids and BOS id; the converter's padding at the end is left out."""
    size: int = api.llama_vocab_n_tokens(vocab)
    names = [_name(api, vocab, id_) for id_ in range(size)]
    while names and names[-1] is None:
        names.pop()
    piece = _piece_reader(api, vocab)
    bos: int = api.llama_vocab_bos(vocab)
    return Vocabulary(
        names=tuple(names),
        pieces=tuple(b"" if name is None else piece(i, name) for i, name in enumerate(names)),
        end_ids=frozenset(i for i in range(len(names)) if api.llama_vocab_is_eog(vocab, i)),
        bos_id=bos if api.llama_vocab_get_add_bos(vocab) and bos >= 0 else None,
    )


def _name(api: Any, vocab: int, id_: int) -> str | None:
    name: str = api.llama_vocab_get_text(vocab, id_).decode("utf-8", "surrogateescape")
    if name == f"[EMPTY_{id_}]":  # llama.cpp's stand-in for an empty spelling
        return ""
    if name == f"[PAD{id_}]":  # the converter fills ids up to the width of the output so
        padding = api.LLAMA_TOKEN_ATTR_UNUSED | api.LLAMA_TOKEN_ATTR_USER_DEFINED
        if api.llama_vocab_get_attr(vocab, id_) & padding:
            return None
    return name


def _piece_reader(api: Any, vocab: int) -> Callable[[int, str], bytes]:
    """A function from (id, name) to the bytes the token adds to a text.

    llama.cpp knows each tokenizer's rules: control tokens give nothing and added
    tokens their own spelling. It only marks characters that it can't map in
    byte-level BPE, and there our rule keeps them.
    """
    byte_level = api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_BPE
    read = api.llama_token_to_piece
    buffer = ctypes.create_string_buffer(256)

    def piece(id_: int, name: str) -> bytes:
        nonlocal buffer
        length = read(vocab, id_, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = read(vocab, id_, buffer, len(buffer), 0, False)
        raw = ctypes.string_at(buffer, length)
        if byte_level and b"[UNK_BYTE_" in raw and "[UNK_BYTE_" not in name:
            return byte_level_piece(name)
        return raw

    return piece


# ── evaluation ───────────────────────────────────────────────────────────────────────


class _Gate:
    """Lets one thread at a time into a context, and none once it is shut."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shut = False


class _Context:
    """Owns a llama_context and its batch, and keeps the model alive until they are freed."""

    def __init__(self, model: _Model, handle: int, batch: Any, gate: _Gate) -> None:
        self.handle = handle
        self.batch = batch
        weakref.finalize(self, _free_context, model, handle, batch, gate)


def _free_context(model: _Model, handle: int, batch: Any, gate: _Gate) -> None:
    # At exit a daemon thread may still be inside llama.cpp. Wait for it; if it doesn't
    # come back, leave all to the operating system rather than free what it uses.
    gate.shut = True
    if not gate.lock.acquire(timeout=_EXIT_WAIT_S):
        model.finalizer.detach()
        return
    gate.lock.release()
    model.llama.api.llama_batch_free(batch)
    model.llama.api.llama_free(handle)


class _Row:
    """One row of logits in llama.cpp's memory, as numpy's array interface.

    Arrays made of it hold it, and it holds the context, so that an array which
    outlives its draft still points to memory.
    """

    def __init__(self, context: _Context, address: int, width: int) -> None:
        self.context = context
        self.__array_interface__ = {
            "version": 3,
            "shape": (width,),
            "typestr": np.dtype(np.float32).str,
            "data": (address, True),  # read-only
        }


class LlamaDraft:
    """A draft model's evaluation state for one sequence; implements `DraftModel`.

    One thread uses it at a time. A call while another thread is inside one raises
    `RuntimeError` and changes nothing.

    Rows of logits are float32 of shape (weights.width,), read-only views of llama.cpp's
    buffer, valid until the next call.

    Args:
        weights: the model; many drafts may share it.
        context: most tokens that this draft can hold.
        threads: threads for llama.cpp; None lets `default_threads` choose.
        batch: prompt tokens for each llama.cpp call.

    Raises:
        BadRequest: `context`, `threads` or `batch` is below 1.
        ModelError: llama.cpp can't allocate the context.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        context: int = DEFAULT_CONTEXT,
        threads: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        threads = default_threads() if threads is None else threads
        for what, value in (("context", context), ("threads", threads), ("batch", batch)):
            if value < 1:
                raise BadRequest(f"draft {what} must be at least 1, not {value}")
        if context > weights.train_context > 0:
            _LOG.warning(
                "draft context %d is longer than the %d tokens that %s was trained on; "
                "drafts beyond them will rarely be accepted",
                context,
                weights.train_context,
                weights.name,
            )
        model = weights._shared()
        self._limit = context
        self._batch_size = min(batch, context)
        self._width = weights.width
        self._name = weights.name
        self.threads = threads
        """Threads that llama.cpp computes with."""
        self._api = model.llama.api
        self._gate = _Gate()
        self._context: _Context | None = self._open(model)
        self._memory: int = self._api.llama_get_memory(self._context.handle)
        self._bind_batch(self._context.batch)
        self._tokens: list[int] = []
        self._evaluated = 0  # how many of _tokens llama.cpp holds; fewer only after a refusal
        self._row: FloatRow | None = None
        self._row_address = 0
        self._row_is_current = False

    def _open(self, model: _Model) -> _Context:
        params = self._api.llama_context_default_params()
        params.n_ctx = self._limit
        params.n_batch = params.n_ubatch = self._batch_size
        params.n_outputs_max = 1  # one row of logits, not one for each token
        params.n_threads = params.n_threads_batch = self.threads
        params.swa_full = True  # sliding-window layers keep all keys, so that they roll back
        params.offload_kqv = params.op_offload = model.on_gpu
        with model.llama.log.capture() as errors:
            handle = self._api.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"can't make a context of {self._limit} tokens for {self._name}: "
                f"{_cause(errors)}; try a smaller one"
            )
        batch = self._api.llama_batch_init(self._batch_size, 0, 1)
        return _Context(model, handle, batch, self._gate)

    def _bind_batch(self, batch: Any) -> None:
        size = (self._batch_size,)
        self._batch_tokens = np.ctypeslib.as_array(batch.token, size)
        self._batch_positions = np.ctypeslib.as_array(batch.pos, size)
        self._batch_outputs = np.ctypeslib.as_array(batch.logits, size)
        self._batch_outputs[:] = 0
        np.ctypeslib.as_array(batch.n_seq_id, size)[:] = 1
        for i in range(self._batch_size):
            batch.seq_id[i][0] = 0

    @property
    def context(self) -> int:
        """Most tokens that it can hold."""
        return self._limit

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens evaluated so far. A live list: read it, don't change it."""
        return self._tokens

    def logits_after(self, tokens: Sequence[int]) -> FloatRow:
        """Next-token logits after `tokens` (at least one), shape (width,).

        Evaluates only what follows the longest common prefix with the tokens evaluated
        before. Comparing costs time proportional to the length; where the caller knows
        what changed, `truncate` and `extend` don't compare.

        Raises:
            BadRequest: `tokens` is empty or longer than the context, or an id is out of range.
            ModelError: llama.cpp failed; the state is empty afterwards.
            RuntimeError: it is closed, or in use by another thread.
        """
        wanted = list(tokens)
        self._enter()
        try:
            if not wanted:
                raise BadRequest("draft: there is no token to predict from; give at least one")
            self._check_room(len(wanted))
            keep = _common_prefix(self._tokens, wanted)
            if keep == len(wanted):
                if keep == len(self._tokens) and self._row_is_current and self._row is not None:
                    return self._row
                keep -= 1
            new = wanted[keep:]
            self._check_ids(new)
            self._keep(keep)
            return self._append(new)
        finally:
            self._gate.lock.release()

    def extend(self, tokens: Sequence[int]) -> FloatRow:
        """Append `tokens` (at least one); next-token logits after them, shape (width,).

        Raises: as `logits_after`.
        """
        self._enter()
        try:
            if not len(tokens):
                raise BadRequest("draft: there is no token to append; give at least one")
            self._check_room(len(self._tokens) + len(tokens))
            self._check_ids(tokens)
            return self._append(tokens)
        finally:
            self._gate.lock.release()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            BadRequest: `length` is below 0 or above the number of tokens held.
            RuntimeError: it is closed, or in use by another thread.
        """
        self._enter()
        try:
            if not 0 <= length <= len(self._tokens):
                raise BadRequest(
                    f"draft: can't keep {length} tokens of {len(self._tokens)}; "
                    f"give 0 … {len(self._tokens)}"
                )
            self._keep(length)
        finally:
            self._gate.lock.release()

    def close(self) -> None:
        """Free the context. Waits for a call in another thread, which stops early. Idempotent.

        A row of logits that the caller still holds stays readable; the memory is freed
        with it.
        """
        self._gate.shut = True
        with self._gate.lock:
            context, self._context = self._context, None
            self._row = None
            self._row_is_current = False
            self._tokens = []
            self._evaluated = 0
        del context  # outside the lock, which freeing takes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self) -> None:
        if not self._gate.lock.acquire(blocking=False):
            raise RuntimeError(
                f"the draft {self._name} is in use by another thread; "
                f"give each thread its own LlamaDraft (they share the weights)"
            )
        if self._gate.shut:
            self._gate.lock.release()
            raise RuntimeError(f"the draft {self._name} is closed")

    def _check_room(self, length: int) -> None:
        if length > self._limit:
            raise BadRequest(
                f"{length} tokens don't fit the draft's context of {self._limit}; "
                f"send fewer, or make the draft with a larger context"
            )

    def _check_ids(self, tokens: Sequence[int]) -> None:
        for index, id_ in enumerate(tokens):
            if not 0 <= id_ < self._width:
                raise BadRequest(
                    f"draft: token id {id_} at index {index} is outside the model's "
                    f"0 … {self._width - 1}"
                )

    def _keep(self, length: int) -> None:
        if length == len(self._tokens):
            return
        self._row_is_current = False
        if length < self._evaluated:
            if self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
                self._evaluated = length
            else:  # a recurrent state has no past to go back to: start over at the next call
                self._api.llama_memory_clear(self._memory, True)
                self._evaluated = 0
        del self._tokens[length:]

    def _append(self, tokens: Sequence[int]) -> FloatRow:
        held, done = self._tokens, self._evaluated
        pending = tokens if done == len(held) else [*held[done:], *tokens]
        self._row_is_current = False
        size, left = self._batch_size, len(pending)
        try:
            for at in range(0, left, size):
                self._decode(pending[at : at + size], done + at, want_row=at + size >= left)
            held.extend(tokens)
            self._evaluated = done + left
            return self._read_row()
        except BaseException:  # an interrupt too: what llama.cpp holds is unknown now
            self._api.llama_memory_clear(self._memory, True)
            held.clear()
            self._evaluated = 0
            raise

    def _decode(self, tokens: Sequence[int], position: int, *, want_row: bool) -> None:
        if self._gate.shut:
            raise RuntimeError(f"the draft {self._name} was closed during a call")
        context = self._held_context()
        count = len(tokens)
        batch = context.batch
        batch.n_tokens = count
        if count == 1:
            self._batch_tokens[0] = tokens[0]
            self._batch_positions[0] = position
        else:
            self._batch_tokens[:count] = tokens
            self._batch_positions[:count] = range(position, position + count)
        self._batch_outputs[count - 1] = want_row
        status = self._api.llama_decode(context.handle, batch)
        self._batch_outputs[count - 1] = 0
        if status != 0:
            raise ModelError(
                f"llama.cpp could not evaluate {count} tokens at position {position} "
                f"of {self._name} (status {status}); the draft starts empty"
            )

    def _read_row(self) -> FloatRow:
        context = self._held_context()
        pointer = self._api.llama_get_logits_ith(context.handle, -1)
        if not pointer:
            raise ModelError(f"llama.cpp gave no logits for {self._name}; the draft starts empty")
        address = ctypes.addressof(pointer.contents)
        row = self._row
        if row is None or address != self._row_address:
            row = self._row = np.asarray(_Row(context, address, self._width))
            self._row_address = address
        self._row_is_current = True
        return row

    def _held_context(self) -> _Context:
        if self._context is None:
            raise RuntimeError(f"the draft {self._name} is closed")
        return self._context


def _common_prefix(held: list[int], wanted: list[int]) -> int:
    shorter = min(len(held), len(wanted))
    if held[:shorter] == wanted[:shorter]:
        return shorter
    for index in range(shorter):
        if held[index] != wanted[index]:
            return index
    return shorter


# ── threads ──────────────────────────────────────────────────────────────────────────


def choose_threads(
    cpus: Iterable[int],
    *,
    speed: Mapping[int, float] | None = None,
    core: Mapping[int, str] | None = None,
    quota: float | None = None,
    slow_below: float = 0.8,
) -> int:
    """How many threads llama.cpp should get: the fast physical cores, within the quota.

    All threads of a layer wait for the slowest, so one slow core costs more than it adds.

    Args:
        cpus: logical CPUs that this process may run on.
        speed: relative speed of each CPU (capacity or maximal frequency); CPUs are slow
            below `slow_below` of the fastest. Ignored unless known for all of `cpus`.
        core: the physical core of each CPU, any label. If not known for all of `cpus`,
            two CPUs are taken for one core.
        quota: CPU seconds a second that the process may use, None for no limit.
        slow_below: share of the fastest CPU's speed.

    Returns:
        1 … `MAX_DEFAULT_THREADS`.
    """
    chosen = set(cpus)
    if speed and chosen and chosen <= speed.keys():
        fastest = max(speed[cpu] for cpu in chosen)
        chosen = {cpu for cpu in chosen if speed[cpu] >= slow_below * fastest}
    if core and chosen <= core.keys():
        count = len({core[cpu] for cpu in chosen})
    else:
        count = len(chosen) // 2
    if quota is not None:
        count = min(count, math.floor(quota))
    return max(1, min(count, MAX_DEFAULT_THREADS))


def default_threads(root: str | os.PathLike[str] = "/") -> int:
    """`choose_threads` over this machine's readings (sysfs, affinity, cgroup quota).

    `root` is where `sys` and `proc` are looked for. Where a reading is missing, as on
    macOS and Windows, the choice does without it.
    """
    base = Path(root)
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    else:
        cpus = list(range(os.cpu_count() or 1))
    folder = base / "sys/devices/system/cpu"
    capacity = _read_each(cpus, folder, "cpu_capacity")
    frequency = _read_each(cpus, folder, "cpufreq/cpuinfo_max_freq")
    # Equal capacities say nothing: some kernels report 1024 for every CPU.
    uneven = len(set(capacity.values())) > 1
    speed = capacity if uneven or not frequency else frequency
    return choose_threads(
        cpus,
        speed={cpu: float(value) for cpu, value in speed.items() if value.isdigit()},
        core=_read_each(cpus, folder, "topology/thread_siblings_list"),
        quota=_cpu_quota(base),
        # Capacity counts work done, frequency only cycles: small cores hide in the latter.
        slow_below=0.6 if uneven else 0.8,
    )


def _read_each(cpus: Iterable[int], folder: Path, name: str) -> dict[int, str]:
    texts = ((cpu, _read_text(folder / f"cpu{cpu}" / name)) for cpu in cpus)
    return {cpu: text for cpu, text in texts if text}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _cpu_quota(base: Path) -> float | None:
    """The tightest CPU quota on the way from this process's control group to the root."""
    quotas = []
    for line in _read_text(base / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = base / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            quotas.append(_quota_at(place))
            if place == top:
                break
    found = [quota for quota in quotas if quota is not None]
    return min(found, default=None)


def _quota_at(folder: Path) -> float | None:
    text = _read_text(folder / "cpu.max") or " ".join(
        (_read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us"))
    )
    try:
        quota, period = (int(part) for part in text.split())
    except ValueError:  # "max 100000", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


# ── requantising ─────────────────────────────────────────────────────────────────────


def quantise_q2(source: Path, destination: Path) -> None:
    """Write `source` (GGUF, any type) requantised to Q2_K into `destination`.

    Rows whose length isn't a multiple of 256 fall back to a 4-bit type.

    Raises:
        ModelError: llama-cpp-python is missing, or `source` can't be read or
            `destination` written.
    """
    _check_gguf(source)
    llama = _llama()
    params = llama.api.llama_model_quantize_default_params()
    params.ftype = llama.api.LLAMA_FTYPE_MOSTLY_Q2_K
    params.allow_requantize = True
    params.nthread = default_threads()
    with llama.log.capture() as errors:
        status = llama.api.llama_model_quantize(
            os.fsencode(source), os.fsencode(destination), ctypes.byref(params)
        )
    if status != 0:
        raise ModelError(f"can't requantise {source} into {destination}: {_cause(errors)}")
