"""The generated modules of specwire.v1 are those that verifier.proto gives."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts import gen_proto


def test_committed_modules_are_fresh() -> None:
    assert gen_proto.stale() == []


def test_a_stale_or_missing_module_is_noticed(tmp_path: Path) -> None:
    for name in gen_proto.GENERATED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(gen_proto.PROTO_ROOT / name, tmp_path / name)
    edited, missing = gen_proto.GENERATED[:2]
    with (tmp_path / edited).open("a") as file:
        file.write("# edited by hand\n")
    (tmp_path / missing).unlink()

    assert gen_proto.stale(tmp_path) == [edited, missing]
    assert gen_proto.main([str(tmp_path), "--check"]) == 1
