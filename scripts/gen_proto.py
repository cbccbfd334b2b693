"""Generate the modules of specwire.v1 from verifier.proto.

    python scripts/gen_proto.py              write them beside the .proto file
    python scripts/gen_proto.py OUT          write them to OUT/specwire/v1/
    python scripts/gen_proto.py --check      fail if the committed ones are stale

The generators are pinned and live in a virtual environment of their own,
`.venv-proto`, made on demand: the code must come from the lowest grpc and
protobuf that the project declares, so that it runs with every later one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"
SOURCE = "specwire/v1/verifier.proto"
GENERATED = tuple(
    f"specwire/v1/verifier_{name}" for name in ("pb2.py", "pb2.pyi", "pb2_grpc.py", "pb2_grpc.pyi")
)
PINS = ("grpcio-tools==1.76.0", "mypy-protobuf==5.1.0", "protobuf==6.33.6", "setuptools<82")
VENV = ROOT / ".venv-proto"


def ensure_venv() -> Path:
    """The folder with the pinned generators, installed if it is absent or of other pins."""
    bin_dir = VENV / "bin"
    stamp = VENV / ".pins"
    wanted = "\n".join((*PINS, f"{sys.version_info[0]}.{sys.version_info[1]}"))
    if stamp.is_file() and stamp.read_text() == wanted:
        return bin_dir
    venv.create(VENV, with_pip=True, clear=True)
    command = [str(bin_dir / "python"), "-m", "pip", "install", "--quiet", *PINS]
    subprocess.run(command, check=True)
    stamp.write_text(wanted)
    return bin_dir


def generate(out: Path) -> None:
    """Write the generated modules below `out`, laid out as below `proto/`."""
    bin_dir = ensure_venv()
    out.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            str(bin_dir / "python"),
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-mypy_grpc={bin_dir / 'protoc-gen-mypy_grpc'}",
            f"--proto_path={PROTO_ROOT}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            SOURCE,
        ],
        check=True,
    )


def stale(committed: Path = PROTO_ROOT) -> list[str]:
    """Generated files below `committed` that differ from what the .proto file gives now."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        return [
            name
            for name in GENERATED
            if not (committed / name).is_file()
            or (committed / name).read_bytes() != (fresh / name).read_bytes()
        ]


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status is 1 if `--check` found stale files."""
    parser = argparse.ArgumentParser(description="Generate the modules of specwire.v1.")
    parser.add_argument("out", nargs="?", type=Path, default=PROTO_ROOT)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args(argv)
    if not args.check:
        generate(args.out)
        return 0
    names = stale(args.out)
    for name in names:
        print(f"stale: {name}; run: make proto", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
