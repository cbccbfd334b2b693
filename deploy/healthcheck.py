"""Ask a verifier's gRPC health service whether it serves: exit code 0 if so, 1 if not.

    python healthcheck.py [--address HOST:PORT] [--service NAME]

Without arguments it asks the verifier of this container, whose address and certificate it
takes from the verifier's own variables. That certificate is the one thing it trusts then, by
whatever name. The health service asks for no token. Where the verifier asks for client
certificates, this probe needs one too: PROBE_CERT and PROBE_KEY, or --cert and --key.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    print(f"{args.address} {args.service or 'all'}: {name}")
    return 0 if status == health_pb2.HealthCheckResponse.SERVING else 1


def ask(args: argparse.Namespace) -> health_pb2.HealthCheckResponse.ServingStatus:
    """The status of the service.

    Raises:
        grpc.RpcError: there is no answer in time, or no such service.
        OSError, ValueError: a file or the certificate can't be used.
    """
    with _channel(args) as channel:
        response = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=args.service),
            timeout=args.timeout,
            wait_for_ready=True,
        )
    return response.status


def _channel(args: argparse.Namespace) -> grpc.Channel:
    options: list[tuple[str, object]] = [("grpc.enable_http_proxy", 0)]
    if args.ca is None:
        return grpc.insecure_channel(args.address, options)
    # Pinned to one certificate, whose names are those of the world outside: any will do.
    options.append(("grpc.ssl_target_name_override", _certificate_name(args)))
    credentials = grpc.ssl_channel_credentials(
        args.ca.read_bytes(),
        args.key.read_bytes() if args.key else None,
        args.cert.read_bytes() if args.cert else None,
    )
    return grpc.secure_channel(args.address, credentials, options)


def _certificate_name(args: argparse.Namespace) -> str:
    """A name in the certificate that the verifier shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(args.ca)
    if args.cert and args.key:
        context.load_cert_chain(args.cert, args.key)
    host, _, port = args.address.rpartition(":")
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=args.timeout) as plain,
        context.wrap_socket(plain) as secured,
    ):
        shown = secured.getpeercert() or {}
    for kind, name in shown.get("subjectAltName", ()):
        if kind in ("DNS", "IP Address"):
            return str(name).replace("*", "any", 1)
    raise ValueError("its certificate has no subjectAltName, so no client can accept it")


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="healthcheck", description=__doc__.partition("\n")[0])
    listen = environment.get("SPECWIRE_LISTEN") or "127.0.0.1:7710"
    host, _, port = listen.rpartition(":")
    parser.add_argument("--address", default=f"{_EVERYWHERE.get(host, host)}:{port}")
    parser.add_argument("--service", default=SERVICE, help="'' for the server as a whole")
    parser.add_argument("--timeout", type=float, default=4.0, metavar="SECONDS")
    for flag, variable, about in (
        ("--ca", "SPECWIRE_TLS_CERT", "certificates to trust; without it, plain text"),
        ("--cert", "PROBE_CERT", "this probe's own certificate"),
        ("--key", "PROBE_KEY", "its private key"),
    ):
        value = environment.get(variable, "")
        default = None if value in ("", "none") else Path(value)
        parser.add_argument(flag, type=Path, default=default, metavar="FILE", help=about)
    return parser


if __name__ == "__main__":
    sys.exit(main())
