"""Figures as SVG for a page and as PNG files, the same bytes each time."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netsim.scenario import Way
from specwire.errors import Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#10151b"
"""Of texts and lines. On a page it follows the reader's theme: see `svg`."""
COLOURS = {
    Way.PER_TOKEN: "#8b9099",
    Way.STREAM: "#3d85c6",
    Way.CLOUD: "#8e6cc4",
    Way.SYNC: "#d97f24",
    Way.PIPELINE: "#b59a17",
    Way.RUN_AHEAD: "#2f9d6c",
    Way.AUTO: "#cc4c7a",
}
"""Middle tones, which stand out on white and on black."""
_DOTS_AN_INCH = 130
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_INKS = f"svg {{ --ink: {INK} }} @media (prefers-color-scheme: dark) {{ svg {{ --ink: #e7eaee }} }}"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.35,
    "grid.color": "#9aa0a6",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def drawn(draw: Callable[[Figure], None], name: str, width: float, height: float) -> Drawing:
    """A figure that `draw` fills. Sizes are in inches.

    Raises:
        Unsupported: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"pictures need the package {error.name}; install it with: "
            "pip install 'specwire[netsim]'"
        ) from error
    # The salt makes ids within the SVG the same each time, and different between figures.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        vector, pixels = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(
            pixels, format="png", dpi=_DOTS_AN_INCH, facecolor="white", metadata={"Software": None}
        )
    return Drawing(name, _for_page(vector.getvalue(), name), pixels.getvalue())


class Drawing:
    """A figure.

    svg: an element for an HTML page. png: a file's contents, on white.
    """

    def __init__(self, name: str, svg: str, png: bytes) -> None:
        self.name = name
        self.svg = svg
        self.png = png

    @property
    def file(self) -> str:
        """The SVG as a file of its own, in the ink of the reader's theme."""
        return self.svg.replace("<svg", f"<svg xmlns={_SVG!r} xmlns:xlink={_XLINK!r}", 1).replace(
            ">", f"><style>{_INKS}</style>", 1
        )


def _for_page(svg: str, name: str) -> str:
    """The element alone: ids its own on the page, ink by the page's theme, nothing outside."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    svg = re.sub(r"[ \t]+\n", "\n", svg)
    return re.sub(INK, "var(--ink)", svg, flags=re.IGNORECASE).strip()


def plain(axes: Axes) -> None:
    """Without a frame, for lanes and maps."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
