"""Times and acceptance of a real verifier and draft, as `edge-client doctor` measures them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from specwire.errors import SpecwireError

_PASSED_ON = (
    ("--draft", "MODEL", "a GGUF file or a built-in draft, as for edge-client"),
    ("--drafts", "SOURCE", "auto, model or lookup"),
    ("--threads", "N", "of the draft model"),
    ("--tls-ca", "FILE", "trust these authorities (implies --tls)"),
    ("--tls-cert", "FILE", "this client's certificate"),
    ("--tls-key", "FILE", "its private key"),
    ("--token-file", "FILE", "holds the token to show"),
)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """The flags with which a measurement is asked for."""
    group = parser.add_argument_group("measured, with the flags of edge-client doctor")
    group.add_argument("--server", metavar="HOST:PORT", help="a verifier that runs")
    for flag, value, about in _PASSED_ON:
        group.add_argument(flag, metavar=value, help=about)
    group.add_argument("--tls", action="store_true", help="encrypt")


def measured(args: argparse.Namespace) -> dict[str, float]:
    """What was measured, in ms and shares: rtt_ms, draft_ms, verify_ms, extra_ms, alpha.

    Raises:
        SpecwireError: something of it can't be measured; the message says what.
    """
    from edge_client.arguments import credentials_from, options_from, parse
    from edge_client.doctor.report import State, shown
    from edge_client.doctor.run import Doctor

    client = parse(_doctor_words(args))
    doctor = Doctor(
        client.server,
        None if client.draft == "none" else client.draft,
        client.drafts,
        threads=client.threads,
        credentials=credentials_from(client, os.environ),
        options=options_from(client),
    )

    def tell(check: Any) -> None:
        if not args.json or check.state is State.FAILED:
            print(shown(check, colour=False), file=sys.stderr, flush=True)

    report = doctor.measure(tell)
    at = report.measured.conditions()
    if at is None:
        failed = [check for check in report.checks if check.state is State.FAILED]
        why = f"{failed[0].name}: {failed[0].text}" if failed else "the text ended too early"
        raise SpecwireError(
            f"can't measure all that a plan needs ({why}); give the rest by hand, without --server"
        )
    return {
        "rtt_ms": at.rtt_s * 1e3,
        "draft_ms": at.draft_s * 1e3,
        "verify_ms": at.verify_s * 1e3,
        "extra_ms": at.extra_s * 1e3,
        "alpha": at.alphas[0],
    }


def _doctor_words(args: argparse.Namespace) -> list[str]:
    words = ["doctor", "--server", args.server]
    for flag, _, _ in _PASSED_ON:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None:
            words += [flag, value]
    if args.tls:
        words.append("--tls")
    return words
