"""What an import pulls in: specwire needs numpy, protobuf and grpc, and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SPECWIRE = Path(__file__).parents[2] / "proto" / "specwire"
ALLOWED = {"specwire", "numpy", "google", "grpc", *sys.stdlib_module_names}


@pytest.mark.parametrize(
    "path", sorted(SPECWIRE.rglob("*.py")), ids=lambda path: str(path.relative_to(SPECWIRE))
)
def test_specwire_imports_only_what_every_install_has(path: Path) -> None:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.split(".")[0])

    assert roots - ALLOWED == set()
