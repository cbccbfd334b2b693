"""Who gets in, by token, by certificate and by neither, and what the rest are told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cloud_verifier.metrics import Metrics
from cloud_verifier.security import Access
from cloud_verifier.server import VerifierServer
from cloud_verifier.tls import ServerTls, TlsFiles
from cloud_verifier.tokens import add_token, revoke_token
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.certificates import Authority, Pair
from tests.support.drafter import Failure, Stream, failure_of, open_frame, point
from tests.support.serving import serving
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire

LIMITS = Limits(context=64)
LOST = grpc.StatusCode.UNAVAILABLE
DENIED = (grpc.StatusCode.UNAUTHENTICATED, pb.ERROR_CODE_UNAUTHENTICATED)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.txt"


def tls_of(pair: Pair, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(TlsFiles(pair.cert, pair.key, client_ca))


@contextlib.asynccontextmanager
async def verifier(
    access: Access, limits: Limits = LIMITS, **more: Any
) -> AsyncIterator[VerifierServer]:
    backend = TableBackend(random_table(5, seed=6), context=64)
    async with serving(backend, LetterEncoder(), limits, access=access, **more) as server:
        yield server


@contextlib.asynccontextmanager
async def caller(
    server: VerifierServer,
    *,
    token: str | None = None,
    ca: Path | None = None,
    pair: Pair | None = None,
) -> AsyncIterator[rpc.VerifierAsyncStub]:
    """A client by hand: TLS if it has a `ca`, with a certificate, with a token."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if token is not None:
        interceptors = [BearerCalls(token), BearerStreams(token)]
    if ca is None:
        channel = grpc.aio.insecure_channel(server.address, options, interceptors=interceptors)
    else:
        channel = grpc.aio.secure_channel(
            server.address, client_tls(ca, pair), options, interceptors=interceptors
        )
    async with channel:
        yield rpc.VerifierStub(channel)


def client_tls(ca: Path, pair: Pair | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        ca.read_bytes(),
        pair.key.read_bytes() if pair else None,
        pair.cert.read_bytes() if pair else None,
    )


class _Bearer:
    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def with_token(self, details: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self._header)
        return details._replace(metadata=metadata)


class BearerCalls(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self.with_token(details), request)


class BearerStreams(_Bearer, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Any, details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(self.with_token(details), request_iterator)


def reflection(channel: Any) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel)


async def refused(work: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return failure_of(caught.value)


async def unreachable(stub: rpc.VerifierAsyncStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Describe(pb.DescribeRequest(), timeout=5)
    assert caught.value.code() in (LOST, grpc.StatusCode.DEADLINE_EXCEEDED)


async def describe(stub: rpc.VerifierAsyncStub) -> pb.DescribeResponse:
    return await stub.Describe(pb.DescribeRequest(), timeout=5)


async def opened(stub: rpc.VerifierAsyncStub) -> pb.Opened:
    request = pb.VerifyRequest(open=open_frame([1, 3], max_tokens=20, open_key=b"k" * 16))
    return (await stub.Verify(request, timeout=5)).opened


async def one_round(stub: rpc.VerifierAsyncStub, session: pb.Opened, number: int) -> int:
    """A round with an empty proposal; how many tokens are committed after it."""
    frontier = session.frontier + number - 1
    request = pb.VerifyRequest(
        session_id=session.session_id,
        frontier=frontier,
        proposal=point(number, 1, frontier, []),
    )
    return (await stub.Verify(request, timeout=5)).frontier


# -------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("secure", [False, True])
async def test_only_the_right_token_opens(
    secure: bool, authority: Authority, pair: Pair, tokens: Path
):
    alice = add_token(tokens, "alice")
    ca = authority.cert if secure else None
    access = Access(token_file=tokens, tls=tls_of(pair) if secure else None)
    metrics = Metrics()
    async with verifier(access, observer=metrics) as server:
        async with caller(server, token=alice, ca=ca) as stub:
            assert (await describe(stub)).model == "table"
            session = await opened(stub)
            assert await one_round(stub, session, 1) == session.frontier + 1
        for wrong in (None, "", alice[:-1], alice.upper()):
            async with caller(server, token=wrong, ca=ca) as stub:
                failure = await refused(describe(stub))
                assert (failure.status, failure.code) == DENIED
                assert alice[:8] not in failure.message
                failure = await refused(opened(stub))
                assert (failure.status, failure.code) == DENIED
                failure = await refused(stub.Close(pb.CloseRequest()))
                assert (failure.status, failure.code) == DENIED
        assert server.sessions == 1
    value = metrics.registry.get_sample_value
    assert value("specwire_auth_failures_total") == 12
    assert value("specwire_refused_total", {"code": "unauthenticated"}) == 12


async def test_streams_are_refused_before_their_first_frame(tokens: Path):
    add_token(tokens, "alice")
    async with verifier(Access(token_file=tokens)) as server, caller(server) as stub:
        failure = await refused(Stream.decode(stub).read())
        assert (failure.status, failure.code) == DENIED
        failure = await refused(Stream(stub.Generate(open_frame([1]))).read())
        assert (failure.status, failure.code) == DENIED


async def test_tokens_can_be_added_and_revoked_while_it_runs(tokens: Path):
    alice = add_token(tokens, "alice")
    access = Access(token_file=tokens)
    async with verifier(access) as server:
        bob = add_token(tokens, "bob")
        revoke_token(tokens, "alice")
        async with caller(server, token=alice) as a, caller(server, token=bob) as b:
            await describe(a)
            await refused(describe(b))
            access.reload()
            await describe(b)
            await refused(describe(a))


async def test_health_is_open_and_reflection_is_not(tokens: Path):
    add_token(tokens, "alice")
    async with (
        verifier(Access(token_file=tokens)) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="specwire.v1.Verifier"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection(channel).ServerReflectionInfo()
        failure = await refused(Stream(call).read())
        assert (failure.status, failure.code) == DENIED


async def test_reflection_is_absent_even_with_a_token(tokens: Path):
    alice = add_token(tokens, "alice")
    async with (
        verifier(Access(token_file=tokens)) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        call = reflection(channel).ServerReflectionInfo(
            metadata=[("authorization", f"Bearer {alice}")]
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream(call).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_checks_reflection_is_there():
    async with (
        verifier(Access()) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        call = reflection(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer: Any = await Stream(call).read()
        assert "specwire.v1.Verifier" in str(answer)
        call.cancel()


# ------------------------------------------------------------------ other's sessions


async def test_another_clients_session_is_out_of_reach(tokens: Path):
    alice, bob = add_token(tokens, "alice"), add_token(tokens, "bob")
    access = Access(token_file=tokens)
    async with (
        verifier(access) as server,
        caller(server, token=alice) as victim,
        caller(server, token=bob) as thief,
    ):
        session = await opened(victim)
        assert await one_round(victim, session, 1) == session.frontier + 1

        failures = [
            await refused(one_round(thief, session, 2)),
            await refused(thief.Close(pb.CloseRequest(session_id=session.session_id))),
        ]
        stream = Stream.decode(thief)
        await stream.send(pb.Resume(protocol_version=1, session_id=session.session_id, frontier=3))
        failures.append(await refused(stream.read()))
        for failure in failures:
            assert failure.status is grpc.StatusCode.PERMISSION_DENIED
            assert failure.code == pb.ERROR_CODE_NOT_OWNER
            assert failure.frontier == 0  # nothing is told about it

        assert await one_round(victim, session, 2) == session.frontier + 2
        # The same idempotency key of another caller is another session.
        other = await opened(thief)
        assert other.session_id != session.session_id
        assert server.sessions == 2


async def test_a_victims_stream_goes_on_while_others_try(tokens: Path):
    alice, bob = add_token(tokens, "alice"), add_token(tokens, "bob")
    async with (
        verifier(Access(token_file=tokens)) as server,
        caller(server, token=alice) as victim,
        caller(server, token=bob) as thief,
    ):
        stream = Stream.decode(victim)
        await stream.send(open_frame([1, 3], max_tokens=20))
        first = await stream.read()
        assert first is not None
        for number in range(1, 6):
            raid = Stream.decode(thief)
            await raid.send(
                pb.Resume(protocol_version=1, session_id=first.opened.session_id, frontier=2)
            )
            assert (await refused(raid.read())).code == pb.ERROR_CODE_NOT_OWNER
            await stream.send(point(number, 1, 1 + number, []))
            frame = await stream.read()
            assert frame is not None and frame.verdict.number == number
        await stream.half_close()


async def test_limits_are_counted_by_client(tokens: Path):
    alice, bob = add_token(tokens, "alice"), add_token(tokens, "bob")
    limits = Limits(context=64, sessions=3, sessions_per_client=2, prompt=5, requests_per_s=4)
    async with (
        verifier(Access(token_file=tokens), limits) as server,
        caller(server, token=alice) as a,
        caller(server, token=bob) as b,
    ):
        announced = (await describe(a)).limits
        assert (announced.sessions_per_client, announced.prompt) == (2, 5)
        assert announced.requests_per_s == 4

        def asked(count: int = 2) -> pb.VerifyRequest:
            return pb.VerifyRequest(open=open_frame([1] * count))

        failure = await refused(a.Verify(asked(6)))
        assert failure.status is grpc.StatusCode.INVALID_ARGUMENT
        assert "6 tokens; this verifier takes 5" in failure.message
        for _ in range(2):
            await a.Verify(asked())
        failure = await refused(a.Verify(asked()))
        assert failure.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "you have 2 sessions" in failure.message
        await b.Verify(asked())
        failure = await refused(b.Verify(asked()))
        assert "the verifier holds 3 sessions" in failure.message
        for _ in range(4):
            failure = await refused(a.Verify(asked()))
        failure = await refused(a.Verify(asked()))
        assert failure.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more than 4 requests a second" in failure.message
        failure = await refused(b.Verify(asked()))
        assert "the verifier holds 3 sessions" in failure.message  # bob's share is his own


async def test_a_stream_above_the_rate_is_slowed_and_others_are_not(tokens: Path):
    alice, bob = add_token(tokens, "alice"), add_token(tokens, "bob")
    limits = Limits(context=64, requests_per_s=20)

    async def rounds(stub: rpc.VerifierAsyncStub, count: int) -> float:
        begun = time.monotonic()
        stream = Stream.decode(stub)
        await stream.send(open_frame([1], max_tokens=60))
        await stream.opened()
        for number in range(1, count + 1):
            await stream.send(point(number, 1, number, []))
            assert (await stream.verdict()).number == number
        return time.monotonic() - begun

    async with (
        verifier(Access(token_file=tokens), limits) as server,
        caller(server, token=alice) as a,
        caller(server, token=bob) as b,
    ):
        slowed, free = await asyncio.gather(rounds(a, 55), rounds(b, 30))
    # 56 requests, 40 of them at once, the rest at 20 a second.
    assert 0.75 <= slowed < 3.0
    assert free < slowed


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized():
    class Encoder(LetterEncoder):
        def encode_text(self, text: str) -> list[int]:
            raise AssertionError("tokenized")

    backend = TableBackend(random_table(5, seed=6), context=64)
    async with serving(backend, Encoder(), LIMITS) as server, caller(server) as stub:
        opening = pb.Open(protocol_version=1, text="a" * 10_000)
        failure = await refused(stub.Verify(pb.VerifyRequest(open=opening)))
        assert failure.status is grpc.StatusCode.INVALID_ARGUMENT
        assert "10000 bytes, too much for the 64 tokens" in failure.message


# ----------------------------------------------------------------------------- TLS


async def test_plain_text_does_not_reach_a_tls_port(pair: Pair):
    async with verifier(Access(tls=tls_of(pair))) as server, caller(server) as stub:
        await unreachable(stub)


async def test_tls_does_not_reach_a_plain_port(authority: Authority):
    async with verifier(Access()) as server, caller(server, ca=authority.cert) as stub:
        await unreachable(stub)


async def test_a_client_that_trusts_another_authority_leaves(pair: Pair, tmp_path: Path):
    other = Authority(tmp_path, "another authority")
    async with (
        verifier(Access(tls=tls_of(pair))) as server,
        caller(server, ca=other.cert) as stub,
    ):
        await unreachable(stub)


async def test_a_renewed_certificate_is_used_after_a_reload(tmp_path: Path):
    old, new = Authority(tmp_path, "old authority"), Authority(tmp_path, "new authority")
    used = old.issue("used")
    access = Access(tls=tls_of(used))
    async with verifier(access) as server:
        async with caller(server, ca=old.cert) as stub:
            await describe(stub)
            fresh = new.issue("fresh")
            used.cert.write_bytes(fresh.cert.read_bytes())
            used.key.write_bytes(fresh.key.read_bytes())
            access.reload()
            await describe(stub)  # connections that are open stay
        async with caller(server, ca=new.cert) as stub:
            await describe(stub)
        async with caller(server, ca=old.cert) as stub:
            await unreachable(stub)


# ---------------------------------------------------------------------- mutual TLS


async def test_mutual_tls_asks_for_a_certificate_of_the_right_authority(
    authority: Authority, pair: Pair, tmp_path: Path
):
    stranger = Authority(tmp_path, "stranger").issue("mallory", "alice")
    access = Access(tls=tls_of(pair, authority.cert), client_certificates=True)
    async with verifier(access) as server:
        async with caller(server, ca=authority.cert, pair=authority.issue("a", "alice")) as stub:
            assert (await opened(stub)).frontier == 2
        for wrong in (None, stranger, authority.issue("late", "alice", begins=-3, ends=-1)):
            async with caller(server, ca=authority.cert, pair=wrong) as stub:
                await unreachable(stub)


async def test_certificates_bind_sessions_to_their_names(authority: Authority, pair: Pair):
    access = Access(tls=tls_of(pair, authority.cert), client_certificates=True)
    async with (
        verifier(access) as server,
        caller(server, ca=authority.cert, pair=authority.issue("b", "alice")) as victim,
        caller(server, ca=authority.cert, pair=authority.issue("c", "bob")) as thief,
        caller(server, ca=authority.cert, pair=authority.issue("d", "alice")) as renewed,
    ):
        session = await opened(victim)
        failure = await refused(one_round(thief, session, 1))
        assert failure.code == pb.ERROR_CODE_NOT_OWNER
        assert await one_round(victim, session, 1) == session.frontier + 1
        assert await one_round(renewed, session, 2) == session.frontier + 2
