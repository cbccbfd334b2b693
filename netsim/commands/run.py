"""`netsim run`: one scenario, every way, in a table and in words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from netsim import axes, parallel
from netsim.commands.flags import add_jobs, at_least_one
from netsim.commands.study import add_changes, changed
from netsim.comparison import Comparison, Figures, compare
from netsim.links import described
from netsim.scenario import Scenario, Span, Way
from netsim.scenario_file import BASELINES, Study, find_study, shipped
from netsim.simulation import simulate
from netsim.text import number, table
from netsim.words import NAMES, headline, verdicts
from specwire.errors import BadRequest
from specwire.formulas import expected_tokens_by_position

MOST_CASES = 64
_TRACED_LINES = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "scenario", nargs="?", help="a TOML file, or the name of one that comes along (--list)"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios that come along")
    parser.add_argument("--show", action="store_true", help="print the scenario's file instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--trace", action="store_true", help="tell who did what and when, with the first seed"
    )
    add_changes(parser)
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, and tell."""
    if args.list:
        for name, text in shipped().items():
            print(f"{name:<18}  {_title(text)}")
        return 0
    if args.scenario is None:
        raise BadRequest("give a scenario: a file that ends in .toml, or a name from --list")
    if args.show:
        print(_source(args.scenario), end="")
        return 0
    study = changed(find_study(args.scenario), args)
    found = _compared(study, at_least_one("--jobs", args.jobs, parallel.cores()))
    if args.json:
        print(json.dumps(_to_json(study, found, trace=args.trace), ensure_ascii=False))
        return 0
    print("\n".join(_told(study, found)))
    if args.trace:
        for case, scenario, _ in found:
            print("\n".join(_traced(study, case, scenario)))
    return 0


def _title(text: str) -> str:
    first = text.partition("\n")[0]
    return first.partition("=")[2].strip().strip('"')


def _source(name: str) -> str:
    if name in shipped():
        return shipped()[name]
    find_study(name)
    with open(name, encoding="utf-8") as file:
        return file.read()


# ------------------------------------------------------------------------ simulating

Case = Mapping[str, axes.Value]
Found = Sequence[tuple[Case, Scenario, Comparison]]


def _compared(study: Study, jobs: int) -> Found:
    cases = [dict(zip(study.vary, values, strict=True)) for values in product(*study.vary.values())]
    if len(cases) > MOST_CASES:
        raise BadRequest(
            f"[vary] makes {len(cases)} cases, and run shows {MOST_CASES} at most; "
            "use netsim sweep --scenario"
        )
    scenarios = [axes.apply(study.base, case) for case in cases]
    found = compare(scenarios, study.ways, study.seeds, jobs)
    return list(zip(cases, scenarios, found, strict=True))


def _theory(scenario: Scenario, way: Way) -> float | None:
    """Tokens a round yields in theory; None where γ or the acceptance varies."""
    acceptance, gamma = scenario.acceptance, scenario.gamma
    if way is not Way.SYNC or gamma is None or acceptance.recorded or acceptance.hard is not None:
        return None
    alphas = [*acceptance.alphas, *[acceptance.alphas[-1]] * gamma][:gamma]
    return expected_tokens_by_position(alphas)


# --------------------------------------------------------------------------- telling


def _told(study: Study, found: Found) -> Iterator[str]:
    base = study.base
    yield study.title or "A scenario of one's own"
    if study.note:
        yield study.note.strip()
    runs = f"{len(study.seeds)} run{'s' * (len(study.seeds) > 1)}"
    if base.clients > 1 and "clients" not in study.vary:
        runs += f", {base.clients} clients on one verifier"
    if base.connect:
        runs += ", each with a new connection"
    yield f"\n{base.tokens} tokens after a prompt of {base.prompt}, {runs}"
    if "profile" not in study.vary:
        yield f"link {described(base.link, varied=study.vary)}"
    yield ""
    yield _table(study, found)
    yield ""
    if any(comparison.clients > 1 for _, _, comparison in found):
        yield _load_table(study, found)
        yield ""
    for case, _, comparison in found:
        if case:
            yield f"• {_named(case)}: {headline(comparison)}"
        else:
            yield from (f"• {line}" for line in verdicts(comparison))


def _named(case: Case) -> str:
    return ", ".join(f"{name} {axes.AXES[name].shown(value)}" for name, value in case.items())


def _values(case: Case) -> list[str]:
    return [axes.AXES[name].shown(value) for name, value in case.items()]


def _table(study: Study, found: Found) -> str:
    head = [
        *study.vary, "way", "time s", "TTFT s", "tok/s", "tok/trip", "theory", "up B/tok",
        "down B/tok", "fwd/tok", "α", "×calls", "×stream", "×cloud",
    ]  # fmt: skip
    rows = [
        [*_values(case), *_cells(scenario, comparison, item)]
        for case, scenario, comparison in found
        for item in comparison.figures
    ]
    legend = (
        "×calls, ×stream, ×cloud: speed over per-token calls, cloud streaming and cloud-side\n"
        "speculation; below 1 is slower. tok/trip: tokens for each message that the edge sends."
    )
    return f"{table(head, rows, left=len(study.vary) + 1)}\n\n{legend}"


def _cells(scenario: Scenario, comparison: Comparison, item: Figures) -> list[str]:
    return [
        NAMES[item.way],
        number(item.duration_s),
        number(item.ttft_s, 3),
        number(item.tokens_per_s, 1),
        number(item.tokens_per_round_trip) if not _all(item) else "all",
        number(_theory(scenario, item.way)),
        number(item.bytes_up, 1),
        number(item.bytes_down, 1),
        number(item.forwards, 3),
        number(item.alpha),
        *(number(comparison.speedup(item.way, over)) for over in BASELINES),
    ]


def _load_table(study: Study, found: Found) -> str:
    head = [
        *study.vary, "way", "all tok/s", "ms/tok p50", "p95", "TTFT s p50", "p95",
        "pause ms p99", "fwd/tok", "×stream",
    ]  # fmt: skip
    rows = [
        [
            *_values(case),
            NAMES[item.way],
            number(item.load.tokens_per_s, 1),
            number(1e3 * item.load.token_p50_s, 1),
            number(1e3 * item.load.token_p95_s, 1),
            number(item.load.ttft_p50_s, 3),
            number(item.load.ttft_p95_s, 3),
            number(1e3 * item.load.pause_p99_s, 0),
            number(item.forwards, 3),
            number(item.load.tokens_per_s / comparison[Way.STREAM].load.tokens_per_s),
        ]
        for case, _, comparison in found
        for item in comparison.figures
    ]
    legend = (
        "All clients together: tokens/s until the last has its last, percentiles over clients and\n"
        "over pauses between tokens; one target forward serves every client that is ready."
    )
    return f"{table(head, rows, left=len(study.vary) + 1)}\n\n{legend}"


def _all(item: Figures) -> bool:
    return item.way in (Way.STREAM, Way.CLOUD)


def _traced(study: Study, case: Case, scenario: Scenario) -> Iterator[str]:
    for way, spans in _spans(study, scenario):
        words = [_named(case), NAMES[way], f"seed {study.seeds[0]}"]
        yield "\n" + ", ".join(word for word in words if word)
        for span in spans[:_TRACED_LINES]:
            idle = "" if span.useful else "  to no use"
            tokens = f"token {span.first}" + (
                f" to {span.first + span.count - 1}" if span.count > 1 else ""
            )
            yield f"{span.begin:9.4f} … {span.end:9.4f}  {span.what:<6}  {tokens}{idle}"
        if len(spans) > _TRACED_LINES:
            yield f"… and {len(spans) - _TRACED_LINES} more (all with --json)"


def _spans(study: Study, scenario: Scenario) -> Iterator[tuple[Way, list[Span]]]:
    for way in dict.fromkeys((*BASELINES, *study.ways)):
        first = replace(scenario, way=way, seed=study.seeds[0])
        yield way, simulate(first, trace=True)[0].spans


def _to_json(study: Study, found: Found, *, trace: bool) -> dict[str, Any]:
    base = study.base
    cases = []
    for case, scenario, comparison in found:
        theory = _theory(scenario, Way.SYNC)
        item: dict[str, Any] = {
            "vary": dict(case),
            "clients": comparison.clients,
            "link": {
                "name": scenario.link.name,
                "rtt_ms": round(scenario.link.rtt_s * 1e3, 6),
                "described": described(scenario.link),
            },
            "theory_tokens_per_round": None if theory is None else round(theory, 4),
            **comparison.to_json(),
            "verdicts": verdicts(comparison),
        }
        if trace:
            item["trace"] = {
                str(way): [
                    {
                        "what": span.what,
                        "begin_s": round(span.begin, 6),
                        "end_s": round(span.end, 6),
                        "first": span.first,
                        "count": span.count,
                        "useful": span.useful,
                    }
                    for span in spans
                ]
                for way, spans in _spans(study, scenario)
            }
        cases.append(item)
    return {
        "title": study.title,
        "tokens": base.tokens,
        "prompt": base.prompt,
        "clients": base.clients,
        "connect": base.connect,
        "seeds": list(study.seeds),
        "cases": cases,
    }
