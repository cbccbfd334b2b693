"""Reading a JSON object parameter by parameter; each error names its parameter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from edge_client.openai_api.errors import ApiError, invalid

WRONG_TYPE = "invalid_type"

_LONGEST_SHOWN = 40


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Raises:
        ApiError: it is no JSON, or no object.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise invalid(None, f"the body is no valid JSON: {reason}", "invalid_json") from error
    if not isinstance(value, dict):
        raise invalid(None, f"the body must be a JSON object, not {kind(value)}", WRONG_TYPE)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def kind(value: object) -> str:
    """What a JSON value is, for messages."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "null" if value is None else _container(value))


def _container(value: object) -> str:
    return "an array" if isinstance(value, list) else "an object"


def shown(value: object) -> str:
    """A value for messages: as in JSON if that is short, else its beginning or its kind."""
    if isinstance(value, (list, dict)):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def wrong_type(param: str, wanted: str, value: object) -> ApiError:
    """A 400 that says what a parameter must be and what it is."""
    return invalid(param, f"{param} must be {wanted}, not {shown(value)}", WRONG_TYPE)


def text(param: str, value: object) -> str:
    """A string that can be sent.

    Raises:
        ApiError: it is none, or holds half a surrogate pair.
    """
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(param, f"{param} holds half of a surrogate pair, which is no text") from error
    return value


class Fields:
    """A request's parameters. null means absent; names that nobody asked for are errors.

    Getters raise `ApiError`, a 400 that names the parameter.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        """The value as it is, None if absent."""
        return self._values.get(name)

    def check_known(self, known: Sequence[str]) -> None:
        """Refuse parameters that are not in `known`."""
        for name in self._values:
            if name not in known:
                raise invalid(
                    name, f"Unrecognized request argument supplied: {name}", "unknown_parameter"
                )

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.get(name)
        return None if value is None else text(name, value)

    def flag(self, name: str) -> bool:
        """A boolean; false if absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(name, "a boolean", value)
        return bool(value)

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        """A whole number from `low` to `high`, or of any size above `low`."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(name, "a whole number", value)
        if value < low or (high is not None and value > high):
            wanted = f"{low} or more" if high is None else f"from {low} to {high}"
            raise invalid(name, f"{name} must be {wanted}, not {shown(value)}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong_type(name, "a number", value)
        if not low <= value <= high or not math.isfinite(value):
            raise invalid(name, f"{name} must be from {low:g} to {high:g}, not {shown(value)}")
        return float(value)
