"""The picture of a demo: tokens over time, a line for each way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from netsim.links import LinkModel
from netsim.real import Measured
from specwire.errors import BadRequest, Unsupported

_COLOURS = {"per-token": "#8a8f98", "stream": "#3b7dd8", "auto": "#d9622b"}
_NAMES = {"per-token": "a call for each token", "stream": "streaming", "auto": "edge drafts"}

_ENDINGS = (".svg", ".png")


def check_picture(file: Path) -> None:
    """Whether a picture could be written there.

    Raises:
        BadRequest: the name's ending is no format, or the place can't be written.
        Unsupported: matplotlib is not installed.
    """
    if file.suffix.lower() not in _ENDINGS:
        raise BadRequest(f"--picture {file}: give a name that ends in {' or '.join(_ENDINGS)}")
    if not file.parent.is_dir():
        raise BadRequest(f"--picture {file}: there is no folder {file.parent}; make it first")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadRequest(f"--picture {file} can't be written; give another place")
    if find_spec("matplotlib") is None:
        raise Unsupported(
            "pictures need the package matplotlib; install it with: pip install 'specwire[demo]'"
        )


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
