"""The simulation held against the real programs: `netsim validate`, over the relay."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.results import Row


def run(*, quick: bool = False) -> list[Row]:
    """One row for each link and way; one link where it is to be quick."""
    command = [sys.executable, "-m", "netsim.cli", "validate", "--by", "relay", "--json"]
    command += ["--profile", "rtt-50"] if quick else []
    # Ends with 1 where a way is too far off, which the rows show.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise RuntimeError(f"netsim validate ended with {done.returncode}; see above")
    rows = json.loads(done.stdout)["compared"]
    return [{key: value for key, value in row.items() if key != "runs"} for row in rows]
