"""Whether the verifier can be reached and trusted, and lets us in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping

from edge_client.credentials import Credentials, is_loopback
from edge_client.doctor.report import Check, Report, failed, failed_with, ok, warning
from edge_client.link import CONNECT_S, Link
from specwire import __version__
from specwire.errors import (
    LinkError,
    NotOwner,
    SpecwireError,
    Unauthenticated,
    Unsupported,
    Untrusted,
)
from specwire.limits import PROTOCOL_VERSIONS
from specwire.v1 import verifier_pb2 as pb

_LAST_PORT = 65535
_SOON_S = 14 * 86400.0
"""A certificate that ends sooner than this is worth a word."""


async def reach(report: Report, link: Link, credentials: Credentials) -> pb.DescribeResponse | None:
    """Check the way to a verifier; what it serves, or None where the way ends."""
    if not await _address(report, link.server):
        return None
    certificate = await _certificate(link.server, credentials) if credentials.tls else None
    served, error = None, None
    try:
        served = await link.describe()
    except SpecwireError as found:
        error = found
    if not report.add(_tls(link.server, credentials, certificate, error)):
        return None
    if not report.add(_token(credentials, error)):
        return None
    if served is None:
        assert error is not None
        name = "protocol" if isinstance(error, Unsupported) else "verifier"
        report.add(failed_with(name, error))
        return None
    return served if report.add(_versions(served)) else None


# ------------------------------------------------------------------------- address


def split(server: str) -> tuple[str, int]:
    """HOST:PORT in its two parts, an IPv6 address without brackets."""
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


async def _address(report: Report, server: str) -> bool:
    host, port = split(server)
    if port > _LAST_PORT:
        cure = f"ports go up to {_LAST_PORT}; check --server"
        return report.add(failed("address", f"there is no port {port}", cure, unreachable=True))
    proxy = proxy_for(host, os.environ)
    if proxy is not None:
        text = f"calls to {server} go through the proxy {proxy}"
        return report.add(
            warning("address", text, f"set no_proxy={host} if {host} is reached directly")
        )
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        why = "no answer from the name service" if isinstance(error, TimeoutError) else str(error)
        return report.add(
            failed(
                "address",
                f"{host} has no address ({why})",
                "check the spelling of --server, and this device's network and name service",
                unreachable=True,
            )
        )
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    began = time.perf_counter()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return report.add(_unconnected(server, addresses, error))
    took = time.perf_counter() - began
    await _hang_up(writer)
    shown = ", ".join(addresses[:3]) + (", …" if len(addresses) > 3 else "")
    where = f"{server} is {shown}" if addresses != [host] else server
    return report.add(ok("address", f"{where}; connected in {took * 1e3:.1f} ms"))


def _unconnected(server: str, addresses: list[str], error: OSError | TimeoutError) -> Check:
    if isinstance(error, ConnectionRefusedError):
        why = f"{server} refuses connections"
        cure = "check the port, and that cloud-verifier runs there and listens on this address"
    elif isinstance(error, TimeoutError):
        why = f"{server} ({', '.join(addresses[:3])}) does not answer within {CONNECT_S:g} s"
        cure = "a firewall may drop the connection, or the machine is off"
    else:
        why = f"{server} can't be connected to ({error.strerror or error})"
        cure = "check this device's network and the address"
    return failed("address", why, cure, unreachable=True)


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that gRPC takes for calls to `host`; None for none."""
    if is_loopback(f"{host}:1"):
        return None
    names = ("grpc_proxy", "https_proxy", "http_proxy")
    proxy = next((environment[name] for name in names if environment.get(name)), None)
    excepted = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    suffixes = [name.strip() for name in excepted.split(",") if name.strip()]
    if proxy is None or any(host.endswith(suffix) for suffix in suffixes):
        return None
    parts = urllib.parse.urlsplit(proxy)  # without a password
    return f"{parts.hostname}:{parts.port}" if parts.hostname and parts.port else parts.hostname


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()


# --------------------------------------------------------------------- TLS and token


async def _certificate(server: str, credentials: Credentials) -> tuple[str, float] | None:
    """TLS version, and when the certificate ends (seconds since 1970); None if unknown.

    Only to be told: gRPC decides whether the certificate will do.
    """
    host, port = split(server)
    try:
        context = ssl.create_default_context(cafile=credentials.ca)
        if credentials.cert is not None:
            context.load_cert_chain(credentials.cert, credentials.key)
        context.set_alpn_protocols(["h2"])
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError, ValueError):
        return None
    shown = writer.get_extra_info("peercert") or {}
    version = writer.get_extra_info("ssl_object").version()
    await _hang_up(writer)
    ends = shown.get("notAfter")
    return (version, ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


def _tls(
    server: str,
    credentials: Credentials,
    certificate: tuple[str, float] | None,
    error: SpecwireError | None,
) -> Check:
    if isinstance(error, Untrusted):
        return failed_with("TLS", error)
    if isinstance(error, LinkError):
        # The connection stood, so what failed is what is spoken over it.
        text = str(error)
        if "Socket closed" in text and not credentials.tls:
            return failed(
                "TLS",
                f"{server} takes connections but ends those in plain text",
                "it may ask for TLS: try --tls, or --tls-ca FILE for a private authority",
                unreachable=True,
            )
        return failed_with("TLS" if credentials.tls else "verifier", error)
    if not credentials.tls:
        if is_loopback(server):
            return ok("TLS", "plain text, which stays on this machine")
        return warning(
            "TLS",
            "plain text: whoever is on the way can read and change it",
            "serve with --tls-cert and --tls-key, and use --tls here",
        )
    if certificate is None:
        return ok("TLS", "encrypted, and the certificate is good")
    version, ends = certificate
    left = ends - time.time()
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    text = f"{version}; the certificate is good until {day}"
    if left < _SOON_S:
        return warning(
            "TLS", f"{text}, {max(left, 0) / 86400:.0f} days from now", "its operator must renew it"
        )
    return ok("TLS", text)


def _token(credentials: Credentials, error: SpecwireError | None) -> Check:
    shown = credentials.token is not None
    if isinstance(error, Unauthenticated):
        cure = (
            "ask the operator for a new one (cloud-verifier token new), or whether it was revoked"
            if shown
            else "give --token-file FILE or set SPECWIRE_TOKEN; the operator has the token"
        )
        return failed("token", str(error), cure)
    if isinstance(error, NotOwner):
        return failed_with("token", error)
    if not shown:
        return ok("token", "none shown, and none asked for")
    return ok("token", "shown, and not refused")


def _versions(served: pb.DescribeResponse) -> Check:
    theirs = ", ".join(map(str, served.protocol_versions)) or "none"
    ours = ", ".join(map(str, PROTOCOL_VERSIONS))
    if not set(served.protocol_versions) & set(PROTOCOL_VERSIONS):
        return failed(
            "protocol",
            f"the verifier speaks version {theirs}, this client version {ours}",
            "install matching releases of specwire at both ends",
        )
    text = f"version {max(set(served.protocol_versions) & set(PROTOCOL_VERSIONS))}"
    return ok(
        "protocol", f"{text}; specwire {served.server_version or '?'} there, {__version__} here"
    )
