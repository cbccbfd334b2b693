"""docs/benchmarks.md: what was measured, on what, and how to measure it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import contest, goals, plots, system
from benchmarks.results import Results, Row
from netsim.text import table

_TITLES = {
    "system": "Whole system",
    "peers": "Against what else there is",
    "on_device": "Draft and target on one device",
    "q_codec": "Draft probabilities on the wire",
    "service": "The verifier outside the model",
    "edge": "The edge outside the network",
    "sweep": "The simulator",
    "relay": "The relay",
    "capacity": "Capacity",
    "theory": "Tokens a round trip",
    "validation": "The simulation against the real programs",
}
_WORDS = {
    "system": """\
The built-in target and both drafts, verifier and edge on cores of their own, over the relay; a
prompt of each of four kinds (chat, code, JSON, creative) in a round, answers of 64 tokens, ways in
turn, one client for each draft, which knows link and models from before. Both ends have read the
prompt before, as in a conversation they have read most of it for the answer before.""",
    "peers": """\
The same models, prompts and threads, in turn, in one run, with no link in between. `ratio` is ours
(`against`) to the peer’s, the median of single turns: below 1 the peer is faster. In the cloud ours
has a core for the target and one for the draft, as on two machines; a peer has one core, or both
with a thread on each. transformers unpacks a GGUF draft to bfloat16, where a token of it costs
as much as one of the target. On the device, which is llama.cpp throughout, the target is the GGUF
file itself and so as quick as the draft “close”; only “small” is drafted with, and `auto` mostly
does without it.""",
    "on_device": """\
`edge-client local` beside llama.cpp’s own loop, the best and the median of the runs.""",
    "q_codec": """\
Along texts that the target draws at temperature 0.7: the chance that a draft token is accepted,
and what it takes in a proposal.""",
    "service": "Each ratio is of two things measured in turns, in one run.",
    "edge": "Draft loop, memory, and drafts that are of no use.",
    "sweep": "`netsim sweep`, as people run it.",
    "relay": "What it costs by itself, in microseconds.",
    "capacity": """\
One verifier on one core, clients over links of 50 ms. A client’s draft takes 10 ms a token and is
right 4 times in 5, as a model on a device of its own would; all else is real. Tokens/s are of all
clients together, from their openings to the last token of the last.""",
    "theory": """\
Synchronous rounds, simulated and of the real pair. Of one α: (1−α^(γ+1))/(1−α), which takes every
token for independent of the others, as the simulation draws them; in real texts the hard ones
come together. By place: 1 + α₁ + α₁α₂ + …, with the rates seen at each place of these rounds.""",
    "validation": """\
`netsim validate --by relay`: the small draft, medians of several runs.""",
}


def write(results: Results, folder: Path, *, quick: bool) -> None:
    """The page and its pictures, into a folder."""
    for picture in plots.pictures(results):
        (folder / f"{picture.name}.svg").write_text(picture.file, encoding="utf-8")
    page = "\n".join(_page(results, quick=quick))
    (folder / "benchmarks.md").write_text(page + "\n", encoding="utf-8")


def _page(results: Results, *, quick: bool) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield (
        "Written by `make bench`, from [benchmarks.json](benchmarks.json). `python -m benchmarks "
        "SUITE` measures one suite anew and leaves the others; `make bench QUICK=1` takes minutes, "
        "measures less of everything, and writes elsewhere."
    )
    if quick:
        yield "\n**A quick run: too few repetitions to quote.**"
    else:
        yield f"\n## What was to be reached\n\n{markdown(goals.rows(results))}"
        if causes := goals.causes(results):
            yield "\nWhat falls short, and why:\n"
            yield from causes
    for name, title in _TITLES.items():
        if name not in results.suites:
            continue
        suite = results.suites[name]
        yield f"\n## {title}\n\n{_WORDS[name]}"
        if name in plots.NAMES:
            yield f"\n![{title}]({plots.NAMES[name]}.svg)"
        if name == "system":
            yield from _contest(system.claims(suite.rows))
            yield "\nThe round of all ways; medians of its turns, least and most of them:"
        yield f"\n{markdown(suite.rows)}"
        on = ", ".join(f"{key} {value}" for key, value in suite.environment.items())
        yield f"\n`python -m benchmarks {name}`, {suite.seconds:.0f} s; {on}."


def _contest(claims: Sequence[Row]) -> Iterator[str]:
    found = Counter(claim["reached"] for claim in claims)
    yield f"""
`auto` against streaming, and against the best of all other ways, that is the one that it does worst
against. After the round of all ways, those go on with other prompts, for up to {system.ROUNDS}
rounds, of which it is not decided whether `auto` is {contest.AIM} times as fast or more. Ratios are
geometric means of single turns, with their interval of 99 % (Student's t). In bfloat16 tokens that
are evaluated together are rounded otherwise than alone, near ties fall otherwise, and how easy the
text then is to draft for is luck: of ways that draw alike the ratio is of the turns in which they
wrote the same text, if its interval is narrower than that of all turns. As it stops once it is
decided, one ratio in forty that is just {contest.AIM} would be taken for more.
"""
    yield markdown(claims)
    yield (
        f"\nOf {len(claims)} cases `auto` reaches {contest.AIM} against every other way in "
        f"{found['yes']}, not in {found['no']}; {found['undecided']} stay undecided."
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table of rows, which may have different keys."""
    head = _head(rows)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(row.get(key)) for key in head) + " |" for row in rows]
    return "\n".join(lines)


def aligned(rows: Sequence[Row]) -> str:
    """The same for a terminal."""
    head = _head(rows)
    return table(head, [[_cell(row.get(key)) for key in head] for row in rows])


def _head(rows: Sequence[Row]) -> list[str]:
    # What is a table of its own has no place in this one.
    found = (key for row in rows for key, value in row.items() if not isinstance(value, dict))
    return list(dict.fromkeys(found))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
