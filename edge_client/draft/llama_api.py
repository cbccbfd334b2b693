"""llama.cpp's library and its log.

The only file of the edge that imports `llama_cpp`, and it does so at first use, so
that everything else of the edge works without the package.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from specwire.errors import ModelError

_LOG = logging.getLogger(__name__)
_GGML_ERROR = 4  # ggml.h: none 0, debug 1, info 2, warn 3, error 4, continued 5


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


class Llama:
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
def _load_llama() -> Llama:
    """The library, loaded at the first call.

    Raises:
        ModelError: llama-cpp-python is missing or can't be loaded.
    """
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
    return Llama(api)


def cause_of(errors: Sequence[str]) -> str:
    """The line that says why: the loader's reason if it gave one, else the first complaint."""
    for line in errors:
        _, found, reason = line.partition("error loading model: ")
        if found and "failed to load model from" not in reason:
            return reason
    return errors[0] if errors else "llama.cpp gave no reason"


_LOADING = threading.Lock()


def load_llama() -> Llama:
    """The library, loaded once: a second copy, dropped, would take the log away from the first.

    Raises:
        ModelError: llama-cpp-python is not installed.
    """
    with _LOADING:
        return _load_llama()
