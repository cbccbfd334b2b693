"""Fixtures for unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge_client.draft.llama_weights import LlamaWeights
from specwire.builtin import builtin_path
from specwire.errors import ModelError


@pytest.fixture(scope="module")
def real() -> Iterator[LlamaWeights]:
    try:
        path = builtin_path("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    with LlamaWeights(path) as weights:
        yield weights
