"""The log: lines for people, or JSON objects for machines.

A session id is a secret, so a log shows only its first digits; prompts, tokens
of text and bearer tokens are never logged. What a record is about travels in
its `extra` (see `about`), not in its message, so that both formats can show it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from cloud_verifier.observe import Round
from specwire.errors import SpecwireError

logger = logging.getLogger("cloud_verifier.rounds")

TAG_DIGITS = 8

_FIELDS = (
    "session",
    "client",
    "round",
    "rounds",
    "output_tokens",
    "examined",
    "accepted",
    "queue_us",
    "forward_us",
    "code",
)


def session_tag(session_id: bytes) -> str:
    """What a log may show of a session id: enough to follow it, too little to use it."""
    return session_id.hex()[:TAG_DIGITS]


def about(session_id: bytes, **more: object) -> Mapping[str, object]:
    """The `extra` of a record about a session."""
    return {"session": session_tag(session_id), **more}


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO cloud_verifier.service: opened session=1f2e3d4c`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it if there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        # A line break in a message could make up a line of its own.
        line = line.replace("\r", "\\r").replace("\n", "\\n")
        return f"{line}\n{_trace(self, record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = _trace(self, record)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure(log_format: str, level: int, stream: TextIO | None = None) -> None:
    """Send every record of at least `level` to `stream` (standard error), in one format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    # At debug level these tell of every event of the loop and of every connection.
    for noisy in ("asyncio", "grpc._cython.cygrpc"):
        logging.getLogger(noisy).setLevel(max(level, logging.INFO))


def notice(text: str, *, level: int = logging.INFO) -> None:
    """Tell whoever started the process, whatever the log's level is.

    As plain lines, or as a record each where the log is JSON: machines read every line.
    """
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    json_formatter = next((f for f in formatters if isinstance(f, JsonFormatter)), None)
    for line in text.splitlines():
        if json_formatter is not None:
            record = logging.LogRecord("cloud_verifier", level, "", 0, line, None, None)
            line = json_formatter.format(record)
        elif level >= logging.WARNING:
            line = f"{logging.getLevelName(level)}: {line}"
        print(line, file=sys.stderr, flush=True)


class RoundLog:
    """An `Observer` that writes a debug record for each round and for each refusal."""

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """Too often to be worth a line."""

    def round_ended(self, round: Round) -> None:
        """Log its numbers."""
        verdict = round.verdict
        logger.debug(
            "round",
            extra=about(
                round.session_id,
                round=verdict.number,
                examined=verdict.examined,
                accepted=verdict.accepted,
                queue_us=verdict.queue_us,
                forward_us=verdict.forward_us,
            ),
        )

    def drafts_received(self, tokens: int) -> None:
        """The round says enough."""

    def drafts_stale(self, tokens: int) -> None:
        """The metrics say enough."""

    def refused(self, error: SpecwireError) -> None:
        """Log its kind; the message is the client's, for it may quote what the client sent."""
        logger.debug("refused", extra={"code": type(error).__name__})


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: vars(record)[name] for name in _FIELDS if name in vars(record)}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info is not None
    return formatter.formatException(record.exc_info)
