"""Fixtures for every kind of test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a full byte vocabulary and a chat template. Treat it as read-only."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_tiny_gguf(folder / "tiny.gguf", chat_template=CHAT_TEMPLATE)
