"""`netsim plan`: how to deploy on a link, what to expect, and what would have to change."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from edge_client.policy import speed
from edge_client.policy.estimates import PROPOSAL_S
from edge_client.policy.speed import Conditions
from edge_client.steering import MOST_GAMMA
from netsim import axes, planning
from netsim.acceptance import Acceptance
from netsim.catalogue import profile_named
from netsim.commands.flags import at_least_one
from netsim.commands.measuring import add_measuring, measured
from netsim.comparison import SAME, Comparison, compare
from netsim.links import LinkModel
from netsim.planning import LONGEST_S, Planned, Threshold, plan
from netsim.scenario import EDGE, Scenario, Way
from netsim.scenario_file import MOST_SEEDS, MOST_TOKENS
from netsim.text import number, table
from netsim.times import EXTRA_S, Duration, Models
from netsim.words import NAMES, times, verdicts
from specwire.errors import BadRequest

_NEEDED = {"draft_ms": "--draft-ms", "verify_ms": "--verify-ms", "alpha": "--alpha"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = parser.add_argument_group(
        "by hand", "With --server these stand in for what would be measured."
    )
    group.add_argument("--rtt", metavar="MS", dest="rtt_ms", help="round trip")
    group.add_argument("--profile", metavar="NAME", help="a link of netsim profiles instead")
    group.add_argument("--draft-ms", metavar="MS", help="a draft token on the edge")
    group.add_argument("--verify-ms", metavar="MS", help="a target forward with one token")
    group.add_argument(
        "--extra-ms",
        metavar="MS",
        help=f"that a draft token adds to it (default: {EXTRA_S * 1e3:g})",
    )
    group.add_argument("--alpha", metavar="RATE", help="acceptance rate")
    group.add_argument(
        "--cloud-draft-ms", metavar="MS", help="a draft token in the cloud (default: as the edge)"
    )
    add_measuring(parser)
    parser.add_argument("--gamma", metavar="N", help="at most so many draft tokens a proposal")
    parser.add_argument("--tokens", type=int, metavar="N", help="to simulate (default: 256)")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each way (default: 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


@dataclass(frozen=True)
class Task:
    """What is planned for."""

    at: Conditions
    link: LinkModel
    cloud_draft_s: float | None
    most_gamma: int
    tokens: int
    seeds: tuple[int, ...]


def run(args: argparse.Namespace) -> int:
    """Plan, simulate the plan, and tell."""
    task = _task(args)
    planned = plan(task.at, cloud_draft_s=task.cloud_draft_s, most_gamma=task.most_gamma)
    found = _simulated(task, planned)
    if args.json:
        print(json.dumps(_to_json(task, planned, found), ensure_ascii=False))
    else:
        print("\n".join(_told(task, planned, found)))
    return 0


def _task(args: argparse.Namespace) -> Task:
    """The arguments, checked, and what they leave to measurement measured."""
    given = {
        name: axes.axis(name).read(value)
        for name in ("rtt_ms", "draft_ms", "verify_ms", "alpha", "profile")
        if (value := getattr(args, name)) is not None
    }
    extra_ms = _ms("--extra-ms", args.extra_ms)
    if "rtt_ms" in given and "profile" in given:
        raise BadRequest("give --rtt or --profile, not both")
    known: dict[str, float] = {}
    if args.server is not None:
        known = measured(args)
    elif missing := [flag for name, flag in _NEEDED.items() if name not in given]:
        raise BadRequest(f"{', '.join(missing)} missing; or give --server and --draft to measure")
    known |= {name: float(str(v)) for name, v in given.items() if name != "profile"}
    if "profile" in given:
        link = profile_named(str(given["profile"]))
    elif "rtt_ms" in known:
        link = LinkModel.symmetric(known["rtt_ms"] / 1e3)
    else:
        raise BadRequest("give --rtt or --profile, or --server to measure the link")
    at = Conditions(
        alphas=(known["alpha"],),
        draft_s=max(known["draft_ms"] / 1e3, 1e-6),
        verify_s=known["verify_ms"] / 1e3,
        extra_s=(known.get("extra_ms", EXTRA_S * 1e3) if extra_ms is None else extra_ms) / 1e3,
        rtt_s=link.rtt_s,
        message_s=PROPOSAL_S,
    )
    cloud = _ms("--cloud-draft-ms", args.cloud_draft_ms)
    gamma = axes.axis("gamma").read(args.gamma)
    return Task(
        at,
        link,
        None if cloud is None else cloud / 1e3,
        MOST_GAMMA if gamma is None else int(str(gamma)),
        at_least_one("--tokens", args.tokens, 256, most=MOST_TOKENS),
        tuple(range(at_least_one("--seeds", args.seeds, 4, most=MOST_SEEDS))),
    )


def _ms(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_S * 1e3:
        raise BadRequest(f"{flag} must be 0 to {LONGEST_S * 1e3:g} ms, not {text!r}")
    return value


def _simulated(task: Task, planned: Planned) -> Comparison:
    """Each way over the link with all it has, with the γ that is planned for it."""
    at = task.at
    cloud = at.draft_s if task.cloud_draft_s is None else task.cloud_draft_s
    scenario = Scenario(
        task.link,
        Models(
            Duration(at.draft_s), Duration(at.verify_s), at.extra_s, cloud_draft=Duration(cloud)
        ),
        Acceptance(tuple(at.alphas)),
        tokens=task.tokens,
        prompt=0,
    )
    gammas: dict[Way, int | None] = {
        Way(str(way)): planned.plans[way].gamma for way in planning.DRAFTING
    }
    gammas[Way.CLOUD] = planned.cloud_gamma
    gammas[Way.AUTO] = task.most_gamma
    baselines = compare([replace(scenario, gamma=gammas[Way.CLOUD])], (), task.seeds)[0]
    figures = list(baselines.figures)
    for way in EDGE:
        found = compare([replace(scenario, gamma=gammas[way])], (way,), task.seeds)[0]
        figures.append(found[way])
    return Comparison(tuple(figures))


# --------------------------------------------------------------------------- telling


def _told(task: Task, planned: Planned, found: Comparison) -> Iterator[str]:
    at = task.at
    yield (
        f"given: link {task.link.name}, round trip {at.rtt_s * 1e3:.4g} ms; draft "
        f"{at.draft_s * 1e3:.3g} ms a token, target {at.verify_s * 1e3:.3g} ms a forward and "
        f"{at.extra_s * 1e3:.3g} ms for each draft token in it; α {at.alphas[0]:.2f}"
    )
    yield from verdict(planned, found)
    yield ""
    yield _table(planned, found)
    yield ""
    yield "in the simulation, over the link with all it has:"
    yield from (f"• {line}" for line in verdicts(found))
    yield ""
    yield from _conditions(planned, agreed=planned.pays == _pays(found))


def _pays(found: Comparison) -> bool:
    """Whether an edge way is faster than streaming in the simulation."""
    best = found.best_edge
    return best is not None and found.speedup(best.way, Way.STREAM) > 1 + SAME


def verdict(planned: Planned, found: Comparison) -> Iterator[str]:
    """What to run. Where speed model and simulation part, the simulation knows more."""
    chosen, best = planned.chosen, found.best_edge
    assert best is not None
    promising = chosen if planned.pays else planned.best
    promised = promising.speed / planned.baselines[Way.STREAM]
    simulated = found.speedup(best.way, Way.STREAM)
    if planned.pays == _pays(found):
        if planned.pays:
            yield (
                f"plan:  {chosen.way} with γ {chosen.gamma} (--mode auto will choose it), about "
                f"{chosen.speed:.1f} tokens/s, {times(promised)} as streaming"
            )
        else:
            yield "plan:  plain streaming (--mode stream, or auto, which will choose it): drafting"
            yield "       does not pay here"
        return
    if planned.pays:
        yield "plan:  plain streaming (--mode stream): drafting does not pay here, though"
        yield "       --mode auto may draft"
    elif best.way is Way.AUTO:
        yield "plan:  --mode auto: drafting pays here"
    else:
        gamma = planned.plans[speed.Way(str(best.way))].gamma
        yield f"plan:  {best.way} with γ {gamma} (--mode {best.way} --gamma {gamma}): drafting pays"
        yield "       here, though --mode auto may not draft"
    yield f"       The speed model, which knows the round trip alone, promises {promised:.3f} times"
    yield "       the speed of streaming, the simulation, over the link with all it has,"
    yield f"       {simulated:.3f} times; it pays from {1 + SAME:.2f} on."


def _table(planned: Planned, found: Comparison) -> str:
    rows = []
    for item in found.figures:
        expected, gamma = _expected(planned, item.way)
        rows.append(
            [
                NAMES[item.way],
                gamma,
                number(expected, 1),
                number(item.tokens_per_s, 1),
                number(item.ttft_s, 3),
                number(found.speedup(item.way, Way.STREAM)),
            ]
        )
    head = ["way", "γ", "expected tok/s", "simulated tok/s", "TTFT s", "×stream"]
    return table(head, rows)


def _expected(planned: Planned, way: Way) -> tuple[float, str]:
    if way in planned.baselines:
        return planned.baselines[way], str(planned.cloud_gamma) if way is Way.CLOUD else "–"
    if way is Way.AUTO:
        return planned.chosen.speed, str(planned.chosen.gamma or "–")
    chosen = planned.plans[speed.Way(str(way))]
    return chosen.speed, str(chosen.gamma)


def _conditions(planned: Planned, *, agreed: bool) -> Iterator[str]:
    """What would have to change, or may. agreed: whether the simulation says the same."""
    lines = [line for each in planned.thresholds if (line := _condition(each, planned.pays))]
    if not agreed and lines:
        yield "by the speed model alone drafting begins or ceases to pay here, all else as it is:"
    elif planned.pays:
        yield "drafting goes on paying while, all else as it is:"
    elif lines:
        yield "drafting would pay with any one of these, all else as it is:"
    else:
        yield "no change of draft, link or target alone would make drafting pay here"
    yield from (f"  - {line}" for line in lines)


def _condition(each: Threshold, pays: bool) -> str:
    if each.value is None:
        return ""
    unit = f" {each.unit}" if each.unit else ""
    bound = "at least" if each.at_least else "at most"
    value = f"{_rounded(each.value, up=each.at_least)}{unit}"
    limit = LONGEST_S * 1e3
    if pays and not each.at_least and each.value >= limit:
        return f"{each.name}: any, up to {limit / 1e3:g} s"
    if pays:
        return f"{each.name}: {bound} {value} (now {each.now:.3g}{unit})"
    return f"{each.name}: {bound} {value} instead of {each.now:.3g}{unit} ({each.advice})"


def _rounded(value: float, *, up: bool) -> str:
    """Three digits, towards the side that pays."""
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    count = math.ceil(value / step) if up else math.floor(value / step)
    return f"{count * step:.3g}"


def _to_json(task: Task, planned: Planned, found: Comparison) -> dict[str, Any]:
    at = task.at
    return {
        "given": {
            "link": task.link.name,
            "rtt_ms": round(at.rtt_s * 1e3, 6),
            "draft_ms": round(at.draft_s * 1e3, 6),
            "verify_ms": round(at.verify_s * 1e3, 6),
            "extra_ms": round(at.extra_s * 1e3, 6),
            "alpha": round(at.alphas[0], 6),
        },
        "plan": {
            "way": str(planned.chosen.way),
            "gamma": planned.chosen.gamma,
            "window": planned.chosen.window,
            "tokens_per_s": round(planned.chosen.speed, 4),
        },
        "pays": planned.pays,
        "pays_simulated": _pays(found),
        "expected_tokens_per_s": {
            **{str(way): round(value, 4) for way, value in planned.baselines.items()},
            **{str(way): round(planned.plans[way].speed, 4) for way in planning.DRAFTING},
        },
        "gammas": {str(way): planned.plans[way].gamma for way in planning.DRAFTING},
        "thresholds": [each.to_json() for each in planned.thresholds],
        "simulated": found.to_json(),
        "verdicts": verdicts(found),
    }
