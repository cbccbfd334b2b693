"""What was said so far, and how it is kept in a file. No input or output but that file."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.errors import BadRequest

FORMAT = "specwire-conversation"
VERSION = 1


@dataclass(frozen=True)
class Turn:
    """A message and its answer; `stopped` if the answer is only a beginning."""

    user: str
    assistant: str
    stopped: bool = False


@dataclass
class Conversation:
    """Turns that are complete: each message with the answer that was seen.

    system: the system message; None for none. unanswered: the last message, if nothing
    came of it; it is no part of the conversation. earlier: the last turn, while its
    message is answered again.
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    unanswered: str | None = None
    earlier: Turn | None = None

    def messages(self, user: str) -> list[tuple[str, str]]:
        """(role, content) pairs that ask for an answer to `user`."""
        pairs = [("system", self.system)] if self.system is not None else []
        for turn in self.turns:
            pairs += [("user", turn.user), ("assistant", turn.assistant)]
        return [*pairs, ("user", user)]

    def answered(self, user: str, assistant: str, *, stopped: bool = False) -> bool:
        """Take in an answer. An empty one leaves the conversation as it was.

        Returns whether that kept an earlier answer to the same message.
        """
        earlier, self.earlier = self.earlier, None
        self.unanswered = None
        if assistant:
            self.turns.append(Turn(user, assistant, stopped))
        elif earlier is not None:
            self.turns.append(earlier)
            return True
        else:
            self.unanswered = user
        return False

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.turns.clear()
        self.unanswered = None

    def retry(self) -> str | None:
        """The last message, to be answered again; None if there is none.

        Its answer comes back if that leads to none.
        """
        if self.unanswered is None and self.turns:
            self.earlier = self.turns[-1]
        return self.undo()

    def undo(self) -> str | None:
        """Take back the last message and its answer; returns the message, None if none is left."""
        if self.unanswered is not None:
            user, self.unanswered = self.unanswered, None
            return user
        return self.turns.pop().user if self.turns else None

    # ------------------------------------------------------------------ files

    def save(self, path: Path, *, model: str = "") -> None:
        """Write it as JSON, readable by its owner alone; whole or not at all.

        A file that is there is replaced only if it holds a conversation.

        Raises:
            BadRequest: the file holds something else, or can't be written.
        """
        try:
            if path.exists():
                load(path)
        except BadRequest as error:
            raise BadRequest(f"{path} is left as it is: {error}") from error
        record = {
            "format": FORMAT,
            "version": VERSION,
            "model": model,
            "system": self.system,
            "turns": [
                {"user": turn.user, "assistant": turn.assistant, "stopped": turn.stopped}
                for turn in self.turns
            ],
        }
        try:
            write_private(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
        except (OSError, UnicodeEncodeError) as error:
            raise BadRequest(f"can't write {path}: {_reason(error)}") from error


def load(path: Path) -> Conversation:
    """A conversation that was saved.

    Raises:
        BadRequest: the file can't be read, or holds something else.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"can't read {path}: {_reason(error)}") from error
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BadRequest(f"{path} holds no conversation saved by /save")
    if record.get("version") != VERSION:
        raise BadRequest(
            f"{path} was saved in format version {record.get('version')}; this release reads "
            f"version {VERSION}"
        )
    system, turns = record.get("system"), record.get("turns")
    if not (system is None or isinstance(system, str)) or not isinstance(turns, list):
        raise BadRequest(f"{path} is damaged: its system message or turns are missing")
    return Conversation(system, [_turn(path, item) for item in turns])


def _turn(path: Path, item: Any) -> Turn:
    if isinstance(item, dict):
        user, assistant = item.get("user"), item.get("assistant")
        if isinstance(user, str) and isinstance(assistant, str):
            return Turn(user, assistant, item.get("stopped") is True)
    raise BadRequest(f"{path} is damaged: a turn lacks its message or its answer")


def write_private(path: Path, text: str) -> None:
    """Write a file for its owner alone, so that it appears whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    path = path.resolve()  # a link stays a link
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _reason(error: OSError | UnicodeEncodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
