"""Where the settings of `cloud-verifier serve` come from.

A value comes from, in this order: a flag, the environment (`SPECWIRE_` and the
option's name), a TOML file (`--config`), the default. All four spell an option
alike: `--tls-cert`, `SPECWIRE_TLS_CERT`, `tls_cert`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from cloud_verifier.options import NONE, OPTIONS, PREFIX, Option, read_path
from cloud_verifier.settings import Settings, check_together
from specwire.errors import BadRequest

_EDGE = frozenset({"SPECWIRE_CACHE", "SPECWIRE_CONFIG", "SPECWIRE_TOKEN"})
# Kubernetes sets such variables for every service of the namespace, by its name.
_SERVICE_LINK = re.compile(r"SPECWIRE_([A-Z0-9_]+_)?(SERVICE|PORT)(_[A-Z0-9_]+)?")

_BY_KEY = {option.key: option for option in OPTIONS}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}


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
    check_together(settings)
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
        if option.read is read_path and text != NONE:
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
