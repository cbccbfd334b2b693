"""Runs the benchmarks and prints a table and JSON for each: `make bench`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks import edge, modes, on_device, q_codec, relay, service, sweep

BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "q_codec": q_codec.run,
    "modes": modes.run,
    "service": service.run,
    "edge": edge.run,
    "on_device": on_device.run,
    "relay": relay.run,
    "sweep": sweep.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="default: all")
    names = parser.parse_args().names or list(BENCHMARKS)
    for name in names:
        rows = BENCHMARKS[name]()
        print(f"\n{name}\n{table(rows)}\n{json.dumps({name: rows})}", flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys in columns."""
    cells = [list(rows[0]), *[[_cell(v) for v in row.values()] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
