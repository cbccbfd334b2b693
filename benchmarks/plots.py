"""Pictures of what was measured, as SVG files that follow the reader's theme."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.results import Results, Row
from netsim.report.drawing import COLOURS, Drawing, drawn
from netsim.scenario import Way

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = (Way.PER_TOKEN, Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD, Way.AUTO)
_CAPACITY = {
    "stream": COLOURS[Way.STREAM],
    "wait (sync)": COLOURS[Way.SYNC],
    "wait (pipeline)": COLOURS[Way.PIPELINE],
    "run_ahead": COLOURS[Way.RUN_AHEAD],
    "auto": COLOURS[Way.AUTO],
}


NAMES = {
    "system": "benchmark-links",
    "q_codec": "benchmark-q",
    "capacity": "benchmark-capacity",
}
"""Of the pictures, by the suites that are better seen than read."""


def pictures(results: Results) -> Iterator[Drawing]:
    """As far as their suites were measured."""
    drawings: dict[str, tuple[Callable[..., None], float]] = {
        "system": (_links, 5.4),
        "q_codec": (_codecs, 3.2),
        "capacity": (_capacity, 3.2),
    }
    for suite, (draw, height) in drawings.items():
        if suite in results.suites:
            rows = results.suites[suite].rows
            yield drawn(partial(draw, rows=rows), NAMES[suite], 8.0, height)


def _links(figure: Figure, rows: Sequence[Row]) -> None:
    """Speed against streaming by round trip: a panel for each draft and temperature."""
    drafts = sorted({row["draft"] for row in rows if row["draft"]}, reverse=True)
    temperatures = sorted({row["temperature"] for row in rows})
    panels = figure.subplots(
        len(drafts), len(temperatures), squeeze=False, sharex=True, sharey="row"
    )
    for across, draft in zip(panels, drafts, strict=True):
        for panel, temperature in zip(across, temperatures, strict=True):
            for way in _LINES:
                points = sorted(
                    (float(row["link"].removeprefix("rtt-")), row["against_streaming"])
                    for row in rows
                    if row["link"].startswith("rtt-")
                    and row["way"] == way
                    and row["temperature"] == temperature
                    and row["draft"] in (None, draft)
                )
                width = 2.4 if way is Way.AUTO else 1.2
                panel.plot(*zip(*points, strict=True), color=COLOURS[way], lw=width, label=way)
            panel.axhline(1.0, color=COLOURS[Way.STREAM], lw=1.2, ls="--", label="stream")
            panel.set_title(f"{draft} draft, temperature {temperature:g}")
            panel.grid(axis="y")
        across[0].set_ylim(bottom=0)  # of the row, once all is drawn
    figure.supxlabel("round trip in ms", fontsize=9)
    figure.supylabel("speed against cloud streaming", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))


def _codecs(figure: Figure, rows: Sequence[Row]) -> None:
    """Acceptance rate by what a draft token takes on the wire."""
    panel = figure.subplots()
    for draft, colour in zip(
        ("small", "close"), (COLOURS[Way.SYNC], COLOURS[Way.RUN_AHEAD]), strict=True
    ):
        mine = [row for row in rows if row["draft"] == draft]
        sparse = sorted(
            (row["bytes_mean"], row["alpha"]) for row in mine if row["codec"].startswith("cover")
        )
        panel.plot(*zip(*sparse, strict=True), "o-", color=colour, ms=4, label=f"{draft}, sparse")
        for row in mine:
            if row["codec"].startswith(("dense", "coupled")):
                marker = "s" if row["codec"].startswith("dense") else "^"
                name = row["codec"].partition(":")[0]
                panel.plot(
                    [row["bytes_mean"]],
                    [row["alpha"]],
                    marker,
                    color=colour,
                    ms=6,
                    label=f"{draft}, {name}",
                )
    panel.set_xscale("log")
    panel.set_xlabel("bytes for each draft token, on average")
    panel.set_ylabel("acceptance rate α")
    panel.grid(axis="both")
    figure.legend(loc="outside right upper")


def _capacity(figure: Figure, rows: Sequence[Row]) -> None:
    """Throughput, and time per token, by how many clients there are."""
    left, right = figure.subplots(1, 2, sharex=True)
    for way, colour in _CAPACITY.items():
        mine = [row for row in rows if row["way"] == way]
        clients = [row["clients"] for row in mine]
        left.plot(clients, [row["tokens_per_s"] for row in mine], "o-", ms=3, color=colour)
        times = [row["ms_per_token_p95"] for row in mine]
        right.plot(clients, times, "o-", ms=3, color=colour, label=way)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted({row["clients"] for row in rows}))
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.set_xlabel("clients")
        panel.set_ylim(bottom=0)
        panel.grid(axis="y")
    left.set_ylabel("tokens/s of all clients")
    right.set_ylabel("ms per token, 95th percentile")
    figure.legend(loc="outside upper center", ncols=len(_CAPACITY))
