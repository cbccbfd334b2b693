"""Earlier inputs, kept across runs in a file for its owner alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit.history import History

from edge_client.chat.conversation import write_private

MOST = 1000
"""Inputs that are kept; up to twice as many lie in the file."""
_LONGEST = 64 << 10
"""Characters; a longer input is not kept."""


def history_file(env: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path | None:
    """Where the history is: $XDG_STATE_HOME/specwire, else the platform's usual place.

    None if there is no home to have it in.
    """
    env = os.environ if env is None else env
    name = Path("specwire") / "chat-history"
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / name
    if platform == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / name
    folder = "~/Library/Application Support" if platform == "darwin" else "~/.local/state"
    try:
        return Path(folder).expanduser() / name
    except RuntimeError:
        return None


class FileHistory(History):
    """One input a line, as JSON. A file that can't be read or written is told of once.

    Several chats may add to it at a time.
    """

    def __init__(self, path: Path, notify: Callable[[str], None]) -> None:
        super().__init__()
        self._path = path
        self._notify = notify
        self._told = False

    def load_history_strings(self) -> Iterable[str]:
        """Inputs, the newest first."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._complain(error)
            return []
        inputs = [text for line in lines if (text := _input(line)) is not None]
        if len(inputs) > 2 * MOST:
            inputs = inputs[-MOST:]
            with contextlib.suppress(OSError):
                write_private(self._path, "".join(map(_line, inputs)))
        return inputs[: -MOST - 1 : -1]

    def store_string(self, string: str) -> None:
        """Keep an input, unless it repeats the one before."""
        if self._told or len(string) > _LONGEST or string in self._loaded_strings[1:2]:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if hasattr(os, "fchmod"):
                    os.fchmod(handle, 0o600)
                os.write(handle, _line(string).encode())
            finally:
                os.close(handle)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._told:
            self._notify(
                f"inputs are not kept: {self._path}: {error.strerror}; "
                "--history FILE names another file, --history none keeps none"
            )
        self._told = True


def _line(text: str) -> str:
    return json.dumps(text) + "\n"


def _input(line: str) -> str | None:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
