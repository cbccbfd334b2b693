"""What a comparison says, in words: first of all where edge speculation loses."""

from __future__ import annotations

from netsim.comparison import SAME, Comparison, Figures
from netsim.scenario import Way

NAMES = {
    Way.PER_TOKEN: "per-token calls",
    Way.STREAM: "cloud streaming",
    Way.CLOUD: "cloud-side speculation",
    Way.SYNC: "edge: synchronous",
    Way.PIPELINE: "edge: pipelined",
    Way.RUN_AHEAD: "edge: run-ahead",
    Way.AUTO: "edge: auto",
}
"""For tables and pictures."""

_ALONE = {
    Way.SYNC: "Synchronous edge speculation",
    Way.PIPELINE: "Pipelined edge speculation",
    Way.RUN_AHEAD: "Run-ahead edge speculation",
    Way.AUTO: "The edge's auto mode",
}


def verdicts(found: Comparison) -> list[str]:
    """Sentences on each edge way against streaming, then on the rest."""
    lines = [_against_streaming(found, item) for item in found.edge]
    best = found.best_edge
    if best is None:
        return ["No edge way was asked for."]
    lines.append(_summary(found, best))
    lines.append(_against_cloud(found, best))
    return lines


def headline(found: Comparison) -> str:
    """One sentence: the fastest edge way against streaming, and which edge ways lose to it."""
    best = found.best_edge
    if best is None:
        return "no edge way was asked for."
    speedup = found.speedup(best.way, Way.STREAM)
    lost = ", ".join(str(item.way) for item in found.losers() if item is not best)
    rest = f"; slower than streaming: {lost}" if lost else ""
    if speedup < 1 - SAME:
        return f"every edge way LOSES to cloud streaming; the best is {times(speedup)}."
    if speedup <= 1 + SAME:
        return f"no edge way saves anything over cloud streaming{rest}."
    return f"{best.way} is {times(speedup)} as cloud streaming{rest}."


def times(speedup: float) -> str:
    """“1.53 times as fast”, “2.1 times as slow”, “as fast”."""
    if abs(speedup - 1) <= SAME:
        return "as fast"
    if speedup > 1:
        return f"{speedup:.2f} times as fast"
    return f"{1 / speedup:.2f} times as slow"


def seconds(value: float) -> str:
    """A time for people."""
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def _against_streaming(found: Comparison, item: Figures) -> str:
    stream = found[Way.STREAM]
    speedup = found.speedup(item.way, Way.STREAM)
    both = f"takes {seconds(item.duration_s)}, streaming {seconds(stream.duration_s)}"
    if speedup < 1 - SAME:
        return f"{_ALONE[item.way]} LOSES to cloud streaming: it {both}, {times(speedup)}."
    if speedup <= 1 + SAME:
        return f"{_ALONE[item.way]} saves nothing over cloud streaming: it {both}."
    return f"{_ALONE[item.way]} beats cloud streaming: it {both}, {times(speedup)}."


def _summary(found: Comparison, best: Figures) -> str:
    speedup = found.speedup(best.way, Way.STREAM)
    if speedup <= 1 + SAME:
        calls = ""
        if found.speedup(best.way, Way.PER_TOKEN) > 1 + SAME:
            calls = (
                " That it is faster than per-token calls is no gain: "
                "no cloud needs to serve like that."
            )
        return (
            f"Here edge speculation is no saving: a cloud that streams is as fast or faster.{calls}"
        )
    ttft = best.ttft_s - found[Way.STREAM].ttft_s
    first = ""
    if ttft > 0.1 * found[Way.STREAM].ttft_s:
        first = f" Its first token comes {ttft * 1e3:.0f} ms later than streaming's."
    return f"Fastest edge way: {best.way}, {times(speedup)} as cloud streaming.{first}"


def _against_cloud(found: Comparison, best: Figures) -> str:
    speedup = found.speedup(best.way, Way.CLOUD)
    saved = found[Way.CLOUD].duration_s
    if speedup < 1 - SAME:
        return (
            f"Cloud-side speculation, with the draft beside the target, is faster still: "
            f"{seconds(saved)}, where the best edge way takes {seconds(best.duration_s)}; "
            "it needs a draft model in the cloud."
        )
    if speedup <= 1 + SAME:
        return "Cloud-side speculation is as fast; it needs a draft model in the cloud."
    return f"Cloud-side speculation takes {seconds(saved)}: the best edge way is {times(speedup)}."
