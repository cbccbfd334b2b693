"""What an operator can set for `cloud-verifier serve`, as one frozen object."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from cloud_verifier.backends.load import Dtype
from specwire.errors import BadRequest

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Settings:
    """Settings of `cloud-verifier serve`; `OPTIONS` says how each is written.

    context, max_prompt: tokens. kv_memory, message_bytes: bytes. idle_s, grace_s:
    seconds. requests_per_s: opened sessions, calls and proposals a second and client.
    None means automatic, or no limit of its own, or off; see the option's help.
    """

    model: str
    listen: str = "127.0.0.1:7710"
    backend: str = "transformers"
    dtype: Dtype = "auto"
    quantization: str | None = None
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    kv_memory: int | None = None
    gamma: int = 32
    sessions: int = 256
    sessions_per_client: int | None = None
    max_prompt: int | None = None
    message_bytes: int = 16 << 20
    requests_per_s: float | None = None
    idle_s: float = 300.0
    grace_s: float = 10.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False
    metrics: str | None = None
    otel_endpoint: str | None = None
    log_format: LogFormat = "text"
    log_level: str = "warning"


def check_together(settings: Settings) -> None:
    """Raise `BadRequest` for values that are right alone and wrong together."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        has, lacks = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise BadRequest(
            f"{has} is set but {lacks} is not; TLS needs both a certificate and its key"
        )
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise BadRequest(
            "tls_client_ca is set but tls_cert and tls_key are not; clients can be asked for "
            "certificates over TLS only"
        )


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> str | None:
    """Whether it is safe to listen where the settings say.

    Returns None if it is, or a warning if `insecure` allows what is not.

    Raises:
        BadRequest: the address is reachable from other machines, and callers are not
            checked or the link is not encrypted.
    """
    if is_loopback(settings.listen):
        return None
    missing = []
    if settings.tls_cert is None:
        missing.append("nothing is encrypted")
    if settings.tokens is None and settings.tls_client_ca is None:
        missing.append("anyone may use it")
    if not missing:
        return None
    what = " and ".join(missing)
    if settings.insecure:
        return f"{settings.listen} can be reached from other machines, {what} (insecure is set)"
    raise BadRequest(
        f"{settings.listen} can be reached from other machines, but {what}; set tls_cert and "
        "tls_key with tokens or tls_client_ca, listen on 127.0.0.1, or, behind something that "
        "does both, set --insecure"
    )


def log_level_number(settings: Settings) -> int:
    """The level as the logging module counts."""
    return cast("int", getattr(logging, settings.log_level.upper()))
