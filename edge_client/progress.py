"""Lines for a person while something goes on, told to whoever shows them at the time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from edge_client import render


class Teller:
    """Takes lines for a person, from any thread, and passes them on.

    They go to standard error, or to whoever has asked for them meanwhile.
    """

    def __init__(self, tell: Callable[[str], None] = render.notice) -> None:
        self._tell = tell

    def __call__(self, line: str) -> None:
        """Tell a line."""
        self._tell(line)

    @contextlib.contextmanager
    def to(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Tell `tell` instead, within this context."""
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before
