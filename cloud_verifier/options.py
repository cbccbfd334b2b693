"""The options of `cloud-verifier serve`: how each is spelled, read and described."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from cloud_verifier.backends.load import BACKENDS, DTYPES, QUANTIZATIONS
from cloud_verifier.settings import LOG_FORMATS, LOG_LEVELS, Settings

PREFIX = "SPECWIRE_"

NONE = "none"
"""What switches an optional setting off, where a weaker source has set it."""

Read = Callable[[str], Any]
"""From what a person wrote to the value; ValueError says what it must be."""


MOST = 1_000_000_000
"""Of a count, as the protocol can announce it, and of seconds, as timers can wait."""


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 1 <= int(text) <= MOST:
        raise ValueError(f"a whole number, 1 or more and at most {MOST}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST:
        raise ValueError(f"a number greater than 0 and at most {MOST}")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST:
        raise ValueError(f"a number, 0 or more and at most {MOST}")
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    value = 0.0
    if match is not None:
        value = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if value < 1:
        raise ValueError("a number of bytes, such as 512M or 4G (K, M, G, T are powers of 1024)")
    return int(value)


def _message_bytes(text: str) -> int:
    value = _bytes(text)
    if not 64 << 10 <= value <= 1 << 30:
        raise ValueError("between 64K and 1G")
    return value


def _choice(*allowed: str) -> Read:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return read


def _text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a text without control characters, not empty")
    return text


def read_path(text: str) -> Path:
    """A path, with ~ expanded."""
    return Path(_text(text)).expanduser()


def _switch(text: str) -> bool:
    values = {"true": True, "yes": True, "on": True, "1": True}
    values |= {"false": False, "no": False, "off": False, "0": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    host_ok = bool(host) and (":" not in host or (host[0] == "[" and host[-1] == "]"))
    if not (colon and host_ok and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError("HOST:PORT, such as 0.0.0.0:7710 or [::1]:7710")
    return text


def _metrics_address(text: str) -> str:
    # Numbers about everybody's use are for this machine unless a person says otherwise.
    if text.removeprefix(":").isdecimal():
        text = f"127.0.0.1:{text.removeprefix(':')}"
    try:
        return _address(text)
    except ValueError:
        raise ValueError("PORT (on 127.0.0.1), HOST:PORT, or none") from None


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the URL of an OTLP/gRPC receiver, such as http://127.0.0.1:4317")
    return text


@dataclass(frozen=True)
class Option:
    """One setting: how it is written, and what it does.

    field: of `Settings`. key: in the file; flag and variable follow from it.
    """

    field: str
    key: str
    read: Read
    help: str
    metavar: str
    group: str

    @property
    def flag(self) -> str:
        """On the command line."""
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """In the environment."""
        return PREFIX + self.key.upper()

    @property
    def default(self) -> object:
        """What holds if no source has it; None for `model`, which has no default."""
        return _DEFAULTS.get(self.field)

    @property
    def optional(self) -> bool:
        """Whether `none` switches it off."""
        return self.field != "model" and self.default is None


_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {f.name: f.default for f in fields(Settings) if f.name != "model"}
)

_MODEL, _LIMITS, _SECURITY, _WATCH = "model", "limits", "who may use it", "watching it"

OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        "model",
        _text,
        "a Hugging Face id, a model folder, a .gguf file, or builtin:smollm2",
        "MODEL",
        _MODEL,
    ),
    Option(
        "backend",
        "backend",
        _choice(*BACKENDS),
        f"the engine: {', '.join(BACKENDS)}",
        "NAME",
        _MODEL,
    ),
    Option(
        "dtype",
        "dtype",
        _choice(*DTYPES),
        f"of the weights: {', '.join(DTYPES)}; auto takes what the checkpoint says",
        "TYPE",
        _MODEL,
    ),
    Option(
        "quantization",
        "quantization",
        _choice(*QUANTIZATIONS),
        f"of the weights while loading: {', '.join(QUANTIZATIONS)}",
        "NAME",
        _MODEL,
    ),
    Option("device", "device", _text, "auto, cpu, cuda, cuda:1, …", "DEVICE", _MODEL),
    Option("threads", "threads", _count, "of the model on a CPU", "N", _MODEL),
    Option("listen", "listen", _address, "address; port 0 takes a free one", "HOST:PORT", _MODEL),
    Option(
        "context",
        "context",
        _count,
        "tokens a session may hold; default: what the model was trained with",
        "TOKENS",
        _LIMITS,
    ),
    Option(
        "kv_memory",
        "kv_memory",
        _bytes,
        "for keys and values of all sessions, such as 4G; default: automatic",
        "BYTES",
        _LIMITS,
    ),
    Option("gamma", "gamma", _count, "most draft tokens in a proposal", "N", _LIMITS),
    Option("sessions", "sessions", _count, "most sessions at a time", "N", _LIMITS),
    Option(
        "sessions_per_client",
        "sessions_per_client",
        _count,
        "most sessions of one client; default: as many as there are",
        "N",
        _LIMITS,
    ),
    Option(
        "max_prompt",
        "max_prompt",
        _count,
        "longest prompt; default: what the context holds",
        "TOKENS",
        _LIMITS,
    ),
    Option("message_bytes", "message_bytes", _message_bytes, "largest message", "BYTES", _LIMITS),
    Option(
        "requests_per_s",
        "requests_per_s",
        _positive,
        "sessions opened, calls and proposals a second, of one client; default: no limit",
        "RATE",
        _LIMITS,
    ),
    Option(
        "idle_s",
        "idle",
        _positive,
        "how long a session without a client is kept",
        "SECONDS",
        _LIMITS,
    ),
    Option(
        "grace_s",
        "grace",
        _not_negative,
        "how long a stop waits for running rounds",
        "SECONDS",
        _LIMITS,
    ),
    Option("tls_cert", "tls_cert", read_path, "certificate chain, PEM", "FILE", _SECURITY),
    Option("tls_key", "tls_key", read_path, "its private key, PEM", "FILE", _SECURITY),
    Option(
        "tls_client_ca",
        "tls_client_ca",
        read_path,
        "clients must show a certificate signed by one of these, PEM",
        "FILE",
        _SECURITY,
    ),
    Option(
        "tokens",
        "tokens",
        read_path,
        "clients must show a token of this file; see `cloud-verifier token`",
        "FILE",
        _SECURITY,
    ),
    Option(
        "insecure",
        "insecure",
        _switch,
        "listen beyond this machine although clients are not checked or nothing is encrypted",
        "",
        _SECURITY,
    ),
    Option(
        "metrics",
        "metrics",
        _metrics_address,
        "serve Prometheus metrics here, over HTTP; a port alone is of 127.0.0.1",
        "[HOST:]PORT",
        _WATCH,
    ),
    Option(
        "otel_endpoint",
        "otel_endpoint",
        _endpoint,
        "send OpenTelemetry traces to this OTLP/gRPC receiver",
        "URL",
        _WATCH,
    ),
    Option("log_format", "log_format", _choice(*LOG_FORMATS), "text or json", "FORMAT", _WATCH),
    Option("log_level", "log_level", _choice(*LOG_LEVELS), ", ".join(LOG_LEVELS), "LEVEL", _WATCH),
)
