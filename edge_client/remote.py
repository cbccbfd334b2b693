"""The usual target: a verifier at an address."""

from __future__ import annotations

from edge_client.credentials import Credentials
from edge_client.draft.source import DraftSource
from edge_client.link import Link
from specwire.errors import BadRequest


class RemoteVerifier:
    """A `Connector` to a verifier.

    Raises:
        BadRequest: `server` is not HOST:PORT, or the credentials don't suit it.
    """

    def __init__(self, server: str, credentials: Credentials | None = None) -> None:
        host, colon, port = server.rpartition(":")
        if not (colon and host and port.isdigit()):
            raise BadRequest(f"the server must be HOST:PORT, not {server!r}")
        self._credentials = credentials or Credentials()
        self._credentials.check(server)
        self._server = server

    @property
    def shares_cores(self) -> bool:
        """The target computes elsewhere."""
        return False

    def link(self) -> Link:
        """A channel of its own for the running event loop: loops can't share one."""
        return Link(self._server, self._credentials)

    def place(self, source: DraftSource) -> DraftSource:
        """As it is: the target computes elsewhere."""
        return source

    def close(self) -> None:
        """Nothing is shared."""
