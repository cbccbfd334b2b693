"""The usual target: a verifier at an address, or one of several."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.credentials import Credentials
from edge_client.draft.source import DraftSource
from edge_client.failover import FailoverLink
from edge_client.link import Link
from specwire.errors import BadRequest


class RemoteVerifiers:
    """A `Connector` to verifiers: the first that can be used is.

    Args:
        servers: HOST:PORT of each, the preferred one first.
        credentials: for all of them; None for plain text without a token.

    Raises:
        BadRequest: there is none, one is not HOST:PORT or named twice, or the credentials
            don't suit it.
    """

    def __init__(self, servers: Sequence[str], credentials: Credentials | None = None) -> None:
        self._servers = tuple(servers)
        self._credentials = credentials or Credentials()
        if not self._servers:
            raise BadRequest("give the HOST:PORT of at least one server")
        for server in self._servers:
            host, colon, port = server.rpartition(":")
            digits = port.isascii() and port.isdigit()
            if not (colon and host and digits and host.isprintable()):
                raise BadRequest(f"the server must be HOST:PORT, not {server!r}")
            if self._servers.count(server) > 1:
                raise BadRequest(f"the server {server} is given twice")
            self._credentials.check(server)

    @property
    def shares_cores(self) -> bool:
        """The target computes elsewhere."""
        return False

    def link(self) -> FailoverLink:
        """Channels of their own for the running event loop: loops can't share one."""
        return FailoverLink([Link(server, self._credentials) for server in self._servers])

    def place(self, source: DraftSource) -> DraftSource:
        """As it is: the target computes elsewhere."""
        return source

    def close(self) -> None:
        """Nothing is shared."""
