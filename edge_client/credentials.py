"""How the edge shows who it is, and how it makes sure whom it speaks to."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from specwire.errors import BadRequest


@dataclass(frozen=True)
class Credentials:
    """For all links of a client.

    tls: encrypt, and check the verifier's certificate. ca: PEM file with the
    authorities to trust instead of the usual public ones. cert, key: PEM files that
    show who this client is, where the verifier asks for that. token: shown with
    each call.
    """

    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what makes no sense together.

        Raises:
            BadRequest: files without TLS, half a pair, or a token that can't be sent.
        """
        if not self.tls and (self.ca or self.cert or self.key):
            raise BadRequest("certificates are of use over TLS only; switch it on")
        if (self.cert is None) != (self.key is None):
            raise BadRequest("a client certificate and its key must be given together")
        if self.token is not None and not (
            self.token
            and self.token.isascii()
            and self.token.isprintable()
            and " " not in self.token
        ):
            raise BadRequest("the token is empty or holds characters that no token has")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()

    def check(self, server: str) -> None:
        """Raise `BadRequest` if the token would travel to another machine in plain text."""
        if self.token is not None and not self.tls and not is_loopback(server):
            raise BadRequest(
                f"a token for {server} would travel in plain text; use TLS "
                "(--tls, or --tls-ca FILE for a private authority)"
            )

    def channel(self, server: str, options: list[tuple[str, object]]) -> grpc.aio.Channel:
        """A channel that uses them.

        Raises:
            BadRequest: a file can't be read.
        """
        if not self.tls:
            return grpc.aio.insecure_channel(server, options=options)
        return grpc.aio.secure_channel(
            server,
            grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert)),
            options=options,
        )


def is_loopback(server: str) -> bool:
    """Whether HOST:PORT is this machine itself."""
    host = server.rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"can't read {path}: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise BadRequest(f"{path} is no PEM file")
    return data
