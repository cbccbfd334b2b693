"""`netsim report`: a page with pictures of one scenario."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from netsim import parallel
from netsim.commands.flags import add_jobs, at_least_one
from netsim.commands.study import add_changes, changed
from netsim.report import charts
from netsim.report.data import ReportData, gather
from netsim.report.drawing import Drawing, drawn
from netsim.report.page import page
from netsim.report.timeline import timeline
from netsim.scenario_file import default_study, find_study
from netsim.words import verdicts
from specwire.errors import BadRequest

_SIZES = {
    "timeline": (timeline, 10.5, 7.0),
    "savings": (charts.savings, 10.5, 5.6),
    "map": (charts.break_even, 11.5, 4.4),
    "costs": (charts.costs, 10.5, 3.4),
    "gamma": (charts.by_gamma, 9.0, 4.2),
}
"""What draws each picture, and how large it is, in inches."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--scenario", metavar="NAME", help="a TOML file, or one of netsim run --list"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("netsim-report"),
        metavar="FOLDER",
        help="is made if need be (default: %(default)s)",
    )
    add_changes(parser)
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, draw, write."""
    study = changed(find_study(args.scenario) if args.scenario else default_study(), args)
    if study.vary:
        raise BadRequest(
            f"a report is of one scenario, and this one varies {', '.join(study.vary)}; "
            "fix it with a flag, or use netsim run"
        )
    if args.out.exists() and not args.out.is_dir():
        raise BadRequest(f"--out {args.out} is a file; give a folder")
    args.out.mkdir(parents=True, exist_ok=True)
    data = gather(study, at_least_one("--jobs", args.jobs, parallel.cores()))
    drawings = draw(data)
    for name, drawing in drawings.items():
        (args.out / f"{name}.png").write_bytes(drawing.png)
    (args.out / "index.html").write_text(page(data, drawings), encoding="utf-8")
    numbers = json.dumps(data.to_json(), ensure_ascii=False, indent=1)
    (args.out / "data.json").write_text(numbers + "\n", encoding="utf-8")
    print("\n".join(f"• {line}" for line in verdicts(data.compared)))
    print(f"{args.out / 'index.html'}, {len(drawings)} PNG files and data.json written")
    return 0


def draw(data: ReportData) -> dict[str, Drawing]:
    """All pictures, by name."""
    return {
        name: drawn(lambda figure, paint=paint: paint(figure, data), name, width, height)  # type: ignore[misc]
        for name, (paint, width, height) in _SIZES.items()
    }
