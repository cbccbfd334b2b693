"""The picture of a demo: tokens over time, a line for each way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from netsim.links import LinkModel
from netsim.real import Measured

_COLOURS = {"per-token": "#8a8f98", "stream": "#3b7dd8", "auto": "#d9622b"}
_NAMES = {"per-token": "a call for each token", "stream": "streaming", "auto": "edge drafts"}


def draw(measured: Sequence[Measured], model: LinkModel, file: Path) -> None:
    """Draw how many tokens had come at each time; the file's ending says the format.

    Raises:
        OSError: the file can't be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for run in measured:
        times = [0.0, *(arrival.at_s for arrival in run.arrivals)]
        axes.step(
            times,
            range(len(times)),
            where="post",
            label=f"{_NAMES[run.way]}: {run.tokens_per_s:.1f} tokens/s",
            color=_COLOURS[run.way],
            linewidth=2,
        )
    axes.set_xlabel("seconds")
    axes.set_ylabel("tokens")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{model.name}, round trip {model.rtt_s * 1e3:.0f} ms")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "specwire"}):
        figure.savefig(file, dpi=150)
