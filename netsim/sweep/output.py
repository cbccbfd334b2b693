"""Rows into a file: CSV or Parquet, by its ending. It is there whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from netsim.fields import nearest
from netsim.sweep.grid import Row
from specwire.errors import BadRequest, Unsupported

_ENDINGS = (".csv", ".parquet")


def check(path: Path) -> None:
    """Find out before hours of work whether the file can be written.

    Raises:
        BadRequest: its ending is unknown, or its folder is not there.
        Unsupported: a package is missing for it.
    """
    if path.suffix not in _ENDINGS:
        raise BadRequest(
            f"--out must end in .csv or .parquet, not {path.suffix or path.name!r}"
            + (nearest(path.suffix, _ENDINGS) if path.suffix else "")
        )
    if not path.parent.is_dir():
        raise BadRequest(f"there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise BadRequest(f"--out {path} is a folder; give a file")
    if path.suffix == ".parquet":
        _arrow()


def write(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write all of them, in place of what was there."""
    writer: Callable[[Path, Sequence[str], Sequence[Row]], None]
    writer = _write_parquet if path.suffix == ".parquet" else _write_csv
    beside = path.with_name(f".{path.name}.part")
    try:
        writer(beside, columns, rows)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    arrow, parquet = _arrow()
    names = {"way", "profile"}
    whole = {"seed", "gamma", "clients"}
    arrays = []
    for place, name in enumerate(columns):
        kind = arrow.string() if name in names else arrow.float64()
        kind = arrow.int64() if name in whole else kind
        arrays.append(arrow.array([row[place] for row in rows], kind))
    parquet.write_table(arrow.table(arrays, names=list(columns)), path)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"Parquet needs the package {error.name}; install it with: "
            "pip install 'specwire[netsim,parquet]', or write .csv"
        ) from error
    return pyarrow, pyarrow.parquet
