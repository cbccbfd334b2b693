"""Who calls: by token, by client certificate, or anyone.

Every call but health passes `AuthInterceptor` first, so that a service added
later is closed by default. The services then ask `Access.identify` for the
caller's name, to which sessions and limits are bound.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health

from cloud_verifier.observe import SILENT, Observer
from cloud_verifier.status import reporting
from cloud_verifier.tls import ServerTls
from cloud_verifier.tokens import TokenSet, read_tokens, readable_by_others
from specwire.errors import SpecwireError, Unauthenticated

logger = logging.getLogger(__name__)

ANYONE = "anyone"
"""Identity of callers where none is asked for."""

HEADER = "authorization"
_SCHEME = "bearer"
_OPEN_METHODS = f"/{health.SERVICE_NAME}/"

Metadata = Iterable[tuple[str, str | bytes]] | None
Context = grpc.aio.ServicerContext[Any, Any]


class Access:
    """Decides who a caller is. With neither tokens nor client certificates: anyone.

    With both, a caller needs both, and its name is the token's. Names of tokens
    and of certificates can't be mistaken for each other: "token:alice", "cert:alice".
    """

    def __init__(
        self,
        *,
        token_file: Path | None = None,
        tls: ServerTls | None = None,
        client_certificates: bool = False,
    ) -> None:
        """`tls` None: plain text. `client_certificates`: TLS asks for them.

        Raises:
            BadRequest: the token file can't be used.
        """
        self.tls = tls
        self._token_file = token_file
        self._tokens = self._read()
        self._certificates = client_certificates

    @property
    def closed(self) -> bool:
        """Whether callers must say who they are."""
        return self._tokens is not None or self._certificates

    def reload(self) -> None:
        """Read tokens and certificates again.

        Raises:
            BadRequest: a file can't be used; what it held before stays in force.
        """
        fresh = self._read()
        if self.tls is not None:
            self.tls.reload()
        self._tokens = fresh

    def check_token(self, metadata: Metadata) -> str | None:
        """The name of the token in a call's metadata; None where no tokens are in use.

        Raises:
            Unauthenticated: there is none, or it is not valid.
        """
        if self._tokens is None:
            return None
        shown = [value for key, value in metadata or () if key == HEADER]
        if not shown:
            raise Unauthenticated(
                "this verifier asks for a token; set SPECWIRE_TOKEN or give --token-file"
            )
        scheme, _, token = _as_text(shown[0]).partition(" ")
        name = self._tokens.owner(token.strip()) if scheme.lower() == _SCHEME else None
        if name is None or len(shown) > 1:
            raise Unauthenticated(
                "the token is not valid here: mistyped, revoked, or made for another verifier"
            )
        return name

    def identify(self, context: Context) -> str:
        """The caller's name, to which its sessions belong.

        Raises:
            Unauthenticated: it can't be told.
        """
        if not self.closed:
            return ANYONE
        name = self.check_token(context.invocation_metadata())
        if name is not None:
            return f"token:{name}"
        shown = context.auth_context()
        for key in ("x509_common_name", "x509_subject", "x509_subject_alternative_name"):
            value = next(iter(shown.get(key, ())), b"")
            if value:
                return f"cert:{_as_text(value)}"
        raise Unauthenticated("the client certificate names nobody: it needs a common name")

    def _read(self) -> TokenSet | None:
        if self._token_file is None:
            return None
        tokens = read_tokens(self._token_file)
        if not tokens:
            logger.warning("%s holds no token: every call will be refused", self._token_file)
        if readable_by_others(self._token_file):
            logger.warning("%s can be read by other accounts; use mode 600", self._token_file)
        return tokens


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid token before any service sees them; health stays open.

    Client certificates need nothing here: a handshake without one fails.
    """

    def __init__(self, access: Access, observer: Observer = SILENT) -> None:
        self._access = access
        self._observer = observer

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Pass the call on, or answer it with the refusal."""
        details = handler_call_details
        if not details.method.startswith(_OPEN_METHODS):
            try:
                self._access.check_token(details.invocation_metadata)
            except Unauthenticated as error:
                return self._refusal(error)
        return await continuation(details)

    def _refusal(self, error: SpecwireError) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(requests: object, context: Context) -> None:
            async with reporting(context, self._observer):
                raise error

        # Streaming both ways, whatever the method is: so nothing is read before the answer.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _as_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
