"""What all answers of a conversation took together."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_client.result import Result


@dataclass
class Tally:
    """Sums over answers, complete or stopped. Times in seconds, bytes are payload."""

    answers: int = 0
    tokens: int = 0
    rounds: int = 0
    examined: int = 0
    accepted: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    reconnections: int = 0
    duration_s: float = 0.0
    held: int = 0
    """Tokens of the context that the last answer and all before it took."""
    ways: dict[str, int] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """Count an answer; one of which nothing came is none."""
        if not result.token_ids:
            return
        counts = result.counts
        self.answers += 1
        self.tokens += len(result.token_ids)
        self.rounds += counts.rounds
        self.examined += counts.examined
        self.accepted += counts.accepted
        self.bytes_up += result.bytes_up
        self.bytes_down += result.bytes_down
        self.reconnections += result.reconnections
        self.duration_s += result.duration_s
        self.held = result.prompt_tokens + len(result.token_ids)
        for way, tokens in result.ways.items():
            self.ways[way] = self.ways.get(way, 0) + tokens

    def lines(self, context: int) -> list[str]:
        """The account for a person; `context` is how many tokens fit, 0 if that is unknown."""
        if not self.answers:
            return ["no answers yet"]
        answers = "1 answer" if self.answers == 1 else f"{self.answers} answers"
        speed = self.tokens / self.duration_s if self.duration_s > 0 else 0.0
        lines = [
            f"{answers}, {self.tokens} tokens in {self.duration_s:.1f} s: {speed:.1f} tokens/s",
            f"{self.rounds} rounds, {self.tokens / max(self.rounds, 1):.2f} tokens a round trip"
            + (
                f"; {self.accepted} of {self.examined} draft tokens accepted "
                f"(α {self.accepted / self.examined:.2f})"
                if self.examined
                else "; no draft token examined"
            ),
        ]
        if self.ways:
            shares = sorted(self.ways.items(), key=lambda item: -item[1])
            lines.append("tokens by way: " + ", ".join(f"{n} {way}" for way, n in shares))
        links = f"; {self.reconnections} times reconnected" if self.reconnections else ""
        lines.append(f"{self.bytes_up} bytes up, {self.bytes_down} down{links}")
        if context:
            share = 100 * self.held / context
            lines.append(
                f"context at the last answer: {self.held} of {context} tokens ({share:.0f} %)"
            )
        return lines
