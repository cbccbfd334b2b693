"""A fault of the verifier's own: one call fails, and those who watch hear of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc
import pytest

from cloud_verifier.metrics import Metrics
from specwire.v1 import verifier_pb2 as pb
from tests.support.serving import serving, stub_for
from tests.support.tables import LetterEncoder, TableBackend, random_table


class Broken(LetterEncoder):
    def encode_text(self, text: str) -> list[int]:
        raise RuntimeError("a secret of the prompt")

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        raise RuntimeError("another")


async def test_it_is_counted_and_logged_and_the_client_learns_no_more_than_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, backend = Metrics(), TableBackend(random_table(5, seed=1))
    frame = pb.Open(protocol_version=1, text="abc", max_tokens=2)
    async with serving(backend, Broken(), observer=metrics) as server, stub_for(server) as stub:
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Verify(pb.VerifyRequest(open=frame))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "the verifier failed unexpectedly; see its log"
    assert metrics.registry.get_sample_value("specwire_refused_total", {"code": "internal"}) == 1
    assert "a call failed unexpectedly" in caplog.text
