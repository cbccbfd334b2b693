"""What `/set` can change, from words to options and back."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from edge_client.options import GenerateOptions, Mode, Verification
from specwire.errors import BadRequest

NOTHING = "none"
_KINDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Setting:
    """One thing that can be set.

    read: from a word to a value; raises ValueError. sampling: it belongs to the sampling
    parameters. optional: `none` leaves it to the verifier or the policy.
    """

    name: str
    read: Callable[[str], Any]
    sampling: bool = False
    optional: bool = False
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Its name in the options."""
        return self.name.replace("-", "_")

    def value(self, options: GenerateOptions) -> Any:
        """What it is set to."""
        return getattr(options.sampling if self.sampling else options, self.field)


_MODES = tuple(str(mode) for mode in Mode if mode is not Mode.TARGET_ONLY)

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("temperature", float, sampling=True),
        Setting("top-k", int, sampling=True),
        Setting("top-p", float, sampling=True),
        Setting("min-p", float, sampling=True),
        Setting("repetition-penalty", float, sampling=True),
        Setting("presence-penalty", float, sampling=True),
        Setting("frequency-penalty", float, sampling=True),
        Setting("seed", int, optional=True),
        Setting("max-tokens", int),
        Setting("mode", str, choices=_MODES),
        Setting("verification", str, choices=tuple(map(str, Verification))),
        Setting("gamma", int, optional=True),
        Setting("window", int, optional=True),
    )
}


def change(options: GenerateOptions, name: str, word: str) -> GenerateOptions:
    """The options with one setting changed.

    Raises:
        BadRequest: there is no such setting, or the value won't do.
    """
    setting = SETTINGS.get(name.replace("_", "-"))
    if setting is None:
        raise BadRequest(f"nothing is called {name!r}{nearest(name, SETTINGS)}; /set lists them")
    value = _value(setting, word)
    if setting.sampling:
        return replace(options, sampling=replace(options.sampling, **{setting.field: value}))
    return replace(options, **{setting.field: value})


def _value(setting: Setting, word: str) -> Any:
    if setting.optional and word == NOTHING:
        return None
    if setting.choices and word not in setting.choices:
        known = ", ".join(setting.choices)
        raise BadRequest(f"{setting.name} must be one of {known}, not {word!r}")
    try:
        return setting.read(word)
    except ValueError:
        kind = _KINDS.get(setting.read, "text")  # type: ignore[call-overload]
        also = f" or {NOTHING}" if setting.optional else ""
        raise BadRequest(f"{setting.name} must be {kind}{also}, not {word!r}") from None


def listing(options: GenerateOptions) -> list[str]:
    """A line for each setting, with its value."""
    width = max(map(len, SETTINGS))
    lines = []
    for setting in SETTINGS.values():
        value = setting.value(options)
        if value is None:
            value = "none (chosen as it goes)" if setting.name != "seed" else "none (drawn anew)"
        among = f"  of {', '.join(setting.choices)}" if setting.choices else ""
        lines.append(f"{setting.name:<{width}}  {value}{among}")
    return lines


def nearest(word: str, known: Iterable[str]) -> str:
    """A question for what was meant; empty if nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""
