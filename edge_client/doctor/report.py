"""What was checked and measured, for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from edge_client.doctor.advice import Advice
from edge_client.doctor.measured import Measured
from specwire.errors import Draining, LinkError, SpecwireError

EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

_GREEN, _YELLOW, _RED, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_NAME_WIDTH = 14


class State(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


_COLOURS = {State.OK: _GREEN, State.WARNING: _YELLOW, State.FAILED: _RED}


@dataclass(frozen=True)
class Check:
    """One line of the report.

    text: what was found. cure: what to do about it; empty where nothing is to be done.
    exit_code: what a failure means for the command.
    """

    name: str
    state: State
    text: str
    cure: str = ""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "state": str(self.state), "text": self.text, "cure": self.cure}


def ok(name: str, text: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name, State.OK, text)


def warning(name: str, text: str, cure: str) -> Check:
    """A check that found what may be wrong, or wanted otherwise."""
    return Check(name, State.WARNING, text, cure)


def failed(name: str, text: str, cure: str, *, unreachable: bool = False) -> Check:
    """A check that found what makes this verifier or draft unusable."""
    code = EXIT_UNREACHABLE if unreachable else EXIT_REFUSED
    return Check(name, State.FAILED, text, cure, code)


def failed_with(name: str, error: SpecwireError) -> Check:
    """A check that ended with an error, whose message says what to do: after a semicolon."""
    text, _, cure = str(error).rpartition("; ")
    if not text:
        text, cure = cure, ""
    return failed(name, text, cure, unreachable=isinstance(error, (LinkError, Draining)))


@dataclass
class Report:
    """All of it. `tell` is called with each check as it is done."""

    server: str
    draft: str | None
    tell: Callable[[Check], None] = lambda check: None
    checks: list[Check] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)
    advice: Advice | None = None

    def add(self, check: Check) -> bool:
        """Take in a check; returns whether it did not fail."""
        self.checks.append(check)
        self.tell(check)
        return check.state is not State.FAILED

    @property
    def exit_code(self) -> int:
        """The first failure's; 0 without one."""
        return next((check.exit_code for check in self.checks if check.exit_code), 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON object; documented in docs/cli.md."""
        return {
            "server": self.server,
            "draft": self.draft,
            "exit_code": self.exit_code,
            "checks": [check.to_json() for check in self.checks],
            "measured": self.measured.to_json(),
            "expected": self.advice.to_json() if self.advice is not None else None,
        }


def shown(check: Check, *, colour: bool) -> str:
    """A line for a person, and one with the cure if there is any."""
    state = f"{check.state:<7}"
    if colour:
        state = f"{_COLOURS[check.state]}{state}{_RESET}"
    line = f"{state}  {check.name:<{_NAME_WIDTH}}  {_harmless(check.text)}"
    cure = f"{'':9}{'':<{_NAME_WIDTH}}  → {_harmless(check.cure)}"
    return f"{line}\n{cure}" if check.cure else line


def _harmless(text: str) -> str:
    """The text without what would steer a terminal: a verifier chooses its names."""
    return "".join(char for char in text if char.isprintable())
