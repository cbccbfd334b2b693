"""Tokens, certificates and rates: what is let in, and what is said to the rest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.rates import Rates
from cloud_verifier.security import ANYONE, Access
from cloud_verifier.tls import ServerTls, TlsFiles
from cloud_verifier.tokens import (
    TokenSet,
    add_token,
    new_token,
    read_tokens,
    readable_by_others,
    revoke_token,
    token_hash,
)
from specwire.errors import BadRequest, Exhausted, Unauthenticated
from tests.support.certificates import Authority

# -------------------------------------------------------------------------- tokens


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.txt"


def test_a_token_is_random_and_its_file_holds_only_a_hash(file: Path):
    token = add_token(file, "alice")
    assert len(token) >= 43 and token != new_token()
    assert token not in file.read_text() and token_hash(token) in file.read_text()
    assert read_tokens(file).owner(token) == "alice"


def test_only_whole_valid_tokens_have_an_owner(file: Path):
    alice, bob = add_token(file, "alice"), add_token(file, "bob")
    tokens = read_tokens(file)
    assert (tokens.owner(alice), tokens.owner(bob)) == ("alice", "bob")
    for wrong in ("", alice[:-1], alice + "a", alice.lower(), token_hash(alice), "é"):
        assert tokens.owner(wrong) is None
    assert TokenSet({}).owner(alice) is None


@pytest.mark.skipif(os.name == "nt", reason="accounts and modes as on POSIX")
def test_a_changed_file_stays_whose_it_was_and_where_it_was(file: Path, tmp_path: Path):
    add_token(file, "alice")
    if os.geteuid() == 0:
        os.chown(file, 10001, 10002)
    before = file.stat()
    link = tmp_path / "link"
    link.symlink_to(file)
    add_token(link, "bob")
    after = file.stat()
    assert link.is_symlink() and read_tokens(file).names == ("alice", "bob")
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert not readable_by_others(file)


def test_a_revoked_token_is_gone_and_the_rest_stays(file: Path):
    alice, bob = add_token(file, "alice"), add_token(file, "bob")
    file.write_text("# people\n\n" + file.read_text())
    revoke_token(file, "alice")
    tokens = read_tokens(file)
    assert (tokens.owner(alice), tokens.owner(bob)) == (None, "bob")
    assert file.read_text().startswith("# people\n\nbob:")
    assert tokens.names == ("bob",)


@pytest.mark.skipif(os.name == "nt", reason="no modes there")
def test_the_file_is_for_its_owner_alone(file: Path):
    add_token(file, "alice")
    assert not readable_by_others(file)
    file.chmod(0o644)
    assert readable_by_others(file)
    add_token(file, "bob")
    assert not readable_by_others(file)


def test_duplicates_and_bad_names_are_refused(file: Path):
    add_token(file, "alice")
    before = file.read_bytes()
    with pytest.raises(BadRequest, match="alice has a token already"):
        add_token(file, "alice")
    for name in ("", "a:b", "a b", "-x", "a" * 65, "a\nb:sha256$"):
        with pytest.raises(BadRequest, match="can't be a client's name"):
            add_token(file, name)
    with pytest.raises(BadRequest, match="no client is called 'bob'"):
        revoke_token(file, "bob")
    assert file.read_bytes() == before


def test_a_bad_line_is_named_by_number_and_not_shown(file: Path):
    add_token(file, "alice")
    good = file.read_text()
    secret = new_token()
    for bad in (secret, f"bob:{secret}", f"bob:md5${'0' * 64}", f"bob:sha256${secret}"):
        file.write_text(f"{good}{bad}\n")
        with pytest.raises(BadRequest, match="line 2 is not of the form") as caught:
            read_tokens(file)
        assert secret not in str(caught.value)
    file.write_text(good + good)
    with pytest.raises(BadRequest, match="line 2 is the second token of alice"):
        read_tokens(file)


def test_a_file_that_cannot_be_read_or_written_is_said(tmp_path: Path):
    with pytest.raises(BadRequest, match=r"can't read the token file .*No such file"):
        read_tokens(tmp_path / "absent")
    with pytest.raises(BadRequest, match="can't write the token file"):
        add_token(tmp_path / "no" / "folder", "alice")


# -------------------------------------------------------------------------- access


class Call:
    """What `Access` asks of a call's context."""

    def __init__(self, *metadata: tuple[str, str], peer: dict[str, list[bytes]] | None = None):
        self._metadata, self._peer = metadata, peer or {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._peer


def identify(access: Access, *metadata: tuple[str, str], **more: Any) -> str:
    context: Any = Call(*metadata, **more)
    return access.identify(context)


def test_without_checks_everyone_is_anyone():
    assert not Access().closed
    assert identify(Access(), ("authorization", "Bearer x")) == ANYONE


def test_a_token_names_its_client(file: Path):
    token = add_token(file, "alice")
    access = Access(token_file=file)
    assert access.closed
    for scheme in ("Bearer", "bearer"):
        assert identify(access, ("authorization", f"{scheme} {token}")) == "token:alice"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {}", "{}"])
def test_a_wrong_token_is_refused_without_being_shown(file: Path, header: str):
    token = add_token(file, "alice")
    shown = header.format(token)
    with pytest.raises(Unauthenticated, match="not valid here") as caught:
        identify(Access(token_file=file), ("authorization", shown))
    assert token not in str(caught.value)


def test_two_tokens_in_one_call_are_refused(file: Path):
    token = add_token(file, "alice")
    pair = ("authorization", f"Bearer {token}")
    with pytest.raises(Unauthenticated):
        identify(Access(token_file=file), pair, pair)


def test_no_token_is_refused_with_what_to_do(file: Path):
    add_token(file, "alice")
    with pytest.raises(Unauthenticated, match="SPECWIRE_TOKEN or give --token-file"):
        identify(Access(token_file=file), ("user-agent", "x"))


def test_reload_takes_new_and_drops_revoked_tokens(file: Path):
    alice = add_token(file, "alice")
    access = Access(token_file=file)
    bob = add_token(file, "bob")
    revoke_token(file, "alice")
    access.reload()
    assert identify(access, ("authorization", f"Bearer {bob}")) == "token:bob"
    with pytest.raises(Unauthenticated):
        identify(access, ("authorization", f"Bearer {alice}"))


def test_a_broken_file_leaves_the_old_tokens_in_force(file: Path):
    token = add_token(file, "alice")
    access = Access(token_file=file)
    file.write_text("nonsense\n")
    with pytest.raises(BadRequest):
        access.reload()
    assert identify(access, ("authorization", f"Bearer {token}")) == "token:alice"


def test_a_certificate_names_its_client_in_a_space_of_its_own():
    access = Access(client_certificates=True)
    assert access.closed
    assert identify(access, peer={"x509_common_name": [b"alice"]}) == "cert:alice"
    assert identify(access, peer={"x509_subject": [b"O=x"]}) == "cert:O=x"
    with pytest.raises(Unauthenticated, match="names nobody"):
        identify(access, peer={"x509_common_name": [b""]})


# ---------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def test_good_files_are_taken_and_can_be_renewed(authority: Authority):
    pair = authority.issue("good")
    tls = ServerTls(TlsFiles(pair.cert, pair.key, authority.cert))
    assert tls.credentials() is not None
    assert tls._fetch() is None
    tls.reload()
    assert tls._fetch() is not None
    assert tls._fetch() is None


def test_a_renewal_that_fails_leaves_the_old_pair(authority: Authority):
    pair = authority.issue("renewed")
    tls = ServerTls(TlsFiles(pair.cert, pair.key))
    pair.cert.write_bytes(authority.issue("another").cert.read_bytes())
    with pytest.raises(BadRequest, match="does not belong to"):
        tls.reload()
    assert tls._fetch() is None


def refusal(files: TlsFiles) -> str:
    with pytest.raises(BadRequest) as caught:
        ServerTls(files)
    return str(caught.value)


def test_files_that_cannot_be_read_are_named(authority: Authority, tmp_path: Path):
    pair = authority.issue("readable")
    text = tmp_path / "text"
    text.write_text("hello")
    assert "can't read the certificate" in refusal(TlsFiles(tmp_path / "no", pair.key))
    assert "can't read the private key" in refusal(TlsFiles(pair.cert, tmp_path / "no"))
    assert "can't read the client CA" in refusal(TlsFiles(pair.cert, pair.key, tmp_path / "no"))
    assert f"certificate {text} is no PEM" in refusal(TlsFiles(text, pair.key))
    assert "client CA" in refusal(TlsFiles(pair.cert, pair.key, pair.key))


def test_pairs_that_cannot_serve_are_explained(authority: Authority):
    a, b = authority.issue("a"), authority.issue("b")
    assert "does not belong to the certificate" in refusal(TlsFiles(a.cert, b.key))
    assert "can't be used" in refusal(TlsFiles(a.key, a.key))
    old = authority.issue("old", begins=-3, ends=-1)
    assert re.search("certificate .*old.pem has expired; renew it", refusal(_files(old)))
    new = authority.issue("new", begins=1, ends=2)
    assert "not valid yet" in refusal(_files(new))
    locked = authority.issue("locked", passphrase=b"open sesame")
    assert "has a passphrase" in refusal(_files(locked))


def test_a_certificate_about_to_expire_is_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
):
    ServerTls(_files(authority.issue("soon", ends=3)))
    assert "expires in 3.0 days" in caplog.text
    caplog.clear()
    ServerTls(_files(authority.issue("later", ends=20)))
    assert not caplog.text


def _files(pair: Any) -> TlsFiles:
    return TlsFiles(pair.cert, pair.key)


# -------------------------------------------------------------------------- rates


def test_a_client_has_its_burst_and_then_its_rate():
    rates = Rates(10)
    for _ in range(20):
        rates.take("a", 100.0)
    with pytest.raises(Exhausted, match=r"more than 10 requests a second .*try again in 0\.1 s"):
        rates.take("a", 100.0)
    rates.take("a", 100.1)
    with pytest.raises(Exhausted):
        rates.take("a", 100.1)
    rates.take("b", 100.1)  # another client's share is its own
    for _ in range(20):
        rates.take("a", 200.0)


def test_a_stream_is_slowed_to_the_rate():
    rates = Rates(10)
    now = 0.0
    for _ in range(120):
        now += rates.wait("a", now)
    assert now == pytest.approx(10.0)


def test_a_slow_rate_lets_single_requests_through():
    rates = Rates(0.1)
    rates.take("a", 0.0)
    with pytest.raises(Exhausted):
        rates.take("a", 9.0)
    rates.take("a", 10.0)


def test_no_rate_is_no_limit():
    rates = Rates(0)
    for _ in range(1000):
        rates.take("a", 0.0)
