"""The baseline that drafts in the cloud, beside the target, and streams what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import simpy

from cloud_verifier.draft_share import Accepted, DraftShare
from netsim.acceptance import Knows
from netsim.scenario import Scenario

GAMMA = 4
"""Draft tokens of a round, where the scenario leaves them open."""


@dataclass
class Stream:
    """One client's session.

    knows: which tokens the draft knows. send: takes the number of tokens that leave for the
    client. forwards: that it took part in. share: of those forwards, each divided among the
    sessions in it.
    """

    knows: Knows
    send: Callable[[int], None]
    prompt: int
    made: int = 0
    prefilled: bool = False
    forwards: int = 0
    share: float = 0.0
    accepted: int = 0
    examined: int = 0
    drafts: Accepted = field(default_factory=Accepted)


class CloudSpeculation:
    """Drafts a few tokens for every session together, then examines them in one forward."""

    def __init__(self, env: simpy.Environment, scenario: Scenario, seed: int) -> None:
        self._env = env
        self._tokens = scenario.tokens
        self._gamma = scenario.gamma or GAMMA
        self._models = models = scenario.models
        self._draft = (models.cloud_draft or models.draft).sampler(random.Random(f"draft {seed}"))
        self._verify = models.verify.sampler(random.Random(f"verify {seed}"))
        self._share = DraftShare()
        self._streams: list[Stream] = []
        self._idle: simpy.Event | None = None
        env.process(self._run())

    def seat(self, stream: Stream) -> None:
        """Take a session in."""
        self._streams.append(stream)
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.succeed()

    def _run(self) -> Generator[simpy.Event, None, None]:
        env = self._env
        while True:
            batch = list(self._streams)
            if not batch:
                self._idle = env.event()
                yield self._idle
                continue
            drafted = self._drafted(batch)
            yield env.timeout(self._seconds(batch, drafted))
            for stream, count in zip(batch, drafted, strict=True):
                stream.share += 1 / len(batch)
                self._examine(stream, count)
            self._streams = [s for s in self._streams if s.made < self._tokens]

    def _drafted(self, batch: list[Stream]) -> list[int]:
        """How many tokens are drafted for each: not more than pay, as at a verifier.

        With its prompt a session only gets its first token, as soon as can be.
        """
        room = [self._tokens - stream.made - 1 if stream.prefilled else 0 for stream in batch]
        wanted = [min(self._gamma, each) for each in room]
        return self._share.of(
            [(count, s.drafts.alpha) for count, s in zip(wanted, batch, strict=True)]
        )

    def _seconds(self, batch: list[Stream], drafted: list[int]) -> float:
        models = self._models
        evaluated = len(batch) + sum(drafted)
        seconds = self._verify() + models.overhead_s
        seconds += models.further_s(len(batch), sum(drafted))
        # One token of all sessions at a time, as long as any has more to draft.
        seconds += sum(self._draft() for _ in range(max(drafted)))
        prompts = [stream for stream in batch if not stream.prefilled]
        for stream in prompts:
            stream.prefilled = True
            seconds += stream.prompt * models.prefill_s
        prefilled = sum(stream.prompt for stream in prompts)
        self._share.learn(evaluated + prefilled, seconds, prefilled=prefilled)
        return seconds

    def _examine(self, stream: Stream, drafted: int) -> None:
        accepted = 0
        while accepted < drafted and stream.knows(stream.made + accepted, accepted):
            accepted += 1
        examined = min(accepted + 1, drafted)
        stream.made += accepted + 1
        stream.forwards += 1
        stream.accepted += accepted
        stream.examined += examined
        stream.drafts.add(examined, accepted)
        stream.send(accepted + 1)
