"""Bearer tokens: who holds which, as a file of hashes.

    # comment
    alice:sha256$9f86d081…

A token is 256 random bits, made here and shown once. Because nobody chose it,
there is nothing to guess, and a plain SHA-256 protects it as well as a slow
password hash would: who reads the file would have to try 2^256 tokens. A slow
hash would only let strangers burn the verifier's time with wrong tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from specwire.errors import BadRequest

SCHEME = "sha256"
TOKEN_PREFIX = "sw_"
"""Lets scanners for leaked secrets know what they see."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """A token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 of the token, 64 hex digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenSet:
    """The tokens that are valid, by their hashes."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        """`hashes`: 64 hex digits by client name."""
        self._hashes = MappingProxyType(dict(hashes))

    @property
    def names(self) -> tuple[str, ...]:
        """The clients, in the file's order."""
        return tuple(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def owner(self, token: str) -> str | None:
        """The client whose token this is, or None.

        Takes the same time for every token: all entries are compared, each in constant time.
        """
        shown = token_hash(token)
        found = None
        for name, known in self._hashes.items():
            if hmac.compare_digest(shown, known):
                found = name
        return found


# ---------------------------------------------------------------------- the file


def read_tokens(path: Path) -> TokenSet:
    """The tokens of a file.

    Raises:
        BadRequest: it can't be read, or a line is wrong; the message names file and line.
    """
    return TokenSet(dict(_entries(path, _lines(path))))


def add_token(path: Path, name: str) -> str:
    """Make a token for a client, append its hash, and return it: nothing else keeps it.

    The file is made if there is none, readable by its owner alone.

    Raises:
        BadRequest: the name is wrong or has a token already, or the file can't be used.
    """
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} can't be a client's name: use up to 64 letters, digits and . _ @ -, "
            "beginning with a letter or digit"
        )
    lines = _lines(path) if path.exists() else []
    if name in dict(_entries(path, lines)):
        raise BadRequest(
            f"{path}: {name} has a token already; revoke it first, or choose another name"
        )
    token = new_token()
    _replace(path, [*lines, f"{name}:{SCHEME}${token_hash(token)}"])
    return token


def revoke_token(path: Path, name: str) -> None:
    """Take a client's token out of the file.

    Raises:
        BadRequest: there is none, or the file can't be used.
    """
    lines = _lines(path)
    if name not in dict(_entries(path, lines)):
        raise BadRequest(f"{path}: no client is called {name!r}")
    _replace(path, [line for line in lines if line.strip().partition(":")[0] != name])


def readable_by_others(path: Path) -> bool:
    """Whether accounts other than the file's owner may read it (never known on Windows)."""
    if os.name == "nt":
        return False
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadRequest(f"can't read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"the token file {path} is no UTF-8 text") from error


def _entries(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, rest = text.partition(":")
        scheme, _, digest = rest.partition("$")
        # The line itself is not shown: someone may have written a token into it.
        if not _NAME.fullmatch(name) or scheme != SCHEME or not _HEX.fullmatch(digest):
            raise BadRequest(
                f"{path}: line {number} is not of the form NAME:{SCHEME}$HASH; make such lines "
                "with `cloud-verifier token new`"
            )
        if name in seen:
            raise BadRequest(f"{path}: line {number} is the second token of {name}; remove one")
        seen.add(name)
        yield name, digest


def _replace(path: Path, lines: Iterable[str]) -> None:
    # A new file takes the old one's place, so that a verifier never reads half of it.
    try:
        path = path.resolve()  # a link stays one
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:  # mkstemp made it mode 600
                if os.name != "nt" and path.exists():
                    # The verifier's account may be another than who runs this.
                    former = path.stat()
                    os.fchown(handle, former.st_uid, former.st_gid)
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise BadRequest(f"can't write the token file {path}: {error.strerror}") from error
