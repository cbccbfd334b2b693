"""llama.cpp's library and what it logs.

The only file of the cloud that imports `llama_cpp`, and it does so at first use, so
that everything else of the cloud works without the package.
"""

from __future__ import annotations

import ctypes
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


class Llama:
    """llama.cpp's functions (`api`) and an ear for its log. One for the process."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self._lock = threading.Lock()
        # The package prints llama.cpp's log unless its logger is above every level.
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)
        api.llama_backend_init()
        # Of the finalizers at exit this runs last, being made first: from then on
        # llama.cpp must not call into an interpreter that is going away.
        weakref.finalize(self, api.llama_log_set, api.llama_log_callback(), None)

    @contextmanager
    def listening(self) -> Iterator[list[str]]:
        """Collect the error lines of what is done meanwhile; all lines go to DEBUG.

        The log is the whole process's, so whoever received it before gets it back.
        """
        errors: list[str] = []

        def receive(level: int, text: bytes, _user: Any) -> None:
            line = text.decode("utf-8", "replace").strip()
            if level == _GGML_ERROR:
                errors.append(line)
            _LOG.debug("%s", line)

        callback = self.api.llama_log_callback(receive)
        before, user = self.api.llama_log_callback(), ctypes.c_void_p()
        with self._lock:
            self.api.llama_log_get(ctypes.byref(before), ctypes.byref(user))
            self.api.llama_log_set(callback, None)
            try:
                yield errors
            finally:
                self.api.llama_log_set(before, user)


@cache
def _load_llama() -> Llama:
    try:
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"llama-cpp-python can't be loaded: {error}") from error
    return Llama(api)


_LOADING = threading.Lock()


def load_llama() -> Llama:
    """The library, loaded once: a second copy, dropped, would take the log away from the first.

    Raises:
        ModelError: llama-cpp-python can't be loaded.
    """
    with _LOADING:
        return _load_llama()


def cause_of(errors: Sequence[str]) -> str:
    """The line that says why: the loader's reason if it gave one, else the first complaint."""
    for line in errors:
        _, found, reason = line.partition("error loading model: ")
        if found and "failed to load model from" not in reason:
            return reason
    return errors[0] if errors else "llama.cpp gave no reason"
