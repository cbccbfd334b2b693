"""What was measured, kept as JSON from one run to the next."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass
class Suite:
    """What one benchmark found, and on what. seconds: that it took."""

    rows: list[Row]
    environment: dict[str, str]
    seconds: float


@dataclass
class Results:
    """Suites by name, each the newest there is."""

    suites: dict[str, Suite] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of a file, none if there is none."""
        if not path.exists():
            return cls()
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls({name: Suite(**suite) for name, suite in found.items()})

    def write(self, path: Path) -> None:
        """Into a file, in place of what it held."""
        plain = {name: vars(suite) for name, suite in self.suites.items()}
        path.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
