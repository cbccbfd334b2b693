"""The page: words first, then the table and the pictures. It needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from netsim.comparison import Comparison
from netsim.links import described
from netsim.report.data import ALPHAS, RTTS_MS, ReportData
from netsim.report.drawing import Drawing
from netsim.scenario import Scenario, Way
from netsim.scenario_file import BASELINES
from netsim.text import number
from netsim.words import NAMES, verdicts

_CSS = """
:root { color-scheme: light dark; --ink: #10151b; --paper: #ffffff; --pale: #f0f2f4;
  --line: #c9ced4; --loss: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --paper: #14181d;
  --pale: #1f252c; --line: #3a424b; --loss: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
svg { width: 100%; height: auto; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
tr.baseline { background: var(--pale); }
.loses { color: var(--loss); font-weight: 600; }
"""


_HOW = (
    "By simulation: the state machines of both ends and the policy are the real ones, models are "
    "times and acceptance rates, the link is a model. Speed over a baseline is the baseline’s time "
    "over the way’s. Each baseline is given its due: streaming pays the round trip once, and "
    "speculation in the cloud has the same draft."
)


def page(data: ReportData, drawings: dict[str, Drawing]) -> str:
    """The whole HTML page."""
    title = data.study.title or "What edge speculation saves"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_scenario(data),
        "<h2>What comes of it, and where edge speculation loses</h2>",
        *_findings(data),
        _table(data.compared),
        *_section(
            "Timeline of a session",
            "Above works the cloud, below the edge; the lines between them are messages on their "
            "way. Streaming keeps the target busy. Waiting for a verdict leaves both ends idle "
            "for a round trip; running ahead does not. Pale drafts come to nothing.",
            drawings["timeline"],
        ),
        *_section("On which link", _on_links(data), drawings["savings"]),
        *_section("Break-even by round trip and acceptance rate", _even(data), drawings["map"]),
        *_section(
            "Bytes and target forwards",
            "Bytes are on the wire, with the headers of TLS, TCP and IP, which weigh more than "
            "the tokens. A target forward is what a verifier pays for.",
            drawings["costs"],
        ),
        *_section(
            "Sensitivity to γ",
            "How many draft tokens a proposal holds, for the ways that keep to it.",
            drawings["gamma"],
        ),
        "<h2>How this was found</h2>",
        f"<p>{escape(_HOW)}</p>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _scenario(data: ReportData) -> Iterator[str]:
    study, base = data.study, data.study.base
    if study.note:
        yield f"<p>{escape(study.note.strip())}</p>"
    runs = f"{len(study.seeds)} run{'s' * (len(study.seeds) > 1)}"
    yield f"<p>{escape(in_words(base))} {runs} of each way.</p>"


def in_words(base: Scenario) -> str:
    """The scenario in a sentence or two."""
    models = base.models
    gamma = "left to the policy" if base.gamma is None else str(base.gamma)
    clients = f" {base.clients} clients share one verifier." if base.clients > 1 else ""
    return (
        f"Link {described(base.link)}. Draft "
        f"{models.draft.mean * 1e3:.3g} ms a token, target {models.verify.mean * 1e3:.3g} ms a "
        f"forward and {models.extra_s * 1e3:.3g} ms for each draft token in it, "
        f"α {base.acceptance.mean:.2f}, γ {gamma}; {base.tokens} tokens after a prompt of "
        f"{base.prompt}.{clients}"
    )


def _findings(data: ReportData) -> Iterator[str]:
    yield "<ul>"
    for line in verdicts(data.compared):
        mark = ' class="loses"' if " LOSES " in line else ""
        yield f"<li{mark}>{escape(line)}</li>"
    yield "</ul>"


def _table(found: Comparison) -> str:
    head = (
        "way", "time s", "TTFT s", "tokens/s", "tokens a round trip", "bytes up", "bytes down",
        "forwards", "× per-token calls", "× streaming", "× cloud-side speculation",
    )  # fmt: skip
    rows = []
    for item in found.figures:
        trip = number(item.tokens_per_round_trip)
        cells = [
            NAMES[item.way],
            number(item.duration_s),
            number(item.ttft_s, 3),
            number(item.tokens_per_s, 1),
            "all" if item.way in (Way.STREAM, Way.CLOUD) else trip,
            number(item.bytes_up, 1),
            number(item.bytes_down, 1),
            number(item.forwards, 3),
            *(number(found.speedup(item.way, over)) for over in BASELINES),
        ]
        kind = ' class="baseline"' if item.baseline else ""
        rows.append(f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    titles = "".join(f"<th>{escape(text)}</th>" for text in head)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        "<p>Bytes and target forwards are for each token; shaded rows are the baselines; a speed "
        "below 1 is slower.</p>"
    )


def _section(title: str, words: str, drawing: Drawing) -> Sequence[str]:
    return (
        f"<h2>{escape(title)}</h2>",
        f"<p>{escape(words)}</p>",
        f'<figure role="img" aria-label="{escape(title)}">{drawing.svg}</figure>',
    )


def _on_links(data: ReportData) -> str:
    lines = []
    for way, name in ((Way.SYNC, "Synchronous speculation"), (Way.AUTO, "The auto mode")):
        lost = data.lost(way)
        every = "every link shown" if len(lost) == len(data.by_profile) else ", ".join(lost)
        lines.append(
            f"{name} loses to streaming on {every}." if lost
            else f"{name} loses to streaming on none of these links."
        )  # fmt: skip
    return "The same models and drafts on every link that has a name. " + " ".join(lines)


def _even(data: ReportData) -> str:
    lines = []
    for way, name in ((Way.SYNC, "Synchronous speculation"), (Way.AUTO, "The auto mode")):
        reach = data.break_even(way)
        told = [
            f"{f'up to {longest} ms' if longest else 'only without any delay'} with α {alpha:g}"
            + (" (the map’s end)" if longest == RTTS_MS[-1] else "")
            for alpha, longest in reach.items()
            if longest is not None and alpha in ALPHAS[2::2]
        ]
        lines.append(
            f"{name} beats streaming {', '.join(told)}." if told
            else f"{name} beats streaming nowhere for the rates {ALPHAS[2]:g} to {ALPHAS[-2]:g}."
        )  # fmt: skip
    return "Numbers below 1 are losses; beyond the black line more than 2 % is saved. " + " ".join(
        lines
    )
