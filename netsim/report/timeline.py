"""Who does what and when: edge below, cloud above, messages between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from netsim.report.data import TRACED, ReportData
from netsim.report.drawing import COLOURS, INK, plain
from netsim.scenario import Run, Scenario, Span, Way
from netsim.words import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EDGE, _CLOUD, _HALF = 0.0, 1.6, 0.2
_ROUNDS = 4
"""Synchronous rounds that are shown."""
_USELESS = 0.35
_DRAFT, _VERIFY, _UP, _DOWN = (
    COLOURS[Way.SYNC],
    COLOURS[Way.STREAM],
    COLOURS[Way.AUTO],
    COLOURS[Way.RUN_AHEAD],
)


def timeline(figure: Figure, data: ReportData) -> None:
    """A lane chart for each of the traced ways, on one scale of time."""
    panels = figure.subplots(len(TRACED), 1, sharex=True)
    base = data.study.base
    until = _until(base, data.traced)
    for panel, way in zip(panels, TRACED, strict=True):
        run = data.traced[way]
        _lanes(panel, run, base, until)
        count = sum(arrival <= until for arrival in run.arrivals)
        panel.set_title(f"{NAMES[way]}: {count} tokens in the first {until:.3g} s", loc="left")
    panels[-1].set_xlabel("seconds since the session was begun")
    _legend(figure)


def _until(base: Scenario, traced: dict[Way, Run]) -> float:
    """Long enough for some synchronous rounds, and for all ways on one scale."""
    sync = traced[Way.SYNC]
    begun = [span.begin for span in sync.spans if span.what == "verify"]
    rounds = begun[: _ROUNDS + 1]
    if len(rounds) <= _ROUNDS:
        return sync.duration_s
    return rounds[-1] + base.models.verify.mean + base.link.down.average_delay_s


def _lanes(panel: Axes, run: Run, base: Scenario, until: float) -> None:
    shown = [span for span in run.spans if span.begin < until]
    for span, useful in _drafts(shown):
        _bar(panel, span, _EDGE, _DRAFT, 1.0 if useful else _USELESS)
    for span in shown:
        if span.what == "draft":
            continue
        if span.what in ("prefill", "verify"):
            _bar(panel, span, _CLOUD, _VERIFY)
        elif span.what == "up":
            _flight(panel, span.begin, span.end, _EDGE + _HALF, _CLOUD - _HALF, _UP)
        else:
            _flight(panel, span.begin, span.end, _CLOUD - _HALF, _EDGE + _HALF, _DOWN)
    opening = base.link.up.average_delay_s
    panel.plot([0, opening], [_EDGE + _HALF, _CLOUD - _HALF], color=INK, lw=1, ls=":")
    line = _EDGE - _HALF - 0.17
    for time, count in sorted(Counter(run.arrivals).items()):
        if time <= until:
            panel.plot([time], [line], marker="|", ms=6, color=INK)
            if count > 1:
                panel.annotate(
                    str(count), (time, line), (3, 0), textcoords="offset points",
                    fontsize=8, va="center",
                )  # fmt: skip
    panel.set_yticks([_EDGE - _HALF - 0.17, _EDGE, _CLOUD], ["tokens", "edge", "cloud"])
    panel.set_ylim(_EDGE - 0.6, _CLOUD + 0.35)
    panel.set_xlim(0, until)
    panel.grid(axis="x")
    plain(panel)


def _drafts(spans: list[Span]) -> Iterator[tuple[Span, bool]]:
    """Draft tokens, and whether each came through: what follows a wrong one never does."""
    alive, due = True, -1
    for span in spans:
        if span.what == "draft":
            alive = span.useful and (alive or span.first != due)
            due = span.first + span.count
            yield span, alive


def _bar(panel: Axes, span: Span, lane: float, colour: str, alpha: float = 1.0) -> None:
    panel.broken_barh(
        [(span.begin, span.end - span.begin)],
        (lane - _HALF, 2 * _HALF),
        facecolor=colour,
        alpha=alpha,
        edgecolor="white",
        linewidth=0.4,
    )


def _flight(panel: Axes, begin: float, end: float, low: float, high: float, colour: str) -> None:
    panel.plot([begin, end], [low, high], color=colour, lw=1, alpha=0.85)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=_DRAFT, label="drafts"),
            Patch(color=_DRAFT, alpha=_USELESS, label="drafts in vain"),
            Patch(color=_VERIFY, label="target forward"),
            Line2D([], [], color=_UP, label="proposal up"),
            Line2D([], [], color=_DOWN, label="verdict down"),
            Line2D([], [], color=INK, ls=":", label="opening"),
            Line2D([], [], color=INK, marker="|", ls="", label="tokens are shown"),
        ],
        loc="outside lower center",
        ncols=7,
        fontsize=8,
    )
