"""Tables of a TOML file, read with errors that name the key, the value and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from specwire.errors import BadRequest

MOST = 1e9
"""Of any number: a time of so many milliseconds is eleven days."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` where one of the known words is close, else what is known."""
    words = [str(item) for item in known]
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(words)}"


class Table:
    """One table, all of whose keys must be known.

    Args:
        values: as tomllib gives them.
        name: for messages; empty for the file's top.
        keys: that may be in it.

    Raises:
        BadRequest: there is another key, here or a wrong value in what reads it.
    """

    def __init__(self, values: Any, name: str, keys: Iterable[str]) -> None:
        known = tuple(keys)
        if not isinstance(values, Mapping):
            raise BadRequest(f"{name} must be a table, [{name}], not {values!r}")
        self._values: Mapping[str, Any] = values
        self.name = name
        for key in values:
            if key not in known:
                raise BadRequest(f"unknown key {self._path(key)}{nearest(key, known)}")

    def _path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._values.get(key, default)

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = MOST
    ) -> float:
        """A finite number within a range; required where there is no default."""
        value = self._values.get(key, default)
        if value is None:
            raise BadRequest(f"{self._path(key)} is missing; give a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRequest(f"{self._path(key)} must be a number, not {value!r}")
        if not least <= value <= most:
            raise BadRequest(
                f"{self._path(key)} must be {least:.10g} or more and {most:.10g} at most,"
                f" not {value!r}"
            )
        return float(value)

    def optional(self, key: str, *, least: float = 0.0, most: float = MOST) -> float | None:
        """A number, or None where the key is absent."""
        return self.number(key, least=least, most=most) if key in self._values else None

    def whole(self, key: str, default: int, *, least: int = 0, most: int) -> int:
        """A whole number within a range."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadRequest(
                f"{self._path(key)} must be a whole number from {least} to {most}, not {value!r}"
            )
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise BadRequest(f"{self._path(key)} must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise BadRequest(f'{self._path(key)} must be a text in "quotes", not {value!r}')
        return value

    def numbers(self, key: str, *, least: float = 0.0, most: float = MOST) -> tuple[float, ...]:
        """A number or a list of them, at least one."""
        value = self._values.get(key)
        values = value if isinstance(value, list) else [value]
        if not values:
            raise BadRequest(f"{self._path(key)} is empty; give at least one number")
        each = [Table({key: item}, self.name, [key]) for item in values]
        return tuple(item.number(key, least=least, most=most) for item in each)

    def words(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A list of strings."""
        value = self._values.get(key, list(default))
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise BadRequest(f"{self._path(key)} must be a list of names, not {value!r}")
        return tuple(values)
