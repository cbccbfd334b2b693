"""The status line below an answer, made to fit."""

from __future__ import annotations

from edge_client.chat.cells import cut, width_of
from edge_client.options import Mode
from edge_client.result import Result, Status

_BETWEEN = " · "
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_S = 0.12


def status_line(status: Status, mode: Mode, width: int) -> str:
    """How an answer is going, in at most `width` cells.

    Where there is too little room, what matters least is left out first.
    """
    way = f"auto: {status.way}" if mode is Mode.AUTO else status.way
    drafts = status.way != "stream"
    # (place in the line, what it says), what matters most first.
    parts = [(4, f"{status.tokens_per_s:.1f} tokens/s"), (0, way)]
    if status.alpha is not None:
        parts.append((2, f"α {status.alpha:.2f}"))
    if drafts and status.per_round_trip > 0:
        parts.append((5, f"{status.per_round_trip:.2f} a round trip"))
    if drafts and status.gamma:
        parts.append((1, f"γ {status.gamma}"))
    if status.rtt_s is not None:
        parts.append((3, f"RTT {milliseconds(status.rtt_s)}"))
    parts.append((6, _tokens(status.tokens)))
    kept: list[tuple[int, str]] = []
    for part in parts:
        line = _joined([*kept, part])
        if width_of(line) <= width:
            kept.append(part)
    return _joined(kept) if kept else cut(parts[0][1], width)


def waiting_line(what: str, seconds: float, width: int) -> str:
    """What is waited for and how long it has been, in at most `width` cells."""
    frame = _FRAMES[int(seconds / _FRAMES_S) % len(_FRAMES)]
    since = f" · {seconds:.0f} s" if seconds >= 1 else ""
    room = width - width_of(since)
    return cut(cut(f"{frame} {what}", room) + since, width)


def account(result: Result) -> str:
    """One line about an answer that is done."""
    tokens = len(result.token_ids)
    parts = [
        "1 token" if tokens == 1 else f"{tokens} tokens",
        f"{result.tokens_per_s:.1f} tokens/s",
    ]
    if result.ttft_s > 0:
        parts.append(f"first after {milliseconds(result.ttft_s)}")
    way = max(result.ways, key=lambda key: result.ways[key]) if result.ways else result.mode
    parts.append(way if result.mode in (way, Mode.AUTO) else f"{result.mode}: {way}")
    if result.counts.alpha is not None:
        parts.append(f"α {result.counts.alpha:.2f}")
        parts.append(f"{tokens / max(result.counts.rounds, 1):.2f} a round trip")
    if result.finish_reason == "length":
        parts.append("cut at max-tokens")
    return _BETWEEN.join(parts)


def milliseconds(seconds: float) -> str:
    """A time for a person."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _joined(parts: list[tuple[int, str]]) -> str:
    return _BETWEEN.join(text for _, text in sorted(parts))
