"""Who may use the endpoint: a key, or, without one, programs on this machine alone.

A page in a browser can send requests to this machine too. Its origin gives it away, or,
where it has made its own name point here (DNS rebinding), the name it called.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_client.openai_api.errors import ApiError

OPEN_PATHS = ("/health",)
"""Need no key."""

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]*)?")


class Guard:
    """ASGI middleware that lets requests through or answers with 401 or 403.

    Args:
        app: what is guarded.
        key: what callers must show; None asks for none, and then guards against browsers.
        host: the address that is listened on.
        names: of this endpoint, beside that.
        origins: of web pages that may use it; "*" means all.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        host: str,
        names: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._host = host
        self._names = frozenset(_same(name) for name in ("localhost", host, *names))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except ApiError as error:
                response = JSONResponse(error.body(), error.status, headers=error.headers)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        if self._key is None:
            self._check_host(headers.get("host", ""))
            self._check_origin(headers.get("origin"), headers.get("host", ""))
        elif path not in OPEN_PATHS:
            _check_key(self._key, headers.get("authorization"))

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if name in self._names or _is_address(name, self._host):
            return
        raise ApiError(
            403,
            f"the host {host!r} is not this machine; call it 127.0.0.1 or localhost, name it with "
            "--allow-host, or set a key",
            None,
            "host_not_allowed",
        )

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or {"*", origin} & self._origins or _place(origin) == host:
            return
        raise ApiError(
            403,
            f"pages of {origin!r} may not use this endpoint; name them with --allow-origin",
            None,
            "origin_not_allowed",
        )


def _check_key(key: bytes, header: str | None) -> None:
    scheme, _, shown = (header or "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode("latin-1"), key):
        return
    message = "the key is wrong" if header else "no key; show one as 'Authorization: Bearer KEY'"
    raise ApiError(401, message, None, "invalid_api_key", headers={"www-authenticate": "Bearer"})


def host_name(host: str) -> str:
    """The name or address in a Host header, without port and brackets; empty if it is no host."""
    found = _HOST.fullmatch(host)
    return "" if found is None else _same(found[1] or found[2])


def _place(origin: str) -> str | None:
    """The host, and port if any, of an origin; None if it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _same(name: str) -> str:
    """A host's name in the one spelling that stands for all of its own."""
    return name.rstrip(".").lower()


def _is_address(name: str, listening: str) -> bool:
    # An address can't be rebound, so where all are listened on, each is right.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or listening in ("0.0.0.0", "::")
