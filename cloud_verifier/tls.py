"""TLS for the listening port, from PEM files that are checked before they are used.

gRPC accepts any bytes and fails at each handshake, with little to go by. So the
files are tried first with the standard library, which says what is wrong.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from time import time

import grpc

from specwire.errors import BadRequest

logger = logging.getLogger(__name__)

WARN_DAYS = 14
"""A certificate that expires sooner is worth a warning."""

_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID


@dataclass(frozen=True)
class TlsFiles:
    """cert: the chain, leaf first. client_ca: who signs clients' certificates; None asks for none.

    All PEM.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerTls:
    """Credentials that follow their files: `reload` takes renewed ones without a restart."""

    def __init__(self, files: TlsFiles) -> None:
        """Read and check the files.

        Raises:
            BadRequest: one is missing, unreadable or no PEM, certificate and key don't
                belong together, or the certificate is expired or not valid yet.
        """
        self._files = files
        self._lock = threading.Lock()
        self._current = _configuration(files)
        self._changed = False

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._fetch,  # type: ignore[arg-type]  # its documentation allows None: no change
            self._files.client_ca is not None,
        )

    def reload(self) -> None:
        """Read the files again; connections made from now on see them.

        Raises:
            BadRequest: they can't be used; the former ones stay in use.
        """
        fresh = _configuration(self._files)
        with self._lock:
            self._current, self._changed = fresh, True

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        # Called by gRPC before each handshake, from a thread of its own.
        with self._lock:
            changed, self._changed = self._changed, False
            return self._current if changed else None


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    cert, key = _read(files.cert, "certificate"), _read(files.key, "private key")
    ca = _read(files.client_ca, "client CA") if files.client_ca is not None else None
    days = _check_pair(files)
    if days < WARN_DAYS:
        logger.warning("the certificate %s expires in %.1f days", files.cert, days)
    if files.client_ca is not None:
        _check_ca(files.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


def _read(path: Path, what: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"can't read the {what} {path}: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise BadRequest(f"the {what} {path} is no PEM file")
    return data


def _check_pair(files: TlsFiles) -> float:
    """Raise `BadRequest` unless a server could use the pair today; the days it has left."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(files.cert, files.key, password=lambda: _refuse_password(files.key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadRequest(
                f"the key {files.key} does not belong to the certificate {files.cert}; "
                "the certificate must be the first in its file"
            ) from error
        reason = error.reason or "not readable"
        raise BadRequest(
            f"certificate {files.cert} and key {files.key} can't be used: "
            f"{reason.replace('_', ' ').lower()}"
        ) from error
    try:
        return _days_left(server, files.cert)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise BadRequest(f"the certificate {files.cert} has expired; renew it") from error
        if error.verify_code == _NOT_YET:
            raise BadRequest(
                f"the certificate {files.cert} is not valid yet; is the clock right?"
            ) from error
        raise BadRequest(
            f"the certificate {files.cert} can't be used: {error.verify_message}"
        ) from error


def _days_left(server: ssl.SSLContext, cert: Path) -> float:
    """Shake hands with ourselves, in memory, trusting just this certificate."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            break
    shown = ends[0].getpeercert() or {}
    expiry = shown.get("notAfter")
    if not isinstance(expiry, str):
        return float("inf")
    return (ssl.cert_time_to_seconds(expiry) - time()) / 86_400


def _refuse_password(key: Path) -> str:
    raise BadRequest(f"the key {key} has a passphrase, which nobody is here to type; remove it")


def _check_ca(path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise BadRequest(f"the client CA {path} holds no usable certificate") from error
    if not context.cert_store_stats()["x509"]:
        raise BadRequest(f"the client CA {path} holds no certificate")
