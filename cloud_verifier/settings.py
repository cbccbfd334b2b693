"""What an operator can set for `cloud-verifier serve`, as one frozen object.

A value comes from, in this order: a flag, the environment (`SPECWIRE_` and the
option's name), a TOML file (`--config`), the default. All four spell an option
alike: `--tls-cert`, `SPECWIRE_TLS_CERT`, `tls_cert`.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from cloud_verifier.backends.load import BACKENDS, DTYPES, Dtype
from specwire.errors import BadRequest

PREFIX = "SPECWIRE_"

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

NONE = "none"
"""What switches an optional setting off, where a weaker source has set it."""

_EDGE = frozenset({"SPECWIRE_CACHE", "SPECWIRE_CONFIG", "SPECWIRE_TOKEN"})
# Kubernetes sets such variables for every service of the namespace, by its name.
_SERVICE_LINK = re.compile(r"SPECWIRE_([A-Z0-9_]+_)?(SERVICE|PORT)(_[A-Z0-9_]+)?")


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


# ------------------------------------------------------------------ reading values

Read = Callable[[str], Any]
"""From what a person wrote to the value; ValueError says what it must be."""


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise ValueError("a whole number, 1 or more")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a number greater than 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("a number, 0 or more")
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


def _path(text: str) -> Path:
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


# ------------------------------------------------------------------------- options


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
    Option("backend", "backend", _choice(*BACKENDS), "the engine", "NAME", _MODEL),
    Option(
        "dtype",
        "dtype",
        _choice(*DTYPES),
        f"of the weights: {', '.join(DTYPES)}; auto takes what the checkpoint says",
        "TYPE",
        _MODEL,
    ),
    Option("quantization", "quantization", _text, "of the weights while loading", "NAME", _MODEL),
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
    Option("tls_cert", "tls_cert", _path, "certificate chain, PEM", "FILE", _SECURITY),
    Option("tls_key", "tls_key", _path, "its private key, PEM", "FILE", _SECURITY),
    Option(
        "tls_client_ca",
        "tls_client_ca",
        _path,
        "clients must show a certificate signed by one of these, PEM",
        "FILE",
        _SECURITY,
    ),
    Option(
        "tokens",
        "tokens",
        _path,
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

_BY_KEY = {option.key: option for option in OPTIONS}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}


# ------------------------------------------------------------------------- loading


@dataclass(frozen=True)
class Loaded:
    """The settings, and where each that is no default came from, by field."""

    settings: Settings
    sources: Mapping[str, str]

    def describe(self) -> str:
        """Two lines for the start of the log.

        No secret is in them: of tokens and keys the settings hold only the files' names.
        """
        given, defaults = [], []
        for option in OPTIONS:
            shown = f"{option.key}={_shown(getattr(self.settings, option.field))}"
            source = self.sources.get(option.field)
            if source is None:
                defaults.append(shown)
            else:
                given.append(f"{shown} ({source})")
        return f"settings: {', '.join(given)}\ndefaults: {', '.join(defaults)}"


def load_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Loaded:
    """Settings from flags over environment over file over defaults.

    Args:
        flags: by key (`tls_cert`), as they were written; None for those that were not.
            `config` names the TOML file.
        environment: all of it; only names that begin with `SPECWIRE_` are read.

    Raises:
        BadRequest: an unknown name or a wrong value; the message names the source,
            the key, the value, and what it must be.
    """
    config = flags.get("config") or environment.get(PREFIX + "CONFIG") or None
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option, text, source in (
        *(_from_file(Path(config).expanduser()) if config else ()),
        *_from_environment(environment),
        *_from_flags(flags),
    ):
        values[option.field] = _value(option, text, source)
        sources[option.field] = source
    if "model" not in values:
        raise BadRequest(
            "no model is set: give --model, SPECWIRE_MODEL, or model in the configuration file"
        )
    settings = Settings(**values)
    _check_together(settings)
    return Loaded(settings, MappingProxyType(sources))


Given = Iterator[tuple[Option, str, str]]
"""Option, text, and source for people."""


def _from_flags(flags: Mapping[str, str | None]) -> Given:
    for key, text in flags.items():
        if key != "config" and text is not None:
            yield _BY_KEY[key], text, _BY_KEY[key].flag


def _from_environment(environment: Mapping[str, str]) -> Given:
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in _EDGE or _SERVICE_LINK.fullmatch(name):
            continue
        option = _BY_VARIABLE.get(name)
        if option is None:
            raise BadRequest(
                f"environment: {name} is no setting{_hint(name, _BY_VARIABLE)}; unset it"
            )
        if text:  # an empty variable is as good as none
            yield option, text, name


def _from_file(path: Path) -> Given:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"can't read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"the configuration {path} is no UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"the configuration {path} is no TOML: {error}") from error
    for key, value in table.items():
        option = _BY_KEY.get(key)
        if option is None:
            raise BadRequest(f"{path}: {key!r} is no setting{_hint(key, _BY_KEY)}; remove it")
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (int, float, str)):
            text = str(value)
        else:
            raise BadRequest(
                f"{path}: {key} is a {type(value).__name__}; it must be a text or a number"
            )
        if option.read is _path and text != NONE:
            # Relative to the file, so that it means the same from everywhere.
            text = str(path.parent / Path(text).expanduser())
        yield option, text, str(path)


def _value(option: Option, text: str, source: str) -> Any:
    if option.optional and text == NONE:
        return None
    try:
        return option.read(text)
    except ValueError as error:
        name = option.key if source not in (option.flag, option.variable) else ""
        where = f"{source}: {name}" if name else source
        also = ", or none" if option.optional and "none" not in str(error) else ""
        raise BadRequest(f"{where} is {text!r}; it must be {error}{also}") from None


def _check_together(settings: Settings) -> None:
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


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _shown(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else str(value)
    parts = urlsplit(text) if "://" in text else None
    if parts is not None and (parts.username or parts.password or parts.query):
        # A collector's address may carry credentials.
        host = parts.netloc.rpartition("@")[2]
        text = parts._replace(netloc=f"…@{host}", query="").geturl()
    return text


# ------------------------------------------------------------------------ exposure


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
