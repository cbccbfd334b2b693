"""Ask a verifier's gRPC health service whether it serves: exit code 0 if so, 1 if not.

    python healthcheck.py [--address HOST:PORT] [--service NAME]

Without arguments it asks the verifier of this container, whose address it takes from the
verifier's own variables. Over TLS it accepts whatever valid certificate is shown there, under
whatever name: it tells no secret, and its question is not whose certificate that is. The health
service asks for no token. Where the verifier asks for client certificates, this probe needs one
too: PROBE_CERT and PROBE_KEY, or --cert and --key.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "specwire.v1.Verifier"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Ask, print the answer, and return the exit code."""
    args = _parser(environment).parse_args(argv)
    try:
        status = ask(args)
    except (OSError, ValueError, grpc.RpcError) as error:
        print(f"no answer from {args.address}: {_reason(error)}", file=sys.stderr)
        return 1
    serving = status == int(health_pb2.HealthCheckResponse.SERVING)
    print(f"{args.address} {args.service or 'all'}: {'serving' if serving else 'not serving'}")
    return 0 if serving else 1


def ask(args: argparse.Namespace) -> int:
    """The status of the service, a number of `ServingStatus`.

    Raises:
        grpc.RpcError: there is no answer in time, or no such service.
        OSError, ValueError: a file or the certificate can't be used.
    """
    with _channel(args) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=args.service)
        return int(stub.Check(request, timeout=args.timeout).status)


def _channel(args: argparse.Namespace) -> grpc.Channel:
    options: list[tuple[str, object]] = [("grpc.enable_http_proxy", 0)]
    if not args.tls:
        return grpc.insecure_channel(args.address, options)
    shown, name = _certificate(args)
    options.append(("grpc.ssl_target_name_override", name))
    credentials = grpc.ssl_channel_credentials(
        shown.encode(),
        args.key.read_bytes() if args.key else None,
        args.cert.read_bytes() if args.cert else None,
    )
    return grpc.secure_channel(args.address, credentials, options)


def _certificate(args: argparse.Namespace) -> tuple[str, str]:
    """The certificate that the verifier shows, PEM, and a name in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if args.cert and args.key:
        context.load_cert_chain(args.cert, args.key)
    context.verify_mode = ssl.CERT_NONE
    with _connected(args, context) as connection:
        shown = connection.getpeercert(binary_form=True)
    if shown is None:
        raise ValueError("it shows no certificate")
    # Names are told only of a certificate that is trusted; a second visit trusts just this one.
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown)
    with _connected(args, context) as connection:
        described: dict[str, Any] = connection.getpeercert() or {}
    for kind, name in described.get("subjectAltName", ()):
        if kind in ("DNS", "IP Address"):
            return ssl.DER_cert_to_PEM_cert(shown), str(name).replace("*", "any", 1)
    raise ValueError("its certificate has no subjectAltName, so no client can accept it")


@contextlib.contextmanager
def _connected(args: argparse.Namespace, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    host, _, port = args.address.rpartition(":")
    address = (host.strip("[]"), int(port))
    with (
        socket.create_connection(address, timeout=args.timeout) as plain,
        context.wrap_socket(plain) as secured,
    ):
        yield secured


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="healthcheck", description=__doc__.partition("\n")[0])
    listen = _set(environment, "SPECWIRE_LISTEN") or "127.0.0.1:7710"
    host, _, port = listen.rpartition(":")
    parser.add_argument("--address", default=f"{_EVERYWHERE.get(host, host)}:{port}")
    parser.add_argument("--service", default=SERVICE, help="'' for the server as a whole")
    parser.add_argument("--timeout", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        default=_set(environment, "SPECWIRE_TLS_CERT") is not None,
    )
    for flag, about in (("cert", "this probe's own certificate, PEM"), ("key", "its private key")):
        file = _set(environment, f"PROBE_{flag.upper()}")
        default = Path(file) if file else None
        parser.add_argument(f"--{flag}", type=Path, default=default, metavar="FILE", help=about)
    return parser


def _set(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name, "")
    return None if value in ("", "none") else value


if __name__ == "__main__":
    sys.exit(main())
