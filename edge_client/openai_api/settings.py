"""Where the endpoint listens and who may use it; checked before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.credentials import is_loopback
from specwire.errors import BadRequest

KEY_VARIABLE = "SPECWIRE_API_KEY"


@dataclass(frozen=True)
class ServeSettings:
    """What `edge-client serve` is started with.

    host, port: to listen on; port 0 takes a free one. server: the verifier's HOST:PORT, to
    be told. key: callers must show it; None asks for none. names: other hosts that callers
    without a key may name in their requests. origins: of web pages that may use the
    endpoint. insecure: listen beyond this machine without a key. sessions: most at a time.
    """

    host: str
    port: int
    server: str = ""
    key: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    insecure: bool = False
    sessions: int = 8

    def __post_init__(self) -> None:
        """Refuse what is out of range or unsafe.

        Raises:
            BadRequest: see its message.
        """
        if self.sessions < 1:
            raise BadRequest(f"--sessions must be 1 or more, not {self.sessions}")
        for name in self.names:
            if not re.fullmatch(r"[\w.-]+|[0-9A-Fa-f:.]+", name):
                raise BadRequest(
                    f"--allow-host takes the name that callers use, such as edge.example.org, "
                    f"without a port, not {name!r}"
                )
        for origin in self.origins:
            if origin != "*" and ("://" not in origin or origin.endswith("/")):
                raise BadRequest(
                    f"--allow-origin takes an origin such as http://localhost:3000, or '*', "
                    f"not {origin!r}"
                )
        if self.exposed and self.key is None and not self.insecure:
            raise BadRequest(
                f"{self.address} can be reached from other machines, but anyone may use it; set "
                f"a key (--api-key-file or {KEY_VARIABLE}), listen on 127.0.0.1, or, behind "
                "something that checks callers, set --insecure"
            )

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.address)

    @property
    def warning(self) -> str | None:
        """What to tell a person about the risk that was taken, if one was."""
        if not self.exposed:
            return None
        who = "anyone may use it" if self.key is None else "the key travels in plain text"
        return f"{self.address} can be reached from other machines, and {who}"


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        BadRequest: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bracketed = bare != host
    digits = port.isascii() and port.isdigit()
    if not (colon and bare and digits and int(port) < 1 << 16) or (":" in bare and not bracketed):
        raise BadRequest(f"--listen must be HOST:PORT, not {text!r}")
    return bare, int(port)


def read_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The key from a file or else the environment; None where neither is given.

    Raises:
        BadRequest: the file can't be read, or the key can't be sent in a header.
    """
    key, source = environment.get(KEY_VARIABLE) or None, KEY_VARIABLE
    if file is not None:
        source = str(file)
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"can't read the key file {file}: {error}") from error
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise BadRequest(f"the key in {source} is empty or holds characters that no key has")
    return key
