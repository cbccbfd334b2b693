"""Rows of a sweep as they are found, kept in a file so that a killed sweep can go on.

One JSON object a line: the first tells which sweep it is, each other one holds the rows from
a place on. It is only ever appended to; a last line that was cut off counts for nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from netsim.sweep.grid import Row
from specwire.errors import BadRequest, SpecwireError

if sys.platform != "win32":  # there, two sweeps at once are not noticed
    import fcntl


class Journal:
    """The journal of one sweep, new or gone on with.

    Args:
        path: of the file.
        key: the sweep's, which must be that of a file that is there.
        total: rows that the sweep has in the end.
        fresh: forget what is there.

    Raises:
        BadRequest: the file is another sweep's.
        SpecwireError: another process works on it.
    """

    def __init__(self, path: Path, key: str, total: int, *, fresh: bool = False) -> None:
        self.path = path
        self.rows: list[Row | None] = [None] * total
        """By their places; None where there is none yet."""
        self._file: BinaryIO = path.open("a+b")
        try:
            self._lock()
            self._read(key, fresh)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _lock(self) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SpecwireError(
                    f"another sweep is at work on {self.path}; wait for it, or write elsewhere"
                ) from error

    def _read(self, key: str, fresh: bool) -> None:
        self._file.seek(0)
        end = 0
        for line in self._file:
            item = _parsed(line)
            if item is None:
                break
            if end == 0 and not fresh and item.get("key") != key:
                raise BadRequest(
                    f"{self.path} is the journal of another sweep; finish that one, or give "
                    "--fresh to forget it"
                )
            if fresh:
                break
            if "rows" in item:
                first = int(item["first"])
                self.rows[first : first + len(item["rows"])] = item["rows"]
            end += len(line)
        self._file.truncate(end)  # appending goes on where the last whole line ended
        if end == 0:
            self._append({"key": key, "total": len(self.rows)})

    @property
    def done(self) -> int:
        """Rows that are there."""
        return sum(row is not None for row in self.rows)

    def missing(self, most: int) -> Iterator[range]:
        """Places without a row, in runs of at most so many."""
        first: int | None = None
        for place in range(len(self.rows) + 1):
            open_ = place < len(self.rows) and self.rows[place] is None
            if first is not None and (not open_ or place - first == most):
                yield range(first, place)
                first = None
            if open_ and first is None:
                first = place

    def add(self, first: int, rows: list[Row]) -> None:
        """Keep rows from a place on: one write, which a kill of this process can't undo."""
        self.rows[first : first + len(rows)] = rows
        self._append({"first": first, "rows": rows})

    def remove(self) -> None:
        """The sweep is done, and its rows are elsewhere."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _append(self, item: dict[str, Any]) -> None:
        self._file.write(json.dumps(item, separators=(",", ":")).encode() + b"\n")
        self._file.flush()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A whole line's object; None for what was cut off, or is no journal's."""
    if not line.endswith(b"\n"):
        return None
    try:
        item = json.loads(line)
    except ValueError:
        return None
    return item if isinstance(item, dict) else None
