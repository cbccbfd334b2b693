"""Scenarios as people write them: TOML, described in docs/simulate.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from netsim import axes
from netsim.acceptance import Acceptance, read_record
from netsim.catalogue import profile_named, usable
from netsim.fields import MOST, Table, nearest
from netsim.links import LinkModel
from netsim.links.table import KEYS, from_table
from netsim.recorded import read_times
from netsim.scenario import EDGE, Scenario, Way
from netsim.times import EXTRA_S, Duration, Models
from specwire.errors import BadRequest

BASELINES = (Way.PER_TOKEN, Way.STREAM, Way.CLOUD)
"""What every saving is shown against."""
MOST_TOKENS = 100_000
MOST_SEEDS = 10_000
MOST_SEED = 10**15
"""A session's is a thousand times as large, and has 64 bits."""
MOST_WINDOW = 100_000

_MODELS = (
    "record", "draft_ms", "draft_spread", "verify_ms", "verify_spread", "extra_ms",
    "batch_ms", "prefill_ms", "draft_prefill_ms", "cloud_draft_ms", "cloud_draft_spread",
    "overhead_ms",
)  # fmt: skip
_ACCEPTANCE = ("record", "alpha", "hard_alpha", "hard_share", "hard_length")
_RUN = ("ways", "gamma", "window", "tokens", "prompt", "clients", "connect", "seeds", "seed")


@dataclass(frozen=True)
class Study:
    """A scenario, the ways to compare in it, and what else is varied.

    base: with any way and the first seed. ways: edge ways; the baselines always come too.
    """

    base: Scenario
    title: str = ""
    note: str = ""
    ways: tuple[Way, ...] = EDGE
    seeds: tuple[int, ...] = tuple(range(8))
    vary: Mapping[str, tuple[axes.Value, ...]] = field(default_factory=dict)


def read_study(path: Path) -> Study:
    """A study from a file.

    Raises:
        BadRequest: the file can't be read, or a key or value in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read the scenario {path}: {error}") from error
    return parse_study(text, str(path), path.parent)


def shipped() -> dict[str, str]:
    """Names of the scenarios that come along, and what each contains."""
    folder = resources.files("netsim") / "scenarios"
    files = sorted(folder.iterdir(), key=lambda item: item.name)
    return {
        item.name.removesuffix(".toml"): item.read_text(encoding="utf-8")
        for item in files
        if item.name.endswith(".toml")
    }


def find_study(name: str) -> Study:
    """A shipped study by its name, or one from a file whose name ends in .toml."""
    if name.endswith(".toml"):
        return read_study(Path(name))
    known = shipped()
    if name not in known:
        raise BadRequest(
            f"no shipped scenario is called {name!r}, and a file's name must end in .toml"
            f"{nearest(name, known)}"
        )
    return parse_study(known[name], name, Path())


def default_study() -> Study:
    """What is simulated where nothing else is asked for."""
    link = LinkModel.symmetric(0.05)
    models = Models.constant(draft_s=0.010, verify_s=0.040, extra_s=EXTRA_S)
    return Study(Scenario(link, models, Acceptance.steady(0.7)))


def parse_study(text: str, source: str, folder: Path) -> Study:
    """A study from TOML. Files it names are looked for in `folder`; `source` is for messages."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{source} is no TOML: {error}") from error
    try:
        return _study(values, folder)
    except (BadRequest, ValueError) as error:
        raise BadRequest(f"{source}: {error}") from error


def _study(values: dict[str, Any], folder: Path) -> Study:
    top = Table(values, "", ("title", "note", "link", "models", "acceptance", "run", "vary"))
    run = Table(top.raw("run", {}), "run", _RUN)
    link = _link(top.raw("link", {}), folder)
    models = _models(Table(top.raw("models", {}), "models", _MODELS), folder)
    acceptance = _acceptance(Table(top.raw("acceptance", {}), "acceptance", _ACCEPTANCE), folder)
    seeds = run.whole("seeds", 8, least=1, most=MOST_SEEDS)
    first = run.whole("seed", 0, most=MOST_SEED)
    base = Scenario(
        link=link,
        models=models,
        acceptance=acceptance,
        gamma=axes.AXES["gamma"].read(run.raw("gamma")),  # type: ignore[arg-type]
        window=run.whole("window", 0, least=1, most=MOST_WINDOW) if "window" in run else None,
        tokens=run.whole("tokens", 256, least=1, most=MOST_TOKENS),
        prompt=run.whole("prompt", 64, most=MOST_TOKENS),
        clients=axes.AXES["clients"].read(run.raw("clients", 1)),  # type: ignore[arg-type]
        connect=run.flag("connect"),
        seed=first,
    )
    ways = edge_ways(run.words("ways", tuple(EDGE)))
    vary = _vary(top.raw("vary", {}))
    return Study(
        base, top.text("title"), top.text("note"), ways, tuple(range(first, first + seeds)), vary
    )


def edge_ways(names: tuple[str, ...]) -> tuple[Way, ...]:
    """The edge ways among the names; baselines may be named and come anyway."""
    ways = [Way(axes.read_way(name)) for name in names]
    return tuple(dict.fromkeys(way for way in ways if way in EDGE))


def _vary(values: Any) -> dict[str, tuple[axes.Value, ...]]:
    table = Table(values, "vary", [name for name in axes.AXES if name != "way"])
    found: dict[str, tuple[axes.Value, ...]] = {}
    for name in axes.AXES:
        if name in table:
            items = table.raw(name)
            items = items if isinstance(items, list) else [items]
            if not items:
                raise BadRequest(f"vary.{name} is empty; give at least one value")
            found[name] = tuple(axes.AXES[name].read(item) for item in items)
    return found


# -------------------------------------------------------------------------- the link


def _link(values: Any, folder: Path) -> LinkModel:
    """A profile by its name, or the figures of one, as in a file of its own."""
    if not isinstance(values, Mapping):
        raise BadRequest(f"link must be a table, [link], not {values!r}")
    if "profile" not in values:
        if not values:
            raise BadRequest("[link] is missing; give it a profile, or an rtt_ms")
        return usable(from_table({"name": _link_name(values), **values}, folder=folder))
    name = Table(values, "link", ("profile", *KEYS, "up", "down")).text("profile")
    if others := [key for key in values if key != "profile"]:
        raise BadRequest(
            f"link.profile says all of a link; leave out {others[0]}, or vary it in [vary]"
        )
    return profile_named(str(folder / name) if name.endswith(".toml") else name)


def _link_name(values: Mapping[str, Any]) -> str:
    rtt = values.get("rtt_ms")
    return f"rtt-{rtt:g}" if isinstance(rtt, (int, float)) and 0 <= rtt < MOST else "by hand"


# ------------------------------------------------------------------ models, acceptance


def _models(table: Table, folder: Path) -> Models:
    for what in ("draft", "verify", "cloud_draft"):
        _needs(table, f"{what}_spread", f"{what}_ms")
    draft = verify = None
    extra = EXTRA_S
    if "record" in table:
        draft, verify, measured = read_times(folder / table.text("record"))
        extra = EXTRA_S if verify is None else measured
    if draft is None or "draft_ms" in table:
        draft = _duration(table, "draft")
    if verify is None or "verify_ms" in table:
        verify = _duration(table, "verify")
    if "extra_ms" in table:
        extra = table.number("extra_ms") / 1e3
    return Models(
        draft,
        verify,
        extra,
        prefill_s=table.number("prefill_ms", 0.0) / 1e3,
        draft_prefill_s=table.number("draft_prefill_ms", 0.0) / 1e3,
        cloud_draft=_duration(table, "cloud_draft") if "cloud_draft_ms" in table else None,
        overhead_s=table.number("overhead_ms", 0.0) / 1e3,
        batch_s=table.number("batch_ms", 0.0) / 1e3,
    )


def _needs(table: Table, key: str, needed: str) -> None:
    """That a key is not there for nothing."""
    if key in table and needed not in table:
        raise BadRequest(f"{table.name}.{key} says nothing without {needed}; give that, too")


def _duration(table: Table, name: str) -> Duration:
    least = 1e-3 if name == "verify" else 0.0
    mean = table.number(f"{name}_ms", least=least) / 1e3
    return Duration(mean, table.number(f"{name}_spread", 0.0, most=10.0))


def _acceptance(table: Table, folder: Path) -> Acceptance:
    if "record" in table:
        if others := [key for key in _ACCEPTANCE[1:] if key in table]:
            raise BadRequest(f"acceptance.record says all of it; leave out {others[0]}")
        return read_record(folder / table.text("record"))
    if "alpha" not in table:
        raise BadRequest("acceptance.alpha is missing; give a rate, several by place, or a record")
    _needs(table, "hard_share", "hard_alpha")
    _needs(table, "hard_length", "hard_alpha")
    return Acceptance(
        alphas=table.numbers("alpha", most=1.0),
        hard=table.optional("hard_alpha", most=1.0),
        hard_share=table.number("hard_share", 0.3, most=1.0),
        hard_length=table.number("hard_length", 12.0, least=1.0),
    )
