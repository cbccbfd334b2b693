"""The edge against verifiers that ask who it is, and against ones it must not trust."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.security import Access
from cloud_verifier.server import VerifierServer
from cloud_verifier.tls import ServerTls, TlsFiles
from cloud_verifier.tokens import add_token
from edge_client import Credentials, EdgeClient, GenerateOptions, Mode
from edge_client.link import Link
from specwire.errors import BadRequest, LinkError, Unauthenticated, Untrusted
from specwire.limits import Limits
from tests.support.certificates import Authority, Pair
from tests.support.edge import VerifierThread, edge_client
from tests.support.tables import LetterEncoder, TableBackend, random_table

pytestmark = pytest.mark.wire  # what TLS says differs between versions of gRPC

OPTIONS = GenerateOptions(mode=Mode.STREAM, max_tokens=8)


class Guarded(VerifierThread):
    """A verifier that asks for what its `Access` says."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.calls = 0
        super().__init__(
            TableBackend(random_table(5, seed=6), context=64), LetterEncoder(), Limits(context=64)
        )

    def start(self) -> None:
        async def begin() -> VerifierServer:
            server = VerifierServer(
                self.backend,
                self.encoder,
                listen=self.address,
                limits=self._limits,
                access=self._access,
                observer=self,
            )
            await server.start()
            return server

        self._server = self.run(begin())
        self.address = self._server.address

    def refused(self, error: Exception) -> None:
        self.calls += 1

    def forward_ended(self, sessions: int, forward_s: float) -> None: ...
    def round_ended(self, round: Any) -> None: ...
    def drafts_received(self, tokens: int) -> None: ...
    def drafts_stale(self, tokens: int) -> None: ...


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.txt"


Start = Callable[[Access], Guarded]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Guarded] = []

    def begin(access: Access) -> Guarded:
        running.append(Guarded(access))
        return running[-1]

    yield begin
    for verifier in running:
        verifier.close()


def tls_of(pair: Pair, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(TlsFiles(pair.cert, pair.key, client_ca))


def ids(server: str, credentials: Credentials, notices: list[str] | None = None) -> list[int]:
    notify = (notices if notices is not None else []).append
    with EdgeClient(server, credentials=credentials, notify=notify) as client:
        return client.generate([1, 3], options=OPTIONS).token_ids


def test_a_token_over_tls_gets_in(start: Start, authority: Authority, tokens: Path):
    token = add_token(tokens, "alice")
    verifier = start(Access(token_file=tokens, tls=tls_of(authority.issue("server"))))
    good = Credentials(tls=True, ca=authority.cert, token=token)
    assert len(ids(verifier.address, good)) == 8
    # By name as well: the certificate is made for both.
    name = verifier.address.replace("127.0.0.1", "localhost")
    assert len(ids(name, good)) == 8


def test_a_client_certificate_gets_in(start: Start, authority: Authority):
    tls = tls_of(authority.issue("server"), authority.cert)
    verifier = start(Access(tls=tls, client_certificates=True))
    own = authority.issue("alice", "alice")
    assert ids(
        verifier.address, Credentials(tls=True, ca=authority.cert, cert=own.cert, key=own.key)
    )
    with pytest.raises(LinkError, match="does it ask for TLS or a client certificate"):
        ids(verifier.address, Credentials(tls=True, ca=authority.cert))


@pytest.mark.parametrize("token", [None, "sw_wrong"])
def test_a_refused_token_is_final(start: Start, tokens: Path, token: str | None):
    add_token(tokens, "alice")
    verifier = start(Access(token_file=tokens))
    notices: list[str] = []
    with pytest.raises(Unauthenticated):
        ids(verifier.address, Credentials(token=token), notices)
    assert verifier.calls == 1 and not notices  # one attempt


@pytest.mark.parametrize("server", ["10.0.0.1:7710", "verifier.example:7710", "[fd00::1]:7710"])
def test_a_token_is_never_sent_in_plain_text_to_another_machine(server: str):
    with pytest.raises(BadRequest, match=f"token for .*{server.rpartition(':')[2]} would travel"):
        EdgeClient(server, credentials=Credentials(token="sw_x"))
    with pytest.raises(BadRequest, match="would travel in plain text"):
        Link(server, Credentials(token="sw_x"))
    EdgeClient(server, credentials=Credentials(tls=True, token="sw_x"))
    EdgeClient("localhost:7710", credentials=Credentials(token="sw_x"))


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "é"])
def test_what_is_no_token_is_refused(token: str):
    with pytest.raises(BadRequest, match="characters that no token has"):
        Credentials(token=token)


def test_a_token_is_not_shown_by_accident():
    assert "secret" not in repr(Credentials(token="sw_secret"))


def test_certificates_need_tls_and_come_in_pairs(tmp_path: Path):
    with pytest.raises(BadRequest, match="over TLS only"):
        Credentials(ca=tmp_path)
    with pytest.raises(BadRequest, match="given together"):
        Credentials(tls=True, cert=tmp_path)


@pytest.mark.parametrize("case", ["no address", "name alone", "stranger", "plain"])
def test_a_verifier_that_cannot_be_trusted_gives_one_clear_error(
    case: str, start: Start, authority: Authority, tmp_path: Path
):
    access, message = {
        "no address": lambda: (
            Access(tls=tls_of(authority.issue("noip", addresses=()))),
            "not made for 127.0.0.1; .* subjectAltName",
        ),
        "name alone": lambda: (
            Access(tls=tls_of(authority.issue("cn", "127.0.0.1", hosts=(), addresses=()))),
            "not made for 127.0.0.1",
        ),
        "stranger": lambda: (
            Access(tls=tls_of(Authority(tmp_path, "stranger").issue("s"))),
            "signed by nobody this client trusts.*--tls-ca",
        ),
        "plain": lambda: (Access(), "speaks no TLS"),
    }[case]()
    verifier = start(access)
    notices: list[str] = []
    with pytest.raises(Untrusted, match=message):
        ids(verifier.address, Credentials(tls=True, ca=authority.cert), notices)
    assert not notices


def test_an_expired_certificate_is_named(
    start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    # A verifier refuses to start with one; this one's expires while it runs.
    monkeypatch.setattr("cloud_verifier.tls._check_pair", lambda files: 99.0)
    verifier = start(Access(tls=tls_of(authority.issue("old", begins=-3, ends=-1))))
    with pytest.raises(Untrusted, match="has expired; its operator must renew it"):
        ids(verifier.address, Credentials(tls=True, ca=authority.cert))


def test_plain_text_to_a_tls_port_hints_at_tls(start: Start, authority: Authority):
    verifier = start(Access(tls=tls_of(authority.issue("server"))))
    with pytest.raises(LinkError, match="does it ask for TLS"):
        ids(verifier.address, Credentials())


# ------------------------------------------------------------------- command line


def test_the_command_line_takes_tokens_and_authorities(
    start: Start, authority: Authority, tokens: Path, tmp_path: Path
):
    token = add_token(tokens, "alice")
    verifier = start(Access(token_file=tokens, tls=tls_of(authority.issue("server"))))
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    common = ["generate", "b", "--server", verifier.address, "--draft", "none", "--json"]
    common += ["--max-tokens", "4", "--tls-ca", str(authority.cert)]

    for done in (
        edge_client(*common, "--token-file", str(file)),
        edge_client(*common, SPECWIRE_TOKEN=token),
    ):
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["token_ids"]) == 4

    done = edge_client(*common, SPECWIRE_TOKEN="sw_wrong")
    assert done.returncode == 1
    assert "not valid here" in done.stderr and "next attempt" not in done.stderr
    assert "sw_wrong" not in done.stderr


def test_the_command_line_refuses_what_is_unsafe(tmp_path: Path):
    common = ["generate", "b", "--draft", "none"]
    done = edge_client(*common, "--server", "10.0.0.1:7710", SPECWIRE_TOKEN="sw_x")
    assert done.returncode == 2
    assert "would travel in plain text" in done.stderr and "sw_x" not in done.stderr
    done = edge_client(*common, "--token-file", str(tmp_path / "absent"))
    assert done.returncode == 2 and "can't read the token file" in done.stderr
    done = edge_client(*common, "--tls-ca", str(tmp_path / "absent"))
    assert done.returncode == 2 and "can't read" in done.stderr
