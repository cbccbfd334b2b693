"""The charts of a report: savings, break-even, bytes and forwards, γ."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from netsim.report.data import ALPHAS, FIXED, GAMMAS, MAPPED, RTTS_MS, ReportData
from netsim.report.drawing import COLOURS, INK, plain
from netsim.scenario import Way
from netsim.scenario_file import BASELINES
from netsim.words import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = {Way.PER_TOKEN: "s", Way.STREAM: "o", Way.CLOUD: "D"}
_LOSS = "#d64545"


def savings(figure: Figure, data: ReportData) -> None:
    """Speed over each of the three baselines, on each link that has a name."""
    names = list(data.by_profile)
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    for panel, way in zip(panels, (Way.SYNC, Way.AUTO), strict=True):
        for over in BASELINES:
            speeds = [found.speedup(way, over) for found in data.by_profile.values()]
            panel.plot(
                speeds, range(len(names)), _MARKS[over], color=COLOURS[over], ms=6,
                label=f"over {NAMES[over]}",
            )  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.set_title(NAMES[way], loc="left")
        panel.set_xlabel("times as fast as the baseline")
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis() if way is Way.SYNC else None
        panel.grid()
    low, high = panels[0].get_xlim()
    low, high = min(low, 0.5), max(high, 2.0)
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    for panel in panels:
        panel.axvspan(2.0 ** powers[0], 1, color=_LOSS, alpha=0.1, lw=0)
        panel.axvline(1, color=INK, lw=1)
        panel.set_xlim(low, high)
        panel.set_xticks([2.0**power for power in powers], [_times(2.0**p) for p in powers])
        panel.set_xlim(low, high)
        panel.minorticks_off()
        panel.text(
            0.01, 0.005, " slower", transform=panel.transAxes, color=_LOSS, ha="left", va="bottom"
        )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _times(value: float) -> str:
    return f"{value:g}×" if value >= 1 else f"1/{1 / value:g}"


def break_even(figure: Figure, data: ReportData) -> None:
    """Speed over cloud streaming by round trip and acceptance rate, as numbers on colours."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    panels = figure.subplots(1, 2, sharey=True)
    most = 2.0
    shade, scale = colormaps["RdYlGn"], Normalize(-most, most)
    for panel, way in zip(panels, MAPPED, strict=True):
        for row in range(len(RTTS_MS)):
            for column in range(len(ALPHAS)):
                ratio = data.mapped[row][column].speedup(way, Way.STREAM)
                value = scale(max(-most, min(most, math.log2(ratio))))
                panel.fill_between(
                    [row, row + 1], column, column + 1,
                    color=shade(value), lw=0.5, edgecolor="white",
                )  # fmt: skip
                panel.text(
                    row + 0.5, column + 0.5, f"{ratio:.2f}", ha="center", va="center",
                    fontsize=7.5, color="#000000" if 0.15 < value < 0.85 else "#ffffff",
                )  # fmt: skip
        _borders(panel, data, way)
        panel.set_xticks([i + 0.5 for i in range(len(RTTS_MS))], [str(r) for r in RTTS_MS])
        panel.set_yticks([i + 0.5 for i in range(len(ALPHAS))], [f"{a:g}" for a in ALPHAS])
        panel.set_xlim(0, len(RTTS_MS))
        panel.set_ylim(0, len(ALPHAS))
        panel.set_xlabel("round trip, ms")
        panel.set_title(f"{NAMES[way]}, times as fast as cloud streaming", loc="left", fontsize=10)
        plain(panel)
    panels[0].set_ylabel("acceptance rate α")


def _borders(panel: Axes, data: ReportData, way: Way) -> None:
    """A line between what is faster than streaming and what is not."""
    from netsim.comparison import SAME

    pays = [[cell.speedup(way, Way.STREAM) > 1 + SAME for cell in row] for row in data.mapped]
    for row in range(len(RTTS_MS)):
        for column in range(len(ALPHAS)):
            if row + 1 < len(RTTS_MS) and pays[row][column] != pays[row + 1][column]:
                panel.plot([row + 1] * 2, [column, column + 1], color="#000000", lw=2)
            if column + 1 < len(ALPHAS) and pays[row][column] != pays[row][column + 1]:
                panel.plot([row, row + 1], [column + 1] * 2, color="#000000", lw=2)


def costs(figure: Figure, data: ReportData) -> None:
    """Bytes on the wire and target forwards, a token."""
    wire, work = figure.subplots(1, 2, sharey=True)
    found = data.compared.figures
    places = range(len(found))
    colours = [COLOURS[item.way] for item in found]
    ups = [item.bytes_up for item in found]
    wire.barh(places, ups, color=colours, label="up")
    wire.barh(
        places,
        [item.bytes_down for item in found],
        left=ups,
        color=colours,
        alpha=0.45,
        label="down",
    )
    for place, item in enumerate(found):
        whole = item.bytes_up + item.bytes_down
        wire.text(whole, place, f" {item.bytes_up:.0f} + {item.bytes_down:.0f}", va="center")
        work.text(item.forwards, place, f" {item.forwards:.2f}", va="center")
    work.barh(places, [item.forwards for item in found], color=colours)
    wire.set_yticks(places, [NAMES[item.way] for item in found])
    wire.invert_yaxis()
    wire.set_title("bytes a token: up (full) + down (pale)", loc="left")
    work.set_title("target forwards a token", loc="left")
    for panel in (wire, work):
        panel.margins(x=0.2)
        panel.grid(axis="x")
        panel.set_axisbelow(True)


def by_gamma(figure: Figure, data: ReportData) -> None:
    """Tokens/s by γ for each fixed way, beside the baselines."""
    panel = figure.subplots()
    places = range(len(GAMMAS))
    for way in FIXED:
        speeds = [data.by_gamma[gamma][way].tokens_per_s for gamma in GAMMAS]
        panel.plot(places, speeds, "o-", color=COLOURS[way], label=NAMES[way])
    cloud = [data.by_gamma[gamma][Way.CLOUD].tokens_per_s for gamma in GAMMAS]
    panel.plot(places, cloud, "D--", color=COLOURS[Way.CLOUD], label=NAMES[Way.CLOUD], ms=4)
    auto = data.compared[Way.AUTO].tokens_per_s
    panel.axhline(
        auto, color=COLOURS[Way.AUTO], lw=4, alpha=0.4, label=f"{NAMES[Way.AUTO]} (its own γ)"
    )
    for way in (Way.STREAM, Way.PER_TOKEN):
        speed = data.compared[way].tokens_per_s
        panel.axhline(speed, color=COLOURS[way], ls="--", label=NAMES[way])
    panel.set_xticks(places, [str(gamma) for gamma in GAMMAS])
    panel.set_xlabel("γ, draft tokens a proposal")
    panel.set_ylabel("tokens/s")
    panel.set_ylim(bottom=0)
    panel.grid()
    figure.legend(loc="outside right center")
