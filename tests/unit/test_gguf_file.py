"""Files that llama.cpp must not see: they raise, and the process goes on (E4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError
from tests.support.processes import run_python
from tests.support.tiny_models import write_tiny_gguf


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model file at .*nowhere\.gguf"):
        LlamaWeights(tmp_path / "nowhere.gguf")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        LlamaWeights(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + b"\0" * 100])
def test_not_a_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.gguf is not a GGUF file"):
        LlamaWeights(path)


def test_two_tokens_of_one_spelling_do_not_abort(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "twins.gguf", renamed={40: "same", 50: "same"})
    with pytest.raises(ModelError, match="its tokens 40 and 50 are both spelled 'same'"):
        LlamaWeights(path)


_DAMAGED = """
import random, sys
from pathlib import Path
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from specwire.errors import ModelError
whole, place = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
chance, refused = random.Random(11), 0
for _ in range(150):
    damaged = bytearray(whole)
    damaged[chance.randrange(4, 12000)] = chance.randrange(256)
    place.write_bytes(damaged)
    try:
        LlamaDraft(LlamaWeights(place), context=64, threads=1).extend([5, 6])
    except ModelError:
        refused += 1
print(refused)
"""


@pytest.mark.slow
def test_damaged_metadata_never_ends_the_process(tmp_path: Path) -> None:
    # Its first 12 kB are metadata.
    path = write_tiny_gguf(tmp_path / "whole.gguf")
    result = run_python(_DAMAGED, path, tmp_path / "damaged.gguf")
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 20
