"""The generated modules run with the installed grpc and protobuf."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

pytestmark = pytest.mark.wire


class Servicer(rpc.VerifierServicer):
    async def Describe(self, request, context):
        return pb.DescribeResponse(model="m", protocol_versions=[1])

    async def Decode(self, request_iterator, context):
        async for frame in request_iterator:
            number = frame.proposal.number
            yield pb.CloudFrame(verdict=pb.Verdict(number=number, token=0))


async def served(server: grpc.aio.Server) -> str:
    rpc.add_VerifierServicer_to_server(Servicer(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return f"127.0.0.1:{port}"


@pytest.fixture
async def stub() -> AsyncIterator[rpc.VerifierAsyncStub]:
    server = grpc.aio.server()
    async with grpc.aio.insecure_channel(await served(server)) as channel:
        yield rpc.VerifierStub(channel)
    await server.stop(grace=None)


async def test_unary_call(stub: rpc.VerifierAsyncStub) -> None:
    reply = await stub.Describe(pb.DescribeRequest())
    assert (reply.model, list(reply.protocol_versions)) == ("m", [1])


async def test_streaming_call(stub: rpc.VerifierAsyncStub) -> None:
    def frames() -> Iterator[pb.EdgeFrame]:
        for number in (1, 2):
            yield pb.EdgeFrame(proposal=pb.Proposal(number=number, tokens=[7]))

    replies = [frame async for frame in stub.Decode(frames())]

    assert [reply.verdict.number for reply in replies] == [1, 2]
    assert all(reply.verdict.HasField("token") for reply in replies)


async def test_a_call_not_served_is_unimplemented(stub: rpc.VerifierAsyncStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Close(pb.CloseRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_survives_the_wire() -> None:
    sent = pb.Proposal(number=3, chain=1, start=1 << 40, tokens=[0, 49151])
    sent.sparse.weight_bits = 6
    sent.sparse.rows = bytes(range(256))

    assert pb.Proposal.FromString(sent.SerializeToString()) == sent
