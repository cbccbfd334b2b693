"""Both state machines over a link that is played: what comes out is the target's own.

`tests.support.drivers` interleaves drafting, frames, forwards and faults at random.
Deterministic properties are checked over many seeds; distributions by chi-square,
each with the error probability of `tests.support.statistics.ERROR` (1e-6) and fixed
seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from specwire.drafting import Drafting
from specwire.limits import Limits
from specwire.qrow import QRow
from specwire.request import SessionRequest
from specwire.sampling import SamplingParams, distribution
from specwire.v1 import verifier_pb2 as pb
from tests.support.drivers import (
    Driver,
    Faults,
    Setup,
    TableDraft,
    drafts_only,
    make_setup,
    target_only,
)
from tests.support.statistics import ERROR, chi_square_p
from tests.support.tables import exact_outputs, random_table

WAIT, RUN_AHEAD = pb.PACING_WAIT, pb.PACING_RUN_AHEAD
REJECTION, COUPLED = pb.VERIFICATION_MODE_REJECTION, pb.VERIFICATION_MODE_COUPLED
CALM = Faults()
ROUGH = Faults(cut=0.1, restart=0.02, repeat=0.1, stop=0.01, exhaust=0.1, abandon=0.05, bound=0.3)

DRAFTINGS = {
    "none": Drafting(0, window=1),
    "sync 1": Drafting(1, window=1),
    "sync 3": Drafting(3, window=3),
    "sync 5": Drafting(5, window=5),
    "sync 5, unsure": Drafting(5, window=5, stop_below=0.5),
    "pipeline 1": Drafting(1, pipeline=True, window=4),
    "pipeline 2": Drafting(2, pipeline=True, window=5),
    "pipeline 4": Drafting(4, pipeline=True, window=8),
    "pipeline 3, window 3": Drafting(3, pipeline=True, window=3),
}


# ── whatever happens, the session goes on and ends ───────────────────────────────────


def random_setup(draw: random.Random, drafting: Drafting, pacing: pb.Pacing) -> Setup:
    """A small session of any kind."""
    size = 4
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.7, 1.0]),
        top_k=draw.choice([0, 3]),
        repetition_penalty=draw.choice([1.0, 1.3]),
        frequency_penalty=draw.choice([0.0, 0.5]),
    )
    target = random_table(size, draw.randrange(6))
    setup = make_setup(
        target,
        target if draw.random() < 0.3 else random_table(size, draw.randrange(6)),
        drafting,
        params=params,
        end_ids=draw.choice([frozenset(), frozenset({3})]),
    )
    return replace(
        setup,
        mode=draw.choice([REJECTION, COUPLED]),
        pacing=pacing,
        prompt=tuple(draw.randrange(size) for _ in range(draw.randint(1, 3))),
        max_tokens=draw.randint(1, 14),
        stops=draw.choice([(), ("ab",), ("bca", "c")]),
        limits=Limits(context=64, gamma=max(drafting.gamma, 1), chain=drafting.window + 3),
        serialise=True,
        offline=draw.choice([0, drafting.window, drafting.window + 3]),
    )


@pytest.mark.parametrize("faults", [CALM, ROUGH], ids=["calm", "rough"])
@pytest.mark.parametrize("pacing", [WAIT, RUN_AHEAD], ids=["wait", "run ahead"])
@pytest.mark.parametrize("name", DRAFTINGS)
def test_every_interleaving_ends_and_nothing_is_lost_or_twice(
    name: str, pacing: pb.Pacing, faults: Faults
) -> None:
    """No deadlock, edge always a prefix of cloud, and where the target decides alone, its text.

    `Driver` asserts the first two at each step.
    """
    draw = random.Random(f"{name} {pacing} {faults}")
    for _ in range(150):
        setup = replace(random_setup(draw, DRAFTINGS[name], pacing), faults=faults)
        seed = draw.getrandbits(64)
        driver = Driver(setup, seed)
        output = driver.run()
        assert driver.steps < 2_000
        if setup.mode == COUPLED or setup.target.params.greedy:
            assert output == target_only(setup, seed)
        assert_finished_as_it_should(driver, output)


def assert_finished_as_it_should(driver: Driver, output: list[int]) -> None:
    setup, finished = driver.setup, driver.edge.finished
    assert finished is not None
    text = setup.vocabulary.decode(output).decode()
    ends = setup.vocabulary.end_ids
    assert not any(token in ends for token in output[:-1])
    assert not any(stop in text[:-1] for stop in setup.stops)
    if output[-1] in ends:
        assert finished.reason == pb.FINISH_REASON_END_TOKEN
    elif any(text.endswith(stop) for stop in setup.stops):
        assert finished.reason == pb.FINISH_REASON_STOP_STRING
        assert text.endswith(setup.stops[finished.stop_index])
    else:
        assert finished.reason == pb.FINISH_REASON_LENGTH
        assert len(output) == setup.max_tokens
    assert finished.usage.output_tokens == len(output)
    assert finished.usage.prompt_tokens == len(setup.prompt)


def test_the_driver_really_does_what_it_says() -> None:
    """Faults happen, drafts get accepted, and runs of one seed are alike."""
    setup = make_setup(
        random_table(3, 1), random_table(3, 1), DRAFTINGS["pipeline 2"], max_tokens=12
    )
    calm = [Driver(setup, seed) for seed in range(50)]
    accepted = sum(drafts_only(driver.delivered) for driver in calm if driver.run())
    assert accepted > 250
    rough = [Driver(replace(setup, faults=ROUGH), seed) for seed in range(50)]
    outputs = [driver.run() for driver in rough]
    assert sum(driver.cuts for driver in rough) > 50
    assert sum(driver.restarts for driver in rough) > 10
    again = [Driver(replace(setup, faults=ROUGH), seed) for seed in range(50)]
    assert [driver.run() for driver in again] == outputs


def test_without_faults_every_draft_token_is_accounted_for() -> None:
    """Sent = examined + stale + left over at the end; both ends count the same."""
    draw = random.Random(5)
    for _ in range(300):
        name = draw.choice([name for name in DRAFTINGS if name != "none"])
        setup = random_setup(draw, DRAFTINGS[name], draw.choice([WAIT, RUN_AHEAD]))
        driver = Driver(setup, draw.getrandbits(64))
        driver.run()
        edge, cloud, usage = driver.edge, driver.cloud, driver.cloud.usage()
        assert (edge.counts.rounds, edge.counts.examined, edge.counts.accepted) == (
            usage.rounds,
            usage.examined,
            usage.accepted,
        )
        assert usage.accepted == drafts_only(driver.delivered)
        under_way = sum(len(proposal.tokens) for proposal in driver.up)
        waiting = len(cloud._chain.tokens)
        assert edge.counts.proposed == usage.examined + cloud.stale + waiting + under_way
        assert edge.counts.accepted_by_position == sorted(
            edge.counts.accepted_by_position, reverse=True
        )


def test_a_perfect_draft_is_accepted_whole() -> None:
    """Sync, γ 4, draft = target, greedy: five tokens a round."""
    table = random_table(5, 2)
    setup = make_setup(
        table,
        table,
        Drafting(4, window=4),
        params=SamplingParams(temperature=0),
        max_tokens=20,
    )
    driver = Driver(setup, 1)
    driver.run()
    assert driver.edge.counts.alpha == 1.0
    assert driver.edge.counts.rounds == 4


# ── distributions ────────────────────────────────────────────────────────────────────

SIZE = 3
TARGET, DRAFT = random_table(SIZE, 1), random_table(SIZE, 2)
CUT = Faults(cut=0.02, restart=0.003, repeat=0.02, bound=0.2)


def outputs(setup: Setup, runs: int, length: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(Driver(setup, seed).run()[:length]) for seed in range(runs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafting", "pacing"),
    [
        (Drafting(3, window=3), WAIT),
        (Drafting(3, window=3), RUN_AHEAD),
        (Drafting(2, pipeline=True, window=6), WAIT),
    ],
    ids=["sync", "run ahead", "pipeline"],
)
def test_three_tokens_are_distributed_as_the_target(drafting: Drafting, pacing: pb.Pacing) -> None:
    """10 000 sessions over a link that breaks. Error probability 1e-6."""
    setup = make_setup(TARGET, DRAFT, drafting, pacing=pacing, faults=CUT, max_tokens=4)
    seen = outputs(setup, 10_000, 3)
    assert chi_square_p(seen, exact_outputs(TARGET, setup.target.params, 0, 3)) > ERROR


OFFLINE = Faults(cut=0.1, restart=0.02, repeat=0.02, bound=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafting", "pacing"),
    [
        (Drafting(2, window=2), WAIT),
        (Drafting(2, window=2), RUN_AHEAD),
        (Drafting(2, pipeline=True, window=4), WAIT),
        (Drafting(2, pipeline=True, window=4), RUN_AHEAD),
    ],
    ids=["sync", "sync run ahead", "pipeline", "pipeline run ahead"],
)
def test_what_is_drafted_without_a_link_does_not_bend_the_distribution(
    drafting: Drafting, pacing: pb.Pacing
) -> None:
    """10 000 sessions whose tails, end tokens in them, are sent at once. Error 1e-6."""
    table = np.log(np.array([[0.4, 0.25, 0.35], [0.5, 0.2, 0.3], [0.3, 0.4, 0.3]]))
    setup = make_setup(table, DRAFT, drafting, pacing=pacing, max_tokens=6, end_ids=frozenset({2}))
    setup = replace(setup, faults=OFFLINE, offline=5)
    assert chi_square_p(outputs(setup, 10_000, 3), texts(table, 2, 3)) > ERROR


def test_truncated_sampling_over_a_pipeline_that_runs_ahead() -> None:
    """S2 over both machines: top_k at both ends. Error probability 1e-6."""
    params = SamplingParams(temperature=0.8, top_k=2)
    setup = make_setup(
        TARGET,
        DRAFT,
        Drafting(1, pipeline=True, window=4),
        params=params,
        pacing=RUN_AHEAD,
        faults=CUT,
        max_tokens=3,
    )
    seen = outputs(setup, 6_000, 2)
    exact = exact_outputs(TARGET, params, 0, 2)
    assert 0.0 in exact.values()
    assert chi_square_p(seen, exact) > ERROR


class Liar(TableDraft):
    """Draws from q and claims another."""

    def next(
        self, request: SessionRequest, prefix: list[int], chain: int
    ) -> tuple[int, QRow | None]:
        token, row = super().next(request, prefix, chain)
        assert row is not None
        if len(row.ids) < 2:
            return token, row
        return token, QRow(row.ids, np.roll(row.probs, 1))


def test_a_q_that_is_not_what_was_sampled_is_found_out() -> None:
    """What the tests above are able to see."""
    setup = make_setup(TARGET, DRAFT, Drafting(3, window=3), max_tokens=3)
    lying = replace(setup, draft=Liar(DRAFT, SamplingParams()))
    seen = outputs(lying, 4_000, 2)
    assert chi_square_p(seen, exact_outputs(TARGET, SamplingParams(), 0, 2)) < ERROR


# ── end tokens must not come early or late ───────────────────────────────────────────


def texts(table: np.ndarray, end: int, length: int) -> dict[tuple[int, ...], float]:
    """The target's own texts of up to `length` tokens, exactly."""
    p = distribution(table, SamplingParams())

    def extend(text: tuple[int, ...], chance: float) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(text) == length or text[-1:] == (end,):
            yield text, chance
            return
        for token in range(len(table)):
            before = text[-1] if text else 0
            yield from extend((*text, token), chance * float(p[before, token]))

    return dict(extend((), 1.0))


@pytest.mark.parametrize(
    ("drafting", "pacing"),
    [
        (Drafting(4, window=4), RUN_AHEAD),
        (Drafting(4, pipeline=True, window=8), RUN_AHEAD),
        (Drafting(3, pipeline=True, window=3), WAIT),
    ],
    ids=["sync run ahead", "pipeline run ahead", "pipeline wait"],
)
def test_a_drafted_end_token_is_not_sent_sooner_than_another(
    drafting: Drafting, pacing: pb.Pacing
) -> None:
    """When a draft token is sent must not depend on which it is (design, invariant 2).

    An end token whose proposal left early, because nothing would follow it, would
    overtake the token that the cloud draws meanwhile: texts would end too soon.
    Error probability 1e-6.
    """
    table = np.log(np.array([[0.4, 0.25, 0.35]] * 3))
    setup = make_setup(table, table, drafting, pacing=pacing, max_tokens=6, end_ids=frozenset({2}))
    assert chi_square_p(outputs(setup, 8_000, 3), texts(table, 2, 3)) > ERROR
