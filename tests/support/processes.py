"""Running Python code in a process of its own, and how long processes may take."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def quickly_s(seconds: float = 2.0) -> float:
    """So many seconds, and more while others keep this machine busy."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
