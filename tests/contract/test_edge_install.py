"""An edge install in an environment of its own: light, pure Python but for a few, and working."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.edge import VerifierThread
from tests.support.serving import tiny_target

ROOT = Path(__file__).resolve().parents[2]

COMPILED = {"grpcio", "numpy", "protobuf", "llama_cpp_python"}
"""What phones get from their own packages or build, and what llama-cpp-python needs itself."""

REPORT = """
import importlib.metadata as m, importlib.util as u, json
def compiled(dist):
    return any(str(f).endswith((".so", ".pyd", ".dylib")) for f in dist.files or ())
print(json.dumps({
    "found": [n for n in ("torch", "transformers", "simpy", "cloud") if u.find_spec(n)],
    "compiled": [d.name.lower().replace("-", "_") for d in m.distributions() if compiled(d)],
    "needed_by_llama": [r.split(">")[0].split("<")[0].split("=")[0].strip().lower()
                        for r in m.requires("llama-cpp-python") or () if "extra" not in r],
}))
"""


def has_pure_wheel(package: str, folder: Path) -> bool:
    """Whether there is a wheel for platforms that nobody has heard of."""
    where = ["--platform", "none_such", "--implementation", "py", "--abi", "none"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    done = subprocess.run(
        [*command, "--only-binary=:all:", *where, package], check=False, capture_output=True
    )
    return done.returncode == 0


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that holds the edge extra and nothing else."""
    folder = tmp_path_factory.mktemp("edge-install")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-c", str(ROOT / "constraints.txt"), f"{ROOT}[edge]"], check=True)
    return python


@pytest.mark.slow
@pytest.mark.timeout(1200)  # llama.cpp is built here, unless pip kept what it built before
def test_an_edge_install_is_light_and_works(python: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    done = subprocess.run([python, "-c", REPORT], check=True, capture_output=True, text=True)
    said = json.loads(done.stdout)
    assert said["found"] == []
    # jinja2, which llama-cpp-python brings, speeds itself up with MarkupSafe where it can.
    assert "jinja2" in said["needed_by_llama"]
    for name in set(said["compiled"]) - COMPILED - {"markupsafe"}:
        assert has_pure_wheel(name, tmp_path), f"{name} must be compiled on a phone"

    target = tiny_target(tiny_gguf)
    with VerifierThread(target.backend, target.encoder) as verifier:
        command = [str(python), "-m", "edge_client.cli", "generate", "Hello"]
        flags = ["--server", verifier.address, "--draft", str(tiny_gguf), "--max-tokens", "20"]
        done = subprocess.run(
            [*command, *flags, "--temperature", "0", "--json"],
            check=False,
            capture_output=True,
            text=True,
            cwd=python.parent,
        )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert len(shown["token_ids"]) == 20 and shown["notices"] == []
